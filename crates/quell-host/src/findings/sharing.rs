//! Rules about mappings of queues, epolls and threads that are not one to one: an epoll polls one queue, and one thread
//! should poll a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::NapiId;
use quell_linux::ethtool::Channels;

use super::mend::Mend;
use super::view::{EpollView, View, counted, suspends, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Protocol, Socket, SocketState};

pub(super) const RULES: &[&Rule] = &[&MIXED, &SHARED_QUEUE, &SHARED_EPOLL, &REUSEPORT, &BATCH];

static MIXED: Rule = Rule {
    id: "epoll-mixes-napis",
    severity: Severity::Serious,
    title: "the sockets of one epoll arrive by several queues",
    why: "An epoll remembers one queue, that of the socket that was ready last: the others are not polled, and one that is \
          suspended stalls.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id; measured: stalled for 495 of 500 ms",
    explanation: "Seen: connections or datagram sockets of one epoll have different SO_INCOMING_NAPI_ID. Serious where the \
                  epoll busy polls and one of the queues may suspend, a warning where it busy polls, and otherwise a note: \
                  what to change before it can. Mended by giving each worker the connections of one queue: SO_REUSEPORT \
                  with a filter that picks the socket of the packet's queue, or the program's own option (memcached -N).",
    needs_two: false,
    examine: mixed,
};

fn mixed(view: &View<'_>) -> Vec<Observation> {
    let mixing = view.epolls.iter().filter(|epoll| epoll.by_napi.len() > 1);
    let observation = |epoll: &EpollView<'_>| {
        let suspending = epoll.by_napi.keys().any(|&id| view.napi(id).is_some_and(|(_, napi)| suspends(napi)));
        let severity = match (epoll.polls(), suspending) {
            (true, true) => Severity::Serious,
            (true, false) => Severity::Warning,
            (false, _) => Severity::Note,
        };
        let mut nodes = epoll.nodes();
        nodes.extend(epoll.by_napi.keys().map(|&id| view.napi_node(id)));
        let shares = epoll.by_napi.iter().map(|(id, sockets)| format!("{} on {id}", sockets.len()));
        Observation {
            severity,
            nodes,
            seen: format!("sockets by NAPI: {}", shares.collect::<Vec<_>>().join(", ")),
            mend: vec![Mend::advice(
                "give each worker the connections of one queue: `quell attach MODE PID --steer` where the workers listen with \
                 SO_REUSEPORT, or memcached -N",
            )],
        }
    };
    mixing.map(observation).collect()
}

static SHARED_QUEUE: Rule = Rule {
    id: "napi-shared-by-workers",
    severity: Severity::Warning,
    title: "several workers poll one queue",
    why: "Only one of them can poll at a time, and whoever does takes the packets of all: the others spin, and one that \
          works on its events keeps the queue suspended for the rest.",
    source: "net/core/dev.c, napi_busy_loop: NAPI_STATE_SCHED has one owner",
    explanation: "Seen: several epolls that busy poll have sockets on the same queue. Mended by as many queues as workers, \
                  each worker with one.",
    needs_two: false,
    examine: shared_queue,
};

