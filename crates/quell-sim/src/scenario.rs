//! Scenarios: settings, packets at given times, and applications with given steps. All effects are recorded. The
//! conformance suite uses scenarios as its model backend, and the tests of the rules use them too.

use quell_mode::{EpollParams, NapiSettings};

use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Epoll, Link, NapiState, Packet, PacketKind, RxQueue, SimCoalescing, Socket};
use crate::trace::Trace;
use crate::world::{
    Class, Client, Event, KernelRules, Program, ReadObserved, ScriptAction, ScriptStep, Scripted, Stage, Traffic,
    TrafficKind, WaitObserved, World, WorldShape,
};

/// A scenario. Every queue interrupts a different CPU.
#[derive(Debug, Clone)]
pub struct SimScenario {
    /// Profile of the simulated host.
    pub host: HostProfile,
    /// Behaviour that differs between kernel versions.
    pub rules: KernelRules,
    /// Initial NAPI settings of each queue.
    pub queues: Vec<NapiSettings>,
    /// Coalescing settings of all queues.
    pub coalescing: SimCoalescing,
    /// Epoll contexts and their initial state.
    pub epolls: Vec<EpollContext>,
    /// Descriptors that epolls and applications wait for.
    pub descriptors: Vec<SimDescriptor>,
    /// Applications.
    pub applications: Vec<ScriptedApplication>,
    /// `SCHED_FIFO` priority of NAPI threads. `None` selects fair scheduling.
    pub napi_thread_priority: Option<u8>,
    /// External inputs, each with its time.
    pub inputs: Vec<(Ns, Input)>,
    /// End of the scenario, in ns.
    pub until_ns: Ns,
}

/// Initial state of an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollContext {
    /// Busy-poll parameters (`EPIOCSPARAMS`).
    pub settings: EpollParams,
    /// Whether the epoll has already learned the NAPI ID of its last socket.
    pub napi_known: bool,
    /// Epoll that contains this epoll. It must precede this epoll in the list.
    pub inside: Option<usize>,
}

/// A file that an application can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimDescriptor {
    /// Queue from which the descriptor gets packets. `None` for files without NAPI: an eventfd, pipe, timerfd, Unix
    /// socket, or a socket of a device without NAPI.
    pub queue: Option<usize>,
    /// Epoll that contains the descriptor. `None` if an application receives from it directly.
    pub epoll: Option<usize>,
    /// Whether the descriptor is registered with `EPOLLET`.
    pub edge_triggered: bool,
}

impl SimDescriptor {
    /// Creates a socket on `queue` in the first epoll.
    #[must_use]
    pub fn on_queue(queue: usize) -> Self {
        Self { queue: Some(queue), epoll: Some(0), edge_triggered: false }
    }

    /// Creates a file without NAPI in the first epoll.
    #[must_use]
    pub fn without_napi() -> Self {
        Self { queue: None, epoll: Some(0), edge_triggered: false }
    }
}

/// An application. It has its own reference to its epoll.
#[derive(Debug, Clone, Default)]
pub struct ScriptedApplication {
    /// Epoll that its steps use.
    pub epoll: usize,
    /// CPU on which the application runs.
    pub cpu: usize,
    /// `SCHED_FIFO` priority. `None` selects fair scheduling.
    pub priority: Option<u8>,
    /// Steps of the application, in order.
    pub steps: Vec<ScriptStep>,
}

/// An external input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A packet reaches the NIC, for a descriptor with a queue.
    Packet {
        /// Index of the descriptor that receives the packet.
        descriptor: u32,
        /// Kind of packet.
        kind: PacketKind,
    },
    /// A message reaches the socket of a descriptor without NAPI.
    PastNapi {
        /// Index of the descriptor that receives the message.
        descriptor: u32,
    },
    /// Another process changes NAPI settings with `napi-set`.
    SetNapi {
        /// Index of the queue.
        queue: usize,
        /// New settings of the queue.
        settings: NapiSettings,
    },
    /// Another process changes the parameters of an epoll with `EPIOCSPARAMS`.
    SetEpoll {
        /// Index of the epoll.
        epoll: usize,
        /// New parameters of the epoll.
        settings: EpollParams,
    },
    /// A descriptor without a queue becomes ready, and stays ready.
    AlwaysReady {
        /// Index of the descriptor.
        descriptor: u32,
    },
}

/// Why a scenario is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A descriptor's queue does not exist.
    #[error("descriptor {descriptor} is on queue {queue}, but the scenario has {queues} queues")]
    NoSuchQueue {
        /// Index of the descriptor.
        descriptor: usize,
        /// Queue of the descriptor.
        queue: usize,
        /// Number of queues.
        queues: usize,
    },
    /// A descriptor's or application's epoll, or a step's descriptor, does not exist.
    #[error("{what} {index} refers to an epoll or descriptor that does not exist")]
    NoSuchReference {
        /// Kind of object: descriptor, epoll or application.
        what: &'static str,
        /// Index in its list.
        index: usize,
    },
    /// The target of an input does not exist or does not accept it.
    #[error("the target of input {input} does not exist or does not accept it")]
    BadInput {
        /// Index of the input in its list.
        input: usize,
    },
    /// The event queue overflowed.
    #[error("too many events were pending at once")]
    TooManyEvents,
}

