//! One small scenario: these settings, these packets at these moments, applications that do these
//! steps; and everything that was observed. The model's arm of the conformance suite, and what
//! the tests of the rules use. Exact: the same scenario always gives the same observations.

use quell_mode::{EpollSettings, NapiSettings};

use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Coalescing, Epoll, NapiState, Packet, PacketKind, RxQueue, Socket};
use crate::trace::Trace;
use crate::world::{
    Class, Client, Event, KernelRules, Program, ReadObserved, ScriptAction, Scripted, Stage, Step, Traffic,
    TrafficKind, WaitObserved, World, WorldShape,
};

/// A scenario. Every queue interrupts a CPU of its own.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What things cost, and the rest of the host.
    pub host: HostProfile,
    /// The kernel's version-dependent rules.
    pub rules: KernelRules,
    /// `napi-set` of each queue, before anything happens.
    pub queues: Vec<NapiSettings>,
    /// The NIC's coalescing, the same for all queues.
    pub coalescing: Coalescing,
    /// The epolls.
    pub epolls: Vec<EpollContext>,
    /// Everything that an epoll or an application waits for.
    pub descriptors: Vec<Descriptor>,
    /// What runs.
    pub applications: Vec<Application>,
    /// The priority of NAPI threads under `SCHED_FIFO`, where `threaded` is on; absent: they are
    /// scheduled fairly.
    pub napi_thread_priority: Option<u8>,
    /// What comes from outside, and when.
    pub inputs: Vec<(Ns, Input)>,
    /// When the scenario ends.
    pub until_ns: Ns,
}

/// An epoll when the scenario begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollContext {
    /// Its `EPIOCSPARAMS`.
    pub settings: EpollSettings,
    /// Whether it knows the NAPI id of its last socket.
    pub napi_known: bool,
    /// An epoll before it in the list that it is nested in.
    pub inside: Option<usize>,
}

/// A file that can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The queue that its packets arrive by; none: an eventfd, pipe, timerfd, unix socket, or a
    /// socket whose messages come past NAPI.
    pub queue: Option<usize>,
    /// The epoll that has it; none: an application receives from it directly.
    pub epoll: Option<usize>,
    /// `EPOLLET`.
    pub edge_triggered: bool,
}

impl Descriptor {
    /// A socket on `queue` in the first epoll.
    #[must_use]
    pub fn on_queue(queue: usize) -> Self {
        Self { queue: Some(queue), epoll: Some(0), edge_triggered: false }
    }

    /// A file without NAPI in the first epoll.
    #[must_use]
    pub fn without_napi() -> Self {
        Self { queue: None, epoll: Some(0), edge_triggered: false }
    }
}

/// An application. It holds a reference of its own to its epoll.
#[derive(Debug, Clone, Default)]
pub struct Application {
    /// The epoll that its steps are about.
    pub epoll: usize,
    /// The CPU that it runs on.
    pub cpu: usize,
    /// Its priority under `SCHED_FIFO`; absent: it is scheduled fairly.
    pub priority: Option<u8>,
    /// What it does.
    pub steps: Vec<Step>,
}

/// Something from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A packet reaches the NIC, for a descriptor with a queue.
    Packet {
        /// The descriptor.
        descriptor: u32,
        /// What the packet is.
        kind: PacketKind,
    },
    /// A message reaches the socket of a descriptor past NAPI, as on a device without one.
    PastNapi {
        /// The descriptor.
        descriptor: u32,
    },
    /// `napi-set`.
    SetNapi {
        /// The queue.
        queue: usize,
        /// Its new settings.
        settings: NapiSettings,
    },
    /// `EPIOCSPARAMS` by another process.
    SetEpoll {
        /// The epoll.
        epoll: usize,
        /// Its new settings.
        settings: EpollSettings,
    },
    /// A descriptor without queue becomes ready and stays so.
    AlwaysReady {
        /// The descriptor.
        descriptor: u32,
    },
}

