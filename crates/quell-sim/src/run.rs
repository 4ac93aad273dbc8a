//! A run of a server on a host, with a delivery mode and a load, and the run's result.

use quell_mode::DeliveryMode;

use crate::engine::{Ns, Purpose, RandomStream};
use crate::host::{Costs, HostProfile};
use crate::mechanism::{PacketSizer, PacketSizes, RxQueue};
use crate::poll_counter::UnrelatedPolls;
use crate::server::ServerKind;
use crate::trace::Trace;
use crate::world::{Client, Counters, CpuTime, KernelRules, Traffic, TrafficKind, World, WorldShape};

/// A run of a server on a host, under a load.
#[derive(Debug, Clone)]
pub struct Run {
    /// Delivery mode of the run.
    pub mode: DeliveryMode,
    /// Profile of the simulated host.
    pub host: HostProfile,
    /// Behaviour that differs between kernel versions.
    pub rules: KernelRules,
    /// Pattern of the clients' requests.
    pub traffic: TrafficKind,
    /// Number of connections over all queues.
    pub connections: usize,
    /// Number of RX queues. Each queue interrupts a different CPU.
    pub queues: usize,
    /// Kind of server.
    pub server: ServerKind,
    /// Whether the server's threads may run on any CPU.
    pub floating: bool,
    /// Whether interrupts, NAPI threads and the polling threads of `userbusy` have CPUs without server threads.
    pub irqs_apart: bool,
    /// Whether each CPU transmits on the queue that interrupts it (`xps_cpus`), instead of the queue of the
    /// request.
    pub xps: bool,
    /// Distribution of connections over the queues.
    pub spread: ConnectionSpread,
    /// Size of requests and responses. `None` selects the size that the host's constants imply.
    pub message: Option<MessageSize>,
    /// Sizes of the packets on the wire.
    pub sizes: PacketSizes,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: Ns,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Distribution of connections over queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionSpread {
    /// Connections are distributed as evenly as possible.
    Even,
    /// Each connection has an independent random queue, as with a hash of the addresses (RSS).
    Hashed,
    /// The queues have random weights.
    Imbalanced {
        /// Largest deviation of a weight from the mean, in percent; below 100.
        percent: u8,
    },
}

/// Size of requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageSize {
    /// Size of a request and of a response, in bytes.
    pub bytes: u32,
    /// Maximum segment size (MSS) in bytes. Each segment of a larger request makes the socket readable.
    pub segment_bytes: u32,
}

impl MessageSize {
    pub(crate) fn segments(self) -> u32 {
        self.bytes.div_ceil(self.segment_bytes).max(1)
    }
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A setting of the run is invalid.
    #[error("the run cannot be simulated: {0}")]
    Setting(&'static str),
    /// The event queue overflowed.
    #[error("the run was aborted: more than {bound} events were pending at once")]
    TooManyEvents {
        /// Capacity of the event queue.
        bound: usize,
    },
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// Responses per second.
    pub qps: f64,
    /// Latency as the client measures it, from the time of sending.
    pub latency: quell_stats::LatencyHistogram,
    /// Latency from the time at which the request was due. It is empty if the traffic has no schedule.
    pub latency_from_due: quell_stats::LatencyHistogram,
    /// Number of requests that were due while their connection waited for a response.
    pub waited_for_connection: u64,
    /// Number of requests that were due but not sent until the end of the run.
    pub never_sent: u64,
    /// Exact mean latency, in µs.
    pub mean_us: f64,
    /// CPU time summed over all CPUs.
    pub cpu: CpuTime,
    /// Executed cycles per request.
    pub cycles_per_query: f64,
    /// Accounted CPU use, in percent.
    pub cpu_pct: f64,
    /// Counters summed over all queues.
    pub counters: Counters,
    pub(crate) unrelated_polls: UnrelatedPolls,
    /// Measured time, in s.
    pub measured_s: f64,
    /// Number of RX queues.
    pub queues: usize,
    /// Number of simulated events.
    pub events: u64,
    /// Digest of all events.
    pub digest: u64,
}

impl RunResult {
    /// Number of packets that were dropped because a ring was full.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.counters.drops
    }
}

