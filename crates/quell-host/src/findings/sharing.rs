//! Rules about queues, epolls and threads that do not correspond one to one. An epoll polls one queue, and one thread
//! should poll a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::ethtool::Channels;
use quell_linux::visible::counted;
use quell_linux::{Ifindex, NapiId, Pid};
use quell_mode::NapiAttribute;

use super::fix::Fix;
use super::setting::{Setting, SettingObject};
use super::sorting::{one_queue_per_epoll, opened_connections};
use super::text::time_text;
use super::{Finding, Node, Observation, Rule, Severity};
use crate::attach::affected_processes::PacketDelay;
use crate::behavior::Behavior;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Device, Process, Protocol, RxQueue, Snapshot, SnapshotNapi, SnapshotSocket, SocketState};

pub(super) const RULES: &[&Rule] =
    &[&MIXED, &UDP_ON_SEVERAL, &UDP_KEEPS_FIRST, &SHARED_QUEUE, &SHARED_EPOLL, &REUSEPORT, &BATCH, &LEASED];

/// ID of the rule about epolls with sockets on several queues.
pub const EPOLL_MIXES_NAPIS: &str = "epoll-mixes-napis";

/// ID of the rule about queues that several workers poll.
pub(super) const SHARED_BY_WORKERS: &str = "napi-shared-by-workers";

static MIXED: Rule = Rule {
    id: EPOLL_MIXES_NAPIS,
    severity: Severity::Serious,
    title: "the sockets of one epoll are on several queues",
    impact: "An epoll polls only the queue of the socket that was ready last. The other queues are not polled; a \
          suspended one stalls.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id; measured: stalled for 495 of 500 ms",
    explanation: "Detected if TCP or UDP sockets of one epoll have different SO_INCOMING_NAPI_ID. Serious if the epoll \
                  busy-polls and one of the queues allows suspension, a warning if it busy-polls, otherwise a note \
                  about what prevents busy polling. Fix: give each worker the connections of one queue, by --steer if \
                  it has a listening socket of its own (SO_REUSEPORT), or by the program's own option (memcached -N). \
                  Without either: one queue, or no suspension. A client whose packets time out chooses another path \
                  (TcpTimeoutRehash in `nstat`), and often another queue: sorted connections mix until they reconnect.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: mixed,
};

fn mixed(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let observation = |(epoll, on): (&EpollContext<'_>, BTreeMap<NapiId, usize>)| {
        let suspending = on.keys().any(|&id| query.napi(id).is_some_and(|(_, napi)| napi.suspends()));
        let severity = match (epoll.polls(), suspending) {
            (true, true) => Severity::Serious,
            (true, false) => Severity::Warning,
            (false, _) => Severity::Note,
        };
        let mut nodes = epoll.nodes();
        nodes.extend(on.keys().map(|&id| query.napi_node(id)));
        let shares = on.iter().map(|(id, sockets)| format!("{sockets} on {id}"));
        Observation {
            severity,
            nodes,
            observed: format!("sockets by NAPI: {}{}", shares.collect::<Vec<_>>().join(", "), if_polled(severity)),
            fix: vec![one_queue_per_epoll(query, epoll)],
        }
    };
    mixing(query).map(observation).collect()
}

/// What a note about several queues becomes if the epoll polls.
fn if_polled(severity: Severity) -> &'static str {
    if severity == Severity::Note { "; serious under suspension" } else { "" }
}

/// Epolls with sockets on several queues, and the number of those on each.
fn mixing<'q>(query: &'q SnapshotQuery<'q>) -> impl Iterator<Item = (&'q EpollContext<'q>, BTreeMap<NapiId, usize>)> {
    query.epolls().map(|epoll| (epoll, epoll.on_one_queue())).filter(|(_, on)| on.len() > 1)
}

/// Processes with an epoll that polls and has connections of several queues, of which it polls one, with the fix for each.
#[must_use]
pub fn unpolled_queues(now: &Snapshot) -> BTreeMap<Pid, Fix> {
    let query = SnapshotQuery::new(now, None);
    let polling = mixing(&query).filter(|(epoll, _)| epoll.polls());
    polling.map(|(epoll, _)| (epoll.process.pid, one_queue_per_epoll(&query, epoll))).collect()
}

