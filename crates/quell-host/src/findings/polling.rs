//! Rules about busy polling by programs: epolls that poll nothing, threads that spin needlessly, and polling that never
//! suspends an interrupt.

use std::collections::BTreeSet;
use std::net::IpAddr;

use quell_linux::NapiId;
use quell_linux::visible::counted;
use quell_mode::NapiAttribute;

use super::fix::{Feature, Fix};
use super::text::time_text;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::{EpollContext, PACKETS_TO_JUDGE, SnapshotQuery};
use crate::snapshot::{CpuCounters, Device, Process, Reading, SnapshotNapi, SnapshotSocket, SocketState};

pub(super) const RULES: &[&Rule] = &[&WITHOUT_NAPI, &SMALL_BUDGET, &NO_SUSPENSION_THERE, &LONG_FLUSH, &EMPTY_POLLS];

/// Part of the connections of an epoll from which modes lose a good deal of their effect.
pub(super) const PART_WITHOUT_NAPI: usize = 10;

pub const WITHOUT_NAPI_ID: &str = "connections-without-napi";

static WITHOUT_NAPI: Rule = Rule {
    id: WITHOUT_NAPI_ID,
    severity: Severity::Warning,
    title: "no queue delivers the connections of an epoll",
    impact: "An epoll polls the queue that its sockets report. Packets that bypass NAPI have none: no mode has an effect on \
             them.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id; drivers/net/veth.c, veth_xmit; measured: SO_INCOMING_NAPI_ID is \
             0 with TSO on at the peer of a veth",
    explanation: "Detected if an epoll of a server, or one with prefer_busy_poll or busy_poll_usecs, watches established \
                  TCP connections to other hosts with SO_INCOMING_NAPI_ID 0. A warning from a tenth of them on, \
                  under every mode. The driver polls without NAPI, or on veth, GRO is \
                  off on the device, TSO is on at its peer, or the peer has more transmit queues than the device has \
                  receive queues, which is so if only some have no queue. Fix: on veth, GRO on, TSO off at the peer, \
                  and no more transmit queues there.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: without_napi,
};

fn without_napi(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let is_asked = |epoll: &EpollContext<'_>| epoll.polls() || query.serves(epoll.process);
    let unreached = query.epolls().filter(|epoll| !epoll.without_napi.is_empty() && is_asked(epoll));
    let observation = |epoll: &EpollContext<'_>| {
        let with: BTreeSet<u64> = epoll.by_napi.values().flatten().map(|socket| socket.inode).collect();
        let with = with.len();
        let without = epoll.without_napi.len();
        Observation {
            severity: match without * PART_WITHOUT_NAPI >= with + without {
                true => Severity::Warning,
                false => Severity::Note,
            },
            nodes: epoll.nodes(),
            observed: format!("{without} of {} receive without a queue", counted(with + without, "connection")),
            fix: fix_of_bypass(query, &epoll.without_napi),
        }
    };
    unreached.map(observation).collect()
}

/// How the packets of these sockets get a queue; not empty.
pub(crate) fn fix_of_bypass(query: &SnapshotQuery<'_>, sockets: &[&SnapshotSocket]) -> Vec<Fix> {
    let locals = sockets.iter().filter_map(|socket| Some((socket.namespace, socket.local?.ip())));
    let locals: BTreeSet<(u64, IpAddr)> = locals.collect();
    let owns =
        |device: &Device, &(namespace, ip): &(u64, IpAddr)| device.namespace == namespace && device.has_address(ip);
    // A port of a bridge has no address.
    let devices = query.now.devices.iter();
    let are_known = locals.iter().all(|local| devices.clone().any(|device| owns(device, local)));
    let is_theirs = |device: &&Device| {
        locals.iter().any(|local| if are_known { owns(device, local) } else { device.namespace == local.0 })
    };
    let has_received =
        |device: &&Device| device.is_up && device.counters.known().is_none_or(|counters| counters.rx_packets > 0);
    let veths = devices.filter(|device| device.kind.as_deref() == Some("veth"));
    let mut fix: Vec<Fix> =
        veths.filter(is_theirs).filter(has_received).flat_map(|veth| fix_of_veth(query, veth)).collect();
    if fix.is_empty() {
        fix.push(Fix::advice("find the device that receives them and check that its driver uses NAPI"));
    }
    fix
}

