//! Objects of epolls that are ready in every sample. Sockets are judged by their state and queues, which `sock_diag`
//! lists without touching them. Only the few that stay candidates are duplicated, for one `poll(2)` each: an open
//! duplicate delays the FIN of a connection that its program closes.
//!
//! The sockets of a saturated server are ready in most samples, too, and those of a program that looks at them at
//! regular times, but their programs read them: a socket counts as unread, and a listener as not accepting, if its queue
//! never gets shorter and no call read or accepted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::{PidFd, PidFdError};
use quell_linux::proc::{EpollTarget, FdKind, ProcRoot};
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};
use quell_linux::socket_options::time_since_data;
use tracing::info;

use super::{EpollKey, ReadyCause, ReadyGroup};
use crate::snapshot::read::watched::{OpenFiles, numbered, pending};
use crate::snapshot::{
    Protocol, Reading, Snapshot, SnapshotEpoll, SnapshotSocket, SocketState, WatchedFile, WatchedKind, WatchedTarget,
};

/// The registrations are read again in one of so many samples: they are long text for many connections.
const SAMPLES_PER_REGISTRATION: u32 = 5;
/// Sockets of an epoll that are duplicated for each reason. One that stays ready is enough for a stall.
const CONFIRMED_MAX: usize = 16;

/// Sockets of an epoll that are queried for events which `sock_diag` does not list.
const HIDDEN_MAX: usize = 64;

/// A saturated server reads the data of a connection within this time, if it is unknown whether `epoll_wait` has
/// returned the connection.
const UNREAD_FOR: Duration = Duration::from_secs(1);
/// Calls that return events, per file of the epoll, after which each file that stayed ready has been returned. One is
/// enough in theory: level-triggered files are returned in turn. The rest is for files that got ready meanwhile.
const CALLS_PER_FILE: u64 = 2;

const EPOLLIN: u32 = 0x1;
const EPOLLPRI: u32 = 0x2;
const EPOLLOUT: u32 = 0x4;
const EPOLLRDNORM: u32 = 0x40;
const EPOLLWRNORM: u32 = 0x100;
const EPOLLRDHUP: u32 = 0x2000;
const EPOLLHUP: u32 = 0x10;
const EPOLLERR: u32 = 0x8;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLET: u32 = 1 << 31;

/// Whether each `epoll_wait` returns the file. A file that is returned only once, when it becomes ready, does not
/// prevent the next call from polling the queue.
pub(crate) fn is_reported_by_each_wait(events: u32) -> bool {
    events & (EPOLLONESHOT | EPOLLET) == 0
}

/// Why a socket with these queues is ready for these events; `None` if it is not. A socket for `EPOLLOUT` is a candidate
/// whatever its queue, because the size of its buffer is not known.
pub(crate) fn socket_cause(
    events: u32,
    protocol: Protocol,
    state: SocketState,
    (receive_queue, is_connected): (u32, bool),
) -> Option<ReadyCause> {
    let (reads, writes) = (events & (EPOLLIN | EPOLLRDNORM) != 0, events & (EPOLLOUT | EPOLLWRNORM) != 0);
    let unread = (receive_queue > 0 && events & (EPOLLIN | EPOLLRDNORM | EPOLLERR) != 0).then_some(ReadyCause::Unread);
    let writable = writes.then_some(ReadyCause::Writable);
    match (protocol, state) {
        (Protocol::Udp, _) => writable.or(unread),
        (_, SocketState::Listen) => (reads && receive_queue > 0).then_some(ReadyCause::Listener),
        (_, SocketState::CloseWait) if reads || events & EPOLLRDHUP != 0 => Some(ReadyCause::HalfClosed),
        (_, SocketState::LastAck | SocketState::Closing | SocketState::Close) => {
            (events & EPOLLHUP != 0).then_some(ReadyCause::Closed)
        }
        (_, SocketState::SynSent | SocketState::SynRecv | SocketState::NewSynRecv) => None,
        _ if is_connected => writable.or(unread.filter(|_| reads)),
        _ => None,
    }
}

pub(crate) fn cause_in_snapshot(target: &WatchedTarget, socket: &SnapshotSocket) -> Option<ReadyCause> {
    let queues = (socket.receive_queue?, socket.remote.is_some());
    is_reported_by_each_wait(target.events)
        .then(|| socket_cause(target.events, socket.protocol, socket.state, queues))
        .flatten()
}

