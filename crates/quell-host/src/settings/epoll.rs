//! Busy-poll parameters of another process's epolls: set in an order that leaves no suspended queue stalled, verified,
//! and restored. A duplicate of the epoll exists only for a few system calls, never during a wait or a write to disk:
//! while it is open, the program's own `close` does not free the epoll.

use std::collections::HashSet;
use std::sync::Arc;

use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::kcmp::epoll_watches;
use quell_linux::netlink::Failure;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{FdKind, ProcRoot, ProcessIdentity, Ticks};

use super::napi::suspending;
use super::values::EpollValues;
use super::{SettingsError, handle_of};
use crate::attach::SocketId;
use crate::journal::{EpollParameters, Undoing};
use crate::resume::Resumer;

/// Number of epolls that are changed between two frees of the queues. A change takes microseconds, so a queue suspended
/// in between is freed long before the shortest useful suspension ends.
pub(crate) const AT_ONCE: usize = 500;

/// A process whose epolls are to be changed.
#[derive(Debug)]
pub(crate) struct Program {
    process: ProcessIdentity,
    handle: PidFd,
    /// Resumers for the queues that the process may have suspended; empty when no change can stall one.
    resumers: Vec<Resumer>,
}

impl Program {
    /// Opens the process. With `can_stall`, lists its sockets once for all changes.
    ///
    /// # Errors
    /// When the process has exited or may not be inspected, or queues cannot be listed.
    pub(crate) fn open(proc: &ProcRoot, process: ProcessIdentity, can_stall: bool) -> Result<Self, SettingsError> {
        let handle = handle_of(proc, process)?;
        let resumers = if can_stall { resumers(proc, handle.pid())? } else { Vec::new() };
        Ok(Self { process, handle, resumers })
    }

    /// Parameters of the epoll `fd`.
    ///
    /// # Errors
    /// When `fd` is not an epoll, or not the one that was seen to watch one of `watched`.
    pub(crate) fn get(&self, fd: i32, watched: &[SocketId]) -> Result<EpollValues, SettingsError> {
        let epoll = self.handle.duplicate_briefly(fd)?;
        if self.is_another(&epoll, watched) {
            let what = format!("the epoll that process {} had under number {fd}", self.process.pid);
            return Err(SettingsError::Gone { what });
        }
        Ok(epoll_params::get(&epoll)?.into())
    }

    /// Sets the parameters of the epoll `fd` if they are `from`, and verifies them. Returns the previous parameters.
    ///
    /// # Errors
    /// When `fd` is not an epoll, the kernel refuses, or the values read differ.
    pub(crate) fn change(&self, fd: i32, from: EpollValues, to: EpollValues) -> Result<EpollValues, SettingsError> {
        let epoll = self.handle.duplicate_briefly(fd)?;
        let current = epoll_params::get(&epoll)?.into();
        if current != from {
            return Ok(current);
        }
        epoll_params::set(&epoll, EpollParams::from(to))?;
        let read = epoll_params::get(&epoll)?.into();
        if read != to {
            let pid = self.process.pid.get();
            return Err(SettingsError::EpollReadBack { pid, fd, asked: to, read });
        }
        Ok(current)
    }

    /// Calls `act` and frees, before and after it, every queue that the process may have suspended. Freeing a queue
    /// needlessly costs one additional poll.
    pub(crate) fn with_queues_freed<T>(&self, act: impl FnOnce() -> T) -> (T, Result<(), SettingsError>) {
        for resumer in &self.resumers {
            // Waiting for the suspension to end only makes sense when it cannot start again.
            let _ = resumer.poll();
        }
        let result = act();
        let freed = self.resumers.iter().try_for_each(|resumer| resumer.poll_or_wait_out().map(drop));
        (result, freed.map_err(SettingsError::from))
    }