fn shared_queue(view: &View<'_>) -> Vec<Observation> {
    let mut pollers: BTreeMap<NapiId, Vec<&EpollView<'_>>> = BTreeMap::new();
    for epoll in view.epolls.iter().filter(|epoll| epoll.polls()) {
        for &id in epoll.by_napi.keys() {
            pollers.entry(id).or_default().push(epoll);
        }
    }
    let shared = pollers.into_iter().filter(|(_, epolls)| epolls.len() > 1);
    let observation = |(id, epolls): (NapiId, Vec<&EpollView<'_>>)| {
        let mut nodes = vec![view.napi_node(id)];
        nodes.extend(epolls.iter().map(|epoll| epoll.node()));
        let device = view.napi(id).map(|(device, _)| device);
        let mend = match device.and_then(|device| Some((device, device.channels.known()?))) {
            Some((device, channels)) if can_have(channels, epolls.len()) => {
                let count = epolls.len().to_string();
                Mend::in_namespace(view, device.namespace, &["ethtool", "-L", &device.name, "combined", &count])
            }
            _ => Mend::advice("as many queues as workers, or as many workers as queues"),
        };
        Observation {
            severity: Severity::Warning,
            nodes,
            seen: format!("{} poll it", counted(epolls.len(), "epoll")),
            mend: vec![mend],
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
    why: "An epoll polls one queue, so a program whose threads share one can use one queue, however many there are.",
    source: "fs/eventpoll.c: struct eventpoll has one napi_id; Go's runtime and tokio have one epoll for all threads",
    explanation: "Seen: two threads or more slept on the same epoll. A warning where it busy polls, a note where its sockets \
                  arrive by several queues. Mended by several processes, or a program with an epoll for each thread.",
    needs_two: false,
    examine: shared_epoll,
};

fn shared_epoll(view: &View<'_>) -> Vec<Observation> {
    let shared = view.epolls.iter().filter(|epoll| epoll.waiters.len() > 1);
    let matters = shared.filter(|epoll| epoll.polls() || epoll.by_napi.len() > 1);
    let observation = |epoll: &EpollView<'_>| {
        let mut nodes = epoll.nodes();
        nodes.extend(epoll.waiters.iter().map(|(thread, _)| Node::from(*thread)));
        Observation {
            severity: if epoll.polls() { Severity::Warning } else { Severity::Note },
            nodes,
            seen: format!("{} wait on it", counted(epoll.waiters.len(), "thread")),
            mend: vec![Mend::advice("run one process for each queue, or give each thread an epoll of its own")],
        }
    };
    matters.map(observation).collect()
}

static REUSEPORT: Rule = Rule {
    id: "reuseport-group-mixes-devices",
    severity: Severity::Warning,
    title: "one reuseport group serves connections of several devices",
    why: "A filter that picks by queue number alone gives queue 0 of every device to the same worker, whose epoll then mixes \
          their queues.",
    source: "published: production use of epoll busy polling; SKF_AD_QUEUE knows no device",
    explanation: "Seen: two listening sockets or more with SO_REUSEPORT on one address and port, none bound to a device, and \
                  connections of that port that arrive by queues of several devices. The filter itself cannot be read \
                  back. Mended by a group for each device (SO_BINDTODEVICE), or a filter that also looks at the \
                  interface (SKF_AD_IFINDEX).",
    needs_two: false,
    examine: reuseport,
};

fn reuseport(view: &View<'_>) -> Vec<Observation> {
    let mut groups: BTreeMap<(u64, SocketAddr), Vec<&Socket>> = BTreeMap::new();
    for socket in &view.now.sockets {
        let grouped = socket.state == SocketState::Listen && socket.reuseport.known() == Some(&true);
        if let Some(local) = socket.local.filter(|_| grouped && socket.bound_to.is_none()) {
            groups.entry((socket.namespace, local)).or_default().push(socket);
        }
    }
    groups.into_iter().filter(|(_, sockets)| sockets.len() > 1).filter_map(|(key, _)| of_group(view, key)).collect()
}

fn of_group(view: &View<'_>, (namespace, listening): (u64, SocketAddr)) -> Option<Observation> {
    let accepted = view.now.sockets.iter().filter(|socket| {
        let same_port = socket.local.is_some_and(|local| local.port() == listening.port());
        socket.namespace == namespace && socket.protocol == Protocol::Tcp && same_port && socket.remote.is_some()
    });
    let devices: BTreeMap<(u64, quell_linux::Ifindex), &crate::picture::Device> = accepted
        .filter_map(|socket| *socket.napi.known()?)
        .filter_map(|id| view.napi(id))
        .map(|(device, _)| ((device.namespace, device.ifindex), device))
        .collect();
    if devices.len() < 2 {
        return None;
    }
    Some(Observation {
        severity: Severity::Warning,
        nodes: devices.values().map(|device| Node::from(*device)).collect(),
        seen: format!("connections to {listening} arrive by {}", counted(devices.len(), "device")),
        mend: vec![Mend::advice("one group for each device (SO_BINDTODEVICE), or a filter by SKF_AD_IFINDEX too")],
    })
}

static BATCH: Rule = Rule {
    id: "batch-delays-others",
    severity: Severity::Warning,
    title: "other users of a suspended queue wait for a program's whole batch",
    why: "While a program works on the events of one epoll_wait the queue is not polled, for nobody: others wait for as long \
          as maxevents times the time that one event takes, or irq-suspend-timeout.",
    source: "fs/eventpoll.c, ep_poll: ready events are handed out before the queue is polled again",
    explanation: "Compared over two pictures: the run time of the thread that serves the epoll for each packet of its queue, \
                  times the maxevents of its epoll_wait, limited by irq-suspend-timeout, where other processes have \
                  sockets on the same queue. A warning above 1 ms, otherwise a note. Mended by a queue of its own for \
                  the program, by fewer events at a time, or by a shorter irq-suspend-timeout.",
    needs_two: true,
    examine: batch,
};

const LONG_DELAY_NS: u64 = 1_000_000;

fn batch(view: &View<'_>) -> Vec<Observation> {
    view.epolls.iter().filter(|epoll| epoll.prefers()).filter_map(|epoll| of_batch(view, epoll)).collect()
}

fn of_batch(view: &View<'_>, epoll: &EpollView<'_>) -> Option<Observation> {
    let id = *epoll.by_napi.keys().next()?;
    let (device, napi) = view.napi(id).filter(|(_, napi)| suspends(napi))?;
    let others = other_users(view, epoll, id);
    if others.is_empty() {
        return None;
    }
    let (_, wait) = *epoll.waiters.first()?;
    let each_ns = view.work_per_packet_ns(epoll)?;
    let suspend_ns = *napi.irq_suspend_timeout_ns.known()?;
    let batch_ns = (each_ns * f64::from(wait.max_events.max(0))) as u64;
    let worst_ns = batch_ns.min(suspend_ns);
    let mut nodes = epoll.nodes();
    nodes.push(view.napi_node(id));
    nodes.extend(others.iter().cloned());
    Some(Observation {
        severity: if worst_ns > LONG_DELAY_NS { Severity::Warning } else { Severity::Note },
        nodes,
        seen: format!(
            "up to {} events of {} or more each; the other processes on the queue, {}, wait up to {}",
            wait.max_events,
            time_text(each_ns as u64),
            others.len(),
            time_text(worst_ns)
        ),
        mend: vec![
            Mend::advice("give the program a queue of its own, or let it take fewer events at a time"),
            Mend::napi_set(view, device, id, &[("irq-suspend-timeout", LONG_DELAY_NS)]),
        ],
    })
}

fn other_users(view: &View<'_>, epoll: &EpollView<'_>, id: NapiId) -> BTreeSet<Node> {
    let others = view.now.processes.iter().filter(|process| process.pid != epoll.process.pid);
    let on_queue = |inode: u64| view.socket(inode).is_some_and(|socket| socket.napi.known() == Some(&Some(id)));
    others
        .filter(|process| {
            process.files.known().is_some_and(|files| files.sockets.iter().any(|held| on_queue(held.inode)))
        })
        .map(Node::from)
        .collect()
}