/// Why a scenario cannot be played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A descriptor's queue does not exist.
    #[error("descriptor {descriptor} is on queue {queue}, and there are {queues} queues")]
    NoSuchQueue {
        /// The descriptor.
        descriptor: usize,
        /// Its queue.
        queue: usize,
        /// How many there are.
        queues: usize,
    },
    /// A descriptor's or application's epoll, or a step's descriptor, does not exist.
    #[error("{what} {index} refers to an epoll or descriptor that does not exist")]
    NoSuchReference {
        /// Descriptor or application.
        what: &'static str,
        /// Its place in the list.
        index: usize,
    },
    /// An input is for something that cannot take it.
    #[error("input {input} is for a descriptor, queue or epoll that does not exist or cannot take it")]
    BadInput {
        /// Its place in the list.
        input: usize,
    },
    /// More events were under way than there is room for.
    #[error("the scenario does not come to rest: too many events were under way at once")]
    TooManyEvents,
}

/// What one queue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueObserved {
    /// Its state bits at the end.
    pub state: NapiState,
    /// Whether its interrupt is enabled at the end.
    pub interrupt_enabled: bool,
    /// Device interrupts.
    pub irqs: u64,
    /// Polls, and those of them that found nothing.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Polls by a busy loop, the final ones included.
    pub busy_polls: u64,
    /// Final polls of busy loops.
    pub final_polls: u64,
    /// `BusyPollRxPackets`: packets received by busy loops, those of the final polls left out.
    pub busy_poll_packets: u64,
    /// Firings of its timer, and those of them that were lost.
    pub timer_irqs: u64,
    /// Firings that were lost because somebody owned the poll.
    pub lost_timers: u64,
    /// Times that `epoll_wait` put the timer off.
    pub suspensions: u64,
    /// Packets that found no place in the ring.
    pub drops: u64,
}

/// What was observed.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Every `epoll_wait` that returned, application by application, in order.
    pub waits: Vec<WaitObserved>,
    /// Every message that was read, application by application, in order.
    pub reads: Vec<ReadObserved>,
    /// `SO_INCOMING_NAPI_ID` of each descriptor at the end, as its queue.
    pub incoming_napi: Vec<Option<usize>>,
    /// Each queue.
    pub queues: Vec<QueueObserved>,
    /// Everything, moment by moment.
    pub trace: Trace,
    /// Digest of all events.
    pub digest: u64,
}

impl Scenario {
    /// A scenario with one queue, its socket in the epoll of an application without steps, no
    /// coalescing, everything off; application and interrupt share CPU 0. 100 ms long.
    #[must_use]
    pub fn new(host: HostProfile) -> Self {
        Self {
            host,
            rules: KernelRules::default(),
            queues: vec![NapiSettings::default()],
            coalescing: Coalescing::NONE,
            epolls: vec![EpollContext::default()],
            descriptors: vec![Descriptor::on_queue(0)],
            applications: vec![Application::default()],
            napi_thread_priority: None,
            inputs: Vec::new(),
            until_ns: 100_000_000,
        }
    }

    /// Adds a request for `descriptor` that reaches the NIC at `at_ns`.
    #[must_use]
    pub fn request(mut self, at_ns: Ns, descriptor: u32) -> Self {
        self.inputs.push((at_ns, Input::Packet { descriptor, kind: PacketKind::Request }));
        self
    }

    /// Plays it.
    ///
    /// # Errors
    ///
    /// A descriptor or input that refers to what does not exist; a scenario without bound.
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
            let known = |step: &Step| match step {
                Step::Receive { descriptor, .. } | Step::AddWithoutInterest { descriptor } => {
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
        for &Descriptor { queue, epoll, edge_triggered } in &self.descriptors {
            world.sockets.push(Socket { epoll, napi: queue, edge_triggered, ..Socket::default() });
            if let Some(epoll) = epoll.filter(|&epoll| self.epolls[epoll].napi_known) {
                world.epolls[epoll].remember_napi(queue, self.rules.sysctl_busy_poll_usecs);
            }
        }
        for (inner, context) in self.epolls.iter().enumerate() {
            if context.inside.is_some() {
                world.epolls[inner].outer = Some(world.sockets.len() as u32);
                world.sockets.push(Socket { epoll: context.inside, nested: Some(inner), ..Socket::default() });
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
        world.sockets.iter().filter(|socket| socket.nested.is_none()).map(|socket| socket.napi).collect();
    Observed {
        waits,
        reads,
        incoming_napi,
        queues,
        trace: world.trace.map(|trace| *trace).unwrap_or_default(),
        digest: world.digest.value(),
    }
}
