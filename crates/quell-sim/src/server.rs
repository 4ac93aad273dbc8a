//! Servers of a run: their kinds, the assignment of connections to workers, and the placement of threads on CPUs.
//! `world` simulates the threads.

use std::time::Duration;

use quell_mode::{PollerClass, PollerSettings, ProgramWait, Threaded};

use crate::engine::{Ns, Purpose, RandomStream};
use crate::mechanism::{Epoll, Link, Socket};
use crate::run::{Run, RunError};
use crate::world::{Affinity, Class, EpollServer, EventLoop, Poller, Program, RecvServer, Stage, Wait, World};

/// Initial and maximum `maxevents` of libevent.
const LIBEVENT_EVENTS: (usize, usize) = (32, 4096);
/// `BUSY_POLL_BUDGET` of `net/core/dev.c`, for sockets without a budget.
const SOCKET_BUDGET: u32 = 8;

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// Workers that call `epoll_wait`, handle every event, and wait again, like memcached.
    EventLoop {
        /// Number of worker threads. With more workers than queues, the workers of a queue share its connections. With
        /// fewer workers, a worker serves several queues.
        workers: usize,
        /// How the workers use epolls.
        epolls: Epolls,
        /// Assignment of connections to workers.
        assignment: Assignment,
    },
    /// One thread per connection, which blocks in `recv`, like netperf. `SO_BUSY_POLL` applies to it, but not to epoll.
    BlockingReceive,
}

/// Epolls of the workers of an event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epolls {
    /// Each worker has its own level-triggered epoll.
    Own,
    /// All workers share one edge-triggered epoll. It can busy poll only a single queue.
    Shared,
}

/// Assignment of connections to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// A connection belongs to a worker of its queue (by `SO_INCOMING_NAPI_ID` or steering).
    ByQueue,
    /// Connections are assigned to workers in turn, regardless of the queue.
    InTurn,
}

impl ServerKind {
    /// Creates an event-loop server with one worker per queue, which serves the connections of that queue.
    #[must_use]
    pub fn one_worker_per_queue(queues: usize) -> Self {
        Self::EventLoop { workers: queues, epolls: Epolls::Own, assignment: Assignment::ByQueue }
    }

    pub(crate) fn threads(self, connections: usize) -> usize {
        match self {
            Self::EventLoop { workers, .. } => workers,
            Self::BlockingReceive => connections,
        }
    }

    pub(crate) fn epolls(self) -> usize {
        match self {
            Self::EventLoop { epolls: Epolls::Shared, .. } => 1,
            Self::EventLoop { workers, .. } => workers,
            Self::BlockingReceive => 0,
        }
    }
}

pub(crate) fn worker_of(queue_of: &[u16], queues: usize, workers: usize, assignment: Assignment) -> Vec<usize> {
    let mut seen = vec![0usize; queues];
    let of_queue = |(connection, &queue): (usize, &u16)| {
        let queue = usize::from(queue);
        let before = seen[queue];
        seen[queue] += 1;
        match assignment {
            Assignment::InTurn => connection % workers,
            Assignment::ByQueue if workers <= queues => queue % workers,
            Assignment::ByQueue => {
                let of_this_queue = (workers - queue).div_ceil(queues);
                queue + queues * (before % of_this_queue)
            }
        }
    };
    queue_of.iter().enumerate().map(of_queue).collect()
}

impl Run {
    pub(crate) fn server_cpus(&self) -> usize {
        match self.server {
            ServerKind::BlockingReceive => self.queues,
            ServerKind::EventLoop { workers, .. } => workers.max(if self.irqs_apart { 0 } else { self.queues }),
        }
    }

    pub(crate) fn irq_cpu(&self, queue: usize) -> usize {
        if self.irqs_apart { self.server_cpus() + queue } else { queue }
    }

    pub(crate) fn cpus(&self) -> usize {
        self.server_cpus() + if self.irqs_apart { self.queues } else { 0 }
    }

    /// Adds the NAPI thread of a queue if the mode has one. The thread runs on the CPU of the queue's interrupt,
    /// because a mode does not add CPUs. With `threaded=2`, it shares that CPU with other threads.
    pub(crate) fn add_napi_thread(&self, world: &mut World, queue: usize) -> Option<usize> {
        let threaded = self.mode.napi().threaded;
        if threaded == Threaded::Off {
            return None;
        }
        let thread =
            world.add_thread(Program::NapiThread { queue }, Stage::NapiThread, self.irq_cpu(queue), Class::Fair);
        if threaded == Threaded::BusyPoll {
            world.start_thread(thread);
        }
        Some(thread)
    }