/// Observations of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueObserved {
    /// State bits of the NAPI instance at the end.
    pub state: NapiState,
    /// Whether the interrupt is enabled at the end.
    pub interrupt_enabled: bool,
    /// Number of device interrupts.
    pub irqs: u64,
    /// Number of NAPI polls.
    pub polls: u64,
    /// Number of empty NAPI polls.
    pub empty_polls: u64,
    /// Number of polls in busy-poll loops, including final polls.
    pub busy_polls: u64,
    /// Number of final polls of busy-poll loops.
    pub final_polls: u64,
    /// `BusyPollRxPackets`: number of packets from busy-poll loops, excluding final polls.
    pub busy_poll_packets: u64,
    /// Number of timer interrupts of the NAPI instance.
    pub timer_irqs: u64,
    /// Number of timer interrupts without effect, because the NAPI instance had an owner.
    pub lost_timers: u64,
    /// Number of suspensions by `epoll_wait`.
    pub suspensions: u64,
    /// Number of packets dropped because the ring was full.
    pub drops: u64,
}

/// Observations of a scenario.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Completed `epoll_wait` calls, by application, in order.
    pub waits: Vec<WaitObserved>,
    /// Messages that were read, by application, in order.
    pub reads: Vec<ReadObserved>,
    /// Final `SO_INCOMING_NAPI_ID` of each descriptor, as queue index.
    pub incoming_napi: Vec<Option<usize>>,
    /// Observations of each queue.
    pub queues: Vec<QueueObserved>,
    /// Trace of the whole scenario.
    pub trace: Trace,
    /// Digest of all events of the scenario.
    pub digest: u64,
}

impl SimScenario {
    /// Creates a scenario of 100 ms with one queue, default settings and no coalescing. Its socket is in the epoll of
    /// an application without steps. The application shares CPU 0 with the interrupt.
    #[must_use]
    pub fn new(host: HostProfile) -> Self {
        Self {
            host,
            rules: KernelRules::default(),
            queues: vec![NapiSettings::default()],
            coalescing: SimCoalescing::NONE,
            epolls: vec![EpollContext::default()],
            descriptors: vec![SimDescriptor::on_queue(0)],
            applications: vec![ScriptedApplication::default()],
            napi_thread_priority: None,
            inputs: Vec::new(),
            until_ns: 100_000_000,
        }
    }

    /// Adds a request for `descriptor`. It reaches the NIC at `at_ns`.
    #[must_use]
    pub fn request(mut self, at_ns: Ns, descriptor: u32) -> Self {
        self.inputs.push((at_ns, Input::Packet { descriptor, kind: PacketKind::Request }));
        self
    }

    /// Simulates the scenario.
    ///
    /// # Errors
    ///
    /// See [`ScenarioError`].
    pub fn play(&self) -> Result<Observed, ScenarioError> {
        let mut world = self.world()?;
        world.run_until(self.until_ns);
        world.close_books(0);
        if world.events.overflowed() {
            return Err(ScenarioError::TooManyEvents);
        }
        Ok(observed(world))
    }

    fn world(&self) -> Result<World, ScenarioError> {
        self.check_references()?;
        let traffic = Traffic::new(TrafficKind::NONE, Client::NONE, Vec::new(), 0);
        let app_cpus = self.applications.iter().map(|application| application.cpu + 1).max().unwrap_or(0);
        let shape = WorldShape {
            queues: self.queues.len(),
            epolls: self.epolls.len(),
            cpus: self.queues.len().max(app_cpus),
            bound: 4096 + 4 * self.inputs.len(),
        };
        let mut world = World::new(self.rules, Costs::new(&self.host), shape, traffic);
        world.trace = Some(Box::default());
        self.add_epolls(&mut world);
        self.add_queues(&mut world);
        self.add_descriptors(&mut world);
        self.add_applications(&mut world);
        self.add_inputs(&mut world)?;
        world.begin();
        Ok(world)
    }

    fn check_references(&self) -> Result<(), ScenarioError> {
        let (epolls, queues) = (self.epolls.len(), self.queues.len());
        for (descriptor, of) in self.descriptors.iter().enumerate() {
            if let Some(queue) = of.queue.filter(|&queue| queue >= queues) {
                return Err(ScenarioError::NoSuchQueue { descriptor, queue, queues });
            }
            if of.epoll.is_some_and(|epoll| epoll >= epolls) {
                return Err(ScenarioError::NoSuchReference { what: "descriptor", index: descriptor });
            }
        }
        if let Some(index) = (0..epolls).find(|&index| self.epolls[index].inside.is_some_and(|outer| outer >= index)) {
            return Err(ScenarioError::NoSuchReference { what: "epoll", index });
        }
        for (index, application) in self.applications.iter().enumerate() {
            let known = |step: &ScriptStep| match step {
                ScriptStep::Receive { descriptor, .. } | ScriptStep::AddWithoutInterest { descriptor } => {
                    (*descriptor as usize) < self.descriptors.len()
                }
                _ => true,
            };
            if application.epoll >= epolls || !application.steps.iter().all(known) {
                return Err(ScenarioError::NoSuchReference { what: "application", index });
            }
        }
        Ok(())
    }

