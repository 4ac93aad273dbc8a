//! Rules about busy polling by programs: epolls that poll nothing, threads that spin needlessly, and polling that never
//! suspends an interrupt.

use std::collections::BTreeSet;

use super::mend::Mend;
use super::view::{EpollView, PACKETS_TO_JUDGE, View, counted, suspends, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{CpuCounters, Device, Process, Reading, SocketState, Thread};

pub(super) const RULES: &[&Rule] =
    &[&WITHOUT_NAPI, &SPINS, &SMALL_BUDGET, &NO_SUSPENSION_THERE, &LONG_FLUSH, &EMPTY_POLLS];

static WITHOUT_NAPI: Rule = Rule {
    id: "connections-without-napi",
    severity: Severity::Serious,
    title: "an epoll is told to poll, and its connections arrive by no queue",
    why: "An epoll polls the queue that its sockets name; packets that bypass NAPI name none, and it polls and suspends \
          nothing.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id; drivers/net/veth.c, veth_xmit; measured: SO_INCOMING_NAPI_ID is 0 \
             with TSO on at the peer of a veth",
    explanation: "Seen: an epoll with prefer_busy_poll or busy_poll_usecs, and established TCP connections to other hosts \
                  in it of which SO_INCOMING_NAPI_ID is 0. Serious when it is all of them. On veth it is GRO that is off \
                  here, or TSO that is on at the other end; otherwise the driver polls without NAPI.",
    needs_two: false,
    examine: without_napi,
};

fn without_napi(view: &View<'_>) -> Vec<Observation> {
    let deaf = view.epolls.iter().filter(|epoll| epoll.polls() && !epoll.without_napi.is_empty());
    let observation = |epoll: &EpollView<'_>| {
        let with: usize = epoll.by_napi.values().map(Vec::len).sum();
        let without = epoll.without_napi.len();
        let namespaces: Vec<u64> = epoll.without_napi.iter().map(|socket| socket.namespace).collect();
        let veths = view
            .now
            .devices
            .iter()
            .filter(|device| device.kind.as_deref() == Some("veth") && namespaces.contains(&device.namespace));
        let mut mend: Vec<Mend> = veths.flat_map(|veth| mend_of_veth(view, veth)).collect();
        if mend.is_empty() {
            mend.push(Mend::advice("find out by which device they arrive, and whether its driver has NAPI"));
        }
        Observation {
            severity: if with == 0 { Severity::Serious } else { Severity::Warning },
            nodes: epoll.nodes(),
            seen: format!("{without} of {} arrive by no queue", counted(with + without, "connection")),
            mend,
        }
    };
    deaf.map(observation).collect()
}

fn mend_of_veth(view: &View<'_>, veth: &Device) -> [Mend; 2] {
    let name = &veth.name;
    [
        Mend::feature(view, veth, "gro", true),
        Mend::advice(format!("at the other end of {name}, in its namespace: ethtool -K PEER tso off gso off")),
    ]
}

static SPINS: Rule = Rule {
    id: "spins-while-idle",
    severity: Severity::Warning,
    title: "a thread spins although hardly a packet comes",
    why: "epoll_wait with a timeout of 0 neither polls the device nor ends a suspension: a program that spins on it waits \
          out irq-suspend-timeout for every packet.",
    source: "fs/eventpoll.c, ep_poll; measured: stalled for the whole suspension timeout with a timeout of 0, 0.06 to \
             0.44 ms with 1 ms",
    explanation: "Compared over two pictures: a thread of a program that has an epoll with prefer_busy_poll on a queue that \
                  may suspend ran, or waited for a CPU, for 90 % of the time or more, was never seen asleep in epoll_wait, and the queue \
                  received fewer than 1,000 packets a second. What the thread spins on cannot be seen from outside. \
                  Mended by a timeout above 0 in the program; 1 ns is enough with epoll_pwait2.",
    needs_two: true,
    examine: spins,
};

const SPINNING: f64 = 0.9;
const HARDLY_ANY_PER_S: u128 = 1_000;

fn spins(view: &View<'_>) -> Vec<Observation> {
    let suspending = view.epolls.iter().filter(|epoll| epoll.prefers() && epoll.waiters.is_empty());
    suspending.filter_map(|epoll| of_spinning(view, epoll)).collect()
}

