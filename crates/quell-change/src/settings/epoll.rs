//! Busy-poll parameters of epolls in other processes: set in an order that leaves no suspended queue stalled, verified,
//! and restored. A duplicate of an epoll is open only for a few system calls, never during a wait or a write to disk.
//! While it is open, the program's own `close` does not free the epoll.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use quell_linux::kcmp::{epoll_watches, is_same_file};
use quell_linux::netlink::Failure;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{BootId, FdKind, ProcRoot, ProcessIdentity};
use quell_linux::{Pid, epoll_params};
use quell_mode::EpollParams;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::napi::suspending;
use super::{SettingsError, answered, handle_of};
use crate::change::{CompareError, Comparison, Drift, Kind, Present, Undo, UndoOutcome, identity};
use crate::journal::claims::{Owned, newest_owner};
use crate::ownership::{Claim, Claims, End};
use crate::resume::Resumer;
use crate::settings::socket::SocketId;
use crate::undo::UndoError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollParameters {
    pub pid: Pid,
    pub start_time_ticks: u64,
    /// File descriptor in that process. Descriptors are reused, so undo checks the parameters too: no program sets
    /// these exact values by chance.
    pub fd: i32,
    /// Further descriptors of the epoll. One of them restores it if the first one was closed or its process has exited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<EpollPlace>,
    /// Parameters before the change of the time `since_boot_ns`.
    pub old: EpollParams,
    pub new: EpollParams,
    /// Further parameters, which an experiment sets later without another record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<EpollParams>,
    /// Time of setting in nanoseconds since boot, unique among the changes of one epoll.
    pub set_at_boot_ns: u64,
    /// Time of the first change since another program has written the parameters.
    pub since_boot_ns: u64,
}

/// A descriptor of an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollPlace {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub fd: i32,
}

impl EpollPlace {
    #[must_use]
    pub fn new(pid: Pid, start_time_ticks: u64, fd: i32) -> Self {
        Self { pid, start_time_ticks, fd }
    }

    pub(crate) fn of(process: ProcessIdentity, fd: i32) -> Self {
        Self::new(process.pid, process.starttime.0, fd)
    }
}

impl EpollParameters {
    pub fn new(place: EpollPlace, claim: Claim<EpollParams>) -> Self {
        let EpollPlace { pid, start_time_ticks, fd } = place;
        let Claim { at, since, before, values, .. } = claim;
        let old = before.unwrap_or_default();
        let new = values.first().copied().unwrap_or(old);
        let alternatives = values.get(1..).unwrap_or_default().to_vec();
        let duplicates = Vec::new();
        Self { pid, start_time_ticks, fd, duplicates, old, new, alternatives, set_at_boot_ns: at, since_boot_ns: since }
    }

    pub(crate) fn with_duplicates(self, duplicates: &[EpollPlace]) -> Self {
        Self { duplicates: duplicates.to_vec(), ..self }
    }

    /// Whether this is one of the epoll's recorded descriptors.
    pub fn is_at(&self, place: EpollPlace) -> bool {
        self.place() == place || self.duplicates.contains(&place)
    }

    pub fn place(&self) -> EpollPlace {
        EpollPlace { pid: self.pid, start_time_ticks: self.start_time_ticks, fd: self.fd }
    }

    pub fn claim(&self, made: bool) -> Claim<EpollParams> {
        let values = std::iter::once(self.new).chain(self.alternatives.iter().copied()).collect();
        Claim { at: self.set_at_boot_ns, since: self.since_boot_ns, before: Some(self.old), values, made }
    }
}

impl fmt::Display for EpollParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoll {} of process {}: {}", self.fd, self.pid, self.new)
    }
}

