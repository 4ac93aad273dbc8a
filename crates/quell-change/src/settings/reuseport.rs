//! Filter of a reuseport group in another process, attached, detached and restored through a duplicate of one of its sockets. The
//! duplicate is open only for a few system calls, never during a write to disk. While it is open, the program's own
//! `close` does not close the socket.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::{fmt, fs};

use quell_linux::netns::Namespace;
use quell_linux::pidfd::{BriefDuplicate, PidFd};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::reuseport::{ClassicInstruction, Detachment, EbpfFilter, attach, attach_classic, attach_ebpf, detach};
use quell_linux::{kernel, visible};
use quell_sampler::{GroupProgram, group_programs};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::SettingsError;
use crate::change::{Kind, Undo, UndoOutcome};
use crate::namespaces;
use crate::reuseport_group::{GroupFilter, GroupKey, Protocol, ServersFilter, reason, waiting_sockets};
use crate::undo::UndoError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReuseportFilter {
    /// `SO_NETNS_COOKIE` of the sockets' namespace.
    pub namespace_cookie: u64,
    pub protocol: Protocol,
    pub local: SocketAddr,
    /// Socket inodes. Sockets that joined the group later have the filter too.
    pub sockets: Vec<u64>,
    /// Filter of the server to attach again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedFilter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplacedFilter {
    Classic(Vec<ClassicInstruction>),
    Pinned {
        id: u32,
        /// File of the BPF file system that keeps it loaded.
        path: PathBuf,
    },
}

impl fmt::Display for ReuseportFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "steering of connections to {}", self.local)
    }
}

impl Kind for ReuseportFilter {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        Ok(restore(undo.proc, self)?)
    }
}

#[derive(Debug)]
pub(crate) struct FilterToAttach {
    change: ReuseportFilter,
    /// All listening and unconnected sockets of the namespace.
    waiting: Vec<u64>,
}

impl FilterToAttach {
    /// Verifies that the group and its filter are unchanged and that one of its sockets is accessible. Fails if the
    /// group or its filter has changed, or no process that holds its sockets may be inspected.
    pub(crate) fn prepare(proc: &ProcRoot, wanted: &GroupFilter) -> Result<Self, SettingsError> {
        let key = wanted.group;
        let group = || key.to_string();
        let namespace =
            namespaces::by_inode(proc, key.namespace)?.ok_or_else(|| SettingsError::Gone { what: group() })?;
        let waiting = waiting_sockets(&namespace)?;
        let mut there: Vec<u64> =
            waiting.iter().filter(|socket| socket.key == key).map(|socket| socket.inode).collect();
        there.sort_unstable();
        if !there.iter().eq(&wanted.sockets) {
            return Err(SettingsError::GroupChanged { group: group() });
        }
        let servers = program_of(&namespace, &there).filter(is_servers);
        if servers.as_ref().is_some_and(|servers| Some(servers) != wanted.replaces.as_ref().map(|one| &one.program)) {
            return Err(SettingsError::GroupChanged { group: group() });
        }
        held(proc, &there)?.ok_or_else(|| SettingsError::HeldElsewhere { group: group() })?;
        let replaced = wanted.replaces.as_ref().and_then(|filter| to_restore(filter, &there));
        let namespace_cookie = namespace.cookie()?;
        let GroupKey { protocol, local, .. } = key;
        let change = ReuseportFilter { namespace_cookie, protocol, local, sockets: there, replaced };
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

    /// Takes over the server's filter that an earlier filter of the same group replaced.
    pub(crate) fn inherit(&mut self, earlier: &ReuseportFilter) -> bool {
        let is_same = earlier.sockets.iter().any(|inode| self.change.sockets.contains(inode));
        let inherits = is_same && self.change.replaced.is_none() && earlier.replaced.is_some();
        if inherits {
            self.change.replaced.clone_from(&earlier.replaced);
        }
        inherits
    }

    pub(crate) fn change(&self) -> &ReuseportFilter {
        &self.change
    }

    pub(crate) fn make(self, proc: &ProcRoot, wanted: &GroupFilter) -> Result<(), SettingsError> {
        let group = || wanted.group.to_string();
        let socket = held(proc, &self.change.sockets)?.ok_or_else(|| SettingsError::GroupChanged { group: group() })?;
        if let (Some(ReplacedFilter::Pinned { id, path }), Some(_)) = (&self.change.replaced, &wanted.replaces) {
            let not_kept = |source| SettingsError::FilterNotKept { group: group(), source };
            forget(&self.change);
            EbpfFilter::open(*id).and_then(|program| program.pin_to(path)).map_err(not_kept)?;
        }
        Ok(attach(&socket, &wanted.filter)?)
    }
}

fn is_servers(program: &GroupProgram) -> bool {
    matches!(program, GroupProgram::Classic(_) | GroupProgram::Ebpf(_))
}

/// Present program of the group of these sockets; absent if it is unknown.
fn program_of(namespace: &Namespace, sockets: &[u64]) -> Option<GroupProgram> {
    match group_programs(kernel::sysfs(), namespace) {
        Ok(programs) => sockets.iter().find_map(|inode| programs.get(inode)).cloned(),
        Err(error) => {
            info!(why = reason(&error), "could not read the filters of reuseport groups");
            None
        }
    }
}

/// Record from which the server's filter can be restored.
fn to_restore(filter: &ServersFilter, sockets: &[u64]) -> Option<ReplacedFilter> {
    match &filter.program {
        _ if filter.lost.is_some() => None,
        GroupProgram::Classic(code) => code.clone().map(ReplacedFilter::Classic),
        GroupProgram::Ebpf(id) => {
            let name = format!("quell-reuseport-{id}-{}", sockets.first()?);
            Some(ReplacedFilter::Pinned { id: *id, path: EbpfFilter::pins().ok()?.join(name) })
        }
        _ => None,
    }
}

/// Removes the file that keeps a replaced filter loaded.
pub(crate) fn forget(change: &ReuseportFilter) {
    let Some(ReplacedFilter::Pinned { path, .. }) = &change.replaced else { return };
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => warn!(?path, %error, "could not remove the pinned filter"),
        _ => {}
    }
}

