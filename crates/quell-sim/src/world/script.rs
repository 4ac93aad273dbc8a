//! Scripted applications, and external changes at given times, for conformance tests. A real program can execute the
//! same steps on a real kernel.

use quell_mode::{EpollParams, NapiSettings};

use super::busy_poll::BusyRequest;
use super::{BusyFor, Next, Program, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::{Link, Packet};

/// Interval at which a watching application checks its sockets.
const WATCH_ROUND_NS: Ns = 10_000;

/// One step of a scripted application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptStep {
    /// Calls `epoll_wait` and records its result.
    Wait {
        /// Maximum number of returned events (`maxevents`).
        max_events: usize,
        /// Timeout in ns. 0 returns immediately, and `None` waits without a time limit.
        timeout_ns: Option<Ns>,
    },
    /// Reads all data from the sockets that the last wait returned. For a returned nested epoll, reads from all its
    /// sockets.
    ReadAll,
    /// Calls a blocking `recv` for one message.
    Receive {
        /// Index of the socket.
        descriptor: u32,
        /// Busy-poll options of the socket.
        busy_poll: SocketBusyPoll,
    },
    /// Executes for this time, in ns, without system calls.
    Work(Ns),
    /// Checks the sockets of its epoll repeatedly for this time in ns, without `epoll_wait` and without busy polling.
    /// Each message is read within 10 µs after it reaches its socket.
    Watch(Ns),
    /// Calls `EPIOCSPARAMS` on its epoll.
    SetEpoll(EpollParams),
    /// Adds a duplicate of a socket to its epoll with an empty interest mask. The epoll learns the socket's NAPI ID,
    /// but never reports the socket.
    AddWithoutInterest {
        /// Index of the socket.
        descriptor: u32,
    },
    /// Closes its reference to the epoll.
    CloseEpoll,
    /// Continues with the first step.
    Repeat,
}

/// The busy-poll options of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketBusyPoll {
    /// `SO_BUSY_POLL`, in ns; 0 disables it.
    pub time_ns: Ns,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer: bool,
    /// `SO_BUSY_POLL_BUDGET` in packets; 0 means 8.
    pub budget: u16,
}

/// A completed `epoll_wait` of a scripted application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitObserved {
    /// Index of the application that called it.
    pub application: usize,
    /// Time of the call, in ns.
    pub called_ns: Ns,
    /// Time of the return, in ns.
    pub returned_ns: Ns,
    /// Number of returned events.
    pub events: usize,
}

/// A message that a scripted application read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadObserved {
    /// Index of the application that read the message.
    pub application: usize,
    /// Index of the socket.
    pub descriptor: u32,
    /// Time of the read, in ns.
    pub at_ns: Ns,
    /// Time at which the message arrived at the NIC, in ns.
    pub sent_ns: Ns,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted {
    pub(crate) application: usize,
    pub(crate) epoll: usize,
    pub(crate) steps: Vec<ScriptStep>,
    at: usize,
    waiting_since_ns: Option<Ns>,
    watching_until_ns: Option<Ns>,
    receiving: Option<(u32, SocketBusyPoll)>,
    pub(crate) waits: Vec<WaitObserved>,
    pub(crate) reads: Vec<ReadObserved>,
}

impl Scripted {
    pub(crate) fn new(application: usize, epoll: usize, steps: Vec<ScriptStep>) -> Self {
        Self { application, epoll, steps, ..Self::default() }
    }

    fn read(&mut self, descriptor: u32, received: impl Iterator<Item = Ns>, at_ns: Ns) {
        let application = self.application;
        self.reads.extend(received.map(|sent_ns| ReadObserved { application, descriptor, at_ns, sent_ns }));
    }
}

/// An external change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScriptAction {
    /// A packet reaches the NIC.
    Packet { queue: usize, packet: Packet },
    /// A message reaches its socket without NAPI.
    PastNapi { socket: u32 },
    /// `napi-set` changes the settings of a queue.
    SetNapi { queue: usize, settings: NapiSettings },
    /// Another process calls `EPIOCSPARAMS` on an epoll.
    SetEpoll { epoll: usize, settings: EpollParams },
    /// A descriptor without NAPI becomes ready, and stays ready.
    AlwaysReady { socket: u32 },
}

impl World {
    pub(crate) fn scripted(&mut self, index: usize) {
        let cpu = 0;
        match self.script[index] {
            ScriptAction::Packet { queue, packet } => self.packet_arrives(queue, packet),
            ScriptAction::PastNapi { socket } => {
                self.sockets[socket as usize].received.push_back(self.now_ns);
                self.became_readable(socket, cpu);
            }
            ScriptAction::SetNapi { queue, settings } => self.queues[queue].napi.settings = settings,
            ScriptAction::SetEpoll { epoll, settings } => self.epolls[epoll].settings = settings,
            ScriptAction::AlwaysReady { socket } => {
                self.sockets[socket as usize].always_ready = true;
                self.became_ready(socket, cpu);
            }
        }
    }