impl Kind for EpollParameters {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        let owned = undo.others.of_epolls(Some(undo.history)).unwrap_or_default();
        let mut outcomes = undo_epolls(&[(self, undo.outcome.is_some())], &owned, undo.boot_id, undo.proc);
        outcomes.pop().unwrap_or(Ok(UndoOutcome::AlreadyGone))
    }

    fn compare(&self, present: &Present<'_>) -> Result<Comparison, CompareError> {
        let boot_id = present.proc.boot_id().map_err(SettingsError::from)?;
        let Some(now) = now(present.proc, self.place(), boot_id)? else { return Ok(Comparison::Same) };
        let own = self.claim(true);
        if own.values.contains(&now) || owners(self.place(), present.epolls).cover(&own, &now) {
            return Ok(Comparison::Same);
        }
        Ok(Comparison::Differs(Drift {
            device: None,
            queue: None,
            setting: format!("epoll {} of process {}", self.fd, self.pid),
            made: self.new.to_string(),
            now: Some(now.to_string()),
            missing: None,
        }))
    }

    fn has_owners(&self) -> bool {
        true
    }
}

/// Undoes changes of epolls, made or only intended, in this order. Inspects a process once for consecutive epolls. `owned` are those of all
/// owners.
pub(crate) fn undo_epolls(
    changes: &[(&EpollParameters, bool)],
    owned: &[Owned<EpollParameters>],
    boot_id: BootId,
    proc: &ProcRoot,
) -> Vec<Result<UndoOutcome, UndoError>> {
    let found = |&(change, made): &(&EpollParameters, bool)| (place_now(change, owned, boot_id, proc), made);
    let changes: Vec<(EpollParameters, bool)> = changes.iter().map(found).collect();
    let of_one_process = |(one, _): &(EpollParameters, bool), (other, _): &(EpollParameters, bool)| {
        (one.pid, one.start_time_ticks) == (other.pid, other.start_time_ticks)
    };
    let undo = |changes: &[(EpollParameters, bool)]| {
        let (first, _) = &changes[0];
        let process = identity(first.pid, first.start_time_ticks, boot_id);
        let to_end = changes.iter().map(|(change, made)| EpollToEnd::new(change, *made, owned));
        let undoings = restore(proc, process, &to_end.collect::<Vec<_>>());
        undoings.into_iter().map(|undoing| undoing.map_err(UndoError::from)).collect::<Vec<_>>()
    };
    changes.chunk_by(of_one_process).flat_map(undo).collect()
}

/// The change, at the descriptor that restores the epoll: its own one, a duplicate, or that of another owner of the same
/// epoll if the own process has exited.
fn place_now(
    change: &EpollParameters,
    owned: &[Owned<EpollParameters>],
    boot_id: BootId,
    proc: &ProcRoot,
) -> EpollParameters {
    let runs = |change: &EpollParameters| {
        identity(change.pid, change.start_time_ticks, boot_id).is_running(proc).unwrap_or(true)
    };
    let place = in_force_at(change, |place| now(proc, place, boot_id).ok().flatten());
    let change =
        &EpollParameters { pid: place.pid, start_time_ticks: place.start_time_ticks, fd: place.fd, ..change.clone() };
    if runs(change) {
        return change.clone();
    }
    let has_it = |other: &&EpollParameters| other.since_boot_ns == change.since_boot_ns && runs(other);
    let holder = owned.iter().map(|owned| &owned.change).find(has_it).unwrap_or(change);
    let EpollParameters { pid, start_time_ticks, fd, .. } = *holder;
    EpollParameters { pid, start_time_ticks, fd, ..change.clone() }
}

/// Descriptor of the epoll at which a value of the change is in force. Otherwise one that is open; otherwise the first.
fn in_force_at(change: &EpollParameters, now: impl Fn(EpollPlace) -> Option<EpollParams>) -> EpollPlace {
    let first = change.place();
    if change.duplicates.is_empty() {
        return first;
    }
    let values = change.claim(true).values;
    let places = std::iter::once(&first).chain(&change.duplicates);
    let open: Vec<(EpollPlace, EpollParams)> = places.filter_map(|&place| Some((place, now(place)?))).collect();
    let in_force = open.iter().find(|(_, now)| values.contains(now)).or(open.first());
    in_force.map_or(first, |&(place, _)| place)
}

