//! Reads the list of processes, their open files, and the threads of relevant processes.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::proc::{Fd, FdKind, PidStat, ProcRoot, ProcessState};

use super::super::{
    FileWait, OtherSocket, Reading, SnapshotEpoll, SnapshotScope, SnapshotXdpSocket, Thread, UnknownReason,
};
use super::TakeError;
use super::outcome::Outcome as _;
use super::sockets::SocketTable;
use super::threads;

/// Reason for unknown files. An empty list would look like a process without files.
const NO_MAIN_THREAD: &str = "its main thread has exited, so the kernel does not list its files, and its epolls and \
                              sockets cannot be read";
/// How often, and how long apart, running threads are looked at again.
const LOOKS_AGAIN: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Parent of all kernel threads.
const KTHREADD: i32 = 2;

pub(super) struct Candidate {
    pub(super) pid: Pid,
    pub(super) name: String,
    pub(super) start_time_ticks: u64,
    pub(super) namespace: Reading<u64>,
    is_kernel_thread: bool,
    runs_without_main_thread: bool,
}

pub(super) struct OpenProcess {
    pub(super) pid: Pid,
    pub(super) name: String,
    pub(super) start_time_ticks: u64,
    pub(super) namespace: Reading<u64>,
    pub(super) fds: Reading<Vec<Fd>>,
    pub(super) epolls: Vec<SnapshotEpoll>,
    pub(super) xdp_sockets: Vec<i32>,
    pub(super) other_sockets: BTreeSet<OtherSocket>,
    /// With their inodes.
    pub(super) xdp_details: Vec<(u64, SnapshotXdpSocket)>,
    pub(super) rings_with_sockets: Vec<i32>,
    pub(super) rings_without_sockets: Vec<i32>,
    pub(super) threads: Reading<Vec<Thread>>,
}

pub(super) fn candidates(proc: &ProcRoot, scope: &SnapshotScope) -> Result<Vec<Candidate>, TakeError> {
    let mut pids = proc.pids()?;
    pids.sort_unstable();
    // Processes can exit after they were selected.
    if let Some(first) = scope.pids.first()
        && scope.pids.iter().all(|pid| pids.binary_search(pid).is_err())
    {
        return Err(TakeError::NoSuchProcess(*first));
    }
    let candidate = |pid| {
        let directory = proc.process(pid);
        let stat = directory.stat().ok()?;
        let is_asked_about = scope.pids.is_empty() || scope.pids.contains(&pid);
        let namespace = match is_asked_about {
            true => directory.net_namespace().outcome(),
            false => Reading::unknown(UnknownReason::NotAsked, "other processes were selected"),
        };
        Some(Candidate {
            pid,
            name: stat.name(),
            start_time_ticks: stat.starttime.0,
            namespace,
            is_kernel_thread: is_kernel_thread(&stat),
            runs_without_main_thread: stat.runs_without_main_thread(),
        })
    };
    // Skips processes that have exited in the meantime.
    Ok(pids.into_iter().filter_map(candidate).collect())
}

fn is_kernel_thread(stat: &PidStat) -> bool {
    stat.session.is_none() && stat.ppid.is_none_or(|parent| parent.get() == KTHREADD)
}

impl Candidate {
    /// Whether it is requested, or may be in one of these namespaces.
    pub(super) fn is_within(&self, scope: &SnapshotScope, namespaces: &BTreeSet<u64>) -> bool {
        if !scope.pids.is_empty() {
            return scope.pids.contains(&self.pid);
        }
        let is_there = self.namespace.known().is_none_or(|inode| namespaces.contains(inode));
        is_there && !self.is_kernel_thread
    }
}

pub(super) fn read(proc: &ProcRoot, candidate: &Candidate) -> OpenProcess {
    OpenProcess {
        pid: candidate.pid,
        name: candidate.name.clone(),
        start_time_ticks: candidate.start_time_ticks,
        namespace: candidate.namespace.clone(),
        fds: match candidate.runs_without_main_thread {
            false => proc.process(candidate.pid).fds().outcome(),
            true => Reading::unknown(
                UnknownReason::Failed,
                format!("list the files of process {}: {NO_MAIN_THREAD}", candidate.pid),
            ),
        },
        epolls: Vec::new(),
        xdp_sockets: Vec::new(),
        other_sockets: BTreeSet::new(),
        xdp_details: Vec::new(),
        rings_with_sockets: Vec::new(),
        rings_without_sockets: Vec::new(),
        threads: Reading::unknown(UnknownReason::NotAsked, "the process has no sockets"),
    }
}