/// Why a file that is no TCP or UDP socket is ready, if these events are pending.
fn file_cause(kind: WatchedKind, pending: u32) -> ReadyCause {
    match pending {
        pending if pending & EPOLLHUP != 0 => ReadyCause::HungUp(kind),
        pending if pending & !(EPOLLOUT | EPOLLWRNORM) != 0 => ReadyCause::File(kind),
        _ => ReadyCause::WritableFile(kind),
    }
}

#[derive(Debug)]
struct Candidate {
    epoll: EpollKey,
    /// Descriptor number under which it is registered.
    fd: i32,
    events: u32,
    inode: Option<u64>,
    /// A descriptor that refers to it. The one with which it was registered may be closed.
    held: (Pid, i32),
    file: CandidateFile,
    /// Number of objects of this epoll and reason for which this one stands.
    stands_for: usize,
}

#[derive(Debug)]
enum CandidateFile {
    Listed {
        namespace: u64,
        protocol: Protocol,
        cause: Option<ReadyCause>,
        queued: u32,
    },
    /// A socket with an event that `sock_diag` does not list.
    Hidden(ReadyCause),
    /// A file that is no TCP or UDP socket.
    Other(FdKind, ReadyCause),
}

impl Candidate {
    fn cause(&self) -> Option<&ReadyCause> {
        match &self.file {
            CandidateFile::Listed { cause, .. } => cause.as_ref(),
            CandidateFile::Hidden(cause) | CandidateFile::Other(_, cause) => Some(cause),
        }
    }

    fn is_listed(&self) -> bool {
        matches!(self.file, CandidateFile::Listed { .. })
    }

    /// Whether the unread data of a connection is so new that a busy program may read it soon.
    fn is_recent(&self, processes: &Processes) -> bool {
        let CandidateFile::Listed { protocol: Protocol::Tcp, cause: Some(ReadyCause::Unread), .. } = self.file else {
            return false;
        };
        let Some(Ok(process)) = processes.get(&self.held.0) else { return false };
        let Ok(file) = process.duplicate_briefly(self.held.1) else { return false };
        time_since_data(file).is_ok_and(|time| time < UNREAD_FOR)
    }

    /// Whether it is ready only for data or connections, which a program reads or accepts; errors are read separately.
    fn is_readable_only(&self, processes: &Processes) -> bool {
        let CandidateFile::Listed { cause: Some(ReadyCause::Unread | ReadyCause::Listener), .. } = self.file else {
            return false;
        };
        let Some(Ok(process)) = processes.get(&self.held.0) else { return false };
        let Ok(file) = process.duplicate_briefly(self.held.1) else { return false };
        file.pending(0).is_ok_and(|pending| pending & EPOLLERR == 0)
    }

    /// Whether the file reports a registered event. A descriptor that was reused is another object.
    fn is_ready(&self, processes: &Processes) -> bool {
        let Some(Ok(process)) = processes.get(&self.held.0) else { return false };
        if let CandidateFile::Other(kind, _) = &self.file {
            return pending(process, (kind, self.held.1), self.events).known().is_some_and(|&pending| pending != 0);
        }
        let Ok(file) = process.duplicate_briefly(self.held.1) else { return false };
        let pending = match self.file {
            CandidateFile::Hidden(_) => file.pending(self.events & EPOLLPRI).unwrap_or(0) & (EPOLLPRI | EPOLLERR),
            _ => file.pending(self.events).unwrap_or(0),
        };
        file.inode().ok() == self.inode && pending != 0
    }
}

type Processes = HashMap<Pid, Result<PidFd, PidFdError>>;

#[derive(Debug)]
pub(super) struct ReadyObjects {
    candidates: Vec<Candidate>,
    processes: Processes,
    /// All descriptors of sockets in the programs, by inode.
    descriptors: HashMap<u64, BTreeSet<(Pid, i32)>>,
    diags: HashMap<u64, SockDiag>,
    /// `poll(2)` would busy poll the queues (`net.core.busy_poll`).
    polling_disturbs: bool,
    is_confirming: bool,
}

