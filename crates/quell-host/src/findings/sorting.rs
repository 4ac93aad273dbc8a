//! Advice that depends on the program: how its connections can be sorted by queue, and what Quell has applied to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU64;

use quell_linux::Pid;
use quell_linux::visible::counted;
use quell_mode::{DeliveryMode, ModeKind, NapiThreading};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fix::CompareCommand;
use super::placement::FLOATING_WORKER;
use super::sharing::{EPOLL_MIXES_NAPIS, SHARED_BY_WORKERS, one_queue_per_udp_socket};
use super::{Finding, Fix, Node, Severity};
use crate::attach::owners::QueueSharers;
use crate::attach::{AttachedMode, ModeCommand};
use crate::snapshot::arrival::receiving_napis;
use crate::snapshot::query::{EpollContext, SnapshotQuery, is_loopback};
use crate::snapshot::{Device, Process, Protocol, Snapshot, SnapshotSocket, SocketState};
use crate::steer::can_pin;

/// How each epoll of a program can get the connections of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum QueuePerEpoll {
    /// By a filter on its reuseport groups (`--steer`).
    Steered,
    /// After a change of its configuration.
    Configured {
        change: String,
        /// Whether a filter is needed, too.
        steered: bool,
    },
    /// Not by sorting the connections of the running program.
    Impossible { reason: String },
}

impl QueuePerEpoll {
    /// What to do, for a program that is attached.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Steered => "add --steer".to_owned(),
            Self::Configured { change, steered: true } => format!("{change}, then add --steer"),
            Self::Configured { change: text, steered: false } | Self::Impossible { reason: text } => text.clone(),
        }
    }

    pub(crate) fn of(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Self {
        let of_udp = || one_queue_per_udp_socket(query, epoll).filter(|_| epoll.on_one_queue().len() < 2);
        opened_connections(query, epoll)
            .or_else(|| of_udp().map(str::to_owned))
            .map_or_else(|| Self::of_worker(query, epoll.process), |reason| Self::Impossible { reason })
    }

    /// The same for the connections that a process accepts.
    fn of_worker(query: &SnapshotQuery<'_>, process: &Process) -> Self {
        let (queues, epolls) = (queues_of_device(query, process), epolls_with_connections(query, process));
        if process.name == "memcached" {
            let change = match queues {
                0 => "start memcached with `-N`, one thread per queue".to_owned(),
                _ => format!("start memcached with `-t {queues} -N {queues}`, one thread per queue"),
            };
            let change = format!("{change} (let its clients reconnect if it has these)");
            return Self::Configured { change, steered: false };
        }
        let workers = match process.name.as_str() {
            "nginx" => Some("worker_processes"),
            "haproxy" => Some("nbthread"),
            _ => None,
        };
        let sockets = reuseport_groups(query, process).iter().map(BTreeSet::len).max().unwrap_or(0);
        if sockets > 0 && sockets >= queues {
            return Self::Steered;
        }
        if sockets > 0 {
            let set =
                workers.map_or_else(|| format!("use {queues} workers"), |option| format!("set `{option} {queues}`"));
            let has = counted(sockets, "listening socket");
            let change = format!("{set}, one per queue (it has {has}), or fewer queues (`ethtool -L`)");
            return Self::Configured { change, steered: true };
        }
        let own_sockets = match process.name.as_str() {
            "nginx" => "add `reuseport` to its `listen` directives",
            "haproxy" => "add `shards by-thread` to its `bind` lines",
            _ if epolls <= 1 => return Self::Impossible { reason: ONE_EPOLL.to_owned() },
            _ => "give each worker a listening socket of its own (SO_REUSEPORT)",
        };
        let change = match workers.filter(|_| epolls < queues) {
            Some(option) => format!("set `{option} {queues}` and {own_sockets}"),
            None => own_sockets.to_owned(),
        };
        Self::Configured { change, steered: true }
    }

    /// For a program whose epolls are these, if one receives from several queues.
    pub(crate) fn of_epolls(query: &SnapshotQuery<'_>, epolls: &[&EpollContext<'_>]) -> Option<Self> {
        let mixes = |epoll: &&&EpollContext<'_>| {
            epoll.on_one_queue().len() > 1 || one_queue_per_udp_socket(query, epoll).is_some()
        };
        let mixing = epolls.iter().find(mixes)?;
        let has_opened = epolls.iter().find(|epoll| opened_connections(query, epoll).is_some());
        Some(Self::of(query, has_opened.unwrap_or(mixing)))
    }

    /// For a program that has no or few connections, each epoll those of one queue, if its next ones will come from several
    /// queues to one epoll. `are_steered`: whether connections are steered where this is possible.
    fn expected(query: &SnapshotQuery<'_>, processes: &[&Process], are_steered: bool) -> Option<Self> {
        let sockets = processes.iter().flat_map(|process| query.sockets_of(process));
        let connections = sockets.filter(|socket| comes_from_queue(socket)).count();
        if connections >= CONNECTIONS_THAT_SPREAD {
            return None;
        }
        let accepts = |process: &&&Process| {
            query.epolls().any(|epoll| epoll.process.pid == process.pid && accepts_connections(query, epoll))
        };
        let worker = processes.iter().find(accepts).filter(|worker| queues_of_device(query, worker) > 1)?;
        let expected = Self::of_worker(query, worker);
        let is_sorted = match expected {
            Self::Steered => are_steered,
            // Whether memcached has its option is visible with connections only.
            Self::Configured { steered: false, .. } => true,
            _ => false,
        };
        (!is_sorted).then_some(expected)
    }
}