fn of_spinning(view: &View<'_>, epoll: &EpollView<'_>) -> Option<Observation> {
    let interval_ns = view.interval_ns()?;
    let (device, napi) = epoll.by_napi.keys().filter_map(|&id| view.napi(id)).find(|(_, napi)| suspends(napi))?;
    let packets = view.queue_packets(device, napi.id)?;
    if u128::from(packets) * 1_000_000_000 >= HARDLY_ANY_PER_S * u128::from(interval_ns) {
        return None;
    }
    let spinning = |thread: &&Thread| {
        let asleep_elsewhere = matches!(thread.epoll_wait.known(), Some(Some(_)));
        !asleep_elsewhere && view.runnable_share(epoll.process, thread).is_some_and(|share| share >= SPINNING)
    };
    let thread = epoll.process.threads.known()?.iter().find(spinning)?;
    let share = view.runnable_share(epoll.process, thread)? * 100.0;
    let mut nodes = epoll.nodes();
    nodes.extend([Node::from(thread), view.napi_node(napi.id)]);
    Some(Observation {
        severity: Severity::Warning,
        nodes,
        seen: format!("it ran or was ready to run {share:.0} % of {}, for {packets} packets", time_text(interval_ns)),
        mend: vec![Mend::advice(
            "give epoll_wait a timeout above 0 (epoll_pwait2 takes 1 ns), or start the program by `quell run`, which does",
        )],
    })
}

static SMALL_BUDGET: Rule = Rule {
    id: "small-busy-poll-budget",
    severity: Severity::Note,
    title: "an epoll polls 8 packets at a time",
    why: "busy_poll_budget 0 means 8 packets a poll, so a batch of 64 takes eight polls where one would do.",
    source: "fs/eventpoll.c, ep_busy_loop: BUSY_POLL_BUDGET; Documentation/networking/napi.rst",
    explanation: "Seen: an epoll with prefer_busy_poll and busy_poll_budget 0. Mended by 64, the most that needs no \
                  privilege.",
    needs_two: false,
    examine: small_budget,
};

fn small_budget(view: &View<'_>) -> Vec<Observation> {
    let small = |epoll: &&EpollView<'_>| {
        epoll.params.is_some_and(|params| params.prefer_busy_poll && params.busy_poll_budget == 0)
    };
    let mend = |epoll: &EpollView<'_>| {
        let otherwise = "let the program set busy_poll_budget to 64 on its epoll (ioctl EPIOCSPARAMS)";
        let suspending = epoll.by_napi.keys().filter_map(|&id| view.napi(id)).find(|(_, napi)| suspends(napi));
        match suspending {
            Some((_, napi)) => Mend::attach(napi, &BTreeSet::from([epoll.process.pid]), otherwise),
            None => Mend::advice(otherwise),
        }
    };
    let observation = |epoll: &EpollView<'_>| Observation {
        severity: Severity::Note,
        nodes: epoll.nodes(),
        seen: "prefer_busy_poll 1, busy_poll_budget 0".to_owned(),
        mend: vec![mend(epoll)],
    };
    view.epolls.iter().filter(small).map(observation).collect()
}

static NO_SUSPENSION_THERE: Rule = Rule {
    id: "polls-without-suspension",
    severity: Severity::Warning,
    title: "a program receives from a suspending queue in a way that never suspends",
    why: "Suspension lives in epoll alone: io_uring, AF_XDP and receives with SO_PREFER_BUSY_POLL poll the queue and never \
          suspend its interrupt, and IORING_OP_EPOLL_WAIT suspends and never resumes.",
    source: "fs/eventpoll.c is the only caller of napi_suspend_irqs and napi_resume_irqs; io_uring/napi.c; io_uring/epoll.c",
    explanation: "Seen: a program with sockets on a queue that has irq-suspend-timeout has io_urings, AF_XDP sockets, or \
                  sockets with SO_PREFER_BUSY_POLL. Whether it receives by them cannot be seen from outside, so it is a \
                  note where an epoll of the same program prefers busy polling, and a warning where none does.",
    needs_two: false,
    examine: no_suspension_there,
};

