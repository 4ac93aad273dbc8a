//! State of a thread: its program, its stage in the kernel, and its scheduling. `epoll_wait`, `busy_poll` and `program`
//! implement the transitions.

use crate::engine::Ns;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Fair,
    /// `SCHED_FIFO` with a priority.
    RealTime(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affinity {
    Pinned,
    Floating,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    Blocked,
    Runnable,
    Running,
}

/// Stage of a thread. When its segment ends, the stage determines what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The thread executes code of its program.
    Program,
    /// The thread enters `epoll_wait`, or wakes up in it.
    EpollEntry,
    EpollSend,
    EpollSleep,
    /// The thread busy polls and processes packets.
    BusyWork,
    /// The thread busy polls without packets; iterations are fast-forwarded.
    BusySpin,
    /// The thread runs the final poll of a busy-poll loop.
    FinalPoll,
    /// The thread found no events in `epoll_wait`, and resumes interrupts before it sleeps.
    Resume,
    /// The thread loops for events without busy polling.
    EventSpin,
    /// The thread loops over an empty receive ring that another thread fills.
    RingSpin,
    ClockSpin,
    RecvSleep,
    /// The NAPI thread is between polls.
    NapiThread,
    /// The NAPI thread processes packets.
    NapiThreadWork,
    Ksoftirqd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BusyFor {
    Epoll(usize),
    Socket(u32),
    /// Until the time limit, whatever arrives.
    Time,
    /// A NAPI thread with `threaded=2`; this loop never ends.
    Thread,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BusyLoop {
    pub(crate) queue: usize,
    pub(crate) on_behalf: BusyFor,
    pub(crate) prefer: bool,
    pub(crate) budget: u32,
    /// Time limit from the start of the loop, in ns; 0 means one iteration.
    pub(crate) loop_ns: Ns,
    pub(crate) began_ns: Ns,
    pub(crate) owner: bool,
    /// Number of packets in the current poll.
    pub(crate) work: u32,
    /// Whether the timer is armed as a backstop for the final poll.
    pub(crate) backstop: bool,
    /// Whether `need_resched` ended the loop, so that it must start again.
    pub(crate) restart: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct EpollCall {
    pub(crate) epoll: usize,
    /// Time at which the timeout expires. [`crate::engine::NEVER`] without a timeout; the current time or earlier for
    /// timeout 0.
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
    /// Remaining time of an interrupted or pending segment.
    pub(crate) left_ns: Ns,
    pub(crate) call: EpollCall,
    pub(crate) busy: Option<BusyLoop>,
    /// Start and duration of the fast-forwarded rounds.
    pub(crate) spin_began_ns: Ns,
    /// Time from an interrupt to the end of the iteration, or of the context switch before it, that was interrupted.
    pub(crate) spin_rest_ns: Ns,
    pub(crate) spin_round_ns: Ns,
    pub(crate) spin_until_ns: Ns,
    /// Distinguishes the timeout of this sleep from those of earlier sleeps.
    pub(crate) sleep: u32,
    /// Events that `epoll_wait` returned and the program has not handled.
    pub(crate) events: std::collections::VecDeque<u32>,
    /// Number of events of the last `epoll_wait` that returned events.
    pub(crate) batch: usize,
    /// Number of events of the last `epoll_wait`.
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
            spin_rest_ns: 0,
            spin_round_ns: 1,
            spin_until_ns: 0,
            sleep: 0,
            events: std::collections::VecDeque::with_capacity(64),
            batch: 0,
            returned: 0,
        }
    }

    /// Whether softirqs must wait for the end of the thread's segment (`local_bh_disable`).
    pub(crate) fn bottom_halves_disabled(&self) -> bool {
        matches!(self.stage, Stage::BusyWork | Stage::FinalPoll | Stage::NapiThreadWork)
    }

    pub(crate) fn spinning(&self) -> bool {
        matches!(self.stage, Stage::BusySpin | Stage::EventSpin | Stage::RingSpin)
    }
}