/// RSS spreads so many connections over two queues in 99 of 100 cases. If all came from one queue, a rule sends them there.
pub(crate) const CONNECTIONS_THAT_SPREAD: usize = 8;

/// What these processes lack so that each of their epolls gets the connections of one queue, if their next connections
/// will come from several queues to one epoll. Absent if that has happened already. `are_steered`: whether connections are
/// steered where this is possible.
#[must_use]
pub fn will_mix(now: &Snapshot, programs: &BTreeSet<Pid>, are_steered: bool) -> Option<QueuePerEpoll> {
    next_will_mix(&SnapshotQuery::new(now, None), programs, are_steered)
}

/// [`will_mix`] for a query.
pub(crate) fn next_will_mix(
    query: &SnapshotQuery<'_>,
    programs: &BTreeSet<Pid>,
    are_steered: bool,
) -> Option<QueuePerEpoll> {
    let epolls: Vec<_> = query.epolls().filter(|epoll| programs.contains(&epoll.process.pid)).collect();
    let processes: Vec<_> = query.now.processes.iter().filter(|process| programs.contains(&process.pid)).collect();
    // A program that does not watch its connections mixes none.
    let watched: BTreeSet<u64> = epolls.iter().flat_map(|epoll| epoll.sockets()).collect();
    let is_unwatched = |socket: &SnapshotSocket| comes_from_queue(socket) && !watched.contains(&socket.inode);
    let reads_elsewhere = processes.iter().any(|process| query.sockets_of(process).any(is_unwatched));
    match QueuePerEpoll::of_epolls(query, &epolls) {
        None if !reads_elsewhere => QueuePerEpoll::expected(query, &processes, are_steered),
        _ => None,
    }
}

/// Advice to a program whose threads share an epoll, or that has one thread.
const ONE_EPOLL: &str = "the program has one epoll for the connections of all queues: use a device with one queue";

