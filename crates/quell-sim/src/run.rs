//! One run: a host, a delivery mode, a load, a server; and what was observed.

use quell_mode::DeliveryMode;

use crate::engine::{Ns, Purpose, RandomStream};
use crate::host::{Costs, HostProfile};
use crate::mechanism::RxQueue;
use crate::poll_counter::CountedBeside;
use crate::server::Server;
use crate::trace::Trace;
use crate::world::{Client, Counters, CpuTime, KernelRules, Traffic, TrafficKind, World, WorldShape};

/// A run of a server on a host, under a load.
#[derive(Debug, Clone)]
pub struct Run {
    /// How packets are delivered.
    pub mode: DeliveryMode,
    /// The host.
    pub host: HostProfile,
    /// The kernel's version-dependent rules.
    pub rules: KernelRules,
    /// Who sends, and when.
    pub traffic: TrafficKind,
    /// Connections, over all queues.
    pub connections: usize,
    /// RX queues. Each interrupts a CPU of its own.
    pub queues: usize,
    /// Who serves.
    pub server: Server,
    /// Whether the server's threads may run on any CPU.
    pub floating: bool,
    /// Whether interrupts go to CPUs on which no thread of the server begins.
    pub irqs_apart: bool,
    /// Whether each CPU transmits on the queue that interrupts it (`xps_cpus`), or on the one on which
    /// the request came.
    pub xps: bool,
    /// How connections are spread over the queues.
    pub spread: Spread,
    /// How large requests and responses are; absent: as the host's constants have them.
    pub message: Option<Message>,
    /// What the network adds to each way of each client machine, in ns; connections are shared out
    /// among the machines in turn. Empty: one machine, nothing added.
    pub client_delays_ns: Vec<Ns>,
    /// Time before anything is counted, in ns.
    pub warm_up_ns: Ns,
    /// Time that is counted, in ns.
    pub measured_ns: Ns,
    /// What all random numbers come from.
    pub seed: u64,
}

/// How connections are spread over queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// As evenly as possible.
    Even,
    /// Each by itself at random, as a hash of its addresses does.
    Hashed,
    /// By weights of the queues that differ from each other by up to so much, at random.
    Imbalanced {
        /// In percent, either way; below 100.
        percent: u8,
    },
}

/// How large requests and responses are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Bytes of a request, and of a response.
    pub bytes: u32,
    /// Bytes of a segment (MSS): a larger request arrives in several, and each makes its socket
    /// readable.
    pub segment_bytes: u32,
}

impl Message {
    /// Segments of one request.
    pub(crate) fn segments(self) -> u32 {
        self.bytes.div_ceil(self.segment_bytes).max(1)
    }
}

/// Why a run has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A setting of the run makes no sense.
    #[error("the run cannot be simulated: {0}")]
    Setting(&'static str),
    /// More events were under way than the model has room for.
    #[error("the run was given up: more than {bound} events were under way at once")]
    TooManyEvents {
        /// The bound.
        bound: usize,
    },
}

/// What was observed.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// Requests answered a second.
    pub qps: f64,
    /// Latency as the client counts it: from the actual send.
    pub latency: quell_stats::LatencyHistogram,
    /// Latency from when requests were due; empty where nothing has a schedule.
    pub latency_from_due: quell_stats::LatencyHistogram,
    /// Requests that were due before their connection had its last answer.
    pub waited_for_connection: u64,
    /// Requests that were due and that no connection was free for until the end.
    pub never_sent: u64,
    /// Mean latency, exact, in µs.
    pub mean_us: f64,
    /// CPU time, all CPUs together.
    pub cpu: CpuTime,
    /// Executed cycles per request.
    pub cycles_per_query: f64,
    /// Accounted CPU use, in percent.
    pub cpu_pct: f64,
    /// What queues and those who poll them counted, all queues together.
    pub counters: Counters,
    pub(crate) counted_beside: CountedBeside,
    /// Requests answered on the queue with the fewest and on the one with the most, relative to the
    /// mean of all queues.
    pub queue_spread: (f64, f64),
    /// Measured time, in s.
    pub measured_s: f64,
    /// Queues.
    pub queues: usize,
    /// Events that the engine let happen.
    pub events: u64,
    /// Digest of all of them.
    pub digest: u64,
}

impl RunResult {
    /// Packets that found no place in a ring.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.counters.drops
    }
}

