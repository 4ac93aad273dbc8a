//! One small scenario: these settings, these packets at these moments, an application that does
//! these steps; and everything that was observed. The model's arm of the conformance suite, and what
//! the tests of the rules use. Exact: the same scenario always gives the same observations.

use quell_mode::{EpollSettings, NapiSettings};

use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Coalescing, Epoll, NapiState, Packet, PacketKind, RxQueue, Socket};
use crate::trace::Trace;
use crate::world::{
    Class, Client, Event, KernelRules, Program, ScriptAction, Scripted, Stage, Step, Traffic, TrafficKind, World,
    WorldShape,
};

/// A scenario. Every queue interrupts a CPU of its own; the application runs on [`app_cpu`](Self::app_cpu).
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
    /// `EPIOCSPARAMS` of the application's epoll.
    pub epoll: EpollSettings,
    /// The queue of each descriptor in the epoll; none: an eventfd, pipe, timerfd or unix socket.
    pub descriptors: Vec<Option<usize>>,
    /// Whether the epoll knows the NAPI id of its last socket when the scenario begins.
    pub napi_known: bool,
    /// The CPU that the application runs on.
    pub app_cpu: usize,
    /// The application's priority under `SCHED_FIFO`; absent: it is scheduled fairly.
    pub app_priority: Option<u8>,
    /// The same of the NAPI threads, where `threaded` is on.
    pub napi_thread_priority: Option<u8>,
    /// What the application does.
    pub app: Vec<Step>,
    /// What comes from outside, and when.
    pub inputs: Vec<(Ns, Input)>,
    /// When the scenario ends.
    pub until_ns: Ns,
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
    /// `napi-set`.
    SetNapi {
        /// The queue.
        queue: usize,
        /// Its new settings.
        settings: NapiSettings,
    },
    /// `EPIOCSPARAMS` on the application's epoll by another process.
    SetEpoll(EpollSettings),
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
    /// An input is for a descriptor that cannot take it.
    #[error("input {input} is for a descriptor or queue that does not exist or cannot take it")]
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
    /// Every `epoll_wait` that returned: when, and how many events.
    pub waits: Vec<(Ns, usize)>,
    /// Every request that the application read: when it was read, when it reached the NIC.
    pub reads: Vec<(Ns, Ns)>,
    /// Each queue.
    pub queues: Vec<QueueObserved>,
    /// Everything, moment by moment.
    pub trace: Trace,
    /// Digest of all events.
    pub digest: u64,
}

impl Scenario {
    /// A scenario with one queue, its socket in the application's epoll, no coalescing, everything
    /// off; the application and the interrupt share CPU 0. 100 ms long.
    #[must_use]
    pub fn new(host: HostProfile) -> Self {
        Self {
            host,
            rules: KernelRules::default(),
            queues: vec![NapiSettings::default()],
            coalescing: Coalescing::NONE,
            epoll: EpollSettings::default(),
            descriptors: vec![Some(0)],
            napi_known: false,
            app_cpu: 0,
            app_priority: None,
            napi_thread_priority: None,
            app: Vec::new(),
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
        let traffic = Traffic::new(TrafficKind::Silent, Client::NONE, Vec::new(), 0);
        let shape = WorldShape {
            queues: self.queues.len(),
            epolls: 1,
            cpus: self.queues.len().max(self.app_cpu + 1),
            bound: 4096 + 4 * self.inputs.len(),
        };
        let mut world = World::new(self.rules, Costs::new(&self.host), shape, traffic);
        world.trace = Some(Box::default());
        world.epolls.push(Epoll::new(self.epoll, self.descriptors.len()));
        self.add_queues(&mut world);
        self.add_descriptors(&mut world)?;
        self.add_app(&mut world);
        self.add_inputs(&mut world)?;
        world.begin();
        Ok(world)
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

    fn add_descriptors(&self, world: &mut World) -> Result<(), ScenarioError> {
        for (descriptor, &queue) in self.descriptors.iter().enumerate() {
            if let Some(queue) = queue.filter(|&queue| queue >= self.queues.len()) {
                return Err(ScenarioError::NoSuchQueue { descriptor, queue, queues: self.queues.len() });
            }
            world.sockets.push(Socket { epoll: Some(0), napi: queue, ..Socket::default() });
            if self.napi_known {
                world.epolls[0].remember_napi(queue, self.rules.sysctl_busy_poll_usecs);
            }
        }
        Ok(())
    }

    fn add_app(&self, world: &mut World) {
        let scripted =
            Scripted { epoll: 0, steps: self.app.clone(), at: 0, waits: Vec::new(), waiting: false, queue: 0 };
        let thread =
            world.add_thread(Program::Scripted(scripted), Stage::Program, self.app_cpu, class(self.app_priority));
        world.start_thread(thread);
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
                let queue = (*self.descriptors.get(descriptor as usize)?)?;
                Some(ScriptAction::Packet { queue, packet: Packet { socket: descriptor, kind, sent_ns: at_ns } })
            }
            Input::SetNapi { queue, settings } => {
                (queue < self.queues.len()).then_some(ScriptAction::SetNapi { queue, settings })
            }
            Input::SetEpoll(settings) => Some(ScriptAction::SetEpoll { epoll: 0, settings }),
            Input::AlwaysReady { descriptor } => {
                let known = self.descriptors.get(descriptor as usize)?;
                known.is_none().then_some(ScriptAction::AlwaysReady { socket: descriptor })
            }
        }
    }
}

fn class(priority: Option<u8>) -> Class {
    priority.map_or(Class::Fair, Class::RealTime)
}

fn observed(world: World) -> Observed {
    let queues = world.queues.iter().zip(&world.counters).map(|(queue, counters)| QueueObserved {
        state: queue.napi.state,
        interrupt_enabled: queue.vector.armed(),
        irqs: counters.irqs,
        polls: counters.polls,
        empty_polls: counters.empty_polls,
        busy_polls: counters.busy_polls,
        timer_irqs: counters.timer_irqs,
        lost_timers: counters.lost_timers,
        suspensions: counters.suspensions,
        drops: counters.drops,
    });
    let queues = queues.collect();
    let waits = world.threads.iter().find_map(|thread| match &thread.program {
        Program::Scripted(scripted) => Some(scripted.waits.clone()),
        _ => None,
    });
    Observed {
        waits: waits.unwrap_or_default(),
        reads: world.traffic.read,
        queues,
        trace: world.trace.map(|trace| *trace).unwrap_or_default(),
        digest: world.digest.value(),
    }
}
