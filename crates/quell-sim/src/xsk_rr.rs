//! `xsk_rr`, the round-trip benchmark for AF_XDP sockets. Two hosts are simulated in one world, with all their CPUs.
//! The client sends at a fixed rate and processes each reply. The server replies at once.

use quell_mode::{NapiSettings, Threaded};
use quell_stats::LatencyHistogram;

use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Link, RxQueue, Socket};
use crate::run::RunError;
use crate::world::{
    Class, Client, KernelRules, Peer, PollLoop, PollPhase, Poller, Program, SendPhase, Sender, Stage, Traffic,
    TrafficKind, World, WorldShape,
};

/// Real-time priority of all threads, from `chrt -f 50` in the benchmark's script.
const PRIORITY: u8 = 50;
const CPUS: usize = 8;
const EVENT_BOUND: usize = 1024;

/// Thread that polls a host's queue with system calls (`recvfrom` with `SO_BUSY_POLL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XskPolling {
    /// The application polls each time that its receive ring is empty.
    Application,
    /// A separate thread on its own CPU polls permanently.
    SeparateThread,
    /// No thread polls with system calls. Packets arrive by interrupts or by the NAPI thread.
    NoCalls,
}

/// A run of `xsk_rr`. Both hosts have one queue and the same settings.
#[derive(Debug, Clone)]
pub struct XskRoundTrips {
    /// Profile of each of the two hosts.
    pub host: HostProfile,
    /// NAPI settings of each of the two queues.
    pub napi: NapiSettings,
    /// Thread that polls each of the two queues.
    pub polling: XskPolling,
    /// Time between two packets of the client, in ns.
    pub period_ns: f64,
    /// CPU time that the client spends on each reply, in ns.
    pub delay_ns: Ns,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: Ns,
}

impl XskRoundTrips {
    /// Simulates the run. The result is the latency of each packet, from the time at which it was due until the client
    /// took the reply.
    ///
    /// # Errors
    ///
    /// [`RunError::TooManyEvents`].
    pub fn simulate(&self) -> Result<LatencyHistogram, RunError> {
        let mut world = self.world();
        world.begin();
        world.run_until(self.warm_up_ns);
        world.open_books();
        world.run_until(self.warm_up_ns + self.measured_ns);
        world.close_books(self.warm_up_ns);
        if world.events.overflowed() {
            return Err(RunError::TooManyEvents { bound: EVENT_BOUND });
        }
        Ok(world.traffic.latency)
    }

    fn world(&self) -> World {
        let wire_ns = (self.host.constants.network_ns / 2.0) as Ns;
        let client = Client { one_way_ns: wire_ns, back_ns: wire_ns, ..Client::NONE };
        let traffic = Traffic::new(TrafficKind::NONE, client, Vec::new(), 1);
        let shape = WorldShape { queues: 2, epolls: 0, cpus: CPUS, bound: EVENT_BOUND };
        let mut world = World::new(KernelRules::default(), Costs::new(&self.host), shape, traffic);
        let kicks = self.polling == XskPolling::Application;
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
        let sender =
            Sender { socket: CLIENT.queue.into(), peer: SERVER.peer(), period_ns, sent: 0, phase: SendPhase::Wait };
        CLIENT.start(&mut world, Program::Sender(sender), Stage::Program, 2);
        world
    }

    /// Adds a host. The queue's interrupt or NAPI thread runs on the host's first CPU, the application on its second,
    /// and a separate polling thread on its last.
    fn add_host(&self, world: &mut World, side: Side, application: PollLoop) {
        let queue = usize::from(side.queue);
        let mut rx = RxQueue::new(self.napi, &self.host.coalescing, self.host.ring_size, side.first_cpu);
        if self.napi.threaded == Threaded::BusyPoll {
            rx.thread = Some(side.start(world, Program::NapiThread { queue }, Stage::NapiThread, 0));
        }
        world.queues.push(rx);
        let reader = side.start(world, Program::PollLoop(application), Stage::Program, 1);
        if self.polling == XskPolling::SeparateThread {
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
const SERVER: Side = Side { queue: 1, first_cpu: 4 };

impl Side {
    fn peer(self) -> Peer {
        Peer { queue: self.queue, socket: self.queue.into() }
    }

    fn start(self, world: &mut World, program: Program, stage: Stage, cpu: usize) -> usize {
        let thread = world.add_thread(program, stage, self.first_cpu + cpu, Class::RealTime(PRIORITY));
        world.start_thread(thread);
        thread
    }
}