/// The serious findings about epolls to which several queues delivered data during the observation. They would poll one
/// of them, so that the mode slows the program.
pub fn observed_to_mix<'f>(findings: &'f [Finding], behavior: &'f Behavior) -> impl Iterator<Item = &'f Finding> {
    let receives_from_several = move |node: &Node| match node {
        Node::Epoll { pid, fd } => behavior.received.get(&(*pid, *fd)).is_some_and(|queues| queues.len() > 1),
        _ => false,
    };
    let serious = findings.iter().filter(|one| one.id == EPOLL_MIXES_NAPIS && one.severity == Severity::Serious);
    serious.filter(move |finding| finding.nodes.iter().any(receives_from_several))
}

/// Whether an epoll of these programs has connections of several queues, which steering can change.
#[must_use]
pub fn mixes_queues(now: &Snapshot, programs: &BTreeSet<Pid>) -> bool {
    let query = SnapshotQuery::new(now, None);
    let mut mixing = mixing(&query).filter(|(epoll, _)| programs.contains(&epoll.process.pid));
    mixing.any(|(epoll, _)| opened_connections(&query, epoll).is_none())
}

pub(crate) const UDP_ON_SEVERAL_QUEUES: &str = "udp-socket-on-several-queues";

static UDP_ON_SEVERAL: Rule = Rule {
    id: UDP_ON_SEVERAL_QUEUES,
    severity: Severity::Serious,
    title: "an unconnected UDP socket receives from several queues",
    impact: "Its epoll polls only the queue of the first datagram, and not while datagrams of another queue are ready. \
          Packets then wait for the queue's timer, or for irq-suspend-timeout.",
    source: "net/ipv4/udp.c, udp_queue_rcv_one_skb: sk_mark_napi_id_once; measured: 3.7 s instead of 24 ms",
    explanation: "Detected if an epoll watches an unconnected UDP socket that has received from a queue, and several \
                  queues can deliver to it: those of the bound device, of the device with its address, or else of all \
                  devices of its namespace that receive packets. Serious if the epoll busy-polls and the queue of the \
                  first datagram suspends or has a gro-flush-timeout of at least 1 ms, a warning if it busy-polls, \
                  otherwise a note about what prevents busy polling. Fix: one socket with SO_REUSEPORT per queue and a \
                  filter that selects it by queue, or one queue.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: udp_on_several,
};

fn udp_on_several(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    query.epolls().filter_map(|epoll| of_udp(query, epoll)).collect()
}