    /// Whether this is provably a different epoll: one of the sockets still exists, and the epoll watches none of the
    /// known ones. A closed socket proves nothing.
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

/// Queues that the process may have suspended: all of its namespace, and those of its sockets. The sockets that
/// associated an epoll with a queue may be closed by now.
fn resumers(proc: &ProcRoot, pid: Pid) -> Result<Vec<Resumer>, SettingsError> {
    let namespace = match Namespace::open_pid(proc.path(), pid) {
        Err(error) if error.is_absent() => return Err(SettingsError::ProcessGone { pid: pid.get() }),
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

/// Current parameters of the epoll of a change; `None` when the epoll was closed or its process has exited.
///
/// # Errors
/// When the process may not be inspected.
pub(crate) fn now(proc: &ProcRoot, change: &EpollParameters) -> Result<Option<EpollValues>, SettingsError> {
    let Some(pid) = Pid::from_kernel(change.pid) else { return Ok(None) };
    let process = ProcessIdentity { pid, starttime: Ticks(change.start_time_ticks), boot_id: proc.boot_id()? };
    match Program::open(proc, process, false).and_then(|program| program.get(change.fd, &[])) {
        Ok(values) => Ok(Some(values)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Restores the parameters of epolls of one process, in this order, where they are still the ones that were set. An
/// epoll is identified by its descriptor and parameters, because its sockets may have moved to another epoll.
pub(crate) fn put_back(
    proc: &ProcRoot,
    process: ProcessIdentity,
    changes: &[&EpollParameters],
) -> Vec<Result<Undoing, SettingsError>> {
    let can_stall = changes.iter().any(|change| change.new.prefer_busy_poll && !change.old.prefer_busy_poll);
    let program = match Program::open(proc, process, can_stall) {
        Ok(program) => program,
        Err(error) => return of_all(proc, process, error, changes.len()),
    };
    let mut undoings = Vec::with_capacity(changes.len());
    for changes in changes.chunks(AT_ONCE) {
        let (outcomes, freed) = program
            .with_queues_freed(|| changes.iter().map(|change| put_back_one(&program, change)).collect::<Vec<_>>());
        match freed {
            Ok(()) => undoings.extend(outcomes),
            Err(error) => undoings.extend(of_all(proc, process, error, changes.len())),
        }
    }
    put_back_moved(proc, &program, changes, &mut undoings);
    undoings
}

/// Restores epolls that the program has under other numbers by now, as after dup2(2) of another file to the number: they
/// have the values that were set, which no program gives itself by chance. Not where the values to restore differ, for which
/// epoll had which is not known.
fn put_back_moved(
    proc: &ProcRoot,
    program: &Program,
    changes: &[&EpollParameters],
    undoings: &mut [Result<Undoing, SettingsError>],
) {
    let is_lost =
        |undoing: &Result<Undoing, SettingsError>| matches!(undoing, Ok(Undoing::AlreadyGone | Undoing::LeftAlone(_)));
    let are_alike = changes.iter().all(|change| (change.old, change.new) == (changes[0].old, changes[0].new));
    if !are_alike || !undoings.iter().any(is_lost) {
        return;
    }
    let Ok(fds) = proc.process(program.handle.pid()).fds() else { return };
    let numbers: HashSet<i32> = changes.iter().map(|change| change.fd).collect();
    let others = fds.iter().filter(|fd| fd.kind == FdKind::Epoll && !numbers.contains(&fd.number));
    let mut lost = undoings.iter_mut().filter(|undoing| is_lost(undoing));
    let EpollParameters { old, new, .. } = *changes[0];
    for fd in others.filter(|fd| program.get(fd.number, &[]).is_ok_and(|values| values == new)) {
        if let (Ok(current), Ok(())) = program.with_queues_freed(|| program.change(fd.number, new, old))
            && current == new
            && let Some(undoing) = lost.next()
        {
            *undoing = Ok(Undoing::Undone);
        }
    }
}

fn put_back_one(program: &Program, change: &EpollParameters) -> Result<Undoing, SettingsError> {
    let EpollParameters { fd, old, new, .. } = *change;
    match program.change(fd, new, old) {
        Ok(current) if current == new => Ok(Undoing::Undone),
        Ok(current) if current == old => Ok(Undoing::AlreadyGone),
        Ok(current) => {
            let pid = program.process.pid;
            Ok(Undoing::LeftAlone(format!(
                "epoll {fd} of process {pid} is not as Quell set it ({new}) but {current}: it was changed since, or is \
                 another epoll under that number, and was left alone; before Quell it was {old}"
            )))
        }
        Err(error) if error.is_absent() => Ok(Undoing::AlreadyGone),
        Err(error) => Err(error),
    }
}

/// Applies one error to every epoll of the process. An exited process has closed its epolls, which frees the queues.
fn of_all(
    proc: &ProcRoot,
    process: ProcessIdentity,
    error: SettingsError,
    count: usize,
) -> Vec<Result<Undoing, SettingsError>> {
    if error.is_absent() || process.is_running(proc).is_ok_and(|runs| !runs) {
        return (0..count).map(|_| Ok(Undoing::AlreadyGone)).collect();
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

    fn set_here(epoll: &Epoll) -> Option<EpollParameters> {
        if let Err(error) = epoll_params::set(epoll, PREFERS) {
            skip(Lacks::KernelFeature, &error);
            return None;
        }
        let proc = ProcRoot::default();
        let ProcessIdentity { pid, starttime, .. } = identity(&proc, Pid::of_this_process());
        Some(EpollParameters {
            pid: pid.get().unsigned_abs(),
            start_time_ticks: starttime.0,
            fd: epoll.as_fd().as_raw_fd(),
            old: EpollParams::default().into(),
            new: PREFERS.into(),
        })
    }

    #[test]
    fn epolls_are_restored_in_order_and_one_that_is_closed_is_gone() {
        let (proc, one, two) = (ProcRoot::default(), Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        let (Some(one_changed), Some(two_changed)) = (set_here(&one), set_here(&two)) else { return };
        drop(two);
        let process = identity(&proc, Pid::of_this_process());
        let undoings = put_back(&proc, process, &[&one_changed, &two_changed, &one_changed]);
        let undoings: Vec<Undoing> = undoings.into_iter().map(Result::unwrap).collect();
        assert_eq!(undoings, [Undoing::Undone, Undoing::AlreadyGone, Undoing::AlreadyGone]);
        assert_eq!(epoll_params::get(&one).unwrap(), EpollParams::default());
    }

    #[test]
    fn a_process_that_ended_leaves_nothing_to_be_undone() {
        let (proc, own) = (ProcRoot::default(), Epoll::new(1).unwrap());
        let Some(change) = set_here(&own) else { return };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = identity(&proc, Pid::from_kernel(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(put_back(&proc, process, &[&change]).pop().unwrap().unwrap(), Undoing::AlreadyGone);
        let failed = of_all(&proc, process, SettingsError::HeldElsewhere { group: String::new() }, 1);
        assert!(matches!(failed[..], [Ok(Undoing::AlreadyGone)]), "whatever failed first");
    }

    #[test]
    fn an_epoll_that_watches_none_of_the_sockets_it_was_seen_to_watch_is_another_one() {
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
            "a closed one says nothing"
        );
        assert!(get(&other, &[]).is_ok());
    }
}
