//! Busy polling of sockets in other processes (`SO_BUSY_POLL` and related options). It is set through duplicates and
//! restored unless another program has changed it since. Connections inherit it from their listening socket, so later
//! connections are restored too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_linux::Pid;
use quell_linux::pidfd::{BriefDuplicate, DuplicatedFd, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcRoot, ProcessIdentity};
use quell_linux::socket_options::{
    SocketOptionError, busy_poll_us, is_listening, prefer_busy_poll, set_busy_poll_budget, set_busy_poll_us,
    set_prefer_busy_poll,
};
use quell_linux::visible::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{SocketPolling, SocketValues};
use super::{SettingsError, handle_of};
use crate::change::{Kind, Undo, UndoOutcome};
use crate::undo::UndoError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsPolling {
    /// Process that owned the sockets, for display.
    pub pid: Pid,
    pub new: SocketPolling,
    pub sockets: Vec<SocketsAlike>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsAlike {
    /// Whether these are listening sockets, whose connections inherit the setting.
    pub listens: bool,
    pub old: SocketValues,
    pub inodes: Vec<u64>,
}

impl fmt::Display for SocketsPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets: usize = self.sockets.iter().map(|alike| alike.inodes.len()).sum();
        write!(f, "{} of process {}: {}", counted(sockets, "socket"), self.pid, self.new.values)
    }
}