/// Number of epolls that are changed before their queues are freed again. A change takes microseconds, so a queue that
/// is suspended in between is freed long before the shortest useful suspension ends.
pub(crate) const AT_ONCE: usize = 500;

#[derive(Debug, Clone)]
pub struct EpollToSet {
    pub process: ProcessIdentity,
    pub fd: i32,
    /// Sockets that the epoll watched in a snapshot. If an epoll watches none of them, the descriptor was reused.
    pub watched: Vec<SocketId>,
    /// Further descriptors of the epoll.
    pub duplicates: Vec<EpollPlace>,
    pub new: EpollParams,
}

#[derive(Debug, Clone)]
pub(crate) struct EpollToEnd<'a> {
    pub(crate) change: &'a EpollParameters,
    pub(crate) made: bool,
    pub(crate) claims: Claims<EpollParams>,
    newest_owner: Option<String>,
}

impl<'a> EpollToEnd<'a> {
    pub(crate) fn new(change: &'a EpollParameters, made: bool, owned: &[Owned<EpollParameters>]) -> Self {
        let matters = |owned: &&Owned<EpollParameters>| owned.matters_to_end_of(change.set_at_boot_ns);
        // Changes of one epoll since the last foreign write have one `since_boot_ns`. Of the others, only newer ones of
        // other journals matter: comparing each epoll of a program with each other one would take too long.
        let is_same = |owned: &&Owned<EpollParameters>| {
            let other = &owned.change;
            let can_cover = owned.is_of_another_journal() && other.set_at_boot_ns > change.set_at_boot_ns;
            other.since_boot_ns == change.since_boot_ns || can_cover && are_one_epoll(change.place(), other.place())
        };
        let owned: Vec<&Owned<EpollParameters>> = owned.iter().filter(matters).filter(is_same).collect();
        let newest_owner = newest_owner(owned.iter().copied()).map(ToOwned::to_owned);
        Self { change, made, claims: Claims::new(owned.into_iter().map(Owned::claim)), newest_owner }
    }
}

pub fn owners(place: EpollPlace, owned: &[Owned<EpollParameters>]) -> Claims<EpollParams> {
    let is_same = |owned: &&Owned<EpollParameters>| are_one_epoll(place, owned.change.place());
    Claims::new(owned.iter().filter(is_same).map(Owned::claim))
}

/// Parameters that an epoll, now with the parameters `now`, would have without the owners with these journals.
pub(crate) fn without(
    ended: &[PathBuf],
    place: EpollPlace,
    now: EpollParams,
    owned: &[Owned<EpollParameters>],
) -> EpollParams {
    let mut of_it: Vec<&Owned<EpollParameters>> = owned.iter().filter(|owned| owned.change.is_at(place)).collect();
    of_it.sort_by_key(|owned| owned.change.set_at_boot_ns);
    let mut now = now;
    while let Some(newest) = of_it.iter().rposition(|owned| owned.has_one_of(ended)) {
        let own = of_it.remove(newest).claim();
        if let End::Set(value) = Claims::new(of_it.iter().map(|owned| owned.claim())).end(&own, &now) {
            now = value;
        }
    }
    now
}

/// Whether two descriptors, which can be of two processes, are one epoll. False if a process has exited.
pub(crate) fn are_one_epoll(one: EpollPlace, other: EpollPlace) -> bool {
    let same_file = || is_same_file((one.pid, one.fd), (other.pid, other.fd)).is_ok_and(|same| same);
    one == other || same_file()
}

#[derive(Debug)]
pub struct Program {
    process: ProcessIdentity,
    handle: PidFd,
    /// Resumers for the queues that the process may have suspended; empty if no change can stall a queue.
    resumers: Vec<Resumer>,
}

impl Program {
    /// Opens the process. With `can_stall`, lists its sockets once for all changes.
    pub fn open(proc: &ProcRoot, process: ProcessIdentity, can_stall: bool) -> Result<Self, SettingsError> {
        let handle = handle_of(proc, process)?;
        let resumers = if can_stall { resumers(proc, handle.pid())? } else { Vec::new() };
        Ok(Self { process, handle, resumers })
    }

