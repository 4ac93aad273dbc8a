//! Objects of epolls that are ready in every sample. Sockets are judged by their state and queues, which `sock_diag`
//! lists without touching them. Only the few that stay candidates are duplicated, for one `poll(2)` each: an open
//! duplicate delays the FIN of a connection that its program closes.
//!
//! The sockets of a saturated server are ready in most samples, too, but its program reads them: data that stays the same
//! counts as unread, and a listener whose queue never gets shorter as not accepting.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{EpollTarget, ProcRoot};
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};
use quell_linux::socket_options::time_since_data;
use tracing::info;

use super::{EpollKey, ReadyCause, ReadyGroup};
use crate::snapshot::{Protocol, Reading, Snapshot, SnapshotSocket, SocketState, WatchedFile, WatchedTarget};

/// The registrations are read again in one of so many samples: they are long text for many connections.
const SAMPLES_PER_REGISTRATION: u32 = 5;
/// Sockets of an epoll that are duplicated for each reason. One that stays ready is enough for a stall.
const CONFIRMED_MAX: usize = 16;

/// A saturated server reads the data of a connection within this time.
const UNREAD_FOR: Duration = Duration::from_secs(1);

const EPOLLIN: u32 = 0x1;
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

/// The same for a socket of a snapshot.
pub(crate) fn cause_in_snapshot(target: &WatchedTarget, socket: &SnapshotSocket) -> Option<ReadyCause> {
    let queues = (socket.receive_queue?, socket.remote.is_some());
    is_reported_by_each_wait(target.events)
        .then(|| socket_cause(target.events, socket.protocol, socket.state, queues))
        .flatten()
}

#[derive(Debug)]
struct Candidate {
    epoll: EpollKey,
    fd: i32,
    events: u32,
    file: CandidateFile,
    /// Number of objects of this epoll and reason for which this one stands.
    stands_for: usize,
}

#[derive(Debug)]
enum CandidateFile {
    Socket { inode: u64, namespace: u64, protocol: Protocol, cause: Option<ReadyCause>, queued: u32 },
    Other(ReadyCause),
}

impl Candidate {
    fn cause(&self) -> Option<&ReadyCause> {
        match &self.file {
            CandidateFile::Socket { cause, .. } => cause.as_ref(),
            CandidateFile::Other(cause) => Some(cause),
        }
    }

    fn is_socket(&self) -> bool {
        matches!(self.file, CandidateFile::Socket { .. })
    }

    /// Whether the unread data of a connection is so new that a busy program may read it soon.
    fn is_recent(&self, file: &DuplicatedFd) -> bool {
        let CandidateFile::Socket { protocol: Protocol::Tcp, cause: Some(ReadyCause::Unread), .. } = self.file else {
            return false;
        };
        time_since_data(file).is_ok_and(|time| time < UNREAD_FOR)
    }

    /// Whether `poll(2)` reports a registered event. A descriptor that was reused is another object.
    fn is_ready(&self, processes: &HashMap<Pid, PidFd>) -> bool {
        let Some(process) = processes.get(&self.epoll.0) else { return false };
        let Ok(file) = process.duplicate_briefly(self.fd) else { return false };
        let is_same = match self.file {
            CandidateFile::Socket { inode, .. } => file.inode().ok() == Some(inode),
            CandidateFile::Other(_) => true,
        };
        is_same && !self.is_recent(&file) && file.is_ready(self.events).unwrap_or(false)
    }
}

/// Objects that were ready in each sample so far.
#[derive(Debug)]
pub(super) struct ReadyObjects {
    candidates: Vec<Candidate>,
    processes: HashMap<Pid, PidFd>,
    diags: HashMap<u64, SockDiag>,
    /// `poll(2)` would busy poll the queues (`net.core.busy_poll`).
    polling_disturbs: bool,
    is_confirming: bool,
}