    pub(crate) fn scripted_step(&mut self, thread: usize) -> Next {
        let now_ns = self.now_ns;
        let returned = self.threads[thread].returned;
        self.threads[thread].stage = Stage::Program;
        let Some(scripted) = self.script_of(thread) else { return Next::Block };
        if let Some(called_ns) = scripted.waiting_since_ns.take() {
            let application = scripted.application;
            scripted.waits.push(WaitObserved { application, called_ns, returned_ns: now_ns, events: returned });
        }
        if let Some(until_ns) = scripted.watching_until_ns {
            return self.watch(thread, until_ns);
        }
        let epoll = scripted.epoll;
        let Some(&step) = scripted.steps.get(scripted.at) else { return Next::Block };
        scripted.at += 1;
        match step {
            ScriptStep::Wait { max_events, timeout_ns } => {
                scripted.waiting_since_ns = Some(now_ns);
                let deadline_ns = timeout_ns.map_or(NEVER, |ns| now_ns + ns);
                self.threads[thread].events.clear();
                return self.epoll_enter(thread, epoll, deadline_ns, max_events);
            }
            ScriptStep::Receive { descriptor, busy_poll } => {
                scripted.receiving = Some((descriptor, busy_poll));
                self.sockets[descriptor as usize].reader = Link::to(thread);
                return self.scripted_receive(thread);
            }
            ScriptStep::ReadAll => self.read_reported(thread),
            ScriptStep::Work(ns) => return Next::Run(ns),
            ScriptStep::Watch(ns) => return self.watch(thread, now_ns + ns),
            ScriptStep::SetEpoll(settings) => self.epolls[epoll].settings = settings,
            ScriptStep::AddWithoutInterest { descriptor } => self.add_without_interest(epoll, descriptor),
            ScriptStep::CloseEpoll => self.epoll_close(epoll, self.threads[thread].cpu),
            ScriptStep::Repeat => scripted.at = 0,
        }
        Next::Run(0)
    }

    fn script_of(&mut self, thread: usize) -> Option<&mut Scripted> {
        match &mut self.threads[thread].program {
            Program::Scripted(scripted) => Some(scripted),
            _ => None,
        }
    }

    fn read_reported(&mut self, thread: usize) {
        while let Some(reported) = self.threads[thread].events.pop_front() {
            match self.sockets[reported as usize].nested.get() {
                Some(inner) => self.read_sockets_of(thread, inner),
                None => self.read_socket(thread, reported),
            }
        }
    }

    fn read_sockets_of(&mut self, thread: usize, epoll: usize) {
        for socket in 0..self.sockets.len() {
            if self.sockets[socket].epoll == Link::to(epoll) {
                self.read_socket(thread, socket as u32);
            }
        }
    }

    fn read_socket(&mut self, thread: usize, socket: u32) {
        let now_ns = self.now_ns;
        let received = &mut self.sockets[socket as usize].received;
        if let Program::Scripted(scripted) = &mut self.threads[thread].program {
            scripted.read(socket, std::iter::from_fn(|| received.pop_front()), now_ns);
        }
    }

    fn watch(&mut self, thread: usize, until_ns: Ns) -> Next {
        if let Some(epoll) = self.script_of(thread).map(|scripted| scripted.epoll) {
            self.read_sockets_of(thread, epoll);
        }
        let left_ns = until_ns.saturating_sub(self.now_ns);
        if let Some(scripted) = self.script_of(thread) {
            scripted.watching_until_ns = (left_ns > 0).then_some(until_ns);
        }
        Next::Run(left_ns.min(WATCH_ROUND_NS))
    }

    fn add_without_interest(&mut self, epoll: usize, socket: u32) {
        let state = &mut self.sockets[socket as usize];
        state.without_interest_in = Link::to(epoll);
        self.epolls[epoll].remember_napi(state.napi.get(), self.rules.sysctl_busy_poll_usecs);
    }

    /// `recv`: returns the oldest message, busy polls, or sleeps.
    pub(crate) fn scripted_receive(&mut self, thread: usize) -> Next {
        let now_ns = self.now_ns;
        let Some((socket, busy_poll)) = self.script_of(thread).and_then(|scripted| scripted.receiving) else {
            return Next::Block;
        };
        let state = &mut self.sockets[socket as usize];
        let napi = state.napi.get();
        if let Some(sent_ns) = state.received.pop_front() {
            state.reader = Link::default();
            self.threads[thread].stage = Stage::Program;
            if let Some(scripted) = self.script_of(thread) {
                scripted.receiving = None;
                scripted.read(socket, std::iter::once(sent_ns), now_ns);
            }
            return Next::Run(self.costs.recv_ns);
        }
        let SocketBusyPoll { time_ns, prefer, budget } = busy_poll;
        let Some(queue) = napi.filter(|_| time_ns > 0) else { return self.recv_sleep(thread) };
        let budget = crate::mechanism::budget(budget);
        let on_behalf = BusyFor::Socket(socket);
        self.busy_begin(thread, BusyRequest { queue, on_behalf, prefer, budget, loop_ns: time_ns })
    }

    /// Observations of scripted applications, in the order of the applications.
    pub(crate) fn take_observations(&mut self) -> (Vec<WaitObserved>, Vec<ReadObserved>) {
        let (mut waits, mut reads) = (Vec::new(), Vec::new());
        for thread in 0..self.threads.len() {
            let Some(scripted) = self.script_of(thread) else { continue };
            waits.append(&mut scripted.waits);
            reads.append(&mut scripted.reads);
        }
        (waits, reads)
    }
}