/// How an epoll gets the connections of one queue, or that it cannot, and what to measure then.
pub(crate) fn one_queue_per_epoll(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Fix {
    let modes = modes_without_epolls(query, &[epoll.process.pid].into(), epoll.by_napi.len());
    let server = server_of(query, epoll.process).pid;
    let netns = query.now.named_netns_of(&[epoll.process.pid].into()).map(str::to_owned);
    let compare = CompareCommand { server, modes, is_launched: false, sharing: None, netns };
    let (first, otherwise) = match QueuePerEpoll::of(query, epoll) {
        QueuePerEpoll::Steered => ("sort new connections by queue (clients have to reconnect):".to_owned(), None),
        QueuePerEpoll::Configured { change, steered: true } => (change + THEN, Some(compare)),
        QueuePerEpoll::Configured { change: advice, steered: false } | QueuePerEpoll::Impossible { reason: advice } => {
            return Fix::OrCompare { advice, compare };
        }
    };
    Fix::Mode { first, command: to_steer(query, epoll.process), otherwise }
}

/// Command that steers the connections of a program to its workers, and pins these if its queues have CPUs.
pub(super) fn to_steer(query: &SnapshotQuery<'_>, worker: &Process) -> ModeCommand {
    let server = [server_of(query, worker).pid].into();
    ModeCommand::of_programs(None, &server, query.now).placed(true, can_be_pinned(query, worker))
}

/// Whether workers of the program can be pinned to the CPUs of a queue of its devices.
pub(crate) fn can_be_pinned(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    can_pin(query.now, &devices_of(query, process).into_iter().flat_map(receiving_napis).collect())
}

/// Whether workers of these programs can be pinned to the CPUs of a queue of their devices.
#[must_use]
pub fn workers_can_be_pinned(now: &Snapshot, programs: &BTreeSet<Pid>) -> bool {
    let query = SnapshotQuery::new(now, None);
    let mut processes = now.processes.iter().filter(|process| programs.contains(&process.pid));
    processes.any(|process| can_be_pinned(&query, process))
}

/// Number of epolls among which a program spreads its connections: those that have some, and those of its other processes
/// that accept them.
fn epolls_with_connections(query: &SnapshotQuery<'_>, process: &Process) -> usize {
    let its_pids: BTreeSet<Pid> =
        with_the_same_listeners(query, server_of(query, process)).map(|one| one.pid).collect();
    let is_its = |epoll: &&EpollContext<'_>| epoll.process.pid == process.pid || its_pids.contains(&epoll.process.pid);
    let its: Vec<_> = query.epolls().filter(is_its).collect();
    let receiving = its.iter().filter(|epoll| !epoll.by_napi.is_empty());
    let receiving: BTreeSet<Pid> = receiving.map(|epoll| epoll.process.pid).collect();
    let is_worker = |epoll: &&&EpollContext<'_>| match receiving.contains(&epoll.process.pid) {
        true => !epoll.by_napi.is_empty(),
        false => accepts_connections(query, epoll),
    };
    its.iter().filter(is_worker).count()
}

fn accepts_connections(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> bool {
    epoll.sockets().filter_map(|inode| query.socket(inode)).any(|socket| listens(socket) && !is_loopback(socket))
}

/// Number of receive queues of the device that delivers to a process. While they are missing, as with the link down, those
/// from which it has received.
fn queues_of_device(query: &SnapshotQuery<'_>, process: &Process) -> usize {
    let of_devices = devices_of(query, process).into_iter().map(|device| receiving_napis(device).len()).max();
    of_devices.unwrap_or_else(|| process.files.known().map_or(0, |files| query.napis_of(files).len()))
}

/// Devices that deliver to a process, or will.
fn devices_of<'a>(query: &SnapshotQuery<'a>, process: &Process) -> Vec<&'a Device> {
    let napis: BTreeSet<_> = process.files.known().into_iter().flat_map(|files| query.napis_of(files)).collect();
    let devices = napis.into_iter().filter_map(|napi| query.napi(napi)).map(|(device, _)| device);
    devices.chain(expected_device(query, process)).collect()
}

