//! Filter of a reuseport group in another process, attached and detached through a duplicate of one of its sockets. The
//! duplicate is open only for a few system calls, never during a write to disk. While it is open, the program's own
//! `close` does not close the socket.

use quell_linux::pidfd::{BriefDuplicate, PidFd};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::reuseport::{Detachment, attach, detach};

use super::SettingsError;
use crate::journal::{ReuseportFilter, UndoOutcome};
use crate::namespaces;
use crate::steer::{GroupKey, Steering, waiting_sockets};

/// A group and the filter to attach.
#[derive(Debug)]
pub(crate) struct PutOn {
    change: ReuseportFilter,
    /// All listening and unconnected sockets of the namespace.
    waiting: Vec<u64>,
}

impl PutOn {
    /// Verifies that the group is unchanged and that one of its sockets is accessible.
    ///
    /// # Errors
    /// When the group has changed, or no process that holds its sockets may be inspected.
    pub(crate) fn prepare(proc: &ProcRoot, steering: &Steering) -> Result<Self, SettingsError> {
        let key = steering.group.key;
        let group = || key.to_string();
        let namespace =
            namespaces::by_inode(proc, key.namespace)?.ok_or_else(|| SettingsError::Gone { what: group() })?;
        let waiting = waiting_sockets(&namespace)?;
        let mut there: Vec<u64> =
            waiting.iter().filter(|socket| socket.key == key).map(|socket| socket.inode).collect();
        there.sort_unstable();
        if !there.iter().eq(steering.group.members.iter().map(|member| &member.inode)) {
            return Err(SettingsError::GroupChanged { group: group() });
        }
        held(proc, &there)?.ok_or_else(|| SettingsError::HeldElsewhere { group: group() })?;
        let namespace_cookie = namespace.cookie()?;
        let GroupKey { protocol, local, .. } = key;
        let change = ReuseportFilter { namespace_cookie, protocol, local, sockets: there };
        let waiting = waiting.iter().map(|socket| socket.inode).collect();
        Ok(Self { change, waiting })
    }

    /// Whether this filter makes an earlier one obsolete. Either it replaces the filter of the same group, or all
    /// earlier sockets are closed.
    pub(crate) fn takes_the_place_of(&self, earlier: &ReuseportFilter) -> bool {
        let is_in = |sockets: &[u64]| earlier.sockets.iter().any(|inode| sockets.contains(inode));
        earlier.namespace_cookie == self.change.namespace_cookie
            && (is_in(&self.change.sockets) || !is_in(&self.waiting))
    }

    /// Journal record to write before the change is made.
    pub(crate) fn change(&self) -> &ReuseportFilter {
        &self.change
    }

    /// Attaches the filter.
    ///
    /// # Errors
    /// When the sockets are closed, or the kernel refuses.
    pub(crate) fn make(self, proc: &ProcRoot, steering: &Steering) -> Result<(), SettingsError> {
        let group = || steering.group.key.to_string();
        let socket = held(proc, &self.change.sockets)?.ok_or_else(|| SettingsError::GroupChanged { group: group() })?;
        Ok(attach(&socket, &steering.filter)?)
    }
}

/// Detaches the filter if one of the group's original sockets still exists. Other sockets with the same address may
/// belong to another group with a filter of its own.
///
/// # Errors
/// When the search for the namespace fails, no process that holds a socket may be inspected, or the kernel refuses.
pub(crate) fn take_off(proc: &ProcRoot, change: &ReuseportFilter) -> Result<UndoOutcome, SettingsError> {
    let Some(namespace) = namespaces::by_cookie(proc, change.namespace_cookie)? else {
        return Ok(UndoOutcome::AlreadyGone);
    };
    let is_at_the_address = |key: &GroupKey| key.protocol == change.protocol && key.local == change.local;
    let (ours, others): (Vec<u64>, Vec<u64>) = waiting_sockets(&namespace)?
        .iter()
        .filter(|socket| is_at_the_address(&socket.key))
        .map(|socket| socket.inode)
        .partition(|inode| change.sockets.contains(inode));
    if ours.is_empty() {
        return Ok(match others.is_empty() {
            true => UndoOutcome::AlreadyGone,
            false => UndoOutcome::LeftAlone(format!(
                "the sockets at {} to which Quell attached the filter are closed, but other sockets have the address; \
                 their filter was left alone, because it may belong to the server. If it is Quell's filter, it \
                 disappears when the server restarts",
                change.local
            )),
        });
    }
    let group = || format!("the reuseport group at {}", change.local);
    let Some(socket) = held(proc, &ours)? else {
        // The processes may have exited since they were listed.
        return match waiting_sockets(&namespace)?.iter().any(|socket| ours.contains(&socket.inode)) {
            true => Err(SettingsError::HeldElsewhere { group: group() }),
            false => Ok(UndoOutcome::AlreadyGone),
        };
    };
    Ok(match detach(&socket)? {
        Detachment::Detached => UndoOutcome::Undone,
        Detachment::WasAbsent => UndoOutcome::AlreadyGone,
    })
}

/// Duplicates one of these sockets from any accessible process that holds one.
fn held(proc: &ProcRoot, sockets: &[u64]) -> Result<Option<BriefDuplicate>, SettingsError> {
    for pid in proc.pids()? {
        // The process may have exited, or belong to another user.
        let Ok(fds) = proc.process(pid).fds() else { continue };
        for fd in fds {
            let FdKind::Socket { inode } = fd.kind else { continue };
            if !sockets.contains(&inode) {
                continue;
            }
            let Ok(duplicate) = PidFd::open(pid).and_then(|process| process.duplicate_briefly(fd.number)) else {
                continue;
            };
            // The descriptor may have been reused.
            if duplicate.inode().map_err(SettingsError::Duplicate)? == inode {
                return Ok(Some(duplicate));
            }
        }
    }
    Ok(None)
}
