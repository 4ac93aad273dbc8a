//! The simulated host: CPUs, RX queues, epoll contexts, sockets, threads and traffic, and the event loop. This file
//! contains the state and dispatches events. Each of the other files implements one group of transitions.

mod busy_poll;
mod counters;
mod cpu;
mod deliver;
mod epoll_wait;
mod interrupt;
mod poll;
mod poll_loop;
mod program;
mod schedule;
mod script;
mod softirq;
mod thread;
mod traffic;
mod utilisation;

pub use counters::Counters;
pub use cpu::CpuTime;
pub(crate) use poll_loop::{Peer, PollLoop, PollPhase, Poller, SendPhase, Sender};
pub(crate) use program::{EpollServer, EventLoop, Program, RecvServer, Wait};
pub use script::{ReadObserved, ScriptStep, SocketBusyPoll, WaitObserved};
pub(crate) use script::{ScriptAction, Scripted};
pub(crate) use thread::{Affinity, BusyFor, BusyLoop, Class, EpollCall, RunState, Stage, Thread};
pub use traffic::TrafficKind;
pub(crate) use traffic::{Client, Traffic};

use cpu::HardIrq;
pub(crate) use cpu::{Context, Cpu};

use crate::engine::{Digest, EventQueue, Ns};
use crate::host::Costs;
use crate::mechanism::{Epoll, Packet, PacketKind, PacketSizer, PacketSizes, RxQueue, Socket};
use crate::trace::Trace;
use utilisation::Utilisation;

/// Behaviour that differs between kernel versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRules {
    /// Whether a busy-poll loop ends with a final poll of a full budget (up to Linux 6.18).
    pub final_poll: bool,
    /// Duration of a jiffy (1/`HZ`), in ns.
    pub jiffy_ns: Ns,
    /// `net.core.busy_poll`, in µs.
    pub sysctl_busy_poll_usecs: u32,
    /// Whether `epoll_wait` itself loops under `eventspinN` (withdrawn patch of 2024). Otherwise the program calls it
    /// with timeout 0.
    pub event_loop_in_epoll_wait: bool,
}

impl Default for KernelRules {
    fn default() -> Self {
        Self { final_poll: true, jiffy_ns: 1_000_000, sysctl_busy_poll_usecs: 0, event_loop_in_epoll_wait: false }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// A packet arrives. Its fields are here so that an event has 16 bytes.
    Arrival {
        queue: u16,
        kind: PacketKind,
        socket: u32,
        sent_ns: Ns,
    },
    /// The coalescing time of a vector may be over.
    Vector {
        queue: u16,
    },
    /// The timer of a NAPI instance may be due.
    NapiTimer {
        queue: u16,
    },
    SegmentEnd {
        cpu: u16,
        generation: u32,
    },
    Timeout {
        thread: u16,
        sleep: u32,
    },
    Tick {
        cpu: u16,
    },
    /// A scripted external change occurs.
    Script {
        index: u32,
    },
}

const _: () = assert!(size_of::<Option<Event>>() == 16, "two nodes of the event queue share a cache line");

impl Event {
    pub(crate) fn arrival(queue: u16, packet: Packet) -> Self {
        let Packet { socket, kind, sent_ns } = packet;
        Self::Arrival { queue, kind, socket, sent_ns }
    }
}

pub(crate) struct World {
    pub(crate) now_ns: Ns,
    pub(crate) events: EventQueue<Event>,
    pub(crate) digest: Digest,
    pub(crate) processed: u64,
    pub(crate) rules: KernelRules,
    pub(crate) costs: Costs,
    pub(crate) cpus: Vec<Cpu>,
    utilisation: Utilisation,
    pub(crate) queues: Vec<RxQueue>,
    /// `xps_cpus`: queue on which each CPU transmits. If there is no entry, it is the queue of the request.
    pub(crate) tx_queue_of_cpu: Vec<usize>,
    /// Threads that busy poll or wait for a queue, in fast-forwarded iterations.
    pub(crate) queue_spinners: Vec<Vec<usize>>,
    pub(crate) epolls: Vec<Epoll>,
    pub(crate) epoll_spinners: Vec<Vec<usize>>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) traffic: Traffic,
    pub(crate) sizes: PacketSizer,
    pub(crate) counters: Vec<Counters>,
    pub(crate) script: Vec<ScriptAction>,
    pub(crate) trace: Option<Box<Trace>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Run(Ns),
    Block,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldShape {
    pub(crate) queues: usize,
    pub(crate) epolls: usize,
    pub(crate) cpus: usize,
    pub(crate) bound: usize,
}

impl World {
    /// Creates a world with CPUs only. The caller adds queues, epolls, sockets and threads.
    pub(crate) fn new(rules: KernelRules, costs: Costs, shape: WorldShape, traffic: Traffic) -> Self {
        let WorldShape { queues, epolls, cpus, bound } = shape;
        let mut world = Self {
            now_ns: 0,
            events: EventQueue::with_bound(bound),
            digest: Digest::new(),
            processed: 0,
            rules,
            costs,
            cpus: Vec::with_capacity(cpus),
            utilisation: Utilisation::default(),
            queues: Vec::with_capacity(queues),
            tx_queue_of_cpu: Vec::new(),
            queue_spinners: vec![Vec::with_capacity(2); queues],
            epolls: Vec::with_capacity(epolls),
            epoll_spinners: vec![Vec::with_capacity(2); epolls],
            sockets: Vec::new(),
            threads: Vec::new(),
            traffic,
            sizes: PacketSizer::new(PacketSizes::ONE_BYTE, 0),
            counters: vec![Counters::default(); queues],
            script: Vec::new(),
            trace: None,
        };
        for _ in 0..cpus {
            world.add_cpu();
        }
        world
    }