/// The device that will deliver to a process without connections: the only one of its network namespace that receives.
pub(crate) fn expected_device<'a>(query: &SnapshotQuery<'a>, process: &Process) -> Option<&'a Device> {
    let mut devices = receiving_devices(query, process);
    devices.next().filter(|_| devices.next().is_none())
}

/// Devices in the network namespace of a process that may deliver to it.
pub(crate) fn receiving_devices<'a>(
    query: &SnapshotQuery<'a>,
    process: &Process,
) -> impl Iterator<Item = &'a Device> + use<'a> {
    let namespace = process.namespace.known().copied();
    let here = move || query.now.devices.iter().filter(move |device| Some(device.namespace) == namespace);
    let listening = query.sockets_of(process).filter(|socket| listens(socket)).filter_map(|socket| socket.local);
    let listening: BTreeSet<IpAddr> = listening.map(|local| local.ip().to_canonical()).collect();
    let is_anywhere = listening.is_empty() || listening.iter().any(IpAddr::is_unspecified);
    let has_address = move |device: &Device| listening.iter().any(|ip| device.has_address(*ip));
    let mut owners = here().filter(|device| has_address(device)).peekable();
    // A bridge, a VLAN or `lo` receives from the queues of others; a veth device without GRO has no NAPI instance.
    let is_own = |owner: &Device| !receiving_napis(owner).is_empty() || owner.kind.as_deref() == Some("veth");
    let is_decided = !is_anywhere && owners.peek().is_some() && owners.all(is_own);
    here().filter(move |device| {
        let has_received = device.counters.known().is_none_or(|counters| counters.rx_packets > 0);
        (!is_decided || has_address(device)) && device.is_up && has_received && !receiving_napis(device).is_empty()
    })
}

/// Modes that need no epoll, after `base`. `userbusy` only with a CPU for each queue beside those of all threads of the
/// programs: which of these are workers differs from moment to moment.
pub(crate) fn modes_without_epolls(
    query: &SnapshotQuery<'_>,
    programs: &BTreeSet<Pid>,
    queues: usize,
) -> Vec<DeliveryMode> {
    let defer =
        |us: u64| NonZeroU64::new(us * 1_000).map(|gro_flush_timeout_ns| ModeKind::Defer { gro_flush_timeout_ns });
    let its = query.now.processes.iter().filter(|process| programs.contains(&process.pid));
    let threads = its.clone().map(|process| process.threads.known_elements().count()).sum();
    let napis = its.filter_map(|process| process.files.known()).flat_map(|files| query.napis_of(files));
    let mut napis = napis.filter_map(|id| query.napi(id)).peekable();
    let is_threaded =
        napis.peek().is_some() && napis.all(|(_, napi)| napi.settings().threaded == Some(NapiThreading::Enabled));
    let threaded = (!is_threaded).then_some(ModeKind::Threaded);
    let userbusy = LackingCpus::of(query.now.cpus.each.len(), queues, threads).is_none().then_some(ModeKind::UserBusy);
    let kinds = [Some(ModeKind::Base), defer(20), defer(200), threaded, userbusy];
    kinds.into_iter().flatten().map(DeliveryMode::from).collect()
}

/// CPUs that are too few for polling threads beside the workers of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LackingCpus {
    /// CPUs of the host.
    pub cpus: usize,
    /// Queues, each of which has a polling thread.
    pub queues: usize,
    /// Threads that wait in the epolls of the programs, at least 1.
    pub workers: usize,
}

impl LackingCpus {
    /// `None` if a CPU is left beside those of the polling threads and of the workers.
    #[must_use]
    pub fn of(cpus: usize, queues: usize, workers: usize) -> Option<Self> {
        (cpus <= queues + workers).then_some(Self { cpus, queues, workers })
    }
}

/// The CPUs, if a polling thread for each of so many queues leaves none free beside the workers of the programs.
#[must_use]
pub fn cpus_lacking_for_pollers(now: &Snapshot, programs: &BTreeSet<Pid>, queues: usize) -> Option<LackingCpus> {
    lacking(&SnapshotQuery::new(now, None), programs, queues)
}

