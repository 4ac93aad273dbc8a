//! Queries over one or two snapshots. They relate epolls to queues and waiting threads, and queues to epolls, and
//! compute the differences between the snapshots. They judge nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::epoll_params::EpollParams;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use quell_sampler::QueueSample;

use crate::behavior::Behavior;

use super::{
    Cpu, Device, EpollWait, Files, HeldEpoll, Index, NetworkNamespace, Process, Protocol, Reading, RxQueue, Snapshot,
    SnapshotEpoll, SnapshotNapi, SnapshotSocket, SnapshotXdpSocket, SocketState, Thread, WatchedFile, WatchedKind,
    WatchedTarget, arrival,
};

#[derive(Debug)]
pub(crate) struct SnapshotQuery<'a> {
    pub(crate) now: &'a Snapshot,
    pub(crate) before: Option<&'a Snapshot>,
    interval_ns: Option<u64>,
    index: Index<'a>,
    index_before: Option<Index<'a>>,
    /// Epolls, once for each of their descriptors.
    pub(crate) epolls_by_descriptor: Vec<EpollContext<'a>>,
    /// Of those, one descriptor for each epoll.
    epolls: Vec<usize>,
    polls: Option<&'a BTreeMap<NapiId, QueueSample>>,
    behavior: Option<&'a Behavior>,
}

#[derive(Debug)]
pub(crate) struct EpollContext<'a> {
    pub(crate) process: &'a Process,
    pub(crate) epoll: &'a SnapshotEpoll,
    pub(crate) params: Option<EpollParams>,
    /// Its connected and datagram sockets, by NAPI instance. A socket that can receive from several queues appears under
    /// each. None under those of closed connections ([`Files::read_queues`]).
    pub(crate) by_napi: BTreeMap<NapiId, Vec<&'a SnapshotSocket>>,
    /// Sockets that appear under several NAPI instances, with the number of queues that deliver to them.
    pub(crate) on_several_queues: Vec<(&'a SnapshotSocket, usize)>,
    /// Its connections to other hosts whose packets are known to arrive without a NAPI instance.
    pub(crate) without_napi: Vec<&'a SnapshotSocket>,
    /// Threads that slept on it in either snapshot, with their calls. They can belong to other processes that share it.
    pub(crate) waiters: Vec<(&'a Thread, EpollWait)>,
    /// Other watched files, with their types and readiness.
    pub(crate) others: Vec<(&'a WatchedTarget, &'a WatchedKind, &'a Reading<bool>)>,
}

/// Sum of values that a file may contain; absent if one of them is.
pub(crate) fn saturating_sum(values: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    values.into_iter().try_fold(0_u64, |sum, value| Some(sum.saturating_add(value?)))
}

impl EpollContext<'_> {
    /// Whether it is known to busy poll its queue (`ep_busy_loop_on` in `fs/eventpoll.c`). Ignores the sysctl.
    pub(crate) fn polls(&self) -> bool {
        self.params.is_some_and(|params| params.prefer_busy_poll || params.busy_poll_usecs > 0)
    }

    /// Whether it is known to suspend interrupts if its queue allows it.
    pub(crate) fn prefers(&self) -> bool {
        self.params.is_some_and(|params| params.prefer_busy_poll)
    }

    /// The first descriptor of the epoll. Descriptors of one epoll have the same.
    pub(crate) fn key(&self) -> HeldEpoll {
        self.epoll.same_as.unwrap_or(HeldEpoll { pid: self.process.pid, fd: self.epoll.fd })
    }

    /// Whether it watches this epoll of the same process.
    fn watches(&self, inner: &Self) -> bool {
        let is_inner =
            |target: &WatchedTarget, kind: &WatchedKind| *kind == WatchedKind::Epoll && target.fd == inner.epoll.fd;
        self.process.pid == inner.process.pid && self.others.iter().any(|(target, kind, _)| is_inner(target, kind))
    }

    /// Number of its sockets that receive from a single queue, by NAPI instance.
    pub(crate) fn on_one_queue(&self) -> BTreeMap<NapiId, usize> {
        let is_on_one =
            |socket: &&&SnapshotSocket| self.on_several_queues.iter().all(|(other, _)| other.inode != socket.inode);
        let counts = self.by_napi.iter().map(|(&id, sockets)| (id, sockets.iter().filter(is_on_one).count()));
        counts.filter(|&(_, count)| count > 0).collect()
    }

    /// Inodes of the watched TCP and UDP sockets, in kernel order; a socket that was added twice appears twice.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = u64> + '_ {
        self.epoll.targets.known_elements().filter_map(|target| match target.file {
            WatchedFile::Socket { inode } => Some(inode),
            WatchedFile::Other { .. } => None,
        })
    }
}