    pub(crate) fn begin(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.dispatch(cpu);
        }
        self.begin_traffic();
    }

    pub(crate) fn run_until(&mut self, until_ns: Ns) {
        while let Some((at_ns, event)) = self.events.pop_before(until_ns) {
            self.now_ns = at_ns;
            self.happen(event);
        }
        self.now_ns = until_ns;
    }

    fn happen(&mut self, event: Event) {
        self.processed += 1;
        self.digest.add(self.now_ns);
        match event {
            Event::SegmentEnd { cpu, generation } => self.segment_end(cpu.into(), generation),
            Event::Arrival { queue, kind, socket, sent_ns } => {
                self.packet_arrives(queue.into(), Packet { socket, kind, sent_ns });
            }
            Event::Vector { queue } => self.vector_event(queue.into()),
            Event::NapiTimer { queue } => self.napi_timer_event(queue.into()),
            Event::Timeout { thread, sleep } => self.timeout_event(thread.into(), sleep),
            Event::Tick { cpu } => self.tick_event(cpu.into()),
            Event::Script { index } => self.scripted(index as usize),
        }
    }

    /// Handles the arrival of a packet at the NIC. The packet is added to the ring or dropped, and the vector and busy
    /// pollers are notified.
    fn packet_arrives(&mut self, queue: usize, packet: Packet) {
        self.digest.add(u64::from(packet.socket));
        let now_ns = self.now_ns;
        let rx = &mut self.queues[queue];
        if !rx.receive(packet, now_ns) {
            self.counters[queue].drops += 1;
            self.packet_lost(queue, packet);
            return;
        }
        self.counters[queue].received += 1;
        if packet.kind != PacketKind::Ack {
            self.mark(queue, "packet");
        }
        self.queues[queue].vector.received(now_ns, 1);
        self.vector_changed(queue);
        for index in 0..self.queue_spinners[queue].len() {
            self.poke(self.queue_spinners[queue][index]);
        }
    }

    #[inline]
    pub(crate) fn mark(&mut self, queue: usize, what: &'static str) {
        if let Some(trace) = &mut self.trace {
            trace.mark(self.now_ns, queue, what);
        }
    }

    /// Ends the warm-up: resets all counters.
    pub(crate) fn open_books(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.book_segment(cpu);
            self.cpus[cpu].time = CpuTime::default();
        }
        for index in 0..self.threads.len() {
            self.drop_spin_books(index);
        }
        for counters in &mut self.counters {
            *counters = Counters::default();
        }
        self.traffic.open_books(self.now_ns);
    }

    pub(crate) fn close_books(&mut self, since_ns: Ns) {
        for index in 0..self.threads.len() {
            self.book_spin(index);
        }
        for cpu in 0..self.cpus.len() {
            self.book_segment(cpu);
            self.cpus[cpu].time.total_ns = self.now_ns - since_ns;
        }
    }
}