impl ReadyObjects {
    pub(super) fn of(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> Self {
        let holders = Holders::of(snapshot, programs);
        // Containers cannot read it. A poll of the queue would only deliver its packets earlier.
        let polling_disturbs = snapshot.sysctls.busy_poll_us.known().is_some_and(|&us| us > 0);
        let mut candidates = Vec::new();
        for process in snapshot.processes.iter().filter(|process| programs.contains(&process.pid)) {
            for epoll in process.files.known().into_iter().flat_map(|files| &files.epolls) {
                candidates.extend(others(snapshot, (process.pid, epoll), &holders.processes));
                let (listed, silent) = holders.sockets(snapshot, (process.pid, epoll));
                candidates.extend(listed);
                if !polling_disturbs {
                    candidates.extend(hidden(silent, &holders.processes));
                }
            }
        }
        let diags = diags(snapshot, &candidates);
        let inodes: HashSet<u64> =
            candidates.iter().filter(|one| one.is_listed()).filter_map(|one| one.inode).collect();
        let mut descriptors: HashMap<u64, BTreeSet<(Pid, i32)>> = HashMap::new();
        for process in snapshot.processes.iter().filter(|process| programs.contains(&process.pid)) {
            for held in process.files.known().into_iter().flat_map(|files| &files.sockets) {
                if inodes.contains(&held.inode) {
                    descriptors.entry(held.inode).or_default().insert((process.pid, held.fd));
                }
            }
        }
        Self { candidates, processes: holders.processes, descriptors, diags, polling_disturbs, is_confirming: false }
    }

    /// Descriptors of the sockets that were ready at the beginning.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (Pid, i32)> {
        self.descriptors.values().flatten().copied()
    }

    /// Drops candidates that are not ready now. `confirms` begins to query the sockets themselves.
    pub(super) fn sample(&mut self, number: u32, confirms: bool) {
        if number.is_multiple_of(SAMPLES_PER_REGISTRATION) {
            self.drop_unregistered();
        }
        if confirms && !self.polling_disturbs && !self.is_confirming {
            self.drop_unregistered();
            self.is_confirming = true;
            self.select_representatives();
        }
        if !self.is_confirming {
            self.look_at_queues();
        }
        let (processes, confirming) = (&self.processes, self.is_confirming);
        self.candidates.retain(|one| (one.is_listed() && !confirming) || one.is_ready(processes));
    }

    /// The objects that stayed ready, without sockets whose data was read through one of the descriptors `read`, and
    /// without those that the program may read soon. `returned` is the number of calls per epoll that returned events.
    pub(super) fn end(
        mut self,
        read: &BTreeSet<(Pid, i32)>,
        returned: impl Fn(&EpollKey) -> u64,
    ) -> BTreeMap<EpollKey, Vec<ReadyGroup>> {
        let files = self.drop_unregistered();
        let Self { candidates, descriptors, processes, .. } = &mut self;
        candidates.retain(|one| {
            let held = one.inode.and_then(|inode| descriptors.get(&inode));
            let is_read = held.is_some_and(|held| !held.is_disjoint(read));
            let was_returned =
                files.get(&one.epoll).is_some_and(|&files| returned(&one.epoll) >= files as u64 * CALLS_PER_FILE);
            !(is_read && one.is_readable_only(processes)) && (was_returned || !one.is_recent(processes))
        });
        let mut groups: BTreeMap<EpollKey, Vec<ReadyGroup>> = BTreeMap::new();
        for candidate in &self.candidates {
            let Some(cause) = candidate.cause() else { continue };
            let groups = groups.entry(candidate.epoll).or_default();
            match groups.iter_mut().find(|group| group.cause == *cause) {
                Some(group) => group.count += candidate.stands_for,
                None => groups.push(ReadyGroup {
                    cause: cause.clone(),
                    fd: candidate.fd,
                    count: candidate.stands_for,
                    unconfirmed: self.unconfirmed(candidate),
                }),
            }
        }
        groups
    }