impl<'a> SnapshotQuery<'a> {
    pub(crate) fn new(now: &'a Snapshot, before: Option<&'a Snapshot>) -> Self {
        let same_boot =
            |before: &&Snapshot| now.taken.boot_id.known().is_some() && now.taken.boot_id == before.taken.boot_id;
        let before = before.filter(same_boot);
        let elapsed = |before: &Snapshot| now.taken.monotonic_ns.checked_sub(before.taken.monotonic_ns);
        let interval_ns = before.and_then(elapsed).filter(|&elapsed| elapsed > 0);
        let before = before.filter(|_| interval_ns.is_some());
        let (index, index_before) = (now.index(), before.map(Snapshot::index));
        let mut all: Vec<_> =
            now.processes.iter().flat_map(|process| epolls_of(process, now, before, &index)).collect();
        drop_lost_queues(&mut all, now, &index);
        let epolls = join_descriptors(&mut all);
        let (polls, behavior) = (None, None);
        Self { now, before, interval_ns, index, index_before, epolls_by_descriptor: all, epolls, polls, behavior }
    }

    pub(crate) fn with_polls(self, polls: &'a BTreeMap<NapiId, QueueSample>) -> Self {
        Self { polls: Some(polls), ..self }
    }

    pub(crate) fn with_behavior(self, behavior: Option<&'a Behavior>) -> Self {
        Self { behavior, ..self }
    }