fn of_udp(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<Observation> {
    let &(socket, queues) = epoll.on_several_queues.iter().find(|(_, queues)| *queues > 1)?;
    let its = query.queues_of(socket);
    let is_slow = |napi: &SnapshotNapi| {
        napi.suspends() || napi.deferral().is_some_and(|(count, flush_ns)| count > 0 && flush_ns >= LONG_DELAY_NS)
    };
    let polled = socket.napi.known().copied().flatten().and_then(|id| query.napi(id));
    let is_slow = polled.is_some_and(|(_, napi)| is_slow(napi));
    let mut nodes = epoll.nodes();
    nodes.extend(its.iter().map(|&id| query.napi_node(id)));
    let local = socket.local.map(|local| format!(" {local}")).unwrap_or_default();
    let severity = match (epoll.polls(), is_slow) {
        (true, true) => Severity::Serious,
        (true, false) => Severity::Warning,
        (false, _) => Severity::Note,
    };
    Some(Observation {
        severity,
        nodes,
        observed: format!("{queues} queues can deliver to UDP socket{local}{}", if_polled(severity)),
        fix: vec![one_queue_per_epoll(query, epoll)],
    })
}

/// How the unconnected UDP socket of an epoll that receives from several queues can get one. `None` without such a socket.
pub(super) fn one_queue_per_udp_socket(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<&'static str> {
    let &(socket, _) = epoll.on_several_queues.iter().find(|(_, queues)| *queues > 1)?;
    Some(queue_per_udp_socket(query, socket))
}

/// How an unconnected UDP socket that receives from several queues can get one.
pub(crate) fn queue_per_udp_socket(query: &SnapshotQuery<'_>, socket: &SnapshotSocket) -> &'static str {
    let is_of_group = |other: &&SnapshotSocket| {
        (other.namespace, other.protocol, other.local) == (socket.namespace, socket.protocol, socket.local)
            && other.reuseport.known() == Some(&true)
    };
    let is_group = query.now.sockets.iter().filter(is_of_group).nth(1).is_some();
    let queues = query.queues_of(socket);
    let devices: BTreeSet<Ifindex> =
        queues.iter().filter_map(|napi| query.napi(*napi)).map(|(device, _)| device.ifindex).collect();
    match (socket.steered_queues, is_group) {
        _ if devices.len() > 1 && devices.len() == queues.len() => {
            "let the program listen on the address of one device instead of all (SO_BINDTODEVICE does the same)"
        }
        (Some(_), _) => "run as many workers as queues, use fewer queues (`ethtool -L`)",
        (None, true) => {
            "give `quell attach`, `bench` or `tune` --steer --steer-udp, so that each socket of its SO_REUSEPORT group gets \
             one queue"
        }
        (None, false) => {
            "let the program open one UDP socket with SO_REUSEPORT per queue, and give `quell attach`, `bench` or `tune` \
             --steer --steer-udp; or let it listen on the address of a device with one queue"
        }
    }
}

/// ID of the rule about UDP sockets whose first queue no longer delivers to them.
pub(crate) const UDP_KEEPS_FIRST_QUEUE: &str = "udp-socket-keeps-first-queue";

static UDP_KEEPS_FIRST: Rule = Rule {
    id: UDP_KEEPS_FIRST_QUEUE,
    severity: Severity::Warning,
    title: "the epoll of an unconnected UDP socket polls a queue that does not deliver to it",
    impact: "The kernel records the NAPI ID of the first datagram for the lifetime of the socket, and the epoll polls \
          that instance.",
    source: "net/ipv4/udp.c, udp_queue_rcv_one_skb: sk_mark_napi_id_once; measured after link down and up",
    explanation: "Detected if an epoll watches an unconnected UDP socket whose NAPI ID belongs to no device any more, \
                  mostly because the link was down; or if a filter of Quell gives each socket of a group its own queue, \
                  and several of these sockets have the same NAPI ID. A warning if the epoll busy-polls, otherwise a \
                  note about what prevents busy polling. Fix: restart the program. \
                  Until then, its queues have deferral only.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: udp_keeps_first,
};

fn udp_keeps_first(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    query.epolls().filter_map(|epoll| of_first_queue(query, epoll)).collect()
}

fn of_first_queue(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<Observation> {
    let first =
        |socket: &SnapshotSocket| socket.napi.known().copied().flatten().filter(|_| socket.records_first_napi());
    let reason = |inode| {
        let socket = query.socket(inode)?;
        let id = first(socket)?;
        if !query.queues_of(socket).contains(&id) {
            return Some(format!("a UDP socket keeps NAPI {id}, which no longer delivers to it"));
        }
        let is_alike = |other: &&SnapshotSocket| {
            (other.namespace, other.local, first(other)) == (socket.namespace, socket.local, Some(id))
        };
        let alike = query.now.sockets.iter().filter(is_alike).filter(|other| other.steered_queues == Some(1)).count();
        (socket.steered_queues == Some(1) && alike > 1)
            .then(|| format!("{alike} steered UDP sockets keep NAPI {id}, which delivers to one of them"))
    };
    let observed = epoll.sockets().find_map(reason)?;
    let severity = if epoll.polls() { Severity::Warning } else { Severity::Note };
    Some(Observation {
        severity,
        nodes: epoll.nodes(),
        observed,
        fix: vec![Fix::advice("restart the program, so that it opens its sockets again")],
    })
}

static SHARED_QUEUE: Rule = Rule {
    id: SHARED_BY_WORKERS,
    severity: Severity::Warning,
    title: "several workers poll one queue",
    impact: "Only one of them can poll at a time, and it receives the packets of all; the others spin. While it handles \
          its events, the queue stays suspended for the others.",
    source: "net/core/dev.c, napi_busy_loop: NAPI_STATE_SCHED has one owner",
    explanation: "Detected if several epolls that busy-poll have sockets on the same queue. Fix: one queue per worker.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: shared_queue,
};

fn shared_queue(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut pollers: BTreeMap<NapiId, Vec<&EpollContext<'_>>> = BTreeMap::new();
    for epoll in query.epolls().filter(|epoll| epoll.polls()) {
        // A steered socket receives from one of these queues; the kernel does not report from which.
        let on = epoll.by_napi.iter().filter(|(_, sockets)| sockets.iter().any(|one| one.steered_queues.is_none()));
        for (&id, _) in on {
            pollers.entry(id).or_default().push(epoll);
        }
    }
    let shared = pollers.into_iter().filter(|(_, epolls)| epolls.len() > 1);
    let observation = |(id, epolls): (NapiId, Vec<&EpollContext<'_>>)| {
        let mut nodes = vec![query.napi_node(id)];
        nodes.extend(epolls.iter().map(|epoll| epoll.node()));
        let device = query.napi(id).map(|(device, _)| device);
        let fix = match device.and_then(|device| Some((device, device.channels.known()?))) {
            Some((device, channels)) if can_have(channels, epolls.len()) => {
                let count = epolls.len().to_string();
                let words = ["ethtool", "-L", &device.name, "combined", &count];
                let present = format!("combined {}", channels.combined_count.unwrap_or_default());
                let wanted = format!("combined {count}");
                let setting = Setting::host(SettingObject::device(device), "channels", present, wanted);
                Fix::in_namespace(query, device.namespace, &words).setting_of(setting)
            }
            _ => Fix::advice("use one queue per worker"),
        };
        Observation {
            severity: Severity::Warning,
            nodes,
            observed: format!("{} poll it", counted(epolls.len(), "epoll")),
            fix: vec![fix],
        }
    };
    shared.map(observation).collect()
}

/// Whether the device has fewer channels than `wanted` and supports that many.
fn can_have(channels: &Channels, wanted: usize) -> bool {
    let (Some(count), Some(max)) = (channels.combined_count, channels.combined_max) else { return false };
    (count as usize) < wanted && wanted <= max as usize
}

static SHARED_EPOLL: Rule = Rule {
    id: "epoll-shared-by-threads",
    severity: Severity::Warning,
    title: "several threads wait on one epoll",
    impact: "An epoll polls one queue, so a program whose threads share an epoll can use only one. A thread that finds no \
             packet makes the epoll forget the queue. Another thread that handles events at that time sleeps afterwards \
             without a poll, and packets wait for up to irq-suspend-timeout.",
    source: "fs/eventpoll.c: struct eventpoll has one napi_id, which ep_busy_loop clears (derived from the code); Go's \
             runtime and tokio use one epoll for all threads",
    explanation: "Detected if at least two threads slept on the same epoll. A warning if it busy-polls, a note if its \
                  sockets are on several queues. Fix: several processes, or a program with one epoll per thread.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: shared_epoll,
};

fn shared_epoll(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let shared = query.epolls().filter(|epoll| epoll.waiters.len() > 1);
    let matters = shared.filter(|epoll| epoll.polls() || epoll.by_napi.len() > 1);
    let waits_there = |epoll: &EpollContext<'_>, process: &Process| {
        let mut tids = process.threads.known_elements().map(|thread| thread.tid);
        tids.any(|tid| epoll.waiters.iter().any(|(waiter, _)| waiter.tid == tid))
    };
    let observation = |epoll: &EpollContext<'_>| {
        let mut nodes = epoll.nodes();
        nodes.extend(epoll.waiters.iter().map(|(thread, _)| Node::from(*thread)));
        let processes = query.now.processes.iter().filter(|process| waits_there(epoll, process)).count();
        let threads = counted(epoll.waiters.len(), "thread");
        Observation {
            severity: if epoll.polls() { Severity::Warning } else { Severity::Note },
            nodes,
            observed: match processes {
                0 | 1 => format!("{threads} wait on it"),
                _ => format!("{threads} of {processes} processes, which have inherited it, wait on it"),
            },
            fix: vec![match epoll.on_one_queue().len() {
                0 | 1 if processes > 1 => Fix::advice("let each process open an epoll of its own after fork"),
                0 | 1 => Fix::advice("run one process per queue, or use one epoll per thread"),
                _ => one_queue_per_epoll(query, epoll),
            }],
        }
    };
    matters.map(observation).collect()
}

static REUSEPORT: Rule = Rule {
    id: "reuseport-group-mixes-devices",
    severity: Severity::Warning,
    title: "one reuseport group serves connections of several devices",
    impact: "A filter that selects by queue number alone gives queue 0 of every device to the same worker.",
    source: "published: production use of epoll busy polling; SKF_AD_QUEUE does not identify the device",
    explanation: "Detected if at least two listening sockets with SO_REUSEPORT share an address and port, none is \
                  bound to a device, and connections of that port arrive on queues of several devices. Groups with a \
                  filter of Quell are skipped; a snapshot does not contain other filters. Fix: one group per device \
                  (SO_BINDTODEVICE), or a filter that also checks the interface (SKF_AD_IFINDEX), as --steer does.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: reuseport,
};

fn reuseport(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut groups: BTreeMap<(u64, SocketAddr), Vec<&SnapshotSocket>> = BTreeMap::new();
    for socket in &query.now.sockets {
        let grouped = socket.state == SocketState::Listen && socket.reuseport.known() == Some(&true);
        if let Some(local) = socket.local.filter(|_| grouped && socket.bound_to.is_none()) {
            groups.entry((socket.namespace, local)).or_default().push(socket);
        }
    }
    let is_steered = |sockets: &[&SnapshotSocket]| sockets.iter().any(|socket| socket.steered_queues.is_some());
    let mixing = groups.into_iter().filter(|(_, sockets)| sockets.len() > 1 && !is_steered(sockets));
    mixing.filter_map(|(key, _)| of_group(query, key)).collect()
}

fn of_group(query: &SnapshotQuery<'_>, (namespace, listening): (u64, SocketAddr)) -> Option<Observation> {
    let accepted = query.now.sockets.iter().filter(|socket| {
        let same_port = socket.local.is_some_and(|local| local.port() == listening.port());
        socket.namespace == namespace && socket.protocol == Protocol::Tcp && same_port && socket.remote.is_some()
    });
    let devices: BTreeMap<(u64, quell_linux::Ifindex), &Device> = accepted
        .filter_map(|socket| *socket.napi.known()?)
        .filter_map(|id| query.napi(id))
        .map(|(device, _)| ((device.namespace, device.ifindex), device))
        .collect();
    if devices.len() < 2 {
        return None;
    }
    Some(Observation {
        severity: Severity::Warning,
        nodes: devices.values().map(|device| Node::from(*device)).collect(),
        observed: format!("connections to {listening} arrive on {}", counted(devices.len(), "device")),
        fix: vec![Fix::advice(
            "use one group per device (SO_BINDTODEVICE), or filter by SKF_AD_IFINDEX too, as --steer does",
        )],
    })
}

static BATCH: Rule = Rule {
    id: "batch-delays-others",
    severity: Severity::Warning,
    title: "other users of a suspended queue wait for the program that polls it",
    impact: "Nobody polls the queue while the program sleeps or handles events. Packets of other users wait for the timer \
          of the queue (gro-flush-timeout) or until the program has handled the events of one epoll_wait, at most for \
          irq-suspend-timeout.",
    source: "fs/eventpoll.c, ep_poll: ready events are returned before the queue is polled again; measured: p50 of a \
             neighbour 160 µs instead of 41 µs while the program slept",
    explanation: "Detected if other processes have sockets on the same queue. A warning if the 99th percentile of waits in \
                  the queue is above 1 ms, or if a packet has waited for half of irq-suspend-timeout, because some events \
                  take much longer than others; otherwise a note. Fix: a separate queue for the program, a mode without \
                  deferral, or, if packets waited for its events, fewer of these per epoll_wait or a shorter \
                  irq-suspend-timeout.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: batch,
};

const LONG_DELAY_NS: u64 = 1_000_000;

fn batch(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    query.epolls().filter(|epoll| epoll.prefers()).filter_map(|epoll| of_batch(query, epoll)).collect()
}

fn of_batch(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<Observation> {
    let id = *epoll.by_napi.keys().next()?;
    let (device, napi) = query.napi(id).filter(|(_, napi)| napi.suspends())?;
    let others = other_users(query, epoll, id);
    if others.is_empty() {
        return None;
    }
    let delay = PacketDelay::of(&napi.settings())?;
    let suspend_ns = delay.irq_suspend_timeout_ns?;
    let wait = query.polls(id).map(|sample| sample.wait).unwrap_or_default();
    let usual_ns = wait.p99_ns.filter(|&p99| p99 > LONG_DELAY_NS);
    let rare_ns = wait.max_ns.filter(|&max| max >= suspend_ns / 2);
    let waited = match (usual_ns, rare_ns) {
        (Some(p99), _) => Some(format!("; packets waited up to {} (p99)", time_text(p99))),
        (None, Some(max)) => Some(format!("; one waited for {}", time_text(max))),
        (None, None) => None,
    };
    let program = format!("{} {}", epoll.process.name, epoll.process.pid);
    let fewer = if waited.is_some() { "fewer events per wait, " } else { "" };
    let mut fix = vec![Fix::advice(format!("give {program} its own queue, {fewer}or a mode without deferral"))];
    // A suspension has to outlast the deferral, and most batches.
    let can_be_shorter = suspend_ns > LONG_DELAY_NS && delay.gro_flush_timeout_ns < LONG_DELAY_NS;
    if usual_ns.is_none() && rare_ns.is_some() && can_be_shorter {
        fix.push(Fix::napi_set(query, device, napi, &[(NapiAttribute::IrqSuspendTimeout, LONG_DELAY_NS)]));
    }
    let mut nodes = epoll.nodes();
    nodes.push(query.napi_node(id));
    nodes.extend(others.iter().cloned());
    Some(Observation {
        severity: if waited.is_some() { Severity::Warning } else { Severity::Note },
        nodes,
        observed: format!(
            "packets of {} on this queue wait {}{}",
            counted(others.len(), "other process"),
            delay.text("the program"),
            waited.unwrap_or_default()
        ),
        fix,
    })
}

fn other_users(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>, id: NapiId) -> BTreeSet<Node> {
    let others = query.now.processes.iter().filter(|process| process.pid != epoll.process.pid);
    let is_on_queue = |process: &&crate::snapshot::Process| {
        process.files.known().is_some_and(|files| query.napis_of(files).contains(&id))
    };
    others.filter(is_on_queue).map(Node::from).collect()
}

static LEASED: Rule = Rule {
    id: "queue-leased-to-container",
    severity: Severity::Warning,
    title: "a queue with a delivery mode is leased to a container",
    impact: "A program in the container receives from the queue through AF_XDP or a memory provider.",
    source: "Documentation/netlink/specs/netdev.yaml, queue-get: lease (Linux 7.1); net/core/netdev_rx_queue.c",
    explanation: "Detected if the kernel reports a lease of a receive queue, and the queue defers, suspends, or is \
                  busy-polled by a program of this host. Fix: exclude the queue from the profile or the mode.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: leased,
};

fn leased(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let queues =
        query.now.devices.iter().flat_map(|device| device.rx_queues.known_elements().map(move |queue| (device, queue)));
    let of = |(device, queue): (&Device, &RxQueue)| {
        let lease = (*queue.lease.known()?)?;
        let (_, napi) = query.napi(queue.napi_id()?)?;
        let place = match lease.netns_id {
            Some(id) => format!("in the network namespace with ID {id}"),
            None => "in the same network namespace".to_owned(),
        };
        let values = [
            (NapiAttribute::DeferHardIrqs, 0),
            (NapiAttribute::GroFlushTimeout, 0),
            (NapiAttribute::IrqSuspendTimeout, 0),
        ];
        (napi.defers() || query.is_polled(napi)).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![query.rx_queue_node(device, queue.id), query.napi_node(napi.id)],
            observed: format!("queue {} of interface {} {place} leases it", lease.queue, lease.ifindex.get()),
            fix: vec![
                Fix::advice("exclude the queue from the profile or the mode"),
                Fix::napi_set(query, device, napi, &values),
            ],
        })
    };
    queues.filter_map(of).collect()
}
