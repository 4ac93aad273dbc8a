//! Decides the CPU of a worker: that of the queue that delivers all its connections. Pure. The decision uses observed
//! connections, even with a filter, because the kernel does not expose a socket's index in its reuseport group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_change::settings::affinity::Pin;
use quell_linux::visible::counted;
use quell_linux::{CpuList, NapiId, Pid};

use super::groups::SteerWorker;
use super::spread::Spread;
use super::verify::Baseline;
use crate::findings::QueuePerEpoll;
use crate::findings::sorting::opened_connections;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Index, Process, Reading, Snapshot, SnapshotNapi, SnapshotSocket, Thread, WatchedFile};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPinned {
    pub worker: SteerWorker,
    pub why: WhyNotPinned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyNotPinned {
    /// None of its connections has received through a NAPI instance yet.
    NoConnection,
    /// All of its connections, this number, predate the filter, which did not select their queue.
    OlderThanFilter(usize),
    /// It watches unconnected UDP sockets, which report only the NAPI instance of their first datagram.
    Datagrams,
    SeveralNapis {
        napis: Vec<NapiId>,
        /// How its connections can come from one, for this program.
        advice: String,
    },
    UnknownNapi(NapiId),
    /// The packets of the queue have no fixed CPU.
    QueueWithoutCpu(NapiId, UnboundPoller),
    NoThread,
    /// Several threads wait on its epoll and would share the CPU.
    SeveralThreads(Vec<Pid>),
    UnknownAffinity(Pid),
    /// This many workers have queues on these CPUs, and more CPUs at present.
    CrowdedCpus {
        workers: usize,
        cpus: CpuList,
        present: CpuList,
    },
}

/// What polls a queue whose packets have no fixed CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnboundPoller {
    /// This interrupt, which can arrive on all CPUs.
    Irq(u32),
    /// This NAPI kthread, which runs on all CPUs.
    Kthread(Pid),
    /// A softirq on the CPU that sends: the queue has no interrupt.
    SendingCpu,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// Threads to bind, without threads that already have the right affinity.
    pub pins: Vec<Pin>,
    pub in_place: Vec<Pid>,
    pub not_pinned: Vec<NotPinned>,
}

/// Decides for each epoll of these processes that watches connections. Ignores connections in `baseline`, which predate
/// the filter.
#[must_use]
pub fn pins(snapshot: &Snapshot, pids: &[Pid], baseline: &Baseline) -> Pins {
    let index = snapshot.index();
    let mut pins = Pins::default();
    let query = SnapshotQuery::new(snapshot, None);
    let mut of_queues: Vec<(SteerWorker, Pin)> = Vec::new();
    let mut leaving: BTreeSet<Pid> = BTreeSet::new();
    let processes = || snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let workers: Vec<_> = processes().map(|process| (process, napis_of_workers(process, &index, baseline))).collect();
    let are_sorted = are_sorted(workers.iter().flat_map(|(_, workers)| workers.values()));
    for (process, workers) in workers {
        if !query.serves(process) {
            leaving.insert(process.pid);
        }
        for (worker, seen) in workers {
            let napis = match seen {
                SeenQueues::Older(napis) if are_sorted => Ok(napis.into_iter().collect()),
                SeenQueues::Older(napis) => Err(WhyNotPinned::OlderThanFilter(napis.len())),
                SeenQueues::Present(napis) => napis,
            };
            match napis.and_then(|napis| pin(process, &worker, &napis, (&index, &query))) {
                Ok(pin) => of_queues.push((worker, pin)),
                Err(why) => pins.not_pinned.push(NotPinned { worker, why }),
            }
        }
    }
    // A worker that only finishes its connections, as after a reload, gives its CPU to another.
    let stays = |(_, pin): &&(SteerWorker, Pin)| pin.old != pin.new || !leaving.contains(&pin.pid);
    let spread = Spread::of(of_queues.iter().filter(stays).map(|(_, pin)| (&pin.old, &pin.new)));
    for (worker, pin) in of_queues {
        match spread.crowd(&pin.new) {
            _ if pin.old == pin.new => pins.in_place.push(pin.tid),
            Some(workers) => {
                let why = WhyNotPinned::CrowdedCpus { workers, cpus: pin.new, present: pin.old };
                pins.not_pinned.push(NotPinned { worker, why });
            }
            None => pins.pins.push(pin),
        }
    }
    pins
}

/// NAPI instances of the connections of a worker.
enum SeenQueues {
    Present(Result<BTreeSet<NapiId>, WhyNotPinned>),
    /// Of each connection, all of which predate the filter.
    Older(Vec<NapiId>),
}

/// Number of connections, beyond one for each worker, from which on it is no chance that those of each worker came from one
/// queue, and from another one than those of the others.
const SORTED_FROM: usize = 8;