    /// Every epoll once, by a descriptor of a process whose threads sleep in it, if there is one.
    pub(crate) fn epolls(&self) -> impl Iterator<Item = &EpollContext<'a>> {
        self.epolls.iter().map(|&index| &self.epolls_by_descriptor[index])
    }

    /// Every descriptor of an epoll.
    pub(crate) fn descriptors(&self, epoll: &EpollContext<'_>) -> impl Iterator<Item = &EpollContext<'a>> {
        let key = epoll.key();
        self.epolls_by_descriptor.iter().filter(move |other| other.key() == key)
    }

    pub(crate) fn outer(&self, inner: &EpollContext<'_>) -> Option<&EpollContext<'a>> {
        let is_outer = |outer: &&EpollContext<'a>| self.descriptors(inner).any(|inner| outer.watches(inner));
        self.epolls_by_descriptor.iter().find(is_outer)
    }

    /// The observation of this epoll's programs, if there was one.
    pub(crate) fn behavior(&self, epoll: &EpollContext<'_>) -> Option<&'a Behavior> {
        let is_observed =
            |behavior: &&Behavior| self.descriptors(epoll).any(|one| behavior.programs.contains(&one.process.pid));
        self.behavior.filter(is_observed)
    }

    /// Whether an epoll suspends the interrupt of a queue.
    pub(crate) fn suspends(&self, epoll: &EpollContext<'_>) -> bool {
        epoll.prefers() && epoll.by_napi.keys().any(|&id| self.napi(id).is_some_and(|(_, napi)| napi.suspends()))
    }

    /// Nanoseconds for which packets of an instance can wait while no thread is in `epoll_wait` on this epoll, because it
    /// suspended the interrupt or left it deferred.
    pub(crate) fn unpolled_ns(&self, epoll: &EpollContext<'_>, id: NapiId) -> Option<u64> {
        let (_, napi) = self.napi(id).filter(|_| epoll.polls() && epoll.by_napi.contains_key(&id))?;
        match epoll.prefers() && napi.suspends() {
            true => napi.irq_suspend_timeout_ns.known().copied(),
            false => napi.gro_flush_timeout_ns.known().copied().filter(|_| napi.defers()),
        }
    }

    /// The longest of these times for the queues of the epoll.
    pub(crate) fn longest_unpolled_ns(&self, epoll: &EpollContext<'_>) -> Option<u64> {
        epoll.by_napi.keys().filter_map(|&id| self.unpolled_ns(epoll, id)).max()
    }

    /// Polls of an instance between the two snapshots. `None` if it was not sampled.
    pub(crate) fn polls(&self, id: NapiId) -> Option<&'a QueueSample> {
        self.polls?.get(&id)
    }

    pub(crate) fn interval_ns(&self) -> Option<u64> {
        self.interval_ns
    }

    pub(crate) fn before(&self) -> Option<&'a Snapshot> {
        self.before
    }

    pub(crate) fn napis(&self) -> impl Iterator<Item = (&'a Device, &'a SnapshotNapi)> {
        self.now.devices.iter().flat_map(|device| device.napis.known_elements().map(move |napi| (device, napi)))
    }

    pub(crate) fn napi(&self, id: NapiId) -> Option<(&'a Device, &'a SnapshotNapi)> {
        self.index.napi(id)
    }

    pub(crate) fn device(&self, namespace: u64, ifindex: Ifindex) -> Option<&'a Device> {
        self.index.device(namespace, ifindex)
    }

    /// The other end of a veth pair, if the snapshot has it. In another namespace, only one device can be it: interface
    /// indices are unique within a namespace.
    pub(crate) fn veth_peer(&self, veth: &Device) -> Option<&'a Device> {
        let lower = veth.lower.filter(|_| veth.kind.as_deref() == Some("veth"))?;
        if !lower.is_in_other_namespace {
            return self.device(veth.namespace, lower.ifindex);
        }
        let is_peer = |device: &&Device| {
            device.namespace != veth.namespace
                && (device.ifindex, device.kind.as_deref()) == (lower.ifindex, Some("veth"))
                && device.lower.is_some_and(|end| end.is_in_other_namespace && end.ifindex == veth.ifindex)
        };
        let mut peers = self.now.devices.iter().filter(is_peer);
        peers.next().filter(|_| peers.next().is_none())
    }

    pub(crate) fn socket_before(&self, inode: u64) -> Option<&'a SnapshotSocket> {
        self.index_before.as_ref()?.socket(inode)
    }

    pub(crate) fn socket(&self, inode: u64) -> Option<&'a SnapshotSocket> {
        self.index.socket(inode)
    }

    /// NAPI instances that can deliver packets to a socket.
    pub(crate) fn queues_of(&self, socket: &SnapshotSocket) -> BTreeSet<NapiId> {
        arrival::queues_of(self.now, &self.index, socket)
    }

    /// NAPI instances that deliver packets to the sockets of a process, AF_XDP sockets included.
    pub(crate) fn napis_of(&self, files: &Files) -> BTreeSet<NapiId> {
        arrival::napis_of_files(self.now, &self.index, files)
    }

    /// NAPI instance of an AF_XDP socket, or the reason why it is unknown. `None` if the socket is not bound.
    pub(crate) fn napi_of_xdp(&self, socket: &SnapshotXdpSocket) -> Result<Option<NapiId>, String> {
        arrival::napi_of_xdp(&self.index, socket)
    }

    pub(crate) fn cpu(&self, number: u32) -> Option<&'a Cpu> {
        self.index.cpu(number)
    }

    pub(crate) fn epolls_on(&self, id: NapiId) -> impl Iterator<Item = &EpollContext<'a>> {
        self.epolls().filter(move |epoll| epoll.by_napi.contains_key(&id))
    }

    /// Whether the queue allows suspension, or a busy-polling epoll has sockets on it.
    pub(crate) fn is_polled(&self, napi: &SnapshotNapi) -> bool {
        napi.suspends() || self.epolls_on(napi.id).any(EpollContext::polls)
    }

    /// CPUs that process the packets of a queue when no application polls it: those of its NAPI kthread or of its
    /// interrupt.
    pub(crate) fn packet_cpus(&self, napi: &SnapshotNapi) -> Option<CpuList> {
        match napi.thread.known() {
            Some(Some(thread)) => thread.affinity.known().cloned(),
            Some(None) => {
                let irq = self.index.irq(napi.irq_number()?)?;
                irq.effective_affinity.known().filter(|cpus| !cpus.is_empty()).cloned()
            }
            None => None,
        }
    }

    pub(crate) fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        *self.index.cpu(cpu)?.numa_node.known()?
    }

    /// Share of the interval during which a thread ran, from 0 to 1.
    pub(crate) fn busy_share(&self, process: &Process, thread: &Thread) -> Option<f64> {
        let before = self.thread_before(process, thread.tid)?;
        let ran = thread.run_ns.known()?.checked_sub(*before.run_ns.known()?)?;
        Some(ran as f64 / self.interval_ns? as f64)
    }

    /// Share of the interval during which a thread ran or waited for a CPU, from 0 to 1. The share of a thread that
    /// never sleeps is 1, even if other threads use its CPU.
    pub(crate) fn runnable_share(&self, process: &Process, thread: &Thread) -> Option<f64> {
        let before = self.thread_before(process, thread.tid)?;
        let waited = thread.wait_ns.known()?.checked_sub(*before.wait_ns.known()?)?;
        Some(self.busy_share(process, thread)? + waited as f64 / self.interval_ns? as f64)
    }

    /// CPU time of the threads of a process in the interval, in nanoseconds, without threads that exited.
    pub(crate) fn cpu_ns(&self, process: &Process) -> Option<u64> {
        let before = self.index_before.as_ref()?.process(process.pid)?;
        if before.start_time_ticks != process.start_time_ticks {
            return None;
        }
        before.threads.known()?;
        let ran = |thread: &Thread| {
            let ran_ns = *thread.run_ns.known()?;
            match self.thread_before(process, thread.tid) {
                Some(before) => ran_ns.checked_sub(*before.run_ns.known()?),
                None => Some(ran_ns),
            }
        };
        saturating_sum(process.threads.known()?.iter().map(ran))
    }

    /// Time for which the threads of a process wanted to run and waited for a CPU in the interval, in nanoseconds.
    pub(crate) fn cpu_wait_ns(&self, process: &Process) -> Option<u64> {
        let waited = |thread: &Thread| {
            thread.wait_ns.known()?.checked_sub(*self.thread_before(process, thread.tid)?.wait_ns.known()?)
        };
        saturating_sum(process.threads.known()?.iter().map(waited))
    }

    fn thread_before(&self, process: &Process, tid: Pid) -> Option<&'a Thread> {
        let before = self.index_before.as_ref()?.process(process.pid)?;
        if before.start_time_ticks != process.start_time_ticks {
            return None;
        }
        before.threads.known_elements().find(|thread| thread.tid == tid)
    }

    pub(crate) fn device_before(&self, device: &Device) -> Option<&'a Device> {
        self.index_before.as_ref()?.device(device.namespace, device.ifindex)
    }

    pub(crate) fn namespace_before(&self, inode: u64) -> Option<&'a NetworkNamespace> {
        let before = self.before?.namespace(inode)?;
        let now = self.now.namespace(inode)?;
        (before.cookie.known().is_some() && before.cookie == now.cookie).then_some(before)
    }

    pub(crate) fn cpu_pair(&self, number: u32) -> Option<(&'a Cpu, &'a Cpu)> {
        Some((self.index_before.as_ref()?.cpu(number)?, self.index.cpu(number)?))
    }

    /// Packets that a device received between the snapshots.
    pub(crate) fn device_packets(&self, device: &Device) -> Option<u64> {
        let before = self.device_before(device)?.counters.known()?;
        device.counters.known()?.rx_packets.checked_sub(before.rx_packets)
    }

    /// Known TCP and UDP sockets of a process.
    pub(crate) fn sockets_of(&self, process: &'a Process) -> impl Iterator<Item = &'a SnapshotSocket> {
        let held = process.files.known().into_iter().flat_map(|files| &files.sockets);
        held.filter_map(|held| self.socket(held.inode))
    }

    /// Whether the NAPI instance that the socket has recorded belongs to no device of the snapshot.
    pub(crate) fn has_lost_queue(&self, socket: &SnapshotSocket) -> bool {
        socket.napi.known().copied().flatten().is_some_and(|napi| self.napi(napi).is_none())
    }

    /// Whether clients on other hosts can send first to a socket of the process.
    pub(crate) fn serves(&self, process: &'a Process) -> bool {
        self.serves_by(process, |_| true)
    }

    /// The same by a socket of this kind.
    pub(crate) fn serves_by(&self, process: &'a Process, is_meant: impl Fn(&SnapshotSocket) -> bool) -> bool {
        self.sockets_of(process).any(|socket| is_served(socket) && is_meant(socket))
    }

    /// Packets received through a queue between the snapshots. Uses the driver's queue counter, or the device counter
    /// if there is a single queue.
    pub(crate) fn queue_packets(&self, device: &Device, napi: NapiId) -> Option<u64> {
        let queues = device.rx_queues.known()?;
        let its: Vec<&RxQueue> = queues.iter().filter(|queue| queue.napi_id() == Some(napi)).collect();
        let counted = |queue: &RxQueue| queue.counters.known()?.rx_packets;
        if let [queue] = its[..]
            && let Some(now) = counted(queue)
        {
            let before = self.device_before(device)?.rx_queues.known()?;
            return now.checked_sub(counted(before.iter().find(|other| other.id == queue.id)?)?);
        }
        if device.napis.known()?.len() == 1 { self.device_packets(device) } else { None }
    }

    /// Number of interrupts between the snapshots.
    pub(crate) fn interrupts(&self, irq: u32) -> Option<u64> {
        let total = |index: &Index<'_>| -> Option<u64> {
            saturating_sum(index.irq(irq)?.counts.known()?.iter().map(|&(_, count)| Some(count)))
        };
        total(&self.index)?.checked_sub(total(self.index_before.as_ref()?)?)
    }

    /// CPU time in nanoseconds per packet of the only thread that serves an epoll with one queue: run time divided by
    /// packets. A lower bound if other processes use the queue too.
    pub(crate) fn work_per_packet_ns(&self, epoll: &EpollContext<'_>) -> Option<f64> {
        let [(thread, _)] = epoll.waiters[..] else { return None };
        let napi = *epoll.by_napi.keys().next().filter(|_| epoll.by_napi.len() == 1)?;
        let (device, _) = self.napi(napi)?;
        let packets = self.queue_packets(device, napi).filter(|&packets| packets >= PACKETS_TO_JUDGE)?;
        let ran = self.busy_share(epoll.process, thread)? * self.interval_ns? as f64;
        Some(ran / packets as f64)
    }
}