impl Run {
    /// A run with as many queues, each with one pinned event-loop worker and one connection; 10 ms of
    /// warm-up, 100 ms counted.
    #[must_use]
    pub fn new(mode: DeliveryMode, host: HostProfile, traffic: TrafficKind, queues: usize) -> Self {
        Self {
            mode,
            host,
            rules: KernelRules::default(),
            traffic,
            connections: queues,
            queues,
            server: Server::one_worker_per_queue(queues),
            floating: false,
            irqs_apart: false,
            xps: false,
            spread: Spread::Even,
            message: None,
            client_delays_ns: Vec::new(),
            warm_up_ns: 10_000_000,
            measured_ns: 100_000_000,
            seed: 1,
        }
    }

    /// Simulates it.
    ///
    /// # Errors
    ///
    /// A setting without sense; too many events under way.
    pub fn simulate(&self) -> Result<RunResult, RunError> {
        self.play(None).map(|(result, _)| result)
    }

    /// Simulates it and records what happens once the warm-up is over. The result is the same.
    ///
    /// # Errors
    ///
    /// As [`Run::simulate`].
    pub fn simulate_recorded(&self) -> Result<(RunResult, Trace), RunError> {
        let (result, trace) = self.play(Some(Box::default()))?;
        Ok((result, trace.map_or_else(Trace::default, |trace| *trace)))
    }

    fn play(&self, trace: Option<Box<Trace>>) -> Result<(RunResult, Option<Box<Trace>>), RunError> {
        let mut world = self.world()?;
        world.begin();
        world.run_until(self.warm_up_ns);
        world.open_books();
        world.trace = trace;
        world.run_until(self.warm_up_ns + self.measured_ns);
        world.close_books(self.warm_up_ns);
        if world.events.overflowed() {
            return Err(RunError::TooManyEvents { bound: self.event_bound() });
        }
        let trace = world.trace.take();
        Ok((self.result(&world), trace))
    }

    fn event_bound(&self) -> usize {
        4 * self.connections + 4096
    }

    pub(crate) fn world(&self) -> Result<World, RunError> {
        self.check()?;
        let queue_of = self.queue_of();
        let traffic = Traffic::new(self.traffic.clone(), self.client(), queue_of.clone(), self.seed)
            .with_machines(self.client_delays_ns.clone());
        let shape = WorldShape {
            queues: self.queues,
            epolls: self.server.epolls(),
            cpus: self.cpus(),
            bound: self.event_bound(),
        };
        let costs = Costs::new(&self.host).with_message(self.message, &self.host);
        let mut world = World::new(self.rules, costs, shape, traffic);
        for queue in 0..self.queues {
            let irq_cpu = self.irq_cpu(queue);
            let mut rx = RxQueue::new(self.mode.napi(), &self.host.coalescing, self.host.ring_size, irq_cpu);
            rx.thread = self.add_napi_thread(&mut world, queue);
            world.queues.push(rx);
        }
        if self.xps && !self.irqs_apart {
            world.tx_queue_of_cpu = (0..self.queues).collect();
        }
        self.add_server(&mut world, &queue_of);
        Ok(world)
    }

    fn check(&self) -> Result<(), RunError> {
        let refused = |why| Err(RunError::Setting(why));
        if self.queues == 0 || self.connections == 0 {
            return refused("it needs a queue and a connection");
        }
        let threads = self.server.threads(self.connections);
        if threads == 0 || threads > usize::from(u16::MAX) / 2 {
            return refused("its server needs a thread, and at most 32,767 of them");
        }
        if self.mode.socket_busy_poll().is_some() && matches!(self.server, Server::EventLoop { .. }) {
            return refused(
                "SO_BUSY_POLL is for programs that wait in recv, and the modelled server waits in epoll_wait, which \
                 does not look at it",
            );
        }
        if let Spread::Imbalanced { percent } = self.spread
            && (percent >= 100 || self.connections < self.queues)
        {
            return refused("an imbalance is below 100 % and leaves every queue a connection");
        }
        if self.message.is_some_and(|message| message.segment_bytes == 0) {
            return refused("a segment needs a byte");
        }
        self.traffic.check().map_err(RunError::Setting)
    }

