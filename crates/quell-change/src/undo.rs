//! Undoes a single change from its journal entry alone. An undo can be repeated without harm and changes only objects
//! that the journal identifies. It reports whether anything was left to undo.

use std::time::Duration;

use quell_linux::executable::FileId;
use quell_linux::link::Links;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::{Deletion, Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{BootId, FdKind, ProcRoot, ProcessIdentity, Ticks};
use quell_linux::process::{ProcessError, SessionMember, kill_session, session_members};
use quell_linux::{InterfaceName, Pid};
use quell_mode::EpollParams;

use crate::devices;
use crate::journal::claims::{Owned, QueueOwners};
use crate::journal::{
    ChangeOutcome, Entry, EpollParameters, HostSetting, JournalError, LaunchedEpolls, RecordedChange, TargetProgram,
    UndoOutcome,
};
use crate::netns_processes::end_processes;
use crate::settings::epoll::EpollToEnd;
use crate::settings::host::{KnownContexts, Place};
use crate::settings::{self, SettingsError};
use crate::target::{TargetError, Targets};

/// Reason why a change could not be undone. It stays in the journal and can be retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The namespace could not be removed.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The link could not be removed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A process could not be killed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A setting could not be restored.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Another process was setting or undoing the same queue.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The descendants of a program could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another namespace has this name now.
    #[error(
        "network namespace {name} is not the one that Quell created (cookie {today} instead of {made}), so it was \
         left alone; if you no longer need it, run `ip netns delete {}`",
        shell_words::quote(name)
    )]
    NotTheSame {
        /// Name.
        name: String,
        /// Cookie of the namespace that was created.
        made: u64,
        /// Cookie of the current namespace.
        today: u64,
    },
    /// Processes of a namespace did not exit after SIGKILL.
    #[error(
        "network namespace {namespace}: its processes {left:?} did not exit within {within:?} after SIGKILL; they \
         hang in the kernel, or start new processes faster than Quell can kill them"
    )]
    StillInside {
        /// Name of the namespace.
        namespace: String,
        /// Process IDs.
        left: Vec<i32>,
        /// Time limit that was exceeded.
        within: Duration,
    },
    /// The journal contains an invalid name.
    #[error("the journal contains an invalid name of a {what}, {name:?}: {why}")]
    Impossible {
        /// `network namespace`, `interface` or `process`.
        what: &'static str,
        /// Name.
        name: String,
        /// Rule that it violates.
        why: String,
    },
}

/// Time limit for killed processes to exit.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// Undoes one change of the current boot `boot_id`. `owners` are the other owners of the same queue, `targets` the
/// processes of the journal.
///
/// # Errors
/// See [`UndoError`].
pub(crate) fn undo(
    entry: &Entry,
    boot_id: BootId,
    proc: &ProcRoot,
    contexts: &mut KnownContexts,
    owners: &QueueOwners,
    targets: &[TargetProgram],
) -> Result<UndoOutcome, UndoError> {
    match (&entry.change, entry.outcome) {
        (RecordedChange::NetworkNamespace { name }, outcome) => delete_namespace(name, outcome, proc),
        (RecordedChange::VethPair { namespace, link }, _) => delete_link(namespace, link),
        (RecordedChange::Process { .. }, Some(ChangeOutcome::Process { pid, start_time_ticks, executable })) => {
            end_session(proc, &identity(pid, start_time_ticks, boot_id)?, executable)
        }
        // The writer died before it knew the PID, and the kernel killed the child with its parent. Processes that the
        // child had started end with their namespace.
        (RecordedChange::Process { .. }, _) => Ok(UndoOutcome::AlreadyGone),
        (RecordedChange::NapiSettings(change), outcome) => {
            waits_out_of_sight(settings::napi::restore(proc, change, outcome.is_some(), owners), &change.device)
        }
        (RecordedChange::HostSetting(change), outcome) => restore(proc, contexts, change, outcome),
        (RecordedChange::ReuseportFilter(change), _) => Ok(settings::reuseport::take_off(proc, change)?),
        (RecordedChange::SocketsPolling(change), _) => Ok(settings::socket::restore(proc, change)?),
        (RecordedChange::RingPolling(change), _) => {
            let process = identity(change.pid, change.start_time_ticks, boot_id)?;
            Ok(settings::ring::restore(proc, process, change)?)
        }
        (RecordedChange::ThreadAffinity(change), _) => {
            let pid = identity(change.pid, change.thread_start_time_ticks, boot_id)?.pid;
            let tid = identity(change.tid, change.thread_start_time_ticks, boot_id)?.pid;
            Ok(settings::affinity::restore(proc, pid, tid, change)?)
        }
        (RecordedChange::LaunchedEpolls(change), _) => undo_launched(change, targets, boot_id, proc),
        (RecordedChange::EpollParameters(_), _) => unreachable!("epolls are undone together"),
    }
}

