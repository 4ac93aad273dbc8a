//! The filter of a reuseport group of another process, put on and taken off through a duplicate of one of its sockets.
//! It is duplicated for a few system calls, never over a write to disk: while a duplicate is open, the program's own
//! close is not the last.

use quell_linux::pidfd::{BriefDuplicate, PidFd};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::reuseport::{Detachment, attach, detach};

use super::SettingsError;
use crate::journal::{ReuseportFilter, Undoing};
use crate::namespaces;
use crate::steer::{GroupKey, Steering, waiting_sockets};

/// A group that is about to get its filter.
#[derive(Debug)]
pub(crate) struct PutOn {
    change: ReuseportFilter,
    /// All that waits for connections or datagrams in the namespace.
    waiting: Vec<u64>,
}

impl PutOn {
    /// Makes sure that the group is as it was looked at, and that one of its sockets can be had.
    ///
    /// # Errors
    /// When it is another one by now, or nobody who holds it may be looked into.
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

    /// Whether nothing is left of an earlier filter once this one is on: it was the same group's, or its sockets are
    /// closed.
    pub(crate) fn takes_the_place_of(&self, earlier: &ReuseportFilter) -> bool {
        let is_in = |sockets: &[u64]| earlier.sockets.iter().any(|inode| sockets.contains(inode));
        earlier.namespace_cookie == self.change.namespace_cookie
            && (is_in(&self.change.sockets) || !is_in(&self.waiting))
    }

    /// What is to be written down before it is made.
    pub(crate) fn change(&self) -> &ReuseportFilter {
        &self.change
    }

    /// Puts the filter on.
    ///
    /// # Errors
    /// When the sockets are closed by now, or the kernel refuses.
    pub(crate) fn make(self, proc: &ProcRoot, steering: &Steering) -> Result<(), SettingsError> {
        let group = || steering.group.key.to_string();
        let socket = held(proc, &self.change.sockets)?.ok_or_else(|| SettingsError::GroupChanged { group: group() })?;
        Ok(attach(&socket, &steering.filter)?)
    }
}

/// Takes the filter off a group of which a socket that had it at first is still there. Sockets of the same address alone
/// may be of another group, with a filter of its own.
///
/// # Errors
/// When the namespace cannot be looked for, nobody who holds a socket may be looked into, or the kernel refuses.
pub(crate) fn take_off(proc: &ProcRoot, change: &ReuseportFilter) -> Result<Undoing, SettingsError> {
    let Some(namespace) = namespaces::by_cookie(proc, change.namespace_cookie)? else {
        return Ok(Undoing::AlreadyGone);
    };
    let is_at_the_address = |key: &GroupKey| key.protocol == change.protocol && key.local == change.local;
    let (ours, others): (Vec<u64>, Vec<u64>) = waiting_sockets(&namespace)?
        .iter()
        .filter(|socket| is_at_the_address(&socket.key))
        .map(|socket| socket.inode)
        .partition(|inode| change.sockets.contains(inode));
    if ours.is_empty() {
        return Ok(match others.is_empty() {
            true => Undoing::AlreadyGone,
            false => Undoing::LeftAlone(format!(
                "the sockets at {} that were given a filter are closed, and others are there: if these joined the group \
                 before, they have the filter still, and lose it when the server is restarted; it was left alone, for it \
                 may as well be the server's own",
                change.local
            )),
        });
    }
    let group = || format!("the reuseport group at {}", change.local);
    let Some(socket) = held(proc, &ours)? else {
        // Its processes may have ended since they were listed.
        return match waiting_sockets(&namespace)?.iter().any(|socket| ours.contains(&socket.inode)) {
            true => Err(SettingsError::HeldElsewhere { group: group() }),
            false => Ok(Undoing::AlreadyGone),
        };
    };
    Ok(match detach(&socket)? {
        Detachment::Detached => Undoing::Undone,
        Detachment::WasAbsent => Undoing::AlreadyGone,
    })
}

/// A duplicate of one of these sockets, from any process that holds one and may be looked into.
fn held(proc: &ProcRoot, sockets: &[u64]) -> Result<Option<BriefDuplicate>, SettingsError> {
    for pid in proc.pids()? {
        // It may be gone, or somebody else's.
        let Ok(fds) = proc.process(pid).fds() else { continue };
        for fd in fds {
            let FdKind::Socket { inode } = fd.kind else { continue };
            if !sockets.contains(&inode) {
                continue;
            }
            let Ok(duplicate) = PidFd::open(pid).and_then(|process| process.duplicate_briefly(fd.number)) else {
                continue;
            };
            // The number may be another file's by now.
            if duplicate.inode().map_err(SettingsError::Duplicate)? == inode {
                return Ok(Some(duplicate));
            }
        }
    }
    Ok(None)
}