    fn unconfirmed(&self, candidate: &Candidate) -> Option<&'static str> {
        match candidate.is_listed() && !self.is_confirming {
            true if self.polling_disturbs => Some("poll(2) would poll its queue, because net.core.busy_poll is set"),
            true => Some("the observation was too short"),
            false => None,
        }
    }

    /// Keeps a few sockets of each epoll and reason.
    fn select_representatives(&mut self) {
        let mut groups: HashMap<(EpollKey, ReadyCause), usize> = HashMap::new();
        for one in self.candidates.iter().filter(|one| one.is_listed()) {
            let Some(cause) = one.cause() else { continue };
            *groups.entry((one.epoll, cause.clone())).or_default() += 1;
        }
        let mut kept: HashMap<(EpollKey, ReadyCause), usize> = HashMap::new();
        self.candidates.retain_mut(|one| {
            let Some(cause) = one.cause().filter(|_| one.is_listed()) else { return true };
            let group = (one.epoll, cause.clone());
            let (all, kept) = (groups[&group], kept.entry(group).or_default());
            *kept += 1;
            if *kept == CONFIRMED_MAX {
                one.stands_for = all - kept.saturating_sub(1);
            }
            *kept <= CONFIRMED_MAX
        });
    }

    /// Drops objects that their epoll no longer watches, or for other events. Returns the number of files of each epoll.
    fn drop_unregistered(&mut self) -> HashMap<EpollKey, usize> {
        let epolls: BTreeSet<EpollKey> = self.candidates.iter().map(|one| one.epoll).collect();
        let proc = ProcRoot::default();
        let mut watched: HashMap<EpollKey, HashMap<i32, Vec<EpollTarget>>> = HashMap::new();
        for epoll in epolls {
            let Ok(info) = proc.process(epoll.0).epoll(epoll.1) else { continue };
            let targets: &mut HashMap<i32, Vec<EpollTarget>> = watched.entry(epoll).or_default();
            info.targets.into_iter().for_each(|target| targets.entry(target.tfd).or_default().push(target));
        }
        self.candidates.retain(|one| {
            let Some(targets) = watched.get(&one.epoll).and_then(|targets| targets.get(&one.fd)) else { return false };
            let is_it = |target: &EpollTarget| {
                let is_same = target.inode.zip(one.inode).is_none_or(|(watched, inode)| watched == inode);
                is_same && target.events == one.events
            };
            targets.iter().any(is_it)
        });
        watched.into_iter().map(|(epoll, files)| (epoll, files.values().map(Vec::len).sum())).collect()
    }

    /// Drops sockets that are not ready by their state and queues.
    fn look_at_queues(&mut self) {
        let mut wanted: HashMap<(u64, Protocol), HashSet<u64>> = HashMap::new();
        for one in &self.candidates {
            if let CandidateFile::Listed { namespace, protocol, .. } = one.file {
                wanted.entry((namespace, protocol)).or_default().extend(one.inode);
            }
        }
        let mut found: HashMap<u64, InetSocket> = HashMap::new();
        for ((namespace, protocol), inodes) in wanted {
            let Some(diag) = self.diags.get_mut(&namespace) else { continue };
            let inet = match protocol {
                Protocol::Tcp => InetProtocol::Tcp,
                Protocol::Udp => InetProtocol::Udp,
            };
            for family in [InetFamily::V4, InetFamily::V6] {
                let listed = diag.for_each(inet, family, |socket| {
                    let inode = u64::from(socket.inode);
                    if inodes.contains(&inode) {
                        found.insert(inode, socket);
                    }
                });
                if let Err(error) = listed {
                    info!(%error, "the queues of sockets cannot be read");
                }
            }
        }
        self.candidates.retain_mut(|one| {
            let CandidateFile::Listed { protocol, cause, queued, .. } = &mut one.file else { return true };
            let Some(socket) = one.inode.and_then(|inode| found.get(&inode)) else { return false };
            let queues = (socket.receive_queue, socket.remote.is_some());
            *cause = socket_cause(one.events, *protocol, SocketState::from_kernel(socket.state), queues);
            let before = std::mem::replace(queued, socket.receive_queue);
            match cause {
                Some(ReadyCause::Unread | ReadyCause::Listener) => before <= *queued,
                cause => cause.is_some(),
            }
        });
    }
}

/// Descriptors of the sockets of a snapshot. The socket that an epoll watches can be open in another process only.
struct Holders {
    sockets: HashMap<u64, (Pid, i32)>,
    processes: Processes,
}