impl ReadyObjects {
    pub(super) fn of(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> Self {
        let index = snapshot.index();
        let mut candidates = Vec::new();
        for process in snapshot.processes.iter().filter(|process| programs.contains(&process.pid)) {
            for epoll in process.files.known().into_iter().flat_map(|files| &files.epolls) {
                let candidate = |target: &WatchedTarget| {
                    let file = match &target.file {
                        WatchedFile::Other { ready: Reading::Known(true), kind } => {
                            CandidateFile::Other(ReadyCause::File(kind.clone()))
                        }
                        WatchedFile::Other { .. } => return None,
                        WatchedFile::Socket { inode } => {
                            let socket = index.socket(*inode)?;
                            let cause = cause_in_snapshot(target, socket);
                            cause.as_ref()?;
                            let (namespace, protocol) = (socket.namespace, socket.protocol);
                            let queued = socket.receive_queue.unwrap_or(0);
                            CandidateFile::Socket { inode: *inode, namespace, protocol, cause, queued }
                        }
                    };
                    let epoll = (process.pid, epoll.fd);
                    Some(Candidate { epoll, fd: target.fd, events: target.events, file, stands_for: 1 })
                };
                let level = epoll.targets.known_elements().filter(|target| is_reported_by_each_wait(target.events));
                candidates.extend(level.filter_map(candidate));
            }
        }
        let processes = programs.iter().filter_map(|&pid| Some((pid, PidFd::open(pid).ok()?))).collect();
        // Containers cannot read it. A poll of the queue would only deliver its packets earlier.
        let polling_disturbs = snapshot.sysctls.busy_poll_us.known().is_some_and(|&us| us > 0);
        let diags = diags(snapshot, &candidates);
        Self { candidates, processes, diags, polling_disturbs, is_confirming: false }
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
        self.candidates.retain(|one| (one.is_socket() && !confirming) || one.is_ready(processes));
    }

    pub(super) fn end(mut self) -> BTreeMap<EpollKey, Vec<ReadyGroup>> {
        self.drop_unregistered();
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
        match candidate.is_socket() && !self.is_confirming {
            true if self.polling_disturbs => Some("poll(2) would poll its queue, because net.core.busy_poll is set"),
            true => Some("the observation was too short"),
            false => None,
        }
    }

    /// Keeps a few sockets of each epoll and reason.
    fn select_representatives(&mut self) {
        let mut groups: HashMap<(EpollKey, ReadyCause), usize> = HashMap::new();
        for one in self.candidates.iter().filter(|one| one.is_socket()) {
            let Some(cause) = one.cause() else { continue };
            *groups.entry((one.epoll, cause.clone())).or_default() += 1;
        }
        let mut kept: HashMap<(EpollKey, ReadyCause), usize> = HashMap::new();
        self.candidates.retain_mut(|one| {
            let Some(cause) = one.cause().filter(|_| one.is_socket()) else { return true };
            let group = (one.epoll, cause.clone());
            let (all, kept) = (groups[&group], kept.entry(group).or_default());
            *kept += 1;
            if *kept == CONFIRMED_MAX {
                one.stands_for = all - kept.saturating_sub(1);
            }
            *kept <= CONFIRMED_MAX
        });
    }

    /// Drops objects that their epoll no longer watches, or for other events.
    fn drop_unregistered(&mut self) {
        let epolls: BTreeSet<EpollKey> = self.candidates.iter().map(|one| one.epoll).collect();
        let proc = ProcRoot::default();
        let mut watched: HashMap<EpollKey, HashMap<i32, EpollTarget>> = HashMap::new();
        for epoll in epolls {
            let Ok(info) = proc.process(epoll.0).epoll(epoll.1) else { continue };
            watched.insert(epoll, info.targets.into_iter().map(|target| (target.tfd, target)).collect());
        }
        self.candidates.retain(|one| {
            let Some(target) = watched.get(&one.epoll).and_then(|targets| targets.get(&one.fd)) else { return false };
            let is_same = match one.file {
                CandidateFile::Socket { inode, .. } => target.inode.is_none_or(|watched| watched == inode),
                CandidateFile::Other(_) => true,
            };
            is_same && target.events == one.events
        });
    }

    /// Drops sockets that are not ready by their state and queues.
    fn look_at_queues(&mut self) {
        let mut wanted: HashMap<(u64, Protocol), HashSet<u64>> = HashMap::new();
        for one in &self.candidates {
            if let CandidateFile::Socket { inode, namespace, protocol, .. } = one.file {
                wanted.entry((namespace, protocol)).or_default().insert(inode);
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
            let CandidateFile::Socket { inode, protocol, cause, queued, .. } = &mut one.file else { return true };
            let Some(socket) = found.get(inode) else { return false };
            let queues = (socket.receive_queue, socket.remote.is_some());
            *cause = socket_cause(one.events, *protocol, SocketState::from_kernel(socket.state), queues);
            let before = std::mem::replace(queued, socket.receive_queue);
            match cause {
                Some(ReadyCause::Unread) => before == *queued,
                Some(ReadyCause::Listener) => before <= *queued,
                cause => cause.is_some(),
            }
        });
    }
}

/// Handles to the sockets of the candidates' namespaces.
fn diags(snapshot: &Snapshot, candidates: &[Candidate]) -> HashMap<u64, SockDiag> {
    let namespaces: BTreeSet<u64> = candidates
        .iter()
        .filter_map(|one| match one.file {
            CandidateFile::Socket { namespace, .. } => Some(namespace),
            CandidateFile::Other(_) => None,
        })
        .collect();
    let is_readers = |inode: u64| snapshot.namespaces.iter().any(|one| one.inode == inode && one.is_readers);
    let open = |inode: u64| {
        if is_readers(inode) {
            return SockDiag::open().ok();
        }
        let pid = snapshot.processes.iter().find(|process| process.namespace.known() == Some(&inode))?.pid;
        let namespace = Namespace::open_pid(ProcRoot::default().path(), pid).ok()?;
        SockDiag::open_in(&namespace).ok()
    };
    namespaces.into_iter().filter_map(|inode| Some((inode, open(inode)?))).collect()
}
