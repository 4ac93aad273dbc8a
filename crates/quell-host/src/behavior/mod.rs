//! Observes programs for half a second: which objects of their epolls stay ready, with which timeouts they wait, and for
//! which sockets they sleep elsewhere. These decide whether a mode stalls a program, and no snapshot shows them. The
//! observation never waits on the programs' epolls and reads no data.
//!
//! Limits: an object that was unregistered between two samples, or that is registered with an epoll in a process that is
//! not observed, is not seen; nor are waits through `IORING_OP_EPOLL_WAIT`, calls of 32-bit programs, and, beyond the first
//! sockets of an epoll, errors and urgent data.

mod mixed;
mod read_queues;
mod ready;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use quell_linux::{NapiId, Pid};
use tracing::debug;

use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Protocol, Snapshot, SnapshotSocket, SocketState, WatchedFile, WatchedKind};
use mixed::MixedConnections;
pub use read_queues::ReadQueues;
use ready::ReadyObjects;
pub(crate) use ready::{cause_in_snapshot, is_reported_by_each_wait};
use waits::{Waiting, Waits};

pub const OBSERVED: Duration = Duration::from_millis(500);
const SAMPLED_EVERY: Duration = Duration::from_millis(10);
/// Fewest samples for a judgement, on a machine that is too slow for more in [`OBSERVED`].
const SAMPLES_MIN: u32 = 20;

/// Maximum number of programs without a mode that are observed: each sample looks at the epolls of all.
const SERVERS_MAX: usize = 32;

/// An epoll: its process, and its descriptor there.
pub type EpollKey = (Pid, i32);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behavior {
    pub programs: BTreeSet<Pid>,
    pub observed: Duration,
    pub samples: u32,
    /// Objects that were ready in every sample, by epoll.
    pub ready: BTreeMap<EpollKey, Vec<ReadyGroup>>,
    pub waits: BTreeMap<EpollKey, EpollWaits>,
    /// Calls in which threads that receive events from an epoll slept for a socket, by the queue of the socket.
    pub blocked: BTreeMap<EpollKey, BTreeMap<NapiId, u64>>,
    /// Queues that delivered data, for epolls with connections on several.
    pub received: BTreeMap<EpollKey, BTreeSet<NapiId>>,
    /// Duration for which waits were observed.
    pub waits_observed: Duration,
    /// Why calls were not counted, so that [`waits`](Self::waits) are of samples; absent if they were.
    pub not_counted: Option<String>,
}

impl Behavior {
    /// Whether a thread may have called `epoll_wait` on an epoll with these waits: it did, or calls were not counted.
    pub(crate) fn may_have_waited(&self, waits: EpollWaits) -> bool {
        self.not_counted.is_some() || waits.calls() > 0
    }
}

/// Objects of an epoll that stayed ready for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyGroup {
    pub cause: ReadyCause,
    /// Descriptor of the first one.
    pub fd: i32,
    pub count: usize,
    /// Why `poll(2)` did not confirm it; absent if it did.
    pub unconfirmed: Option<&'static str>,
}

/// Why an object is ready for the events that it is registered for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReadyCause {
    /// A socket registered for `EPOLLOUT` that can be written.
    Writable,
    /// A TCP connection that the peer has closed, or its half of it.
    HalfClosed,
    /// A TCP connection that both sides have closed.
    Closed,
    /// A listener with connections that are not accepted.
    Listener,
    /// A socket with data or errors that are not read.
    Unread,
    /// A socket with urgent data that is not read.
    Urgent,
    /// A file that is no network socket, with events that are not read.
    File(WatchedKind),
    /// Such a file that is registered for `EPOLLOUT` and can be written.
    WritableFile(WatchedKind),
    /// Such a file whose other end is closed or was never there.
    HungUp(WatchedKind),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EpollWaits {
    /// Calls with timeout 0.
    pub zero: u64,
    pub zero_empty: u64,
    /// Calls with a timeout above 0. If calls were not counted: samples in which a thread slept in one.
    pub sleeping: u64,
    /// Ended calls in which the thread slept.
    pub slept: u64,
    /// Calls that returned events.
    pub returned: u64,
    /// Calls of `poll` in which threads slept for the epoll itself.
    pub polled: u64,
    /// Whether a thread slept in a call in at least a tenth of the samples.
    pub is_slept_in: bool,
    pub threads: u32,
    /// Of those, threads that also slept in `poll`, `select` or `io_uring_enter`.
    pub sleeping_elsewhere: u32,
    /// Time for which these threads ran or waited for a CPU.
    pub busy: Duration,
    /// Calls in which threads that receive events here read sockets of queues, which an epoll watches.
    pub read_of_queues: u64,
    /// Calls in which they read other files that an epoll watches.
    pub read_of_others: u64,
    /// Of those, calls that read accepted connections, such as those of local clients.
    pub read_of_accepted: u64,
    /// Calls in which other threads of the program read what an epoll watches.
    pub read_elsewhere: u64,
    /// Calls that began after a read which left data in its TCP connection.
    pub after_partial_read: u64,
    /// Time in which the events before these calls were handled.
    pub partial_reading: Duration,
}