/// Disables busy polling on the epolls of a launched program, its descendants and the other targets.
fn undo_launched(
    change: &LaunchedEpolls,
    targets: &[TargetProgram],
    boot_id: BootId,
    proc: &ProcRoot,
) -> Result<UndoOutcome, UndoError> {
    let program = TargetProgram { pid: change.pid, start_time_ticks: change.start_time_ticks, name: String::new() };
    let mut undoing = UndoOutcome::AlreadyGone;
    for target in Targets::still_living(targets.iter().chain([&program]))? {
        let process = identity(target.pid, target.start_time_ticks, boot_id)?;
        // The process may have exited.
        let Ok(tid) = proc.process(process.pid).thread_with_files(process.pid) else { continue };
        let Ok(fds) = proc.process(tid).fds() else { continue };
        let epolls = fds.iter().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| EpollParameters {
            pid: target.pid,
            start_time_ticks: target.start_time_ticks,
            fd: fd.number,
            old: EpollParams::default(),
            new: change.new,
            alternatives: Vec::new(),
            set_at_boot_ns: 0,
            since_boot_ns: 0,
        });
        let epolls: Vec<EpollParameters> = epolls.collect();
        let to_end: Vec<EpollToEnd<'_>> = epolls.iter().map(|change| EpollToEnd::new(change, true, &[])).collect();
        for outcome in settings::epoll::restore(proc, process, &to_end) {
            // The program itself has set an epoll that has other parameters.
            if outcome? == UndoOutcome::Undone {
                undoing = UndoOutcome::Undone;
            }
        }
    }
    Ok(undoing)
}

/// Undoes changes of epolls in this order. Inspects a process once for consecutive epolls. `owned` are those of all
/// owners.
pub(crate) fn undo_epolls(
    entries: &[&Entry],
    owned: &[Owned<EpollParameters>],
    boot_id: BootId,
    proc: &ProcRoot,
) -> Vec<Result<UndoOutcome, UndoError>> {
    let epoll = |entry: &&Entry| match &entry.change {
        RecordedChange::EpollParameters(change) => (place_now(change, owned, boot_id, proc), entry.outcome.is_some()),
        other => unreachable!("not an epoll: {other}"),
    };
    let changes: Vec<(EpollParameters, bool)> = entries.iter().map(epoll).collect();
    let of_one_process = |(one, _): &(EpollParameters, bool), (other, _): &(EpollParameters, bool)| {
        (one.pid, one.start_time_ticks) == (other.pid, other.start_time_ticks)
    };
    let process_of = |change: &EpollParameters| identity(change.pid, change.start_time_ticks, boot_id);
    let undo = |changes: &[(EpollParameters, bool)]| match process_of(&changes[0].0) {
        Ok(process) => {
            let to_end = changes.iter().map(|(change, made)| EpollToEnd::new(change, *made, owned));
            let undoings = settings::epoll::restore(proc, process, &to_end.collect::<Vec<_>>());
            undoings.into_iter().map(|undoing| undoing.map_err(UndoError::from)).collect()
        }
        Err(_) => changes.iter().filter_map(|(change, _)| process_of(change).err()).map(Err).collect::<Vec<_>>(),
    };
    changes.chunk_by(of_one_process).flat_map(undo).collect()
}

/// The change, with the process and descriptor of another owner if its own process has exited and that one has the
/// same epoll.
fn place_now(
    change: &EpollParameters,
    owned: &[Owned<EpollParameters>],
    boot_id: BootId,
    proc: &ProcRoot,
) -> EpollParameters {
    let runs = |change: &EpollParameters| {
        let process = identity(change.pid, change.start_time_ticks, boot_id);
        process.is_ok_and(|process| process.is_running(proc).unwrap_or(true))
    };
    if runs(change) {
        return change.clone();
    }
    let has_it = |other: &&EpollParameters| other.since_boot_ns == change.since_boot_ns && runs(other);
    let holder = owned.iter().map(|owned| &owned.change).find(has_it).unwrap_or(change);
    let EpollParameters { pid, start_time_ticks, fd, .. } = *holder;
    EpollParameters { pid, start_time_ticks, fd, ..change.clone() }
}