/// Detaches the filter, or restores the server's own, if one of the group's original sockets still exists. Other sockets
/// with the same address may belong to another group with a filter of its own. A filter that the server has attached
/// since is left alone.
pub(crate) fn restore(proc: &ProcRoot, change: &ReuseportFilter) -> Result<UndoOutcome, SettingsError> {
    let outcome = take_off_or_restore(proc, change)?;
    forget(change);
    Ok(outcome)
}

fn take_off_or_restore(proc: &ProcRoot, change: &ReuseportFilter) -> Result<UndoOutcome, SettingsError> {
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
                "the sockets at {} to which Quell attached the filter are closed, but other sockets have the address, \
                 whose filter may belong to the server. If it is Quell's filter, it \
                 disappears when the server restarts",
                change.local
            )),
        });
    }
    if let Some(outcome) = program_of(&namespace, &ours).and_then(|present| another_since(change, &present)) {
        return Ok(outcome);
    }
    let group = || format!("the reuseport group at {}", change.local);
    let Some(socket) = held(proc, &ours)? else {
        // The processes may have exited since they were listed.
        return match waiting_sockets(&namespace)?.iter().any(|socket| ours.contains(&socket.inode)) {
            true => Err(SettingsError::HeldElsewhere { group: group() }),
            false => Ok(UndoOutcome::AlreadyGone),
        };
    };
    match &change.replaced {
        Some(ReplacedFilter::Classic(code)) => attach_classic(&socket, code)?,
        Some(ReplacedFilter::Pinned { path, .. }) => {
            let gone =
                |source| SettingsError::FilterGone { group: group(), path: visible::path(path).to_string(), source };
            attach_ebpf(&socket, &EbpfFilter::open_pinned(path).map_err(gone)?)?;
        }
        None => {
            return Ok(match detach(&socket)? {
                Detachment::Detached => UndoOutcome::Undone,
                Detachment::WasAbsent => UndoOutcome::AlreadyGone,
            });
        }
    }
    Ok(UndoOutcome::Undone)
}

/// Outcome if Quell's filter is no longer the one of the group.
fn another_since(change: &ReuseportFilter, present: &GroupProgram) -> Option<UndoOutcome> {
    let is_the_replaced = match (present, &change.replaced) {
        (GroupProgram::Absent, _) => true,
        (GroupProgram::Classic(Some(now)), Some(ReplacedFilter::Classic(then))) => now == then,
        (GroupProgram::Ebpf(now), Some(ReplacedFilter::Pinned { id, .. })) => now == id,
        _ => false,
    };
    if is_the_replaced {
        return Some(UndoOutcome::AlreadyGone);
    }
    is_servers(present).then(|| {
        UndoOutcome::LeftAlone(format!("the server has attached its own filter to the group at {} since", change.local))
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