    fn queue_of(&self) -> Vec<u16> {
        let mut random = RandomStream::new(self.seed, Purpose::Imbalance);
        match self.spread {
            Spread::Even => (0..self.connections).map(|connection| (connection % self.queues) as u16).collect(),
            Spread::Hashed => (0..self.connections).map(|_| random.below(self.queues as u32) as u16).collect(),
            Spread::Imbalanced { percent } => {
                let weight = |unit: f64| 1.0 + f64::from(percent) / 100.0 * (2.0 * unit - 1.0);
                let weights: Vec<f64> = (0..self.queues).map(|_| weight(random.unit())).collect();
                shares(&weights, self.connections)
            }
        }
    }

    fn client(&self) -> Client {
        let constants = &self.host.constants;
        let rate_mqps = match &self.traffic {
            TrafficKind::Open { rate_qps, .. } | TrafficKind::Scheduled { rate_qps, .. } => rate_qps / 1e6,
            TrafficKind::Closed => 1.0,
            TrafficKind::Listed(_) | TrafficKind::Mirrored => 0.0,
        };
        // The profile's rates are those of the whole host; a run of fewer queues has its share.
        let rate_mqps = rate_mqps * self.host.cpus as f64 / self.queues as f64;
        let saturated = matches!(self.traffic, TrafficKind::Closed);
        Client {
            parts: self.message.map_or(0, |message| message.segments() - 1),
            part_gap_ns: constants.segment_gap_ns as Ns,
            one_way_ns: (constants.network_ns / 2.0) as Ns,
            back_ns: (constants.network_ns / 2.0) as Ns,
            jitter_ns: constants.network_jitter_ns,
            tail_share: (constants.client_tail_share + constants.client_tail_slope * rate_mqps).clamp(0.0, 1.0),
            tail_ns: constants.client_tail_ns,
            stall_share: if saturated { constants.client_stall_share } else { constants.client_outlier_share },
            stall_ns: if saturated { constants.client_stall_ns } else { constants.client_outlier_ns },
            ack_delay_ns: constants.ack_delay_ns as Ns,
        }
    }

    fn result(&self, world: &World) -> RunResult {
        let mut cpu = CpuTime::default();
        for state in &world.cpus {
            cpu.add(&state.time);
        }
        let mut counters = Counters::default();
        for queue in &world.counters {
            counters.add(queue);
        }
        let latency = world.traffic.latency.clone();
        let responses = counters.responses.max(1) as f64;
        RunResult {
            qps: counters.responses as f64 / (self.measured_ns as f64 / 1e9),
            mean_us: world.traffic.latency_sum_ns as f64 / latency.count().max(1) as f64 / 1e3,
            latency,
            latency_from_due: world.traffic.latency_from_due.clone(),
            waited_for_connection: world.traffic.waited_for_connection,
            never_sent: world.traffic.never_sent(world.now_ns),
            cpu,
            cycles_per_query: cpu.executed_ns() as f64 * self.host.cpu_ghz / responses,
            cpu_pct: 100.0 * cpu.accounted_share(),
            counters,
            queue_spread: queue_spread(&world.counters),
            counted_beside: CountedBeside::new(&self.host.constants, &self.mode.napi()),
            measured_s: self.measured_ns as f64 / 1e9,
            queues: self.queues,
            events: world.processed,
            digest: world.digest.value(),
        }
    }
}

fn queue_spread(queues: &[Counters]) -> (f64, f64) {
    let responses = queues.iter().map(|counters| counters.responses);
    let mean = responses.clone().sum::<u64>().max(1) as f64 / queues.len() as f64;
    let relative = |count: Option<u64>| count.unwrap_or_default() as f64 / mean;
    (relative(responses.clone().min()), relative(responses.max()))
}

/// The queue of each connection, so that each queue has its share by weight, and at least one.
fn shares(weights: &[f64], connections: usize) -> Vec<u16> {
    let total: f64 = weights.iter().sum();
    let spare = connections - weights.len();
    let mut queue_of: Vec<u16> = (0..weights.len() as u16).collect();
    let mut before = 0.0;
    for (queue, weight) in weights.iter().enumerate() {
        let from = (before / total * spare as f64).round() as usize;
        before += weight;
        let to = (before / total * spare as f64).round() as usize;
        queue_of.extend(std::iter::repeat_n(queue as u16, to - from));
    }
    queue_of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_out_by_weight_and_every_queue_has_one() {
        let queue_of = shares(&[1.0, 3.0, 0.001], 11);
        let of = |queue| queue_of.iter().filter(|&&other| other == queue).count();
        assert_eq!((of(0), of(1), of(2)), (3, 7, 1));
    }
}
