//! Advice that depends on the program: how its connections can be sorted by queue, and what Quell has applied to it.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::Pid;
use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::placement::FLOATING_WORKER;
use super::sharing::{EPOLL_MIXES_NAPIS, SHARED_BY_WORKERS};
use super::{Finding, Fix, Node};
use crate::attach::{AttachedMode, ModeCommand};
use crate::snapshot::arrival::receiving_napis;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Process, Protocol, Snapshot, SnapshotSocket, SocketState};

/// How an epoll gets the connections of one queue, or that it cannot: connections that the program opened are on any.
pub(crate) fn one_queue_per_epoll(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Fix {
    match opened_connections(query, epoll) {
        Some(text) => Fix::advice(text),
        None => one_queue_per_worker(query, epoll.process),
    }
}

fn one_queue_per_worker(query: &SnapshotQuery<'_>, process: &Process) -> Fix {
    if process.name == "memcached" {
        return Fix::advice("start memcached with -N and one thread per queue");
    }
    let command = to_steer(query, process);
    if has_reuseport_group(query, process) {
        return Fix::Mode { first: "sort new connections by queue:".to_owned(), command, otherwise: None };
    }
    let other = format!("use a device with one queue, or {}", without_suspension(query, process));
    let own_sockets = match process.name.as_str() {
        "nginx" => "add `reuseport` to its `listen` directives",
        "haproxy" => "add `shards by-thread` to its `bind` lines",
        _ if has_one_worker(query, process) => return Fix::advice(other),
        _ => "give each worker a listening socket of its own (SO_REUSEPORT)",
    };
    Fix::Mode { first: format!("{own_sockets}, then"), command, otherwise: Some(other) }
}

/// Command that steers the connections of a program to its workers, and pins these.
pub(super) fn to_steer(query: &SnapshotQuery<'_>, worker: &Process) -> ModeCommand {
    ModeCommand::of_pids(None, [&server_of(query, worker).pid]).placed(true, true)
}

/// Whether one thread of the program waits for packets.
fn has_one_worker(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    let server = server_of(query, process).pid;
    let its = query.epolls().filter(|epoll| !epoll.by_napi.is_empty());
    let its = its.filter(|epoll| server_of(query, epoll.process).pid == server);
    its.map(|epoll| epoll.waiters.len().max(1)).sum::<usize>() == 1
}

/// Modes in which the epolls of the program do not poll. `userbusy` only with a CPU for each queue beside those of the
/// workers.
pub(super) fn without_suspension(query: &SnapshotQuery<'_>, process: &Process) -> &'static str {
    let its = query.epolls().filter(|epoll| epoll.process.pid == process.pid);
    let queues: BTreeSet<_> = its.flat_map(|epoll| epoll.by_napi.keys()).collect();
    match lacking(query, &[process.pid].into(), queues.len()) {
        None => "a mode without suspension, after a measurement (defer20, userbusy)",
        Some(_) => "a mode without suspension, after a measurement (defer20)",
    }
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
    let listening = |process: &'a Process| -> BTreeSet<u64> {
        let held = process.files.known().into_iter().flat_map(|files| &files.sockets);
        let sockets = held.filter_map(|held| query.socket(held.inode));
        sockets.filter(|socket| listens(socket)).map(|socket| socket.inode).collect()
    };
    let of_worker = listening(worker);
    let holders = query.now.processes.iter().filter(|process| !listening(process).is_disjoint(&of_worker));
    holders.min_by_key(|process| (process.start_time_ticks, process.pid)).unwrap_or(worker)
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
            "the program opened {}, which cannot be steered: reach those servers over loopback or a Unix socket, or use \
             a device with one queue, or a mode without suspension, after a measurement (defer20)",
            counted(opened, "connection"),
        )
    })
}

fn listens(socket: &SnapshotSocket) -> bool {
    socket.protocol == Protocol::Tcp && socket.state == SocketState::Listen
}

/// Advice to a program whose new connections are steered.
pub const STEERED: &str =
    "new connections are steered to one queue per worker; those from before stay until their clients reconnect";

/// Replaces the advice to steer in findings about these programs, whose connections are steered.
pub fn are_steered(findings: &mut [Finding], programs: &BTreeSet<Pid>) {
    let is_theirs = |node: &Node| matches!(node, Node::Epoll { pid, .. } if programs.contains(pid));
    let mixed = findings.iter_mut().filter(|finding| finding.id == EPOLL_MIXES_NAPIS);
    for finding in mixed.filter(|finding| finding.nodes.iter().any(is_theirs)) {
        if let Some(to_steer @ Fix::Mode { .. }) = finding.fix.first_mut() {
            *to_steer = Fix::advice(STEERED);
        }
    }
}

/// Leaves out findings about workers of these programs that placement removes: several on one queue if their
/// connections are steered, floating ones if they are pinned.
pub fn are_placed(findings: &mut Vec<Finding>, programs: &BTreeSet<Pid>, steered: bool, pinned: bool) {
    let are_theirs = |finding: &Finding| {
        let mut pids = finding.nodes.iter().filter_map(|node| match node {
            Node::Epoll { pid, .. } => Some(pid),
            _ => None,
        });
        pids.all(|pid| programs.contains(pid))
    };
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
        let program = finding.nodes.iter().find_map(|node| match node {
            Node::Epoll { pid, .. } => programs.get(pid),
            _ => None,
        });
        let Some(attached) = program else { continue };
        finding.fix = std::mem::take(&mut finding.fix).into_iter().map(|fix| fix.if_attached(attached)).collect();
    }
}

/// Names the mode of a plan in the commands of its findings.
pub fn name_mode(findings: &mut [Finding], planned: &DeliveryMode) {
    for fix in findings.iter_mut().flat_map(|finding| &mut finding.fix) {
        if let Fix::Mode { command, .. } = fix {
            command.mode.get_or_insert(*planned);
        }
    }
}

/// How to give each epoll one queue, for a program that has a mode.
#[must_use]
pub fn one_queue_if_attached(fix: Fix, attached: &AttachedMode) -> Fix {
    match fix {
        Fix::Mode { .. } if attached.steers => Fix::advice(STEERED),
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