impl Kind for SocketsPolling {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        Ok(restore(undo.proc, self)?)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SocketId {
    pub fd: i32,
    /// Inode; absent for an AF_XDP socket, whose inode is not in snapshots.
    pub inode: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Prepared {
    change: SocketsPolling,
    process: PidFd,
    sockets: Vec<(i32, u64, SocketValues)>,
}

/// Records the current setting of the sockets that differ from the wanted setting. Closes each duplicate immediately.
pub(crate) fn prepare(
    proc: &ProcRoot,
    process: ProcessIdentity,
    sockets: &[SocketId],
    wanted: SocketPolling,
) -> Result<Prepared, SettingsError> {
    let handle = handle_of(proc, process)?;
    let mut alike: BTreeMap<(bool, SocketValues), Vec<u64>> = BTreeMap::new();
    let mut others = Vec::new();
    for SocketId { fd, inode: seen } in sockets {
        let Some((socket, inode)) = duplicate(&handle, *fd, *seen)? else { continue };
        let old = match read(&socket) {
            Ok(old) if old == wanted.values => continue,
            Ok(old) => old,
            // The socket was closed in the meantime and its descriptor reused.
            Err(error) if error.is_no_socket() => continue,
            Err(error) => return Err(error.into()),
        };
        alike.entry((is_listening(&socket)?, old)).or_default().push(inode);
        others.push((*fd, inode, old));
    }
    let alike = alike.into_iter().map(|((listens, old), inodes)| SocketsAlike { listens, old, inodes });
    let change = SocketsPolling { pid: process.pid, new: wanted, sockets: alike.collect() };
    Ok(Prepared { change, process: handle, sockets: others })
}

/// Duplicates the socket with this inode. Returns `None` if it was closed, even if its descriptor was reused.
fn duplicate(process: &PidFd, fd: i32, inode: Option<u64>) -> Result<Option<(BriefDuplicate, u64)>, SettingsError> {
    let socket = match process.duplicate_briefly(fd) {
        Ok(socket) => socket,
        Err(PidFdError::NoSuchFd { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = socket.inode().map_err(SettingsError::Duplicate)?;
    Ok(inode.is_none_or(|inode| inode == found).then_some((socket, found)))
}

impl Prepared {
    /// Record for the journal; `None` if no socket needs a change.
    pub(crate) fn change(&self) -> Option<&SocketsPolling> {
        (!self.sockets.is_empty()).then_some(&self.change)
    }

    /// Sets the sockets that are still open and unchanged, and verifies each. Returns their number.
    pub(crate) fn make(self) -> Result<usize, SettingsError> {
        let mut made = 0;
        for (fd, inode, old) in &self.sockets {
            let Some((socket, _)) = duplicate(&self.process, *fd, Some(*inode))? else { continue };
            if read(&socket)? == *old {
                let budget = self.change.new.budget.filter(|_| !old.polls());
                set(&socket, self.change.new.values, budget)?;
                made += 1;
            }
        }
        Ok(made)
    }
}

fn read(socket: &DuplicatedFd) -> Result<SocketValues, SocketOptionError> {
    Ok(SocketValues { busy_poll_us: busy_poll_us(socket)?, prefer_busy_poll: prefer_busy_poll(socket)? })
}

fn set(socket: &DuplicatedFd, values: SocketValues, budget: Option<u16>) -> Result<(), SettingsError> {
    set_busy_poll_us(socket, values.busy_poll_us)?;
    set_prefer_busy_poll(socket, values.prefer_busy_poll)?;
    if let Some(budget) = budget {
        set_busy_poll_budget(socket, budget)?;
    }
    let read = read(socket)?;
    if read != values {
        return Err(SettingsError::SocketReadBack { asked: values, read });
    }
    Ok(())
}

/// Restores the sockets that still have the setting, in any process that holds them, and the connections accepted
/// through them since.
pub(crate) fn restore(proc: &ProcRoot, change: &SocketsPolling) -> Result<UndoOutcome, SettingsError> {
    let mut back = PutBack::new(change);
    for pid in proc.pids()? {
        // The process may have exited or be inaccessible. If it is the process of the change, its sockets count as
        // gone.
        let Ok(fds) = proc.process(pid).fds() else { continue };
        let sockets: Vec<(i32, u64)> = fds
            .iter()
            .filter_map(|fd| match fd.kind {
                FdKind::Socket { inode } => Some((fd.number, inode)),
                _ => None,
            })
            .collect();
        back.sockets_of(pid, &sockets)?;
    }
    Ok(back.outcome())
}

struct PutBack<'a> {
    change: &'a SocketsPolling,
    old: BTreeMap<u64, SocketValues>,
    /// Setting that a connection has inherited; absent if the listening sockets differed.
    inherited: Option<SocketValues>,
    listening: BTreeSet<u64>,
    undone: usize,
    changed_since: usize,
}

impl<'a> PutBack<'a> {
    fn new(change: &'a SocketsPolling) -> Self {
        let of = |alike: &SocketsAlike| alike.inodes.iter().map(|inode| (*inode, alike.old)).collect::<Vec<_>>();
        let mut listening = change.sockets.iter().filter(|alike| alike.listens);
        let inherited = listening.clone().next().map(|alike| alike.old).filter(|_| listening.clone().count() == 1);
        Self {
            change,
            old: change.sockets.iter().flat_map(of).collect(),
            inherited,
            listening: listening.by_ref().flat_map(|alike| &alike.inodes).copied().collect(),
            undone: 0,
            changed_since: 0,
        }
    }

    fn sockets_of(&mut self, pid: Pid, sockets: &[(i32, u64)]) -> Result<(), SettingsError> {
        let accepts = sockets.iter().any(|(_, inode)| self.listening.contains(inode));
        let old_of = |inode| self.old.get(&inode).copied().or(self.inherited.filter(|_| accepts));
        let its: Vec<_> = sockets.iter().filter_map(|&(fd, inode)| Some((fd, inode, old_of(inode)?))).collect();
        if its.is_empty() {
            return Ok(());
        }
        // The process may have exited or be inaccessible. If it is the process of the change, its sockets count as
        // gone.
        let Ok(process) = PidFd::open(pid) else { return Ok(()) };
        for (fd, inode, old) in its {
            match duplicate(&process, fd, Some(inode)) {
                Ok(Some((socket, _))) => self.socket(&socket, old, self.old.contains_key(&inode))?,
                Ok(None) | Err(SettingsError::PidFd(PidFdError::Gone { .. } | PidFdError::Denied { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn socket(&mut self, socket: &DuplicatedFd, old: SocketValues, was_told: bool) -> Result<(), SettingsError> {
        // A Unix socket of the same program does not support these options.
        let Ok(current) = read(socket) else { return Ok(()) };
        let SocketPolling { values: new, budget } = self.change.new;
        if current == new {
            // An unconfigured socket has budget 0. A socket that busy polled before keeps its own budget.
            set(socket, old, budget.filter(|_| !old.polls()).map(|_| 0))?;
            self.undone += 1;
        } else if was_told && current != old {
            self.changed_since += 1;
        }
        Ok(())
    }

    fn outcome(self) -> UndoOutcome {
        match (self.undone, self.changed_since) {
            (0, 0) => UndoOutcome::AlreadyGone,
            (_, 0) => UndoOutcome::Undone,
            (undone, changed) => {
                let why = format!(
                    "another program has changed {} of process {}, which Quell had set to {}",
                    counted(changed, "socket"),
                    self.change.pid,
                    self.change.new.values
                );
                if undone > 0 { UndoOutcome::Partial(why) } else { UndoOutcome::LeftAlone(why) }
            }
        }
    }
}