    /// Reads the parameters of the epoll `fd`. Fails if `fd` is not an epoll, or an epoll that watches none of
    /// `watched`.
    pub fn get(&self, fd: i32, watched: &[SocketId]) -> Result<EpollParams, SettingsError> {
        let epoll = self.handle.duplicate_briefly(fd)?;
        if self.is_another(&epoll, watched) {
            let what = format!("epoll {fd} of process {}, as of the snapshot,", self.process.pid);
            return Err(SettingsError::Gone { what });
        }
        Ok(epoll_params::get(&epoll)?)
    }

    /// Changes the parameters of the epoll `fd` from `from` to `to`, and verifies them. Leaves the epoll alone if its
    /// parameters differ from `from`. Returns the previous parameters.
    pub fn change(&self, fd: i32, from: EpollParams, to: EpollParams) -> Result<EpollParams, SettingsError> {
        let epoll = self.handle.duplicate_briefly(fd)?;
        let current = epoll_params::get(&epoll)?;
        let pid = self.process.pid.get();
        // The number may belong to another epoll since the value was read, and programs can set these parameters
        // themselves. Between this check and EPIOCSPARAMS the kernel offers no exclusion; microseconds remain.
        if current != from {
            debug!(pid, fd, %current, expected = %from, "skipped: another program has changed the parameters");
            return Ok(current);
        }
        debug!(pid, fd, from = %current, to = %to, "EPIOCSPARAMS");
        answered(epoll_params::set(&epoll, to))?;
        let read = epoll_params::get(&epoll)?;
        if read != to {
            return Err(SettingsError::EpollReadBack { pid: self.process.pid, fd, asked: to, read });
        }
        Ok(current)
    }

    /// Calls `act`. Before and after it, frees every queue that the process may have suspended. An unnecessary attempt
    /// costs one additional poll.
    pub(crate) fn with_queues_freed<T>(&self, act: impl FnOnce() -> T) -> (T, Result<(), SettingsError>) {
        for resumer in &self.resumers {
            // Do not wait for the end of the suspension here: it could start again.
            let _ = resumer.poll();
        }
        let result = act();
        // Another suspension may follow the polls before `act`. Now the epolls have their final parameters, so a
        // suspension that these polls end stays ended, and if nothing can poll, waiting for its end is worth the time.
        let freed = self.resumers.iter().try_for_each(|resumer| resumer.poll_or_wait_out().map(drop));
        (result, freed.map_err(SettingsError::from))
    }

    /// Whether this is certainly a different epoll: one of the known sockets still exists, but the epoll watches none
    /// of them. A closed socket proves nothing.
    fn is_another(&self, epoll: &DuplicatedFd, watched: &[SocketId]) -> bool {
        let watches = |socket: &SocketId| {
            let duplicate = self.handle.duplicate_briefly(socket.fd).ok()?;
            let is_same = socket.inode.is_some() && duplicate.inode().ok() == socket.inode;
            epoll_watches(epoll, socket.fd, &duplicate).ok().filter(|_| is_same)
        };
        let known: Vec<bool> = watched.iter().filter_map(watches).collect();
        !known.is_empty() && !known.contains(&true)
    }
}

