//! `xsk_rr`, the round-trip benchmark for AF_XDP sockets. Two hosts are simulated in one world, with all their CPUs.
//! The client sends at a fixed rate and processes each reply. The server replies at once.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use quell_mode::{NapiSettings, Threaded};
use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Link, RxQueue, Socket};
use crate::run::RunError;
use crate::world::{
    Class, Client, Counters, CpuTime, KernelRules, Peer, PollLoop, PollPhase, Poller, Program, SendPhase, Sender,
    Stage, Traffic, TrafficKind, World, WorldShape,
};

/// Real-time priority of all threads, from `chrt -f 50` in the benchmark's script.
const PRIORITY: u8 = 50;
/// CPUs of each of the two hosts.
const CPUS: usize = 4;
const EVENT_BOUND: usize = 1024;
/// Settings of both queues, from the published script.
const DEFERRAL: NapiSettings = NapiSettings {
    defer_hard_irqs: 100,
    gro_flush_timeout_ns: 15_000,
    irq_suspend_timeout_ns: 0,
    threaded: Threaded::Off,
};
const PERIOD_MIN_NS: f64 = 500.0;

/// Who polls the queues of both hosts. The names are those of `quell load --protocol xdp --poller`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum XskPolling {
    /// Softirqs after interrupts. System calls of the program poll once, too, because `SO_BUSY_POLL` is set as
    /// published.
    Interrupts,
    /// The receiving thread by `recvfrom`, each time that its receive ring is empty. Interrupts are deferred.
    BusyPoll,
    /// A second thread by `recvfrom`, permanently and on a CPU of its own. Interrupts are deferred.
    BusyPollThread,
    /// The NAPI thread of the queue, permanently and on a CPU of its own (`threaded` = 2).
    ThreadedBusyPoll,
}

/// A name that is no way to poll.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to poll `{0}`: expected {names}", names = XskPolling::ALL.map(XskPolling::name).join(", "))]
pub struct InvalidXskPolling(String);

impl XskPolling {
    /// All ways, in the order of the published table.
    pub const ALL: [Self; 4] = [Self::Interrupts, Self::BusyPoll, Self::BusyPollThread, Self::ThreadedBusyPoll];

    fn name(self) -> &'static str {
        match self {
            Self::Interrupts => "interrupts",
            Self::BusyPoll => "busy-poll",
            Self::BusyPollThread => "busy-poll-thread",
            Self::ThreadedBusyPoll => "threaded-busy-poll",
        }
    }

    /// Settings of both queues.
    fn napi(self) -> NapiSettings {
        match self {
            Self::Interrupts => NapiSettings { defer_hard_irqs: 0, ..DEFERRAL },
            Self::BusyPoll | Self::BusyPollThread => DEFERRAL,
            Self::ThreadedBusyPoll => NapiSettings { threaded: Threaded::BusyPoll, ..DEFERRAL },
        }
    }
}

impl fmt::Display for XskPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for XskPolling {
    type Err = InvalidXskPolling;

    fn from_str(text: &str) -> Result<Self, InvalidXskPolling> {
        Self::ALL.into_iter().find(|way| way.name() == text).ok_or_else(|| InvalidXskPolling(text.to_owned()))
    }
}

/// A run of `xsk_rr`. Both hosts have one queue and the same settings.
#[derive(Debug, Clone)]
pub struct XskRoundTrips {
    /// Profile of each of the two hosts.
    pub host: HostProfile,
    /// Who polls each of the two queues.
    pub polling: XskPolling,
    /// Time between two packets of the client, in ns.
    pub period_ns: f64,
    /// Time that the client spends on each reply, in ns. It ends by the clock, whatever interrupts the client, and is
    /// shorter than the period.
    pub delay_ns: Ns,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: Ns,
}

/// Result of a run of `xsk_rr`.
#[derive(Debug, Clone)]
pub struct XskResult {
    /// Latency of each packet, from the time at which the client began to send it until it took the reply.
    pub latency: LatencyHistogram,
    measured_s: f64,
    client: (CpuTime, Counters),
    server: (CpuTime, Counters),
}

/// Metrics of a run of `xsk_rr`. A latency without replies is null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct XskFigures {
    /// Replies that the client took, per second.
    pub qps: f64,
    /// 5th percentile of latency in µs.
    pub p5_us: Option<f64>,
    /// Median latency in µs.
    pub p50_us: Option<f64>,
    /// 95th percentile of latency in µs.
    pub p95_us: Option<f64>,
    /// 99th percentile of latency in µs.
    pub p99_us: Option<f64>,
    /// Number of packets that were lost because a ring was full.
    pub drops: u64,
    /// Host that sends requests.
    pub client: XskHostFigures,
    /// Host that replies.
    pub server: XskHostFigures,
}

/// What one of the two hosts spends on its packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct XskHostFigures {
    /// CPU time as accounted by the kernel, in CPUs: 2 if two CPUs are always busy.
    pub busy_cpus: f64,
    /// CPU time per reply that the client took, in µs. Null without replies.
    pub cpu_us_per_request: Option<f64>,
    /// Device interrupts per second.
    pub irqs_per_s: f64,
    /// NAPI polls per second.
    pub polls_per_s: f64,
}