/// Whether clients on other hosts can send to the socket first: it listens, or is an unconnected UDP socket with a port.
fn is_served(socket: &SnapshotSocket) -> bool {
    let accepts = socket.state == SocketState::Listen || socket.records_first_napi();
    accepts && socket.local.is_some_and(|local| local.port() != 0 && !local.ip().is_loopback())
}

/// Minimum number of packets between two snapshots for a judgement about ratios.
pub(crate) const PACKETS_TO_JUDGE: u64 = 1_000;

fn epolls_of<'a>(
    process: &'a Process,
    now: &'a Snapshot,
    before: Option<&'a Snapshot>,
    index: &Index<'a>,
) -> Vec<EpollContext<'a>> {
    let Some(files) = process.files.known() else { return Vec::new() };
    let earlier = before.and_then(|before| before.same_process(process));
    let in_context = |epoll: &'a SnapshotEpoll| {
        let mut its = EpollContext {
            process,
            epoll,
            params: epoll.params.known().copied(),
            by_napi: epoll.read_queues.iter().map(|&napi| (napi, Vec::new())).collect(),
            on_several_queues: Vec::new(),
            without_napi: Vec::new(),
            waiters: waiters_of(process, earlier, epoll.fd),
            others: Vec::new(),
        };
        let mut seen = BTreeSet::new();
        for target in epoll.targets.known_elements() {
            match &target.file {
                WatchedFile::Other { kind, ready } => its.others.push((target, kind, ready)),
                WatchedFile::Socket { inode } => {
                    if let Some(socket) = index.socket(*inode).filter(|_| seen.insert(*inode)) {
                        its.add(socket, &arrival::queues_of(now, index, socket));
                    }
                }
            }
        }
        its
    };
    files.epolls.iter().map(in_context).collect()
}