impl Holders {
    fn of(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> Self {
        let mut sockets = HashMap::new();
        for process in &snapshot.processes {
            for held in process.files.known().into_iter().flat_map(|files| &files.sockets) {
                sockets.entry(held.inode).or_insert((process.pid, held.fd));
            }
        }
        let holders = sockets.values().map(|&(pid, _)| pid).collect::<BTreeSet<Pid>>();
        let processes = holders.union(programs).map(|&pid| (pid, PidFd::open(pid))).collect();
        Self { sockets, processes }
    }

    /// The level-triggered sockets of an epoll: those that are ready by their state and queues, and the others.
    fn sockets(&self, snapshot: &Snapshot, (pid, epoll): (Pid, &SnapshotEpoll)) -> (Vec<Candidate>, Vec<Candidate>) {
        let index = snapshot.index();
        let candidate = |target: &WatchedTarget| {
            let WatchedFile::Socket { inode } = target.file else { return None };
            let socket = index.socket(inode)?;
            let (namespace, protocol) = (socket.namespace, socket.protocol);
            let (cause, queued) = (cause_in_snapshot(target, socket), socket.receive_queue.unwrap_or(0));
            Some(Candidate {
                epoll: (pid, epoll.fd),
                fd: target.fd,
                events: target.events,
                inode: Some(inode),
                held: *self.sockets.get(&inode)?,
                file: CandidateFile::Listed { namespace, protocol, cause, queued },
                stands_for: 1,
            })
        };
        let level = epoll.targets.known_elements().filter(|target| is_reported_by_each_wait(target.events));
        level.filter_map(candidate).partition(|one| one.cause().is_some())
    }
}

/// Those of these sockets that have an event which `sock_diag` does not list: an error, or urgent data.
fn hidden(mut silent: Vec<Candidate>, processes: &Processes) -> Vec<Candidate> {
    silent.sort_by_key(|one| one.events & EPOLLPRI == 0);
    silent.truncate(HIDDEN_MAX);
    let with_event = |one: Candidate| {
        let urgent = CandidateFile::Hidden(ReadyCause::Urgent);
        let one = Candidate { file: urgent, ..one };
        let Some(Ok(process)) = processes.get(&one.held.0) else { return None };
        let pending = process.duplicate_briefly(one.held.1).ok()?.pending(one.events & EPOLLPRI).ok()?;
        match pending {
            pending if pending & EPOLLERR != 0 => {
                Some(Candidate { file: CandidateFile::Hidden(ReadyCause::Unread), ..one })
            }
            pending if pending & EPOLLPRI != 0 => Some(one),
            _ => None,
        }
    };
    silent.into_iter().filter_map(with_event).collect()
}

/// The level-triggered files of an epoll, other than TCP and UDP sockets, that were ready in the snapshot and are now.
fn others(snapshot: &Snapshot, (pid, epoll): (Pid, &SnapshotEpoll), processes: &Processes) -> Vec<Candidate> {
    let was_ready = |target: &&WatchedTarget| {
        matches!(target.file, WatchedFile::Other { ready: Reading::Known(true), .. })
            && is_reported_by_each_wait(target.events)
    };
    let ready: HashSet<(i32, u32)> =
        epoll.targets.known_elements().filter(was_ready).map(|target| (target.fd, target.events)).collect();
    let directory = ProcRoot::default().process(pid);
    let Some(process) = processes.get(&pid).filter(|_| !ready.is_empty()) else { return Vec::new() };
    let (Ok(info), Ok(fds)) = (directory.epoll(epoll.fd), directory.fds()) else { return Vec::new() };
    let (files, index) = (OpenFiles::new(pid, process, &fds), snapshot.index());
    let candidate = |(target, number): (&EpollTarget, u32)| {
        let is_network = target.inode.is_some_and(|inode| index.socket(inode).is_some());
        if is_network || !ready.contains(&(target.tfd, target.events)) {
            return None;
        }
        let fd = files.descriptor(epoll.fd, (target, number))?;
        let pending = *files.pending(fd, target.events).known().filter(|&&pending| pending != 0)?;
        let file = CandidateFile::Other(files.kind(fd)?.clone(), file_cause(files.watched_kind(Some(fd)), pending));
        let (epoll, inode) = ((pid, epoll.fd), target.inode);
        Some(Candidate { epoll, fd: target.tfd, events: target.events, inode, held: (pid, fd), file, stands_for: 1 })
    };
    numbered(&info.targets).filter_map(candidate).collect()
}

fn diags(snapshot: &Snapshot, candidates: &[Candidate]) -> HashMap<u64, SockDiag> {
    let namespaces: BTreeSet<u64> = candidates
        .iter()
        .filter_map(|one| match one.file {
            CandidateFile::Listed { namespace, .. } => Some(namespace),
            _ => None,
        })
        .collect();
    let open = |inode: u64| {
        if snapshot.namespace(inode).is_some_and(|namespace| namespace.is_current) {
            return SockDiag::open().ok();
        }
        let within = snapshot.processes.iter().find(|process| process.namespace.known() == Some(&inode));
        let namespace = match within {
            Some(process) => Namespace::open_pid(ProcRoot::default().path(), process.pid),
            // A program can have sockets in a namespace that it left.
            None => {
                let named = snapshot.namespace(inode)?.name()?;
                NamespaceName::new(named).and_then(|name| Namespace::open_named(&name))
            }
        };
        SockDiag::open_in(&namespace.ok()?).ok()
    };
    namespaces.into_iter().filter_map(|inode| Some((inode, open(inode)?))).collect()
}
