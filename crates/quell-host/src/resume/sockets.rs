//! Which sockets of a process arrive by which NAPI instance: a duplicate of one is what an own epoll learns a NAPI id
//! from. Nothing of the process is changed, no socket is read, and no duplicate outlives the question that it is for.

use std::collections::BTreeMap;

use quell_linux::pidfd::{BriefDuplicate, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcError, ProcRoot};
use quell_linux::{NapiId, Pid, socket_options};

/// Candidates of one NAPI instance: some may be closed, or arrive by another one, a moment later.
pub(super) const CANDIDATES: usize = 3;

/// A socket of another process that received its last packet by a NAPI instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketOnNapi {
    pub(super) pid: Pid,
    /// Its number in that process.
    pub(super) fd: i32,
    inode: u64,
}

/// Why the sockets of a process could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketsError {
    /// What it has open cannot be listed.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// Its files cannot be duplicated.
    #[error(transparent)]
    PidFd(#[from] PidFdError),
}

impl SocketOnNapi {
    /// A duplicate; `None` when the socket is closed by now.
    pub(super) fn duplicate(&self) -> Option<BriefDuplicate> {
        let duplicate = PidFd::open(self.pid).and_then(|process| process.duplicate_briefly(self.fd)).ok()?;
        // The number may be another file's by now.
        (duplicate.inode().ok() == Some(self.inode)).then_some(duplicate)
    }
}

/// Sockets of a process by the instance that they arrive by, at most [`CANDIDATES`] each; with `wanted`, only those on
/// that instance.
///
/// # Errors
/// When the process is gone, or may not be looked into.
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