    pub(crate) fn check_pollers(&self) -> Result<(), RunError> {
        let Some(poller @ PollerSettings { class, .. }) = self.mode.poller() else { return Ok(()) };
        let refused = |why| Err(RunError::Setting(why));
        if self.poller_cpu(poller, self.queues - 1) >= self.cpus() {
            return refused(
                "the polling threads have one CPU per queue, from poller-cpu on, and the host has too few CPUs",
            );
        }
        match scheduling_class(class) {
            None => refused("the model has no class SCHED_IDLE: use another poller-class"),
            Some(Class::RealTime(_)) if self.poller_cpu(poller, 0) < self.server_cpus() => refused(
                "a polling thread of class fifo or rr would take the whole CPU of a worker: give it another CPU",
            ),
            Some(_) => Ok(()),
        }
    }

    /// CPU of the polling thread of a queue. A mode does not add CPUs: by default, it is that of the queue's interrupt.
    fn poller_cpu(&self, poller: PollerSettings, queue: usize) -> usize {
        poller.cpu.map_or_else(|| self.irq_cpu(queue), |first| first as usize + queue)
    }

    /// Adds the polling threads of `userbusy`.
    pub(crate) fn add_pollers(&self, world: &mut World) {
        let Some(poller) = self.mode.poller() else { return };
        let timeout = Duration::from_nanos(self.mode.napi().gro_flush_timeout_ns);
        let loop_ns = PollerSettings::call_time(timeout).as_nanos() as Ns;
        let class = scheduling_class(poller.class).unwrap_or(Class::Fair);
        for queue in 0..self.queues {
            let program = Program::Poller(Poller { queue, loop_ns, entered: false });
            let thread = world.add_thread(program, Stage::Program, self.poller_cpu(poller, queue), class);
            world.start_thread(thread);
        }
    }

    pub(crate) fn add_server(&self, world: &mut World, queue_of: &[u16]) {
        match self.server {
            ServerKind::EventLoop { workers, epolls, assignment } => {
                self.add_event_loops(world, queue_of, workers, epolls, assignment);
            }
            ServerKind::BlockingReceive => self.add_blocking_receivers(world, queue_of),
        }
    }

    fn add_event_loops(
        &self,
        world: &mut World,
        queue_of: &[u16],
        workers: usize,
        epolls: Epolls,
        assignment: Assignment,
    ) {
        let shared = epolls == Epolls::Shared;
        let settings = self.mode.epoll().unwrap_or_default();
        for _ in 0..self.server.epolls() {
            world.epolls.push(Epoll::new(settings, self.connections));
        }
        let worker_of = worker_of(queue_of, self.queues, workers, assignment);
        for (&queue, &worker) in queue_of.iter().zip(&worker_of) {
            let (epoll, napi) = (if shared { 0 } else { worker }, Some(usize::from(queue)));
            world.epolls[epoll].remember_napi(napi, self.rules.sysctl_busy_poll_usecs);
            world.sockets.push(Socket {
                epoll: Link::to(epoll),
                napi: napi.into(),
                edge_triggered: shared,
                ..Socket::default()
            });
        }
        let places = self.places(workers);
        for (worker, place) in places.into_iter().enumerate() {
            let epoll = if shared { 0 } else { worker };
            let program = Program::EpollServer(self.event_loop(epoll, worker % self.queues));
            self.start_worker(world, program, worker, place);
        }
    }

    fn start_worker(&self, world: &mut World, program: Program, cpu: usize, place: usize) -> usize {
        let thread = world.add_thread(program, Stage::Program, cpu, Class::Fair);
        if self.floating {
            world.threads[thread].affinity = Affinity::Floating;
            world.threads[thread].cpu = place;
        }
        world.start_thread(thread);
        thread
    }

    fn event_loop(&self, epoll: usize, queue: usize) -> EpollServer {
        let (max_events, max_events_limit) = LIBEVENT_EVENTS;
        let (wait, event_loop) = match self.mode.program_wait() {
            ProgramWait::AtMost(time) => (Wait::AtMost(time.as_nanos() as Ns), None),
            ProgramWait::SpinBeforeSleep(time) => (
                Wait::Forever,
                Some(EventLoop { for_ns: time.as_nanos() as Ns, in_kernel: self.rules.event_loop_in_epoll_wait }),
            ),
            _ => (Wait::Forever, None),
        };
        EpollServer { epoll, wait, max_events, max_events_limit, event_loop, serving: None, queue }
    }