impl EpollWaits {
    pub(crate) fn calls(&self) -> u64 {
        self.zero.saturating_add(self.sleeping)
    }

    /// Calls in which threads of the program read what an epoll watches.
    pub(crate) fn reads(&self) -> u64 {
        self.read_of_queues.saturating_add(self.read_of_others).saturating_add(self.read_elsewhere)
    }

    /// The waits through two descriptors of one epoll.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            zero: self.zero + other.zero,
            zero_empty: self.zero_empty + other.zero_empty,
            sleeping: self.sleeping + other.sleeping,
            slept: self.slept + other.slept,
            returned: self.returned + other.returned,
            polled: self.polled + other.polled,
            is_slept_in: self.is_slept_in || other.is_slept_in,
            threads: self.threads + other.threads,
            sleeping_elsewhere: self.sleeping_elsewhere + other.sleeping_elsewhere,
            busy: self.busy + other.busy,
            read_of_queues: self.read_of_queues + other.read_of_queues,
            read_of_others: self.read_of_others + other.read_of_others,
            read_elsewhere: self.read_elsewhere.max(other.read_elsewhere),
            read_of_accepted: self.read_of_accepted + other.read_of_accepted,
            after_partial_read: self.after_partial_read + other.after_partial_read,
            partial_reading: self.partial_reading + other.partial_reading,
        }
    }
}

/// Programs whose epolls have to poll queues, because their interrupts are suspended or deferred.
#[must_use]
pub fn polling_programs(snapshot: &Snapshot) -> BTreeSet<Pid> {
    let query = SnapshotQuery::new(snapshot, None);
    let polls = |epoll: &&EpollContext<'_>| query.longest_unpolled_ns(epoll).is_some();
    query.epolls_by_descriptor.iter().filter(polls).map(|epoll| epoll.process.pid).collect()
}

/// Of the processes for which `is_wanted` holds: [`polling_programs`], and those to which queues deliver in epolls, unless
/// there are too many of the latter to observe at once. A mode could make these poll.
#[must_use]
pub fn programs_to_observe(snapshot: &Snapshot, is_wanted: impl Fn(Pid) -> bool) -> BTreeSet<Pid> {
    let query = SnapshotQuery::new(snapshot, None);
    let receives = |epoll: &&EpollContext<'_>| {
        !epoll.by_napi.is_empty() && !epoll.process.is_own() && is_wanted(epoll.process.pid)
    };
    let servers: BTreeSet<Pid> =
        query.epolls_by_descriptor.iter().filter(receives).map(|epoll| epoll.process.pid).collect();
    let mut programs = polling_programs(snapshot);
    programs.retain(|&pid| is_wanted(pid));
    if servers.len() <= SERVERS_MAX {
        programs.extend(servers);
    }
    programs
}

/// Observes the epolls of these programs for [`OBSERVED`]. Calls are counted in the kernel, at every system call of the
/// host, only if `counts` is set.
#[must_use]
pub fn observe(snapshot: &Snapshot, programs: &BTreeSet<Pid>, counts: bool) -> Behavior {
    let mut observation = Observation::begin(snapshot, programs, counts);
    while !observation.is_complete() {
        thread::sleep(SAMPLED_EVERY);
        observation.sample();
    }
    observation.end()
}

