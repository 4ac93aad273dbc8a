//! Maps the sockets of a process to the NAPI instances that the kernel records for them. Quell's epoll gets the NAPI ID from a
//! duplicate of such a socket. This does not change the process or read data, and each duplicate is closed immediately.

use std::collections::BTreeMap;

use quell_linux::pidfd::{BriefDuplicate, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcError, ProcRoot};
use quell_linux::{NapiId, Pid, socket_options};

/// Candidates per NAPI instance. One is not enough, because a socket may be closed or change its queue at any time.
pub(super) const CANDIDATES: usize = 3;

/// A socket of another process for which the kernel records a NAPI instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketOnNapi {
    pub(super) pid: Pid,
    pub(super) fd: i32,
    inode: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketsError {
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    PidFd(#[from] PidFdError),
}

impl SocketOnNapi {
    /// Duplicates the socket; `None` if it was closed.
    pub(super) fn duplicate(&self) -> Option<BriefDuplicate> {
        let duplicate = PidFd::open(self.pid).and_then(|process| process.duplicate_briefly(self.fd)).ok()?;
        // The descriptor may have been reused.
        (duplicate.inode().ok() == Some(self.inode)).then_some(duplicate)
    }
}

/// Sockets of a process by NAPI instance, at most [`CANDIDATES`] each. With `wanted`, only sockets of that instance.
///
/// A snapshot would take too long while a queue may be suspended: it lists the sockets of whole namespaces and reads
/// more options. For one queue, this search stops at the first candidates.
pub(super) fn sockets_on(
    proc: &ProcRoot,
    pid: Pid,
    wanted: Option<NapiId>,
) -> Result<BTreeMap<NapiId, Vec<SocketOnNapi>>, SocketsError> {
    let handle = PidFd::open(pid)?;
    let mut found: BTreeMap<NapiId, Vec<SocketOnNapi>> = BTreeMap::new();
    for open in proc.process(pid).fds()? {
        let FdKind::Socket { inode } = open.kind else { continue };
        let napi = match handle.duplicate_briefly(open.number) {
            Ok(socket) => socket_options::incoming_napi_id(&socket),
            Err(PidFdError::NoSuchFd { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let Ok(Some(napi)) = napi else { continue };
        if wanted.is_some_and(|wanted| wanted != napi) {
            continue;
        }
        let candidates = found.entry(napi).or_default();
        if candidates.len() < CANDIDATES {
            candidates.push(SocketOnNapi { pid, fd: open.number, inode });
        } else if wanted.is_some() {
            break;
        }
    }
    Ok(found)
}