fn no_suspension_there(view: &View<'_>) -> Vec<Observation> {
    view.now.processes.iter().filter_map(|process| of_other_receiver(view, process)).collect()
}

fn of_other_receiver(view: &View<'_>, process: &Process) -> Option<Observation> {
    let files = process.files.known()?;
    let sockets: Vec<_> = files.sockets.iter().filter_map(|held| view.socket(held.inode)).collect();
    let mut queues: Vec<_> = sockets.iter().filter_map(|socket| *socket.napi.known()?).collect();
    queues.sort_unstable();
    queues.dedup();
    queues.retain(|&id| view.napi(id).is_some_and(|(_, napi)| suspends(napi)));
    if queues.is_empty() {
        return None;
    }
    let prefer = |socket: &&&crate::picture::Socket| {
        socket.state != SocketState::Listen && socket.prefer_busy_poll.known() == Some(&true)
    };
    let by_socket = sockets.iter().filter(prefer).count();
    let ways = [
        (files.io_urings.len(), "io_uring"),
        (files.xdp_sockets.len(), "AF_XDP socket"),
        (by_socket, "socket with SO_PREFER_BUSY_POLL"),
    ];
    let has: Vec<String> =
        ways.iter().filter(|(count, _)| *count > 0).map(|&(count, what)| counted_way(count, what)).collect();
    if has.is_empty() {
        return None;
    }
    let prefers = view.epolls.iter().any(|epoll| epoll.process.pid == process.pid && epoll.prefers());
    let mut nodes = vec![Node::from(process)];
    nodes.extend(queues.into_iter().map(|id| view.napi_node(id)));
    Some(Observation {
        severity: if prefers { Severity::Note } else { Severity::Warning },
        nodes,
        seen: format!("it has {}", has.join(", ")),
        mend: vec![Mend::advice("use epoll for the sockets of this queue, or choose a mode without suspension")],
    })
}

fn counted_way(count: usize, what: &str) -> String {
    match what.split_once(' ') {
        Some((noun, rest)) if count > 1 && noun == "socket" => format!("{count} sockets {rest}"),
        _ => counted(count, what),
    }
}

static LONG_FLUSH: Rule = Rule {
    id: "long-flush-after-sleep",
    severity: Severity::Warning,
    title: "a program that polls may sleep for longer than the queue's timer",
    why: "An epoll forgets its queue when it goes to sleep, so the first packet after that waits for the queue's timer, up \
          to gro-flush-timeout.",
    source: "fs/eventpoll.c, ep_busy_loop; net/core/dev.c, busy_poll_stop (concluded from the code)",
    explanation: "Seen: an epoll with busy_poll_usecs above 0 on a queue whose gro-flush-timeout is 1 ms or more, and a \
                  thread that waits on it for longer than 1 ms or for ever. Mended by waits of at most 1 ms, with which \
                  the program never stops polling, or by a shorter gro-flush-timeout.",
    needs_two: false,
    examine: long_flush,
};

const LONG_FLUSH_NS: u64 = 1_000_000;

fn long_flush(view: &View<'_>) -> Vec<Observation> {
    let polling = view.epolls.iter().filter(|epoll| epoll.params.is_some_and(|params| params.busy_poll_usecs > 0));
    let observation = |epoll: &EpollView<'_>| {
        let sleeps_long = |timeout: i32| !(0..=1).contains(&timeout);
        let (thread, _) = epoll.waiters.iter().find(|(_, wait)| wait.timeout_ms.is_some_and(sleeps_long))?;
        let long = |&id: &quell_linux::NapiId| {
            let (device, napi) = view.napi(id)?;
            let flush = *napi.gro_flush_timeout_ns.known()?;
            (flush >= LONG_FLUSH_NS).then_some((device, napi, flush))
        };
        let (device, napi, flush) = epoll.by_napi.keys().find_map(long)?;
        let mut nodes = epoll.nodes();
        nodes.extend([Node::from(*thread), view.napi_node(napi.id)]);
        Some(Observation {
            severity: Severity::Warning,
            nodes,
            seen: format!("gro-flush-timeout is {}, and the thread waits for longer than 1 ms", time_text(flush)),
            mend: vec![
                Mend::advice("let the program wait for at most 1 ms at a time, or start it by `quell run`, which does"),
                Mend::napi_set(view, device, napi.id, &[("gro-flush-timeout", 200_000)]),
            ],
        })
    };
    polling.filter_map(observation).collect()
}