fn fix_of_veth(query: &SnapshotQuery<'_>, veth: &Device) -> Vec<Fix> {
    // Connections that have a queue came over the same features of the device and its peer.
    let is_of_veth = |id| query.napi(id).is_some_and(|(device, _)| std::ptr::eq(device, veth));
    let some_have_queues =
        query.now.sockets.iter().filter_map(|socket| socket.napi.known().copied().flatten()).any(is_of_veth);
    let gro = veth.features.known().and_then(|features| features.get("rx-gro")).map(|gro| gro.active);
    let peer = query.veth_peer(veth);
    let its_name = peer.map_or("PEER", |peer| &peer.name);
    let peers_queues = peer.and_then(|peer| peer.tx_queues.known()).map(Vec::len);
    let are_fewer = |own: &usize| some_have_queues && peers_queues.is_none_or(|peers| peers > *own);
    let of_peer = match (veth.rx_queues.known().map(Vec::len).filter(are_fewer), peer) {
        (None, Some(peer)) => {
            vec![Fix::feature(query, peer, Feature::Tso, false), Fix::feature(query, peer, Feature::Gso, false)]
        }
        (queues, _) => {
            let tso = format!("ethtool -K {its_name} tso off gso off");
            let fewer = |queues: usize| {
                format!(
                    "ethtool -L {its_name} tx {queues}, for as many transmit queues as {0} receives by, or more receive \
                     queues here: ethtool -L {0} rx N",
                    veth.name
                )
            };
            let change = match (queues, peers_queues) {
                (None, _) => tso,
                (Some(queues), Some(_)) => fewer(queues),
                (Some(queues), None) => format!("{tso}; if it sends by more queues than {queues}: {}", fewer(queues)),
            };
            vec![Fix::advice(format!("at the other end of {}, in its namespace: {change}", veth.name))]
        }
    };
    let mut fix = Vec::new();
    if gro != Some(true) {
        fix.push(Fix::feature(query, veth, Feature::Gro, true));
    }
    if gro != Some(false) {
        fix.extend(of_peer);
    }
    fix
}

static SMALL_BUDGET: Rule = Rule {
    id: "small-busy-poll-budget",
    severity: Severity::Note,
    title: "an epoll polls 8 packets at a time",
    impact: "busy_poll_budget 0 means 8 packets per poll, so that a batch of 64 needs eight polls.",
    source: "fs/eventpoll.c, ep_busy_loop: BUSY_POLL_BUDGET; Documentation/networking/napi.rst",
    explanation: "Detected if an epoll has prefer_busy_poll and busy_poll_budget 0. Fix: 64, the largest value that \
                  needs no privilege.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: small_budget,
};

fn small_budget(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let small = |epoll: &&EpollContext<'_>| {
        epoll.params.is_some_and(|params| params.prefer_busy_poll && params.busy_poll_budget == 0)
    };
    let fix = |epoll: &EpollContext<'_>| {
        let otherwise = "let the program set busy_poll_budget to 64 on its epoll (ioctl EPIOCSPARAMS)";
        let suspending = epoll.by_napi.keys().filter_map(|&id| query.napi(id)).find(|(_, napi)| napi.suspends());
        match suspending {
            Some((_, napi)) => Fix::attach(query, napi, &[epoll.process], otherwise),
            None => Fix::advice(otherwise),
        }
    };
    let observation = |epoll: &EpollContext<'_>| Observation {
        severity: Severity::Note,
        nodes: epoll.nodes(),
        observed: "prefer_busy_poll 1, busy_poll_budget 0".to_owned(),
        fix: vec![fix(epoll)],
    };
    query.epolls().filter(small).map(observation).collect()
}

static NO_SUSPENSION_THERE: Rule = Rule {
    id: "polls-without-suspension",
    severity: Severity::Warning,
    title: "a program receives from a suspending queue by a method that never suspends",
    impact: "Only epoll suspends interrupts. io_uring, AF_XDP and receives with SO_PREFER_BUSY_POLL poll the queue \
          without suspending it; IORING_OP_EPOLL_WAIT suspends, but never resumes.",
    source: "fs/eventpoll.c is the only caller of napi_suspend_irqs and napi_resume_irqs; io_uring/napi.c; \
             io_uring/epoll.c",
    explanation: "Detected if a program with sockets on a queue that has irq-suspend-timeout has AF_XDP sockets, \
                  sockets with SO_PREFER_BUSY_POLL, or io_urings (unless several lists of their requests in fdinfo \
                  have none for a socket). A note if an epoll of the program prefers busy polling, otherwise a \
                  warning.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: no_suspension_there,
};

fn no_suspension_there(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    query.now.processes.iter().filter_map(|process| of_other_receiver(query, process)).collect()
}