impl OpenProcess {
    /// Descriptors and inodes of its sockets of any kind.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.fds.known_elements().filter_map(|fd| match fd.kind {
            FdKind::Socket { inode } => Some((fd.number, inode)),
            _ => None,
        })
    }

    /// Whether the process is part of the snapshot: requested, inaccessible, unreadable, or with a socket that receives
    /// packets.
    pub(super) fn is_wanted(&self, scope: &SnapshotScope, sockets: &SocketTable) -> bool {
        scope.pids.contains(&self.pid)
            || self.is_hidden()
            || self.fds.why_unknown().is_some_and(|unknown| unknown.reason == UnknownReason::Failed)
            || !self.xdp_sockets.is_empty()
            || self.sockets().any(|(_, inode)| sockets.contains(inode))
    }

    /// Whether access to its files was denied.
    pub(super) fn is_hidden(&self) -> bool {
        self.fds.why_unknown().is_some_and(|unknown| matches!(unknown.reason, UnknownReason::Denied { .. }))
    }

    /// Reads its threads, unless all its other data was inaccessible.
    pub(super) fn read_threads(&mut self, proc: &ProcRoot) {
        let directory = proc.process(self.pid);
        let tids = directory.tids().outcome();
        self.threads =
            tids.map(|tids| tids.into_iter().filter_map(|tid| threads::read(tid, &directory.thread(tid))).collect());
    }

    /// Whether no thread was seen in a wait for data, but some ran and may wait at any other moment.
    fn hides_its_wait(&self) -> bool {
        let threads = || self.threads.known_elements();
        let waits = |thread: &Thread| {
            matches!(thread.epoll_wait, Reading::Known(Some(_)))
                || thread.file_wait.is_some_and(|wait| !matches!(wait, FileWait::Accept { .. }))
        };
        self.sockets().next().is_some() && !threads().any(waits) && threads().any(ran)
    }
}

fn ran(thread: &Thread) -> bool {
    thread.state == Reading::Known(ProcessState::Running) && thread.epoll_wait == Reading::Known(None)
}

/// Looks again at running threads of programs whose waits were not seen: busy servers wait for moments only.
pub(super) fn look_again(proc: &ProcRoot, processes: &mut [OpenProcess]) {
    for _ in 0..LOOKS_AGAIN {
        let mut hiding = processes.iter_mut().filter(|process| process.hides_its_wait()).peekable();
        if hiding.peek().is_none() {
            return;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        for process in hiding {
            let directory = proc.process(process.pid);
            let Reading::Known(threads) = &mut process.threads else { continue };
            for thread in threads.iter_mut().filter(|thread| ran(thread) && thread.file_wait.is_none()) {
                threads::look_again(thread, &directory.thread(thread.tid));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(state: ProcessState, wait: Option<FileWait>) -> OpenProcess {
        let mut process = read(&ProcRoot::default(), &candidate());
        process.fds = Reading::Known(vec![Fd { number: 3, kind: FdKind::Socket { inode: 1 } }]);
        process.read_threads(&ProcRoot::default());
        let Reading::Known(threads) = &mut process.threads else { panic!("no threads") };
        threads.truncate(1);
        let (state, epoll_wait) = (Reading::Known(state), Reading::Known(None));
        threads[0] = Thread { state, epoll_wait, file_wait: wait, ..threads[0].clone() };
        process
    }

    fn candidate() -> Candidate {
        let scope = SnapshotScope { pids: vec![Pid::of_this_process()], ..SnapshotScope::default() };
        let is_this = |candidate: &Candidate| candidate.pid == Pid::of_this_process();
        candidates(&ProcRoot::default(), &scope).unwrap().into_iter().find(is_this).unwrap()
    }

    #[test]
    fn a_program_hides_its_wait_if_it_runs_and_no_thread_waits_for_data() {
        let hides = |state, wait| process(state, wait).hides_its_wait();
        assert!(hides(ProcessState::Running, None));
        assert!(hides(ProcessState::Running, Some(FileWait::Accept { fd: 3 })), "another thread receives");
        assert!(!hides(ProcessState::Running, Some(FileWait::Poll)));
        assert!(!hides(ProcessState::Sleeping, None), "it sleeps in another call");
    }
}