/// Whether the filter of an earlier attachment has sorted the connections of these workers. A filter selects the same worker
/// for a queue as long as the sockets of the group remain, so that the next connections arrive there, too.
fn are_sorted<'a>(workers: impl Iterator<Item = &'a SeenQueues>) -> bool {
    let older = workers.filter_map(|seen| match seen {
        SeenQueues::Older(napis) => Some(napis),
        SeenQueues::Present(_) => None,
    });
    let (mut queues, mut beyond) = (BTreeSet::new(), 0);
    for napis in older {
        let Some(first) = napis.first().filter(|first| napis.iter().all(|napi| napi == *first)) else { return false };
        if !queues.insert(*first) {
            return false;
        }
        beyond += napis.len() - 1;
    }
    beyond >= SORTED_FROM
}

/// NAPI instances of the connections that each epoll of a process watches, or from which it has read if its connections
/// close at once. Epolls without TCP or UDP sockets are not workers.
fn napis_of_workers(process: &Process, index: &Index<'_>, baseline: &Baseline) -> BTreeMap<SteerWorker, SeenQueues> {
    let is_on_one_of_several = |socket: &SnapshotSocket| {
        let device = (*socket.napi.known()?).and_then(|napi| index.napi(napi)).map(|(device, _)| device);
        Some(device.is_none_or(|device| device.napis.known().is_none_or(|napis| napis.len() > 1)))
    };
    let mut workers = BTreeMap::new();
    for epoll in process.files.known().map_or(&[][..], |files| &files.epolls) {
        let sockets = epoll.targets.known_elements().filter_map(|target| match target.file {
            WatchedFile::Socket { inode } => index.socket(inode),
            WatchedFile::Other { .. } => None,
        });
        let mut sockets = sockets.peekable();
        if sockets.peek().is_none() {
            continue;
        }
        let received = sockets.filter_map(|socket| Some((socket, socket.napi.known().copied().flatten()?)));
        let (old, new): (Vec<_>, Vec<_>) = received.partition(|(socket, _)| baseline.contains(socket));
        let napi = |(socket, napi): (&SnapshotSocket, NapiId)| {
            let is_unknown = socket.records_first_napi() && is_on_one_of_several(socket) == Some(true);
            if is_unknown { Err(WhyNotPinned::Datagrams) } else { Ok(napi) }
        };
        let seen = match (new.is_empty(), old.is_empty()) {
            (true, false) => SeenQueues::Older(old.into_iter().map(|(_, napi)| napi).collect()),
            (true, true) => SeenQueues::Present(Ok(epoll.read_queues.clone())),
            (false, _) => SeenQueues::Present(new.into_iter().map(napi).collect()),
        };
        workers.insert(SteerWorker::new(process, epoll), seen);
    }
    workers
}

fn pin(
    process: &Process,
    worker: &SteerWorker,
    napis: &BTreeSet<NapiId>,
    (index, query): (&Index<'_>, &SnapshotQuery<'_>),
) -> Result<Pin, WhyNotPinned> {
    let napi = match napis.iter().copied().collect::<Vec<_>>()[..] {
        [] => return Err(WhyNotPinned::NoConnection),
        [napi] => napi,
        ref several => {
            return Err(WhyNotPinned::SeveralNapis { napis: several.to_vec(), advice: to_sort(worker, query) });
        }
    };
    let (_, polled) = index.napi(napi).ok_or(WhyNotPinned::UnknownNapi(napi))?;
    let new = cpus_of(polled, index).ok_or_else(|| WhyNotPinned::QueueWithoutCpu(napi, unbound(polled)))?;
    let has_its_cpus = |thread: &&Thread| thread.affinity.known() == Some(&new);
    let thread = match thread_of(process, worker) {
        // At work, and pinned before.
        Err(WhyNotPinned::NoThread) => {
            process.threads.known_elements().find(has_its_cpus).ok_or(WhyNotPinned::NoThread)?
        }
        thread => thread?,
    };
    let old = thread.affinity.known().ok_or(WhyNotPinned::UnknownAffinity(thread.tid))?.clone();
    Ok(Pin {
        pid: process.pid,
        start_time_ticks: process.start_time_ticks,
        tid: thread.tid,
        thread: thread.name.clone(),
        napi,
        old,
        new,
    })
}

/// How the connections of a worker can come from one queue.
fn to_sort(worker: &SteerWorker, query: &SnapshotQuery<'_>) -> String {
    let is_its = |epoll: &&EpollContext<'_>| (epoll.process.pid, epoll.epoll.fd) == (worker.pid, worker.epoll_fd);
    let Some(epoll) = query.epolls_by_descriptor.iter().find(is_its) else { return String::new() };
    if let Some(reason) = opened_connections(query, epoll) {
        return reason;
    }
    let mut sockets = epoll.sockets().filter_map(|inode| query.socket(inode));
    match sockets.any(|socket| socket.steered_queues.is_some()) {
        true => "run as many workers as queues, or use fewer queues (`ethtool -L`)".to_owned(),
        false => QueuePerEpoll::of(query, epoll).advice(),
    }
}