/// Queues that the process may have suspended: all queues of its namespace, and those of its sockets. The sockets that
/// associated an epoll with a queue may be closed by now.
fn resumers(proc: &ProcRoot, pid: Pid) -> Result<Vec<Resumer>, SettingsError> {
    let namespace = match Namespace::open_pid(proc.path(), pid) {
        Err(error) if error.is_absent() => return Err(SettingsError::ProcessGone { pid }),
        namespace => namespace?,
    };
    let others = match suspending(&namespace) {
        Ok(napis) => napis,
        // A kernel without these settings does not suspend interrupts.
        Err(error) if error.failure() == Failure::Unsupported => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(Resumer::of_program(proc, pid, &others))
}

/// Current parameters of an epoll; `None` if the epoll was closed or its process has exited.
fn now(proc: &ProcRoot, place: EpollPlace, boot_id: BootId) -> Result<Option<EpollParams>, SettingsError> {
    let process = identity(place.pid, place.start_time_ticks, boot_id);
    match Program::open(proc, process, false).and_then(|program| program.get(place.fd, &[])) {
        Ok(values) => Ok(Some(values)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends the ownership of epolls of one process, in this order. A descriptor and its parameters identify an epoll,
/// because its sockets may have moved to another epoll.
pub(crate) fn restore(
    proc: &ProcRoot,
    process: ProcessIdentity,
    epolls: &[EpollToEnd<'_>],
) -> Vec<Result<UndoOutcome, SettingsError>> {
    let prefers = |change: &EpollParameters| {
        let set = change.alternatives.iter().chain([&change.new]);
        set.into_iter().any(|params| params.prefer_busy_poll)
    };
    let can_stall = epolls.iter().any(|epoll| prefers(epoll.change) && !epoll.change.old.prefer_busy_poll);
    let program = match Program::open(proc, process, can_stall) {
        Ok(program) => program,
        Err(error) => return of_all(proc, process, error, epolls.len()),
    };
    let mut undoings = Vec::with_capacity(epolls.len());
    for epolls in epolls.chunks(AT_ONCE) {
        let (outcomes, freed) =
            program.with_queues_freed(|| epolls.iter().map(|epoll| end_one(&program, epoll)).collect::<Vec<_>>());
        match freed {
            Ok(()) => undoings.extend(outcomes),
            Err(error) => undoings.extend(of_all(proc, process, error, epolls.len())),
        }
    }
    restore_moved(proc, &program, epolls, &mut undoings);
    undoings
}

/// Restores epolls whose descriptor has changed, for example because the program called dup2(2). Their parameters
/// identify them: no program sets these exact values by chance. Does nothing if the epolls need different values,
/// because the assignment of values to epolls is unknown, or if they have other owners.
fn restore_moved(
    proc: &ProcRoot,
    program: &Program,
    epolls: &[EpollToEnd<'_>],
    undoings: &mut [Result<UndoOutcome, SettingsError>],
) {
    // A closed descriptor, or one with values that Quell did not set: its epoll may have another number now.
    let is_lost = |undoing: &Result<UndoOutcome, SettingsError>| {
        matches!(undoing, Ok(UndoOutcome::AlreadyGone | UndoOutcome::LeftAlone(_)))
    };
    let Some(EpollToEnd { change: first, .. }) = epolls.first() else { return };
    let is_alike = |epoll: &EpollToEnd<'_>| {
        let EpollParameters { old, new, alternatives, .. } = epoll.change;
        (old, new, alternatives) == (&first.old, &first.new, &first.alternatives) && epoll.claims.is_empty()
    };
    if !epolls.iter().all(is_alike) || !undoings.iter().any(is_lost) {
        return;
    }
    let Ok(fds) = proc.process(program.handle.pid()).fds() else { return };
    let numbers: HashSet<i32> = epolls.iter().map(|epoll| epoll.change.fd).collect();
    let others = fds.iter().filter(|fd| fd.kind == FdKind::Epoll && !numbers.contains(&fd.number));
    // Which of the lost epolls it is does not matter: all have the same old and new parameters.
    let mut lost = undoings.iter_mut().filter(|undoing| is_lost(undoing));
    for fd in others {
        let Ok(set) = program.get(fd.number, &[]) else { continue };
        if set == first.old || !first.claim(true).values.contains(&set) {
            continue;
        }
        if let (Ok(current), Ok(())) = program.with_queues_freed(|| program.change(fd.number, set, first.old))
            && current == set
            && let Some(undoing) = lost.next()
        {
            *undoing = Ok(UndoOutcome::Undone);
        }
    }
}

fn end_one(
    program: &Program,
    EpollToEnd { change, made, claims, newest_owner }: &EpollToEnd<'_>,
) -> Result<UndoOutcome, SettingsError> {
    let EpollParameters { fd, new, old, .. } = **change;
    let ended = program.get(fd, &[]).and_then(|now| match claims.end(&change.claim(*made), &now) {
        End::Nothing => Ok(UndoOutcome::AlreadyGone),
        End::Covered => Ok(UndoOutcome::Superseded(newest_owner.clone().unwrap_or_default())),
        End::Set(to) => match program.change(fd, now, to)? {
            current if current == now => Ok(UndoOutcome::Undone),
            current => Ok(left_alone(program, fd, current, new, old)),
        },
        End::Foreign { before } => Ok(left_alone(program, fd, now, new, before.unwrap_or_default())),
    });
    match ended {
        Err(error) if error.is_absent() => Ok(UndoOutcome::AlreadyGone),
        ended => ended,
    }
}

fn left_alone(program: &Program, fd: i32, now: EpollParams, new: EpollParams, old: EpollParams) -> UndoOutcome {
    let pid = program.process.pid;
    UndoOutcome::LeftAlone(format!(
        "epoll {fd} of process {pid} has parameters that Quell did not set ({now} instead of {new}): another program \
         has changed them, or the number belongs to another epoll now (the parameters before Quell were {old})"
    ))
}

/// Applies one error to every epoll of the process. If the process has exited, its epolls are closed and their queues
/// are free.
fn of_all(
    proc: &ProcRoot,
    process: ProcessIdentity,
    error: SettingsError,
    count: usize,
) -> Vec<Result<UndoOutcome, SettingsError>> {
    if error.is_absent() || process.is_running(proc).is_ok_and(|runs| !runs) {
        return (0..count).map(|_| Ok(UndoOutcome::AlreadyGone)).collect();
    }
    let error = Arc::new(error);
    (0..count).map(|_| Err(SettingsError::OfAll(Arc::clone(&error)))).collect()
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::process::Command;

    use quell_linux::event::{Epoll, Trigger};
    use quell_linux::tcp::Blocking;
    use quell_linux::udp::UdpSocket;

    use super::*;

    const PREFERS: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: true };

    fn identity(proc: &ProcRoot, pid: Pid) -> ProcessIdentity {
        ProcessIdentity::of(proc, pid).unwrap()
    }

    /// A change of the epoll `fd` of this process.
    fn change_of(fd: i32) -> EpollParameters {
        let ProcessIdentity { pid, starttime, .. } = identity(&ProcRoot::default(), Pid::of_this_process());
        let place = EpollPlace::new(pid, starttime.0, fd);
        EpollParameters::new(place, Claims::default().take(1, Some(&EpollParams::default()), vec![PREFERS]))
    }

    fn to_end(change: &EpollParameters) -> EpollToEnd<'_> {
        EpollToEnd::new(change, true, &[])
    }

    #[test]
    fn epolls_are_restored_in_order_and_a_closed_one_is_gone() {
        let (proc, one) = (ProcRoot::default(), Epoll::new(1).unwrap());
        // No other test of this process has an epoll with these parameters, which would be taken for the closed one.
        if let Err(error) = epoll_params::set(&one, PREFERS) {
            return skip(Lacks::KernelFeature, &error);
        }
        let one_changed = change_of(one.as_fd().as_raw_fd());
        // Other tests would open the number of an epoll that is closed here.
        let two_changed = change_of(i32::MAX);
        let process = identity(&proc, Pid::of_this_process());
        let undoings = restore(&proc, process, &[&one_changed, &two_changed, &one_changed].map(to_end));
        let undoings: Vec<UndoOutcome> = undoings.into_iter().map(Result::unwrap).collect();
        assert_eq!(undoings, [UndoOutcome::Undone, UndoOutcome::AlreadyGone, UndoOutcome::AlreadyGone]);
        assert_eq!(epoll_params::get(&one).unwrap(), EpollParams::default());
    }

    /// As in a prefork server, whose children inherit the epolls.
    #[test]
    fn an_epoll_is_restored_at_the_descriptor_at_which_a_value_of_the_change_is_in_force() {
        let place = |pid, fd| EpollPlace::new(Pid::new(pid).unwrap(), 1, fd);
        let claim = Claims::default().take(1, Some(&EpollParams::default()), vec![PREFERS]);
        let alone = EpollParameters::new(place(10, 4), claim);
        let shared = alone.clone().with_duplicates(&[place(11, 4), place(12, 4)]);
        let other = EpollParams { busy_poll_usecs: 9, ..PREFERS };
        let at = |values: [Option<EpollParams>; 3]| {
            let now = |place: EpollPlace| values[usize::try_from(place.pid.get() - 10).unwrap()];
            (in_force_at(&alone, now).pid.get(), in_force_at(&shared, now).pid.get())
        };
        assert_eq!(at([Some(PREFERS); 3]), (10, 10));
        assert_eq!(at([None, None, Some(PREFERS)]), (10, 12), "the others have exited or closed it");
        assert_eq!(at([Some(other), Some(PREFERS), None]), (10, 11), "the first number is another epoll now");
        assert_eq!(at([None, Some(other), Some(other)]), (10, 11), "another program has set it");
        assert_eq!(at([None; 3]), (10, 10));
    }

    #[test]
    fn a_duplicate_restores_an_epoll_whose_first_descriptor_is_closed() {
        let (proc, epoll) = (ProcRoot::default(), Epoll::new(1).unwrap());
        // Parameters of no other test of this process.
        let set = EpollParams { busy_poll_budget: 9, ..PREFERS };
        if let Err(error) = epoll_params::set(&epoll, set) {
            return skip(Lacks::KernelFeature, &error);
        }
        let first = EpollParameters { new: set, ..change_of(i32::MAX) };
        let duplicate = EpollPlace { fd: epoll.as_fd().as_raw_fd(), ..first.place() };
        let change = first.with_duplicates(&[duplicate]);
        let outcomes = undo_epolls(&[(&change, true)], &[], proc.boot_id().unwrap(), &proc);
        assert!(matches!(outcomes[..], [Ok(UndoOutcome::Undone)]), "{outcomes:?}");
        assert_eq!(epoll_params::get(&epoll).unwrap(), EpollParams::default());
    }

    #[test]
    fn a_process_without_epolls_has_nothing_to_undo() {
        let proc = ProcRoot::default();
        assert!(restore(&proc, identity(&proc, Pid::of_this_process()), &[]).is_empty());
    }

    #[test]
    fn an_exited_process_leaves_nothing_to_undo() {
        let (proc, change) = (ProcRoot::default(), change_of(i32::MAX));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = identity(&proc, Pid::from_kernel(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(restore(&proc, process, &[to_end(&change)]).pop().unwrap().unwrap(), UndoOutcome::AlreadyGone);
        let failed = of_all(&proc, process, SettingsError::HeldElsewhere { group: String::new() }, 1);
        assert!(matches!(failed[..], [Ok(UndoOutcome::AlreadyGone)]), "whatever failed first");
    }

    #[test]
    fn an_epoll_without_any_of_the_known_sockets_is_another_one() {
        let (proc, seen, other) = (ProcRoot::default(), Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), false, Blocking::No).unwrap();
        seen.add(&socket, 0, Trigger::Level).unwrap();
        let own = PidFd::open(Pid::of_this_process()).unwrap();
        let fd = socket.as_fd().as_raw_fd();
        let inode = Some(own.duplicate(fd).unwrap().inode().unwrap());
        if let Err(error) = epoll_watches(&seen, fd, &socket) {
            return skip(Lacks::KernelFeature, &error);
        }
        let program = Program::open(&proc, identity(&proc, Pid::of_this_process()), false).unwrap();
        let get = |epoll: &Epoll, watched: &[SocketId]| program.get(epoll.as_fd().as_raw_fd(), watched);
        let watched = [SocketId { fd, inode }];
        assert!(get(&seen, &watched).is_ok());
        assert!(get(&other, &watched).unwrap_err().is_absent());
        assert!(
            get(&other, &[SocketId { fd, inode: inode.map(|inode| inode + 1) }]).is_ok(),
            "a closed socket proves nothing"
        );
        assert!(get(&other, &[]).is_ok());
    }
}