fn of_other_receiver(query: &SnapshotQuery<'_>, process: &Process) -> Option<Observation> {
    let files = process.files.known()?;
    let sockets: Vec<_> = files.sockets.iter().filter_map(|held| query.socket(held.inode)).collect();
    let mut queues = query.napis_of(files);
    queues.retain(|&id| query.napi(id).is_some_and(|(_, napi)| napi.suspends()));
    if queues.is_empty() {
        return None;
    }
    let prefer = |socket: &&&crate::snapshot::SnapshotSocket| {
        socket.state != SocketState::Listen && socket.prefer_busy_poll.known() == Some(&true)
    };
    let by_socket = sockets.iter().filter(prefer).count();
    let ways = [
        (files.receiving_rings().count(), "io_uring", ""),
        (files.xdp_sockets.len(), "AF_XDP socket", ""),
        (by_socket, "socket", " with SO_PREFER_BUSY_POLL"),
    ];
    let has = ways.iter().filter(|(count, ..)| *count > 0);
    let has: Vec<String> = has.map(|&(count, what, how)| counted(count, what) + how).collect();
    if has.is_empty() {
        return None;
    }
    let prefers = query.epolls().any(|epoll| epoll.process.pid == process.pid && epoll.prefers());
    let mut nodes = vec![Node::from(process)];
    nodes.extend(queues.into_iter().map(|id| query.napi_node(id)));
    Some(Observation {
        severity: if prefers { Severity::Note } else { Severity::Warning },
        nodes,
        observed: format!("it has {}", has.join(", ")),
        fix: vec![Fix::advice("use epoll for sockets on this queue, or a mode without suspension")],
    })
}

static LONG_FLUSH: Rule = Rule {
    id: "long-flush-after-sleep",
    severity: Severity::Warning,
    title: "a packet after a pause waits for a long timer of the queue",
    impact: "An epoll forgets its queue when its busy polling ends without a packet. The next packet waits for the queue's \
          timer, up to gro-flush-timeout.",
    source: "fs/eventpoll.c, ep_busy_loop; net/core/dev.c, busy_poll_stop; measured with memcached under \
             fullbusy and waits of at most 1 ms: median latency 2.0 to 2.3 ms at 100 to 500 requests/s, 0.05 to 0.12 ms \
             under base",
    explanation: "Detected if an epoll has busy_poll_usecs above 0, and the gro-flush-timeout of its queue is longer than \
                  that and at least 1 ms. It has no effect while packets of the queue come at shorter intervals than \
                  busy_poll_usecs. Shorter waits of the program do not help. Fix: a shorter gro-flush-timeout.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: long_flush,
};

const LONG_FLUSH_NS: u64 = 1_000_000;

fn long_flush(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let observation = |epoll: &EpollContext<'_>| {
        let params = epoll.params?;
        let long = |&id: &NapiId| {
            let (device, napi) = query.napi(id)?;
            let flush = *napi.gro_flush_timeout_ns.known()?;
            (flush >= LONG_FLUSH_NS && params.ends_before(flush)).then_some((device, napi, flush))
        };
        let (device, napi, flush) = epoll.by_napi.keys().find_map(long)?;
        let mut nodes = epoll.nodes();
        nodes.push(query.napi_node(napi.id));
        Some(Observation {
            severity: Severity::Warning,
            nodes,
            observed: format!(
                "after {} µs without a packet, the next one waits for up to {}",
                params.busy_poll_usecs,
                time_text(flush)
            ),
            fix: vec![Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, 200_000)])],
        })
    };
    query.epolls().filter_map(observation).collect()
}

static EMPTY_POLLS: Rule = Rule {
    id: "too-many-empty-polls",
    severity: Severity::Warning,
    title: "a CPU polls far more often than packets arrive",
    impact: "Polls that find nothing cost CPU time; above about 70,000 per second, more than the interrupts that they \
          replace. A softirq that runs until its time limit delays the packets behind it.",
    source: "measured in the published runs of defer10: slower than plain interrupts above 800,000 requests per \
             second; net_rx_action, net/core/dev.c",
    explanation: "Detected if a CPU ran more than 20,000 NET_RX softirqs per second and more than four per received \
                  packet; or if more than five NET_RX softirqs per second ran until their time limit (two jiffies; \
                  softnet_stat, time_squeeze) with fewer than 64 packets each: the time went into polls that found \
                  nothing, because a timer shorter than a poll fires again before the softirq ends. The kernel then \
                  leaves the rest to ksoftirqd, which delays packets. Fix: a longer gro-flush-timeout of the queues \
                  that the CPU serves, or suspension. If none of them defers interrupts, the CPU was taken from the \
                  softirq: by the host of a virtual machine (steal in `vmstat 1`), or by a long interrupt.",
    needs_two: true,
    judges_settings: true,
    stalls: false,
    examine: empty_polls,
};