impl Run {
    /// Creates a run with one pinned event-loop worker and one connection per queue. It has a warm-up of 10 ms and
    /// counts for 100 ms.
    #[must_use]
    pub fn new(mode: DeliveryMode, host: HostProfile, traffic: TrafficKind, queues: usize) -> Self {
        Self {
            mode,
            host,
            rules: KernelRules::default(),
            traffic,
            connections: queues,
            queues,
            server: ServerKind::one_worker_per_queue(queues),
            floating: false,
            irqs_apart: false,
            xps: false,
            spread: ConnectionSpread::Even,
            message: None,
            sizes: PacketSizes::ONE_BYTE,
            warm_up_ns: 10_000_000,
            measured_ns: 100_000_000,
            seed: 1,
        }
    }

    /// Simulates the run.
    ///
    /// # Errors
    ///
    /// See [`RunError`].
    pub fn simulate(&self) -> Result<RunResult, RunError> {
        self.play(None).map(|(result, _)| result)
    }

    /// Simulates the run and records everything after the warm-up. The result equals that of [`Run::simulate`].
    ///
    /// # Errors
    ///
    /// The same errors as [`Run::simulate`].
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
        let traffic = Traffic::new(self.traffic.clone(), self.client(), queue_of.clone(), self.seed);
        let shape = WorldShape {
            queues: self.queues,
            epolls: self.server.epolls(),
            cpus: self.cpus(),
            bound: self.event_bound(),
        };
        let costs = Costs::new(&self.host).with_message(self.message, &self.host);
        let mut world = World::new(self.rules, costs, shape, traffic);
        world.sizes = PacketSizer::new(self.sizes, self.seed);
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
        self.add_pollers(&mut world);
        Ok(world)
    }

    fn check(&self) -> Result<(), RunError> {
        let refused = |why| Err(RunError::Setting(why));
        if self.queues == 0 || self.connections == 0 {
            return refused("it needs at least one queue and one connection");
        }
        let threads = self.server.threads(self.connections);
        if threads == 0 || threads > usize::from(u16::MAX) / 2 {
            return refused("its server needs 1 to 32,767 threads");
        }
        if self.mode.socket_busy_poll().is_some() && matches!(self.server, ServerKind::EventLoop { .. }) {
            return refused(
                "SO_BUSY_POLL is for programs that wait in recv, and the modelled server waits in epoll_wait, which \
                 ignores the option",
            );
        }
        self.check_pollers()?;
        if let ConnectionSpread::Imbalanced { percent } = self.spread
            && (percent >= 100 || self.connections < self.queues)
        {
            return refused("an imbalance must be below 100 % and leave every queue a connection");
        }
        if self.message.is_some_and(|message| message.segment_bytes == 0) {
            return refused("a segment needs at least one byte");
        }
        self.traffic.check().map_err(RunError::Setting)
    }

    fn queue_of(&self) -> Vec<u16> {
        let mut random = RandomStream::new(self.seed, Purpose::Imbalance);
        match self.spread {
            ConnectionSpread::Even => {
                (0..self.connections).map(|connection| (connection % self.queues) as u16).collect()
            }
            ConnectionSpread::Hashed => {
                (0..self.connections).map(|_| random.below(self.queues as u32) as u16).collect()
            }
            ConnectionSpread::Imbalanced { percent } => {
                let weight = |unit: f64| 1.0 + f64::from(percent) / 100.0 * (2.0 * unit - 1.0);
                let weights: Vec<f64> = (0..self.queues).map(|_| weight(random.unit())).collect();
                shares(&weights, self.connections)
            }
        }
    }

    fn client(&self) -> Client {
        let constants = &self.host.constants;
        let rate_mqps = match &self.traffic {
            TrafficKind::Scheduled { rate_qps, .. } => rate_qps / 1e6,
            TrafficKind::Closed => 1.0,
            TrafficKind::Listed(_) | TrafficKind::Mirrored => 0.0,
        };
        // The profile gives rates for the whole host.
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
            unrelated_polls: UnrelatedPolls::new(&self.host.constants, &self.mode.napi()),
            measured_s: self.measured_ns as f64 / 1e9,
            queues: self.queues,
            events: world.processed,
            digest: world.digest.value(),
        }
    }
}

/// Queue of each connection. Every queue gets a share of the connections by its weight, and at least one connection.
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
    fn connections_are_distributed_by_weight_and_every_queue_has_one() {
        let queue_of = shares(&[1.0, 3.0, 0.001], 11);
        let of = |queue| queue_of.iter().filter(|&&other| other == queue).count();
        assert_eq!((of(0), of(1), of(2)), (3, 7, 1));
    }
}
