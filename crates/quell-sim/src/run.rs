//! One run: a host, a delivery mode, a load, a server; and what was observed.

use quell_mode::{DeliveryMode, EpollSettings, ProgramWait};

use crate::engine::{Ns, Purpose, RandomStream};
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Epoll, RxQueue, Socket};
use crate::trace::Trace;
use crate::world::{
    Affinity, Class, Client, Counters, CpuTime, EpollServer, EventLoop, KernelRules, Program, Stage, Traffic,
    TrafficKind, Wait, World, WorldShape,
};

/// `maxevents` with which libevent begins, and where its growth ends.
const LIBEVENT_EVENTS: (usize, usize) = (32, 4096);

/// A run of an epoll server with one worker, one queue and one CPU each, as in the published
/// experiment.
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
    /// RX queues, workers and CPUs.
    pub queues: usize,
    /// Whether workers may run on any CPU.
    pub floating: bool,
    /// How connections are spread over the queues.
    pub spread: Spread,
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
    /// Latency as the client counts it.
    pub latency: quell_stats::LatencyHistogram,
    /// Mean latency, exact, in µs.
    pub mean_us: f64,
    /// CPU time, all CPUs together.
    pub cpu: CpuTime,
    /// Executed cycles per request.
    pub cycles_per_query: f64,
    /// Accounted CPU use, in percent.
    pub cpu_pct: f64,
    pub(crate) counters: Counters,
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
        if self.queues == 0 || self.connections < self.queues {
            return Err(RunError::Setting("it needs a queue, and a connection for each queue"));
        }
        if self.mode.socket_busy_poll().is_some() {
            return Err(RunError::Setting(
                "SO_BUSY_POLL is for programs that wait in recv, and the modelled server waits in epoll_wait, which \
                 does not look at it",
            ));
        }
        let queue_of = self.queue_of();
        let traffic = Traffic::new(self.traffic.clone(), self.client(), queue_of.clone(), self.seed);
        let shape =
            WorldShape { queues: self.queues, epolls: self.queues, cpus: self.queues, bound: self.event_bound() };
        let mut world = World::new(self.rules, Costs::new(&self.host), shape, traffic);
        for (queue, place) in self.places().into_iter().enumerate() {
            self.add_queue(&mut world, queue, place);
        }
        for &queue in &queue_of {
            let socket = Socket { epoll: Some(queue.into()), napi: Some(queue.into()), ..Socket::default() };
            world.sockets.push(socket);
        }
        Ok(world)
    }

    fn add_queue(&self, world: &mut World, queue: usize, place: usize) {
        let settings = self.mode.napi();
        let mut rx = RxQueue::new(settings, &self.host.coalescing, self.host.ring_size, queue);
        let epoll = Epoll::new(self.mode.epoll().unwrap_or_default(), self.connections);
        world.epolls.push(Epoll { napi: self.first_napi(queue), ..epoll });
        if rx.napi.threaded() {
            rx.thread = Some(world.add_thread(Program::NapiThread { queue }, Stage::NapiThread, queue, Class::Fair));
        }
        world.queues.push(rx);
        let worker = world.add_thread(Program::EpollServer(self.server(queue)), Stage::Program, queue, Class::Fair);
        if self.floating {
            // A worker that floats begins anywhere.
            world.threads[worker].affinity = Affinity::Floating;
            world.threads[worker].cpu = place;
        }
        world.start_thread(worker);
        if let Some(thread) = world.queues[queue].thread
            && settings.threaded == quell_mode::Threaded::BusyPoll
        {
            world.start_thread(thread);
        }
    }

    fn first_napi(&self, queue: usize) -> Option<usize> {
        let EpollSettings { busy_poll_usecs, prefer_busy_poll, .. } = self.mode.epoll().unwrap_or_default();
        (busy_poll_usecs > 0 || prefer_busy_poll).then_some(queue)
    }

    fn server(&self, queue: usize) -> EpollServer {
        let (max_events, max_events_limit) = LIBEVENT_EVENTS;
        let (wait, event_loop) = match self.mode.program_wait() {
            ProgramWait::AtMost(time) => (Wait::AtMost(time.as_nanos() as Ns), None),
            ProgramWait::SpinBeforeSleep(time) => {
                let round_ns = self.host.constants.user_loop_ns as Ns;
                (Wait::Forever, Some(EventLoop { round_ns, for_ns: time.as_nanos() as Ns }))
            }
            _ => (Wait::Forever, None),
        };
        EpollServer { epoll: queue, wait, max_events, max_events_limit, event_loop, serving: None, queue }
    }

    /// Where each worker begins: a random permutation of the CPUs.
    fn places(&self) -> Vec<usize> {
        let mut random = RandomStream::new(self.seed, Purpose::Placement);
        let mut places: Vec<usize> = (0..self.queues).collect();
        for last in (1..places.len()).rev() {
            places.swap(last, random.below(last as u32 + 1) as usize);
        }
        places
    }

    fn queue_of(&self) -> Vec<u16> {
        let mut random = RandomStream::new(self.seed, Purpose::Imbalance);
        (0..self.connections)
            .map(|connection| match self.spread {
                Spread::Even => (connection % self.queues) as u16,
                Spread::Hashed => random.below(self.queues as u32) as u16,
            })
            .collect()
    }

    fn client(&self) -> Client {
        let constants = &self.host.constants;
        let rate_mqps = match &self.traffic {
            TrafficKind::Open { rate_qps, .. } | TrafficKind::Scheduled { rate_qps, .. } => rate_qps / 1e6,
            TrafficKind::Closed => 1.0,
            TrafficKind::Silent | TrafficKind::Mirrored => 0.0,
        };
        // The profile's rates are those of the whole host; a run of fewer queues has its share.
        let rate_mqps = rate_mqps * self.host.cpus as f64 / self.queues as f64;
        let saturated = matches!(self.traffic, TrafficKind::Closed);
        Client {
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
            cpu,
            cycles_per_query: cpu.executed_ns() as f64 * self.host.cpu_ghz / responses,
            cpu_pct: 100.0 * cpu.accounted_share(),
            counters,
            measured_s: self.measured_ns as f64 / 1e9,
            queues: self.queues,
            events: world.processed,
            digest: world.digest.value(),
        }
    }
}