pub(crate) fn lacking(query: &SnapshotQuery<'_>, programs: &BTreeSet<Pid>, queues: usize) -> Option<LackingCpus> {
    let its = query.epolls().filter(|epoll| programs.contains(&epoll.process.pid));
    let workers = its.map(|epoll| epoll.waiters.len()).sum::<usize>().max(1);
    LackingCpus::of(query.now.cpus.each.len(), queues, workers)
}

/// The process that opened the listening sockets of a worker: the first one that holds them.
pub(super) fn server_of<'a>(query: &SnapshotQuery<'a>, worker: &'a Process) -> &'a Process {
    let holders = with_the_same_listeners(query, worker);
    holders.min_by_key(|process| (process.start_time_ticks, process.pid)).unwrap_or(worker)
}

/// Processes that hold a listening socket of this one, which is among them if it has any.
pub(crate) fn with_the_same_listeners<'a>(
    query: &SnapshotQuery<'a>,
    process: &Process,
) -> impl Iterator<Item = &'a Process> {
    let held_by = |process: &'a Process| process.files.known().into_iter().flat_map(|files| &files.sockets);
    let held = process.files.known().into_iter().flat_map(|files| &files.sockets);
    let sockets = held.filter_map(|held| query.socket(held.inode)).filter(|socket| listens(socket));
    let listening: BTreeSet<u64> = sockets.map(|socket| socket.inode).collect();
    query.now.processes.iter().filter(move |other| held_by(other).any(|held| listening.contains(&held.inode)))
}