/// Kills a session that Quell started. The executable identifies its leader, or another of its processes if the leader
/// has exited. Other processes end with their namespace, if Quell created it.
fn end_session(
    proc: &ProcRoot,
    leader: &ProcessIdentity,
    executable: Option<FileId>,
) -> Result<UndoOutcome, UndoError> {
    let members = session_members(proc, leader).map_err(ProcessError::from)?;
    if members.is_empty() {
        return Ok(UndoOutcome::AlreadyGone);
    }
    let leads = |member: &&SessionMember| member.identity.pid == leader.pid;
    let witnesses: Vec<&SessionMember> = match members.iter().find(leads) {
        Some(leader) => vec![leader],
        None => members.iter().collect(),
    };
    let executes = |member: &&SessionMember| proc.process(member.identity.pid).executable().ok() == executable;
    if executable.is_none() || !witnesses.iter().any(executes) {
        let why = "runs another executable than the one that Quell started";
        return Ok(UndoOutcome::LeftAlone(format!("process {} {why}: its session was left alone", leader.pid)));
    }
    let killed = kill_session(proc, leader, KILL_BOUND)?;
    Ok(if killed > 0 { UndoOutcome::Undone } else { UndoOutcome::AlreadyGone })
}

fn restore(
    proc: &ProcRoot,
    contexts: &mut KnownContexts,
    change: &HostSetting,
    outcome: Option<ChangeOutcome>,
) -> Result<UndoOutcome, UndoError> {
    let what = change.setting.device().map_or_else(|| change.setting.text().what, ToString::to_string);
    let undoing = Place::find(proc, change).and_then(|place| match place {
        Some(place) => settings::host::restore(&place.kernel(proc), contexts, &change.setting, outcome),
        None => Ok(UndoOutcome::AlreadyGone),
    });
    waits_out_of_sight(undoing, &what)
}

/// Describes a change that waits for its queue, with the present name of its device. `None` if the device is not found.
pub(crate) fn describe_waiting(proc: &ProcRoot, change: &RecordedChange) -> Option<String> {
    match change {
        RecordedChange::NapiSettings(change) => {
            let device = devices::find(proc, &change.device_key()).ok()??;
            Some(settings::napi::describe_waiting(change, &device.link.name))
        }
        _ => None,
    }
}

/// Turns an error for an object that no accessible namespace contains into a waiting change, because the object may
/// still exist elsewhere.
fn waits_out_of_sight(undoing: Result<UndoOutcome, SettingsError>, what: &str) -> Result<UndoOutcome, UndoError> {
    match undoing {
        Err(error) if error.is_out_of_sight() => {
            Ok(UndoOutcome::Waits(format!("{what} (not found, but possibly in an inaccessible namespace): {error}")))
        }
        undoing => Ok(undoing?),
    }
}

fn namespace_name(name: &str) -> Result<NamespaceName, UndoError> {
    let impossible = |error: NamespaceError| impossible("network namespace", name, error);
    NamespaceName::new(name).map_err(impossible)
}

fn impossible(what: &'static str, name: &str, why: impl ToString) -> UndoError {
    UndoError::Impossible { what, name: name.to_owned(), why: why.to_string() }
}

fn identity(pid: u32, start_time_ticks: u64, boot_id: BootId) -> Result<ProcessIdentity, UndoError> {
    let valid = Pid::from_kernel(pid).ok_or_else(|| impossible("process", &pid.to_string(), "not a process id"))?;
    Ok(ProcessIdentity { pid: valid, starttime: Ticks(start_time_ticks), boot_id })
}

fn delete_namespace(name: &str, outcome: Option<ChangeOutcome>, proc: &ProcRoot) -> Result<UndoOutcome, UndoError> {
    let valid = namespace_name(name)?;
    if let Some(ChangeOutcome::NetworkNamespace { cookie: made }) = outcome {
        match Namespace::open_named(&valid) {
            Ok(found) => {
                let today = found.cookie()?;
                if today != made {
                    return Err(UndoError::NotTheSame { name: name.to_owned(), made, today });
                }
                end_processes(&found, proc, KILL_BOUND)?;
            }
            Err(NamespaceError::NotANamespace { .. }) => {}
            Err(error) if error.is_absent() => return Ok(UndoOutcome::AlreadyGone),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(match Namespace::delete_named(&valid)? {
        Deletion::Deleted => UndoOutcome::Undone,
        Deletion::WasAbsent => UndoOutcome::AlreadyGone,
    })
}

fn delete_link(namespace: &str, link: &str) -> Result<UndoOutcome, UndoError> {
    let name = InterfaceName::new(link).map_err(|error| impossible("interface", link, error))?;
    let namespace = match Namespace::open_named(&namespace_name(namespace)?) {
        Ok(namespace) => namespace,
        Err(NamespaceError::Absent { .. } | NamespaceError::NotANamespace { .. }) => {
            return Ok(UndoOutcome::AlreadyGone);
        }
        Err(error) => return Err(error.into()),
    };
    let mut links = Links::open_in(&namespace)?;
    let deleted = links.by_name(&name).and_then(|link| links.delete(link.index));
    match deleted {
        Ok(()) => Ok(UndoOutcome::Undone),
        Err(error) if error.failure() == Failure::Absent => Ok(UndoOutcome::AlreadyGone),
        Err(error) => Err(error.into()),
    }
}