static EMPTY_POLLS: Rule = Rule {
    id: "too-many-empty-polls",
    severity: Severity::Warning,
    title: "a CPU polls far more often than packets come",
    why: "Every timer poll interrupts the program, also one that finds nothing: above some 70,000 a second they take more \
          than the interrupts that they replace.",
    source: "measured in the published runs of defer10: slower than plain interrupts above 800,000 requests a second; \
             net_rx_action, net/core/dev.c",
    explanation: "Compared over two pictures: a CPU ran more than 20,000 receiving softirqs a second, and more than four for \
                  each packet that it took in. Or its receiving softirqs used up their time (softnet_stat, time_squeeze) \
                  more than five times a second, and took in fewer than 64 packets each: a timer shorter than a poll fires \
                  again before the softirq ends, which then polls on until its time is up. Mended by a longer \
                  gro-flush-timeout of the queues that it serves, or by suspension.",
    needs_two: true,
    examine: empty_polls,
};

const MANY_SOFTIRQS_PER_S: f64 = 20_000.0;
const SOFTIRQS_PER_PACKET: u64 = 4;
/// Each squeeze takes two jiffies: five per second are 1 to 10 % of a CPU, depending on HZ.
const MANY_SQUEEZES_PER_S: f64 = 5.0;
/// Maximum packets of one poll (`NAPI_POLL_WEIGHT`). A softirq that was busy with packets received several times as
/// many.
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

    fn mostly_in_vain(&self, interval_ns: u64) -> Option<String> {
        let per_s = |count: u64| count as f64 * 1e9 / interval_ns as f64;
        let many_softirqs = |&softirqs: &u64| {
            softirqs >= PACKETS_TO_JUDGE
                && per_s(softirqs) >= MANY_SOFTIRQS_PER_S
                && softirqs / SOFTIRQS_PER_PACKET >= self.packets
        };
        let long_softirqs = |&squeezes: &u64| {
            per_s(squeezes) >= MANY_SQUEEZES_PER_S && squeezes.saturating_mul(PACKETS_OF_A_POLL) > self.packets
        };
        let seen = match (self.softirqs.filter(many_softirqs), self.squeezes.filter(long_softirqs)) {
            (Some(softirqs), _) => format!("{:.0} receiving softirqs a second", per_s(softirqs)),
            (None, Some(squeezes)) => {
                format!("{:.0} receiving softirqs a second that used up their time", per_s(squeezes))
            }
            (None, None) => return None,
        };
        Some(format!("{seen}, for {} packets in {}", self.packets, time_text(interval_ns)))
    }
}

fn empty_polls(view: &View<'_>) -> Vec<Observation> {
    let Some(interval_ns) = view.interval_ns() else { return Vec::new() };
    let of = |number: u32| {
        let (before, now) = view.cpu_pair(number)?;
        let seen = Receiving::between(&before.counters, &now.counters)?.mostly_in_vain(interval_ns)?;
        let deferred = view.napis().filter(|(_, napi)| super::view::defers(napi));
        let here = deferred.filter(|(_, napi)| view.packet_cpus(napi).is_some_and(|cpus| cpus.contains(number)));
        let served: Vec<_> = here.collect();
        let mut mend: Vec<Mend> = served
            .iter()
            .map(|(device, napi)| Mend::napi_set(view, device, napi.id, &[("gro-flush-timeout", 200_000)]))
            .collect();
        if mend.is_empty() {
            mend.push(Mend::advice("lengthen gro-flush-timeout of the queues that this CPU serves"));
        }
        let mut nodes = vec![Node::Cpu { number }];
        nodes.extend(served.iter().map(|(_, napi)| view.napi_node(napi.id)));
        Some(Observation { severity: Severity::Warning, nodes, seen, mend })
    };
    view.now.cpus.each.iter().filter_map(|cpu| of(cpu.number)).collect()
}
