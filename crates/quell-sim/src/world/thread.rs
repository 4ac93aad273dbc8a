//! A thread: what it is doing in the kernel, what its program does between, and how it is
//! scheduled. State only; `epoll_wait`, `busy_poll` and `program` move it.

use crate::engine::Ns;

/// How a thread competes for its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Fair: by virtual run time.
    Fair,
    /// `SCHED_FIFO` with its priority.
    RealTime(u8),
}

/// Where a thread may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// On one CPU only.
    Pinned,
    /// On any CPU.
    Floating,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    Blocked,
    Runnable,
    Running,
}

/// What a thread's segment is part of; when the segment ends, this says what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The program's own code.
    Program,
    /// `epoll_wait` was entered, or woke up.
    EpollEntry,
    /// Events are being copied.
    EpollSend,
    /// Asleep in `epoll_wait`.
    EpollSleep,
    /// A busy poll with packets.
    BusyWork,
    /// Busy polls that find nothing, fast-forwarded.
    BusySpin,
    /// The final poll of a busy loop.
    FinalPoll,
    /// `epoll_wait` found nothing and resumes interrupts before it sleeps.
    Resume,
    /// Waiting for events without polling a NIC.
    EventSpin,
    /// Looking into an empty receive ring that somebody else fills.
    RingSpin,
    /// Watching the clock.
    ClockSpin,
    /// Asleep in a blocking `recv`.
    RecvSleep,
    /// A NAPI thread between polls.
    NapiThread,
    /// A NAPI thread polls packets.
    NapiThreadWork,
    /// `ksoftirqd`.
    Ksoftirqd,
}

/// On whose behalf `napi_busy_loop` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BusyFor {
    Epoll(usize),
    Socket(u32),
    /// A NAPI thread with `threaded` 2, which never ends.
    Thread,
}

/// A `napi_busy_loop` under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BusyLoop {
    pub(crate) queue: usize,
    pub(crate) on_behalf: BusyFor,
    pub(crate) prefer: bool,
    pub(crate) budget: u32,
    /// Takes no more time than this from when it began; 0: one iteration.
    pub(crate) loop_ns: Ns,
    pub(crate) began_ns: Ns,
    pub(crate) owner: bool,
    /// Packets of the poll under way.
    pub(crate) work: u32,
    /// The final poll found the timer armed as its backstop.
    pub(crate) backstop: bool,
    /// `need_resched` ended it: start over afterwards.
    pub(crate) restart: bool,
}

/// An `epoll_wait` under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpollCall {
    pub(crate) epoll: usize,
    /// When it gives up; [`crate::engine::NEVER`]: it does not. Now or before: timeout zero.
    pub(crate) deadline_ns: Ns,
    pub(crate) max_events: usize,
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) program: super::program::Program,
    pub(crate) stage: Stage,
    pub(crate) state: RunState,
    pub(crate) cpu: usize,
    pub(crate) affinity: Affinity,
    pub(crate) class: Class,
    pub(crate) vruntime_ns: Ns,
    /// What is left of the segment that was interrupted, or is to be run.
    pub(crate) left_ns: Ns,
    pub(crate) call: EpollCall,
    pub(crate) busy: Option<BusyLoop>,
    /// When the fast-forwarded rounds began, and how long each takes.
    pub(crate) spin_began_ns: Ns,
    pub(crate) spin_round_ns: Ns,
    /// When waiting for events in a loop is to end.
    pub(crate) spin_until_ns: Ns,
    /// Tells the timeout of this sleep from those of earlier ones.
    pub(crate) sleep: u32,
    /// Events that `epoll_wait` returned and the program has not handled yet.
    pub(crate) events: std::collections::VecDeque<u32>,
    /// Events of the last `epoll_wait` that returned some.
    pub(crate) batch: usize,
    /// How many events the last `epoll_wait` returned.
    pub(crate) returned: usize,
}

impl Thread {
    pub(crate) fn new(program: super::program::Program, stage: Stage, cpu: usize) -> Self {
        Self {
            program,
            stage,
            state: RunState::Blocked,
            cpu,
            affinity: Affinity::Pinned,
            class: Class::Fair,
            vruntime_ns: 0,
            left_ns: 0,
            call: EpollCall { epoll: 0, deadline_ns: 0, max_events: 0 },
            busy: None,
            spin_began_ns: 0,
            spin_round_ns: 1,
            spin_until_ns: 0,
            sleep: 0,
            events: std::collections::VecDeque::with_capacity(64),
            batch: 0,
            returned: 0,
        }
    }

    /// Whether softirqs wait until its segment is over (`local_bh_disable`).
    pub(crate) fn bottom_halves_disabled(&self) -> bool {
        matches!(self.stage, Stage::BusyWork | Stage::FinalPoll | Stage::NapiThreadWork)
    }

    /// Whether it is in rounds that were fast-forwarded.
    pub(crate) fn spinning(&self) -> bool {
        matches!(self.stage, Stage::BusySpin | Stage::EventSpin | Stage::RingSpin)
    }
}