const MANY_SOFTIRQS_PER_S: f64 = 20_000.0;
const SOFTIRQS_PER_PACKET: u64 = 4;
/// gro-flush-timeout that the fix sets: at most 5,000 timer polls per second.
const FLUSH_NS: u64 = 200_000;
/// Each squeeze takes two jiffies, so five per second are 1 to 10 % of a CPU, depending on HZ.
const MANY_SQUEEZES_PER_S: f64 = 5.0;
/// Maximum number of packets in one poll (`NAPI_POLL_WEIGHT`). A softirq that spent its time on packets received
/// several times as many.
const PACKETS_OF_A_POLL: u64 = 64;

/// Receive work of a CPU between two snapshots, with the evidence that most of its polls found nothing.
struct Receiving {
    softirqs: Option<u64>,
    squeezes: Option<u64>,
    packets: u64,
}

impl Receiving {
    fn between(before: &CpuCounters, now: &CpuCounters) -> Option<Self> {
        let since =
            |counter: fn(&CpuCounters) -> &Reading<u64>| counter(now).known()?.checked_sub(*counter(before).known()?);
        Some(Self {
            softirqs: since(|cpu| &cpu.net_rx_softirqs),
            squeezes: since(|cpu| &cpu.softnet_time_squeeze),
            packets: since(|cpu| &cpu.softnet_processed)?,
        })
    }

    /// The evidence, and whether it is that softirqs ran until their time limit.
    fn mostly_empty(&self, interval_ns: u64) -> Option<(String, bool)> {
        let per_s = |count: u64| count as f64 * 1e9 / interval_ns as f64;
        let many_softirqs = |&softirqs: &u64| {
            softirqs >= PACKETS_TO_JUDGE
                && per_s(softirqs) >= MANY_SOFTIRQS_PER_S
                && softirqs / SOFTIRQS_PER_PACKET >= self.packets
        };
        let long_softirqs = |&squeezes: &u64| {
            per_s(squeezes) >= MANY_SQUEEZES_PER_S && squeezes.saturating_mul(PACKETS_OF_A_POLL) > self.packets
        };
        let (observed, is_limited) = match (self.softirqs.filter(many_softirqs), self.squeezes.filter(long_softirqs)) {
            (Some(softirqs), _) => (format!("{:.0} NET_RX softirqs per second", per_s(softirqs)), false),
            (None, Some(squeezes)) => {
                let limit = "NET_RX softirqs per second ran until their time limit (time_squeeze)";
                (format!("{:.0} {limit}", per_s(squeezes)), true)
            }
            (None, None) => return None,
        };
        let text = format!("{observed}, for {} in {}", counted(self.packets, "packet"), time_text(interval_ns));
        Some((text, is_limited))
    }
}

fn empty_polls(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let Some(interval_ns) = query.interval_ns() else { return Vec::new() };
    let of = |number: u32| {
        let (before, now) = query.cpu_pair(number)?;
        let (observed, is_limited) = Receiving::between(&before.counters, &now.counters)?.mostly_empty(interval_ns)?;
        let deferred = query.napis().filter(|(_, napi)| napi.defers());
        // A queue without an interrupt and a thread (veth) can be served by any CPU.
        let here = deferred.filter(|(_, napi)| query.packet_cpus(napi).is_none_or(|cpus| cpus.contains(number)));
        let served: Vec<_> = here.collect();
        let is_short = |napi: &SnapshotNapi| napi.gro_flush_timeout_ns.known().is_some_and(|&ns| ns < FLUSH_NS);
        let short = served.iter().filter(|(_, napi)| is_short(napi));
        let mut fix: Vec<Fix> = short
            .map(|(device, napi)| Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, FLUSH_NS)]))
            .collect();
        if fix.is_empty() {
            fix.push(Fix::advice(match (served.is_empty(), is_limited) {
                (false, _) => "use suspension on the queues that this CPU serves, or increase their gro-flush-timeout",
                (true, true) => {
                    "no queue that defers interrupts is known to be served by this CPU: check whether the host of the \
                     virtual machine takes the CPU (steal in `vmstat 1`)"
                }
                (true, false) => {
                    "this CPU serves no examined queue that defers interrupts: `quell doctor --all` examines those of other \
                     network namespaces, too"
                }
            }));
        }
        let mut nodes = vec![Node::Cpu { number }];
        nodes.extend(served.iter().map(|(_, napi)| query.napi_node(napi.id)));
        Some(Observation { severity: Severity::Warning, nodes, observed, fix })
    };
    query.now.cpus.each.iter().filter_map(|cpu| of(cpu.number)).collect()
}