/// Advice about connections that the program opened, as a proxy does: a filter selects the worker of accepted ones only.
/// `None` without such connections, and if no listening socket of the process tells them apart.
pub(crate) fn opened_connections(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<String> {
    let held = epoll.process.files.known().into_iter().flat_map(|files| &files.sockets);
    let listeners = held.filter_map(|held| query.socket(held.inode)).filter(|socket| listens(socket));
    let ports: BTreeSet<u16> = listeners.filter_map(|socket| Some(socket.local?.port())).collect();
    let is_opened = |socket: &&&SnapshotSocket| {
        let port = socket.local.map(|local| local.port());
        socket.protocol == Protocol::Tcp && socket.remote.is_some() && port.is_some_and(|port| !ports.contains(&port))
    };
    let opened = epoll.by_napi.values().flatten().filter(is_opened).count();
    (opened > 0 && !ports.is_empty()).then(|| {
        format!(
            "the program opened {}, which cannot be steered: reach those servers over loopback or a Unix socket, use a \
             device with one queue",
            counted(opened, "connection"),
        )
    })
}

fn comes_from_queue(socket: &SnapshotSocket) -> bool {
    socket.state == SocketState::Established && socket.has_queue()
}

fn listens(socket: &SnapshotSocket) -> bool {
    socket.protocol == Protocol::Tcp && socket.state == SocketState::Listen
}

/// After a change without which a filter does not help.
const THEN: &str = ", then";

/// Advice to a program whose new connections are steered.
pub const STEERED: &str = "new connections are steered to one queue per worker; the mixed ones are from before, or came \
     to another queue after timeouts (TcpTimeoutRehash in `nstat` of the clients), and stay until the clients reconnect: \
     restart the clients, or reload a server that can, such as nginx";

/// Replaces the advice to steer in findings about these programs, whose connections are steered.
pub fn are_steered(findings: &mut [Finding], programs: &BTreeSet<Pid>) {
    let is_theirs = |node: &Node| matches!(node, Node::Epoll { pid, .. } if programs.contains(pid));
    let mixed = findings.iter_mut().filter(|finding| finding.id == EPOLL_MIXES_NAPIS);
    for finding in mixed.filter(|finding| finding.nodes.iter().any(is_theirs)) {
        if let Some(to_steer @ Fix::Mode { .. }) = finding.fix.first_mut() {
            *to_steer = steered(to_steer);
        }
    }
}

/// Whether it is about an epoll that will have connections of several queues although the clients of a steered program
/// have reconnected: the program opened some of them, or has fewer listening sockets than queues.
#[must_use]
pub fn stays_when_steered(finding: &Finding) -> bool {
    let is_sorted = match finding.fix.first() {
        Some(Fix::Mode { first, .. }) => !first.ends_with(THEN),
        Some(Fix::Advice(advice)) => advice == STEERED,
        _ => false,
    };
    finding.id == EPOLL_MIXES_NAPIS && !is_sorted
}

/// What is left of the advice to steer for a program that is steered: a change of its configuration, or to wait.
fn steered(to_steer: &Fix) -> Fix {
    match to_steer {
        Fix::Mode { first, .. } => Fix::advice(first.strip_suffix(THEN).unwrap_or(STEERED)),
        other => other.clone(),
    }
}

/// Leaves out findings about workers of these programs that placement removes: several on one queue if their
/// connections are steered, floating ones if they are pinned.
pub fn are_placed(findings: &mut Vec<Finding>, programs: &BTreeSet<Pid>, steered: bool, pinned: bool) {
    let are_theirs = |finding: &Finding| finding.epoll_pids().all(|pid| programs.contains(&pid));
    let is_removed = |finding: &Finding| match finding.id {
        SHARED_BY_WORKERS => steered,
        FLOATING_WORKER => pinned,
        _ => false,
    };
    findings.retain(|finding| !(is_removed(finding) && are_theirs(finding)));
    if steered {
        are_steered(findings, programs);
    }
}

/// Adapts the commands in findings about these programs to what is attached to them.
pub fn are_attached(findings: &mut [Finding], programs: &BTreeMap<Pid, AttachedMode>) {
    for finding in findings {
        let Some(attached) = finding.epoll_pids().find_map(|pid| programs.get(&pid)) else { continue };
        finding.fix = std::mem::take(&mut finding.fix).into_iter().map(|fix| fix.if_attached(attached)).collect();
    }
}

/// Replaces the attached mode of this program by another one in commands that set it again.
pub fn set_instead(findings: &mut [Finding], program: Pid, better: DeliveryMode) {
    let program = program.to_string();
    for fix in findings.iter_mut().flat_map(|finding| &mut finding.fix) {
        if let Fix::Mode { command, .. } = fix
            && command.programs == program
            && command.attached.is_some_and(|attached| command.mode == Some(attached.mode))
        {
            command.mode = Some(better);
        }
    }
}

/// Adds the attached programs that share queues with these ones to the commands that compare modes on them.
pub fn compare_with(findings: &mut [Finding], programs: &BTreeSet<Pid>, sharing: &QueueSharers) {
    for fix in findings.iter_mut().flat_map(|finding| &mut finding.fix) {
        if let Fix::OrCompare { compare, .. } | Fix::Mode { otherwise: Some(compare), .. } = fix
            && programs.contains(&compare.server)
        {
            compare.sharing = Some(sharing.clone());
        }
    }
}

/// Names the mode of a plan in the commands of its findings. A mode that would poll one of several queues of an epoll is set
/// only after the connections are sorted.
pub fn name_mode(findings: &mut [Finding], planned: &DeliveryMode) {
    for finding in findings {
        let would_poll_one = finding.id == EPOLL_MIXES_NAPIS && finding.severity == Severity::Serious;
        for fix in &mut finding.fix {
            if let Fix::Mode { command, .. } = fix {
                command.mode.get_or_insert(*planned);
            }
            if would_poll_one {
                fix.sort_first();
            }
        }
    }
}

/// How to give each epoll one queue, for a program that has a mode.
#[must_use]
pub fn one_queue_if_attached(fix: Fix, attached: &AttachedMode) -> Fix {
    match fix {
        fix @ Fix::Mode { .. } if attached.steers => steered(&fix),
        fix => fix.if_attached(attached),
    }
}

/// Whether the process holds a socket of a reuseport group with several TCP listeners, which may be those of other
/// processes.
pub(crate) fn has_reuseport_group(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    !reuseport_groups(query, process).is_empty()
}

/// Whether the next connections of the process can mix queues although its epolls have one each now: several epolls watch
/// the sockets of its reuseport group, and its devices have several queues.
pub(crate) fn can_come_to_mix(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    let has_several_queues = || {
        let files = process.files.known();
        let napis = files.into_iter().flat_map(|files| query.napis_of(files));
        napis.filter_map(|id| query.napi(id)).any(|(device, _)| receiving_napis(device).len() > 1)
    };
    let is_spread = |group: &BTreeSet<u64>| {
        let watching = query.epolls().filter(|epoll| epoll.sockets().any(|inode| group.contains(&inode)));
        watching.count() > 1
    };
    reuseport_groups(query, process).iter().any(is_spread) && has_several_queues()
}

/// Inodes of each reuseport group with several TCP listeners of which the process holds one.
fn reuseport_groups(query: &SnapshotQuery<'_>, process: &Process) -> Vec<BTreeSet<u64>> {
    let mut groups: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for socket in query.now.sockets.iter().filter(|socket| listens(socket)) {
        let key = (socket.namespace, socket.local, socket.bound_to, socket.uid);
        groups.entry(key).or_default().insert(socket.inode);
    }
    let held = process.files.known().into_iter().flat_map(|files| &files.sockets);
    let held: BTreeSet<u64> = held.map(|held| held.inode).collect();
    groups.into_values().filter(|group| group.len() > 1 && !group.is_disjoint(&held)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Reading;

    #[test]
    fn pinning_is_not_advised_where_no_queue_has_an_interrupt_or_a_kernel_thread() {
        let mut host = Snapshot::parse(include_bytes!("../../tests/fixtures/healthy.json")).unwrap();
        let advice = |host: &Snapshot| to_steer(&SnapshotQuery::new(host, None), &host.processes[0]).to_string();
        assert_eq!(advice(&host), "quell attach MODE 4242 --steer --pin --follow");
        let without_irq = |host: &mut Snapshot, queues: usize| {
            let Reading::Known(napis) = &mut host.devices[0].napis else { panic!("unknown") };
            napis.iter_mut().take(queues).for_each(|napi| napi.irq = Reading::Known(None));
        };
        without_irq(&mut host, 1);
        assert_eq!(advice(&host), "quell attach MODE 4242 --steer --pin --follow", "the other queue has one");
        without_irq(&mut host, 2);
        assert_eq!(advice(&host), "quell attach MODE 4242 --steer --follow");
    }

    #[test]
    fn a_mode_that_was_found_worse_is_not_set_again() {
        let mut host = Snapshot::parse(include_bytes!("../../tests/fixtures/healthy.json")).unwrap();
        let Reading::Known(napis) = &mut host.devices[0].napis else { panic!("unknown") };
        napis[0].gro_flush_timeout_ns = Reading::Known(0);
        let attached = AttachedMode { mode: "suspend20".parse().unwrap(), ..AttachedMode::default() };
        let command = |word: &str| {
            let mode = word.parse().unwrap();
            ModeCommand::of_pids(Some(mode), [&host.processes[0].pid]).if_attached(&attached)
        };
        let fix = |command| Fix::Mode { first: String::new(), command, otherwise: None };
        let mut findings = crate::findings::examine(&host, None).findings;
        findings.truncate(1);
        findings[0].fix = vec![fix(command("suspend20")), fix(command("defer20"))];
        set_instead(&mut findings, host.processes[0].pid, DeliveryMode::default());
        let texts: Vec<String> = findings[0].fix.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["quell detach 4242", "quell detach 4242 && quell attach defer20 4242"]);
    }
}