    fn add_blocking_receivers(&self, world: &mut World, queue_of: &[u16]) {
        let busy_poll_ns = self.socket_busy_poll_ns().unwrap_or(0);
        let places = self.places(queue_of.len());
        for (connection, &queue) in queue_of.iter().enumerate() {
            let queue = usize::from(queue);
            let socket = connection as u32;
            let server = RecvServer { socket, busy_poll_ns, prefer: false, budget: SOCKET_BUDGET, serving: false };
            let place = places[connection] % self.server_cpus();
            let thread = self.start_worker(world, Program::RecvServer(server), queue, place);
            world.sockets.push(Socket { napi: Link::to(queue), reader: Link::to(thread), ..Socket::default() });
        }
    }

    fn socket_busy_poll_ns(&self) -> Option<Ns> {
        // `busy_loop_current_time` counts in units of 1,024 ns.
        self.mode.socket_busy_poll().map(|usecs| u64::from(usecs.get()) * 1024)
    }

    /// Initial CPU of each worker: a random permutation with the expected numbers of workers on their queue's CPU and
    /// in its cache, so that seeds do not differ in these numbers.
    fn places(&self, workers: usize) -> Vec<usize> {
        const DRAWS: usize = 64;
        let mut random = RandomStream::new(self.seed, Purpose::Placement);
        let draws = (0..DRAWS).map(|_| permutation(workers, &mut random));
        draws.min_by_key(|places| untypical(places, self.host.cpus_per_cache)).unwrap_or_default()
    }
}

/// Class of the model. `None` if it has none. A thread has no other of its priority beside it, so `SCHED_RR` equals
/// `SCHED_FIFO`.
fn scheduling_class(class: PollerClass) -> Option<Class> {
    match class {
        PollerClass::Other | PollerClass::Batch => Some(Class::Fair),
        PollerClass::Fifo(priority) | PollerClass::RoundRobin(priority) => Some(Class::RealTime(priority)),
        PollerClass::Idle => None,
    }
}

fn permutation(count: usize, random: &mut RandomStream) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    for last in (1..places.len()).rev() {
        places.swap(last, random.below(last as u32 + 1) as usize);
    }
    places
}

/// Difference of a permutation from the mean of all, in the number of workers in their place and in the cache of their
/// place. On average one worker is in its place.
fn untypical(places: &[usize], cpus_per_cache: usize) -> (usize, usize) {
    let pairs = || places.iter().copied().enumerate();
    let in_place = pairs().filter(|(worker, place)| worker == place).count();
    let in_cache = pairs().filter(|(worker, place)| worker / cpus_per_cache == place / cpus_per_cache).count();
    let places_in_cache = |worker: usize| {
        let first = worker / cpus_per_cache * cpus_per_cache;
        places.len().min(first + cpus_per_cache) - first
    };
    let expected = (0..places.len()).map(places_in_cache).sum::<usize>() / places.len().max(1);
    (in_place.abs_diff(1), in_cache.abs_diff(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_more_workers_than_queues_the_workers_of_a_queue_share_its_connections() {
        assert_eq!(worker_of(&[0, 0, 0, 1, 1], 2, 4, Assignment::ByQueue), [0, 2, 0, 1, 3]);
        assert_eq!(worker_of(&[0, 0, 1, 1], 2, 3, Assignment::ByQueue), [0, 2, 1, 1]);
    }

    #[test]
    fn with_fewer_workers_than_queues_a_worker_serves_several_queues() {
        assert_eq!(worker_of(&[0, 1, 2, 3], 4, 2, Assignment::ByQueue), [0, 1, 0, 1]);
    }

    #[test]
    fn every_seed_places_one_of_eight_workers_on_its_interrupts_cpu_and_half_of_all_in_its_cache() {
        let host = crate::HostProfile::shipped("epyc7662-cx5").expect("it ships");
        for seed in 1..50 {
            let scale = crate::RunScale { seed, ..crate::RunScale::FULL };
            let run = Run::memcached(quell_mode::DeliveryMode::default(), crate::Load::Max, &host, scale);
            assert_eq!(untypical(&run.places(8), host.cpus_per_cache), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn assignment_in_turn_ignores_the_queue() {
        assert_eq!(worker_of(&[0, 0, 0, 0], 4, 2, Assignment::InTurn), [0, 1, 0, 1]);
    }
}