    fn add_epolls(&self, world: &mut World) {
        for (index, context) in self.epolls.iter().enumerate() {
            let references = self.applications.iter().filter(|application| application.epoll == index).count();
            let epoll = Epoll::new(context.settings, self.descriptors.len());
            world.epolls.push(Epoll { references, ..epoll });
        }
    }

    fn add_queues(&self, world: &mut World) {
        for (queue, settings) in self.queues.iter().enumerate() {
            let mut rx = RxQueue::new(*settings, &self.coalescing, self.host.ring_size, queue);
            if rx.napi.threaded() {
                let thread = world.add_thread(
                    Program::NapiThread { queue },
                    Stage::NapiThread,
                    queue,
                    class(self.napi_thread_priority),
                );
                rx.thread = Some(thread);
                if settings.threaded == quell_mode::Threaded::BusyPoll {
                    world.start_thread(thread);
                }
            }
            world.queues.push(rx);
        }
    }

    fn add_descriptors(&self, world: &mut World) {
        for &SimDescriptor { queue, epoll, edge_triggered } in &self.descriptors {
            world.sockets.push(Socket { epoll: epoll.into(), napi: queue.into(), edge_triggered, ..Socket::default() });
            if let Some(epoll) = epoll.filter(|&epoll| self.epolls[epoll].napi_known) {
                world.epolls[epoll].remember_napi(queue, self.rules.sysctl_busy_poll_usecs);
            }
        }
        for (inner, context) in self.epolls.iter().enumerate() {
            if context.inside.is_some() {
                world.epolls[inner].outer = Some(world.sockets.len() as u32);
                world.sockets.push(Socket {
                    epoll: context.inside.into(),
                    nested: Link::to(inner),
                    ..Socket::default()
                });
            }
        }
    }

    fn add_applications(&self, world: &mut World) {
        for (index, application) in self.applications.iter().enumerate() {
            let scripted = Scripted::new(index, application.epoll, application.steps.clone());
            let class = class(application.priority);
            let thread = world.add_thread(Program::Scripted(scripted), Stage::Program, application.cpu, class);
            world.start_thread(thread);
        }
    }

    fn add_inputs(&self, world: &mut World) -> Result<(), ScenarioError> {
        for (index, (at_ns, input)) in self.inputs.iter().enumerate() {
            let action = self.action(*at_ns, *input).ok_or(ScenarioError::BadInput { input: index })?;
            world.script.push(action);
            world.events.schedule(*at_ns, Event::Script { index: index as u32 });
        }
        Ok(())
    }

    fn action(&self, at_ns: Ns, input: Input) -> Option<ScriptAction> {
        match input {
            Input::Packet { descriptor, kind } => {
                let queue = self.descriptors.get(descriptor as usize)?.queue?;
                Some(ScriptAction::Packet { queue, packet: Packet { socket: descriptor, kind, sent_ns: at_ns } })
            }
            Input::PastNapi { descriptor } => {
                let known = self.descriptors.get(descriptor as usize)?;
                known.queue.is_none().then_some(ScriptAction::PastNapi { socket: descriptor })
            }
            Input::SetNapi { queue, settings } => {
                (queue < self.queues.len()).then_some(ScriptAction::SetNapi { queue, settings })
            }
            Input::SetEpoll { epoll, settings } => {
                (epoll < self.epolls.len()).then_some(ScriptAction::SetEpoll { epoll, settings })
            }
            Input::AlwaysReady { descriptor } => {
                let known = self.descriptors.get(descriptor as usize)?;
                known.queue.is_none().then_some(ScriptAction::AlwaysReady { socket: descriptor })
            }
        }
    }
}

fn class(priority: Option<u8>) -> Class {
    priority.map_or(Class::Fair, Class::RealTime)
}

fn observed(mut world: World) -> Observed {
    let queues = world.queues.iter().zip(&world.counters).map(|(queue, counters)| QueueObserved {
        state: queue.napi.state,
        interrupt_enabled: queue.vector.armed(),
        irqs: counters.irqs,
        polls: counters.polls,
        empty_polls: counters.empty_polls,
        busy_polls: counters.busy_polls,
        final_polls: counters.final_polls,
        busy_poll_packets: counters.busy_poll_packets,
        timer_irqs: counters.timer_irqs,
        lost_timers: counters.lost_timers,
        suspensions: counters.suspensions,
        drops: counters.drops,
    });
    let queues = queues.collect();
    let (waits, reads) = world.take_observations();
    let incoming_napi =
        world.sockets.iter().filter(|socket| socket.nested.get().is_none()).map(|socket| socket.napi.get()).collect();
    Observed {
        waits,
        reads,
        incoming_napi,
        queues,
        trace: world.trace.map(|trace| *trace).unwrap_or_default(),
        digest: world.digest.value(),
    }
}