/// Whether workers can be pinned to the CPUs of one of these queues: it has a NAPI kthread or an interrupt that does not run
/// on all CPUs.
#[must_use]
pub fn can_pin(snapshot: &Snapshot, queues: &BTreeSet<NapiId>) -> bool {
    let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
    let index = snapshot.index();
    napis.filter(|napi| queues.contains(&napi.id)).any(|napi| cpus_of(napi, &index).is_some())
}

/// CPUs that process a queue's packets: those of its NAPI kthread, or of its interrupt if it has none.
fn cpus_of(napi: &SnapshotNapi, index: &Index<'_>) -> Option<CpuList> {
    let some = |cpus: &Reading<CpuList>| cpus.known().filter(|cpus| !cpus.is_empty()).cloned();
    let everywhere = index.cpu_count();
    let is_bound = |cpus: &CpuList| cpus.len() < everywhere;
    if let Some(thread) = napi.thread.known().and_then(Option::as_ref) {
        return some(&thread.affinity).filter(is_bound);
    }
    let irq = index.irq(napi.irq.known().copied().flatten()?.to)?;
    some(&irq.effective_affinity).or_else(|| some(&irq.affinity)).filter(is_bound)
}

fn unbound(napi: &SnapshotNapi) -> UnboundPoller {
    match (napi.thread.known().and_then(Option::as_ref), napi.irq.known().and_then(Option::as_ref)) {
        (Some(thread), _) => UnboundPoller::Kthread(thread.tid),
        (None, Some(irq)) => UnboundPoller::Irq(irq.to),
        (None, None) => UnboundPoller::SendingCpu,
    }
}

/// Returns the thread that waits on an epoll. In a single-threaded process, returns its only thread.
fn thread_of<'a>(process: &'a Process, worker: &SteerWorker) -> Result<&'a Thread, WhyNotPinned> {
    let threads = process.threads.known().map_or(&[][..], Vec::as_slice);
    if let [only] = threads {
        return Ok(only);
    }
    let waits = |thread: &&Thread| {
        thread.epoll_wait.known().copied().flatten().is_some_and(|wait| wait.epoll_fd == worker.epoll_fd)
    };
    match threads.iter().filter(waits).collect::<Vec<_>>()[..] {
        [] => Err(WhyNotPinned::NoThread),
        [thread] => Ok(thread),
        ref several => Err(WhyNotPinned::SeveralThreads(several.iter().map(|thread| thread.tid).collect())),
    }
}

impl WhyNotPinned {
    /// Whether the reason may disappear, for example because a client connects or the thread waits.
    #[must_use]
    pub fn may_change(&self) -> bool {
        matches!(self, Self::NoConnection | Self::OlderThanFilter(_) | Self::NoThread | Self::CrowdedCpus { .. })
    }
}

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SteerWorker { pid, epoll_fd, process } = &self.worker;
        write!(f, "epoll {epoll_fd} of {process} {pid}: {}", self.why)
    }
}

impl fmt::Display for WhyNotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConnection => {
                f.write_str("its queue is unknown, because it had no open connection through a queue")
            }
            Self::OlderThanFilter(count) => {
                let connections = counted(*count, "connection");
                write!(
                    f,
                    "its queue is unknown, because the filter selects the worker of new connections only, and it has \
                     none ({connections} from before): let the clients reconnect: restart them, or reload a server that can, such as nginx"
                )
            }
            Self::Datagrams => f.write_str(
                "its queue is unknown, because an unconnected UDP socket reports only the queue of its first datagram",
            ),
            Self::SeveralNapis { napis, advice } => {
                write!(f, "its connections arrive on {}: {advice}", counted(napis.len(), "NAPI instance"))
            }
            Self::UnknownNapi(napi) => write!(f, "NAPI {napi} belongs to no device of the snapshot"),
            Self::QueueWithoutCpu(napi, poller) => match poller {
                UnboundPoller::Irq(irq) => write!(
                    f,
                    "the interrupt of NAPI {napi} can arrive on every CPU: bind it first, with irqbalance stopped: \
                     `echo CPU > /proc/irq/{irq}/smp_affinity_list`"
                ),
                UnboundPoller::Kthread(tid) => {
                    write!(
                        f,
                        "the kernel thread of NAPI {napi} runs on every CPU: bind it first: `taskset -pc CPU {tid}`"
                    )
                }
                UnboundPoller::SendingCpu => {
                    write!(f, "NAPI {napi} has no interrupt: its packets are handled on the CPU that sends them")
                }
            },
            Self::NoThread => f.write_str("no thread was waiting on it when the snapshot was taken"),
            Self::SeveralThreads(tids) => write!(f, "{} threads wait on it, and would share one CPU", tids.len()),
            Self::CrowdedCpus { workers, cpus, present } => write!(
                f,
                "{} would share CPU {cpus} of their queues, while they may use CPUs {present}: use as many queues as \
                 workers, with a CPU each",
                counted(*workers, "worker")
            ),
            Self::UnknownAffinity(tid) => write!(f, "the CPUs of thread {tid} could not be read"),
        }
    }
}