impl XskResult {
    /// Metrics of the run.
    #[must_use]
    pub fn figures(&self) -> XskFigures {
        let us = |share: f64| self.latency.quantile(share).map(|latency| latency.as_secs_f64() * 1e6);
        let replies = self.latency.count();
        let host = |(cpu, counters): &(CpuTime, Counters)| {
            let busy_s = (cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns) as f64 / 1e9;
            XskHostFigures {
                busy_cpus: busy_s / self.measured_s,
                cpu_us_per_request: (replies > 0).then(|| busy_s * 1e6 / replies as f64),
                irqs_per_s: counters.irqs as f64 / self.measured_s,
                polls_per_s: counters.polls as f64 / self.measured_s,
            }
        };
        XskFigures {
            qps: replies as f64 / self.measured_s,
            p5_us: us(0.05),
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            drops: self.client.1.drops + self.server.1.drops,
            client: host(&self.client),
            server: host(&self.server),
        }
    }
}

impl XskRoundTrips {
    /// Simulates the run. It has no random numbers.
    ///
    /// # Errors
    ///
    /// See [`RunError`].
    pub fn simulate(&self) -> Result<XskResult, RunError> {
        if !(PERIOD_MIN_NS..=1e9).contains(&self.period_ns) {
            return Err(RunError::Setting("the period must be 500 ns to 1 s"));
        }
        if self.delay_ns as f64 >= self.period_ns {
            return Err(RunError::Setting(
                "the delay must be below the period, or the client falls behind without end",
            ));
        }
        let mut world = self.world();
        world.begin();
        world.run_until(self.warm_up_ns);
        world.open_books();
        world.run_until(self.warm_up_ns + self.measured_ns);
        world.close_books(self.warm_up_ns);
        if world.events.overflowed() {
            return Err(RunError::TooManyEvents { bound: EVENT_BOUND });
        }
        let host = |side: Side| {
            let mut time = CpuTime::default();
            world.cpus[side.cpus()].iter().for_each(|cpu| time.add(&cpu.time));
            (time, world.counters[usize::from(side.queue)])
        };
        let measured_s = self.measured_ns as f64 / 1e9;
        Ok(XskResult { measured_s, client: host(CLIENT), server: host(SERVER), latency: world.traffic.latency })
    }

    fn world(&self) -> World {
        let wire_ns = (self.host.constants.network_ns / 2.0) as Ns;
        let client = Client { one_way_ns: wire_ns, back_ns: wire_ns, ..Client::NONE };
        let traffic = Traffic::new(TrafficKind::NONE, client, Vec::new(), 1);
        let shape = WorldShape { queues: 2, epolls: 0, cpus: 2 * CPUS, bound: EVENT_BOUND };
        let mut world = World::new(KernelRules::default(), Costs::new(&self.host), shape, traffic);
        let kicks = matches!(self.polling, XskPolling::Interrupts | XskPolling::BusyPoll);
        let application = |side: Side, delay_ns, reply_to| PollLoop {
            socket: side.queue.into(),
            kicks,
            delay_ns,
            reply_to,
            phase: PollPhase::Look,
        };
        self.add_host(&mut world, CLIENT, application(CLIENT, self.delay_ns, None));
        self.add_host(&mut world, SERVER, application(SERVER, 0, Some(CLIENT.peer())));
        let period_ns = self.period_ns;
        let sender = Sender {
            socket: CLIENT.queue.into(),
            peer: SERVER.peer(),
            // The published script turns busy polling of sockets off where the NAPI thread polls.
            kicks: self.polling != XskPolling::ThreadedBusyPoll,
            period_ns,
            due_ns: 0.0,
            phase: SendPhase::Wait,
        };
        CLIENT.start(&mut world, Program::Sender(sender), Stage::Program, 2);
        world
    }

    /// Adds a host. The queue's interrupt or NAPI thread runs on the host's first CPU, the application on its second,
    /// and a separate polling thread on its last.
    fn add_host(&self, world: &mut World, side: Side, application: PollLoop) {
        let queue = usize::from(side.queue);
        let napi = self.polling.napi();
        let mut rx = RxQueue::new(napi, &self.host.coalescing, self.host.ring_size, side.first_cpu);
        if napi.threaded == Threaded::BusyPoll {
            rx.thread = Some(side.start(world, Program::NapiThread { queue }, Stage::NapiThread, 0));
        }
        world.queues.push(rx);
        let reader = side.start(world, Program::PollLoop(application), Stage::Program, 1);
        if self.polling == XskPolling::BusyPollThread {
            side.start(world, Program::Poller(Poller { queue, loop_ns: 0, entered: false }), Stage::Program, 3);
        }
        let (napi, reader) = (Link::to(queue), Link::to(reader));
        world.sockets.push(Socket { napi, reader, ..Socket::default() });
    }
}

#[derive(Clone, Copy)]
struct Side {
    queue: u16,
    first_cpu: usize,
}

const CLIENT: Side = Side { queue: 0, first_cpu: 0 };
const SERVER: Side = Side { queue: 1, first_cpu: CPUS };

impl Side {
    fn cpus(self) -> Range<usize> {
        self.first_cpu..self.first_cpu + CPUS
    }

    fn peer(self) -> Peer {
        Peer { queue: self.queue, socket: self.queue.into() }
    }

    fn start(self, world: &mut World, program: Program, stage: Stage, cpu: usize) -> usize {
        let thread = world.add_thread(program, stage, self.first_cpu + cpu, Class::RealTime(PRIORITY));
        world.start_thread(thread);
        thread
    }
}