/// TCP connections of programs that were accepted, and have received without a queue, with the epoll that watches each.
fn accepted_without_queue(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> BTreeMap<(Pid, i32), EpollKey> {
    let of_tcp = || snapshot.sockets.iter().filter(|socket| socket.protocol == Protocol::Tcp);
    let port = |socket: &SnapshotSocket| socket.local.map(|local| (socket.namespace, local.port()));
    let listening: BTreeSet<_> =
        of_tcp().filter(|socket| socket.state == SocketState::Listen).filter_map(port).collect();
    let is_accepted = |socket: &&SnapshotSocket| {
        socket.remote.is_some()
            && socket.napi.known() == Some(&None)
            && port(socket).is_some_and(|port| listening.contains(&port))
    };
    let accepted: BTreeSet<u64> = of_tcp().filter(is_accepted).map(|socket| socket.inode).collect();
    let mut found = BTreeMap::new();
    for process in snapshot.processes.iter().filter(|process| programs.contains(&process.pid)) {
        let Some(files) = process.files.known() else { continue };
        let mut watched = BTreeMap::new();
        for epoll in &files.epolls {
            for target in epoll.targets.known_elements() {
                if let WatchedFile::Socket { inode } = target.file {
                    watched.insert(inode, (process.pid, epoll.fd));
                }
            }
        }
        let held = files.sockets.iter().filter(|held| accepted.contains(&held.inode));
        found.extend(held.filter_map(|held| Some(((process.pid, held.fd), *watched.get(&held.inode)?))));
    }
    found
}

#[derive(Debug)]
struct Observation {
    programs: BTreeSet<Pid>,
    began: Instant,
    samples: u32,
    ready: ReadyObjects,
    /// Descriptors of accepted connections without a queue, and the epoll that watches each.
    accepted: BTreeMap<(Pid, i32), EpollKey>,
    mixed: MixedConnections,
    waiting: Waiting,
}

impl Observation {
    fn begin(snapshot: &Snapshot, programs: &BTreeSet<Pid>, counts: bool) -> Self {
        let ready = ReadyObjects::of(snapshot, programs);
        let accepted = accepted_without_queue(snapshot, programs);
        let mixed = MixedConnections::of(snapshot, programs);
        let descriptors = ready.descriptors().chain(accepted.keys().copied()).collect();
        let waiting = Waiting::begin(programs, &descriptors, counts);
        // Loading the programs that count calls can take as long as the observation.
        let began = Instant::now();
        let mut observation = Self { programs: programs.clone(), began, samples: 0, ready, accepted, mixed, waiting };
        observation.sample();
        observation
    }

    fn sample(&mut self) {
        self.samples += 1;
        self.ready.sample(self.samples, self.is_half_over());
        self.waiting.sample(&self.programs, self.began.elapsed());
    }

    fn is_complete(&self) -> bool {
        self.began.elapsed() >= OBSERVED && self.samples >= SAMPLES_MIN
    }

    fn is_half_over(&self) -> bool {
        self.began.elapsed() >= OBSERVED / 2 && self.samples >= SAMPLES_MIN / 2
    }

    fn end(self) -> Behavior {
        let observed = self.began.elapsed();
        let received = self.mixed.received_within(observed);
        let (Waits { by_epoll: mut waits, blocked, read }, waits_observed, not_counted) = self.waiting.end(observed);
        let Self { programs, samples, ready, accepted, .. } = self;
        for (descriptor, epoll) in &accepted {
            let calls = read.get(descriptor).copied().unwrap_or(0);
            waits.entry(*epoll).and_modify(|waits| waits.read_of_accepted += calls);
        }
        let returned = |epoll: &EpollKey| waits.get(epoll).map_or(0, |waits| waits.returned);
        let ready = ready.end(&read.into_keys().collect(), returned);
        let behavior =
            Behavior { programs, observed, samples, ready, waits, blocked, received, waits_observed, not_counted };
        debug!(?behavior, "observed programs");
        behavior
    }
}