/// Removes queues that are gone: sockets keep the NAPI ID of their last packet when its device goes down or away. A queue that
/// is not in the snapshot is gone if the epoll has another one, or if each device of its namespace has queues of its own. A
/// macvlan, for example, has those of a device that may be elsewhere.
fn drop_lost_queues(epolls: &mut [EpollContext<'_>], now: &Snapshot, index: &Index<'_>) {
    if now.scope.device.is_some() {
        return;
    }
    let has_queues = |device: &Device| {
        device.name == "lo" || !device.is_up || device.napis.known().is_some_and(|napis| !napis.is_empty())
    };
    let mut is_complete: BTreeMap<u64, bool> = BTreeMap::new();
    for device in &now.devices {
        *is_complete.entry(device.namespace).or_insert(true) &= has_queues(device);
    }
    for epoll in epolls {
        let is_there = |napi: &NapiId| index.napi(*napi).is_some();
        let namespace = epoll.process.namespace.known();
        let shows_all = namespace.and_then(|namespace| is_complete.get(namespace)).copied().unwrap_or(false);
        if shows_all || epoll.by_napi.keys().any(is_there) {
            epoll.by_napi.retain(|napi, _| is_there(napi));
        }
    }
}

/// Gives all descriptors of an epoll the threads that sleep in it, and returns the index of one of them for each epoll.
fn join_descriptors(epolls: &mut [EpollContext<'_>]) -> Vec<usize> {
    let mut by_key: BTreeMap<HeldEpoll, Vec<usize>> = BTreeMap::new();
    for (index, epoll) in epolls.iter().enumerate() {
        by_key.entry(epoll.key()).or_default().push(index);
    }
    let mut chosen = Vec::new();
    for descriptors in by_key.into_values() {
        let with_waiters = descriptors.iter().find(|&&index| !epolls[index].waiters.is_empty());
        chosen.push(*with_waiters.unwrap_or(&descriptors[0]));
        if descriptors.len() > 1 {
            let waiters: Vec<_> = descriptors.iter().flat_map(|&index| epolls[index].waiters.clone()).collect();
            descriptors.into_iter().for_each(|index| epolls[index].waiters.clone_from(&waiters));
        }
    }
    chosen.sort_unstable();
    chosen
}

impl<'a> EpollContext<'a> {
    fn add(&mut self, socket: &'a SnapshotSocket, queues: &BTreeSet<NapiId>) {
        if socket.state == SocketState::Listen {
            return;
        }
        for &napi in queues {
            self.by_napi.entry(napi).or_default().push(socket);
        }
        if queues.len() > 1 {
            let delivering = socket.steered_queues.map_or(queues.len(), |steered| queues.len().min(steered as usize));
            self.on_several_queues.push((socket, delivering));
        }
        if bypasses_napi(socket) {
            self.without_napi.push(socket);
        }
    }
}

/// Whether the connection is established and not over loopback. An established connection has received packets;
/// loopback has no NAPI instance.
pub(crate) fn is_connection_to_another_host(socket: &SnapshotSocket) -> bool {
    socket.protocol == Protocol::Tcp
        && socket.state == SocketState::Established
        && socket.remote.is_some()
        && !is_loopback(socket)
}

/// Whether it is such a connection, and its packets passed no NAPI instance.
pub(crate) fn bypasses_napi(socket: &SnapshotSocket) -> bool {
    socket.napi.known() == Some(&None) && is_connection_to_another_host(socket)
}

/// Whether packets reach the socket over loopback only: an end has a loopback address, or both have the same one.
pub(crate) fn is_loopback(socket: &SnapshotSocket) -> bool {
    let ip = |end: Option<SocketAddr>| end.map(|end| end.ip().to_canonical());
    let (local, remote) = (ip(socket.local), ip(socket.remote));
    [local, remote].into_iter().flatten().any(|ip| ip.is_loopback()) || (local.is_some() && local == remote)
}

fn waiters_of<'a>(process: &'a Process, earlier: Option<&'a Process>, fd: i32) -> Vec<(&'a Thread, EpollWait)> {
    let wait_of = |thread: &Thread| thread.epoll_wait.known().copied().flatten().filter(|wait| wait.epoll_fd == fd);
    let waited_then = |tid: Pid| {
        let then = earlier?.threads.known_elements().find(|thread| thread.tid == tid)?;
        wait_of(then)
    };
    let waiter = |thread: &'a Thread| Some((thread, wait_of(thread).or_else(|| waited_then(thread.tid))?));
    process.threads.known_elements().filter_map(waiter).collect()
}
