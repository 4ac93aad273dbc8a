//! The kinds of delivery mode, and the settings of each kind without overrides.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use crate::key::Settings;
use crate::napi::{NapiSettings, Threaded};
use crate::poller::PollerSettings;
use crate::settings::{EpollParams, NAPI_POLL_WEIGHT, ProgramWait, USECS_MAX};

const DEFER_HARD_IRQS: u32 = 100;
const IRQ_SUSPEND_TIMEOUT_NS: u64 = 20_000_000;
const NAPIBUSY_GRO_FLUSH_TIMEOUT_NS: u64 = 200_000;
const FULLBUSY_GRO_FLUSH_TIMEOUT_NS: u64 = 5_000_000;
/// Limit of the gro-flush-timeout of `userbusy`, in ns. The timer polls the queue after its poller died.
pub(crate) const USERBUSY_GRO_FLUSH_TIMEOUT_MAX_NS: u64 = 1_000_000;
const FULLBUSY_LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A busy-poll time in µs, from 1 to [`USECS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PollUsecs(NonZeroU32);

impl PollUsecs {
    /// Creates a busy-poll time. Returns `None` for 0 and for values above [`USECS_MAX`].
    #[must_use]
    pub fn new(usecs: u32) -> Option<Self> {
        NonZeroU32::new(usecs).filter(|usecs| usecs.get() <= USECS_MAX).map(Self)
    }

    /// The busy-poll time in µs.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

/// The way in which packets get from a queue to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ModeKind {
    /// `base`: an interrupt announces packets, and the NET_RX softirq polls the queue.
    Base,
    /// `deferN`: after an interrupt, a timer of N µs polls the queue as long as packets arrive.
    Defer {
        /// N of the name, in ns.
        gro_flush_timeout_ns: NonZeroU64,
    },
    /// `napibusy`: `epoll_wait` busy polls for 64 µs before it sleeps.
    NapiBusy,
    /// `fullbusy`: `epoll_wait` busy polls for 1 ms, and no wait of the program takes longer: it polls permanently if packets
    /// come more often. A later one waits for the timer of 5 ms.
    FullBusy,
    /// `suspendN`: interrupts are suspended while the program is busy. An idle program gets them without delay.
    Suspend {
        /// N of the name, in ns.
        gro_flush_timeout_ns: NonZeroU64,
    },
    /// `threaded`: the queue's NAPI thread polls the queue instead of the softirq.
    Threaded,
    /// `threadedbusy`: the queue's NAPI thread busy polls permanently (Linux 6.19).
    ThreadedBusy,
    /// `userbusy`: a thread of Quell busy polls the queue permanently, from outside the program (Linux 6.13).
    UserBusy,
    /// `sockpollN`: a blocking `recv` busy polls for N µs (`SO_BUSY_POLL`), without epoll.
    SockPoll {
        /// N of the name.
        usecs: PollUsecs,
    },
    /// `eventspinN`: the program calls `epoll_wait` with timeout 0 for N µs before it sleeps.
    EventSpin {
        /// N of the name.
        usecs: PollUsecs,
    },
}

impl ModeKind {
    /// Name of the kind without N.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Defer { .. } => "defer",
            Self::NapiBusy => "napibusy",
            Self::FullBusy => "fullbusy",
            Self::Suspend { .. } => "suspend",
            Self::Threaded => "threaded",
            Self::ThreadedBusy => "threadedbusy",
            Self::UserBusy => "userbusy",
            Self::SockPoll { .. } => "sockpoll",
            Self::EventSpin { .. } => "eventspin",
        }
    }

    /// Description of the kind in one line, for tables and help.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Base => "an interrupt announces packets, softirq polls the queue",
            Self::Defer { .. } => "while packets keep arriving, a timer polls instead of interrupts",
            Self::NapiBusy => "epoll_wait busy polls before it sleeps, for 64 us by default",
            Self::FullBusy => "epoll_wait busy polls for 1 ms; slow if packets come more rarely",
            Self::Suspend { .. } => "no interrupts while the program is busy, prompt ones while it is idle",
            Self::Threaded => "a kernel thread per queue polls instead of softirq",
            Self::ThreadedBusy => "a kernel thread per queue busy polls without end, on a whole CPU",
            Self::UserBusy => "a thread of Quell per queue busy polls without end, on a whole CPU",
            Self::SockPoll { .. } => "a blocking recv busy polls the queue",
            Self::EventSpin { .. } => "the program spins on epoll_wait(0) before it sleeps",
        }
    }

    /// How the kind changes the program's own waits.
    #[must_use]
    pub fn program_wait(self) -> ProgramWait {
        match self {
            Self::FullBusy => ProgramWait::AtMost(FULLBUSY_LONGEST_WAIT),
            Self::EventSpin { usecs } => ProgramWait::SpinBeforeSleep(Duration::from_micros(usecs.get().into())),
            _ => ProgramWait::AsWritten,
        }
    }

    /// N of `deferN` and `suspendN`, in ns.
    pub(crate) fn gro_flush_timeout_in_name(self) -> Option<NonZeroU64> {
        match self {
            Self::Defer { gro_flush_timeout_ns } | Self::Suspend { gro_flush_timeout_ns } => Some(gro_flush_timeout_ns),
            _ => None,
        }
    }

    pub(crate) fn settings(self) -> Settings {
        let poller = matches!(self, Self::UserBusy).then(PollerSettings::default);
        Settings { napi: self.napi(), epoll: self.epoll(), poller }
    }

    fn napi(self) -> NapiSettings {
        let none = NapiSettings::default();
        let deferred =
            |gro_flush_timeout_ns| NapiSettings { defer_hard_irqs: DEFER_HARD_IRQS, gro_flush_timeout_ns, ..none };
        match self {
            Self::Base | Self::SockPoll { .. } | Self::EventSpin { .. } => none,
            Self::Defer { gro_flush_timeout_ns } => deferred(gro_flush_timeout_ns.get()),
            Self::NapiBusy => deferred(NAPIBUSY_GRO_FLUSH_TIMEOUT_NS),
            Self::FullBusy => deferred(FULLBUSY_GRO_FLUSH_TIMEOUT_NS),
            Self::Suspend { gro_flush_timeout_ns } => {
                NapiSettings { irq_suspend_timeout_ns: IRQ_SUSPEND_TIMEOUT_NS, ..deferred(gro_flush_timeout_ns.get()) }
            }
            Self::UserBusy => deferred(USERBUSY_GRO_FLUSH_TIMEOUT_MAX_NS),
            Self::Threaded => NapiSettings { threaded: Threaded::Thread, ..none },
            Self::ThreadedBusy => NapiSettings { threaded: Threaded::BusyPoll, ..none },
        }
    }

    fn epoll(self) -> Option<EpollParams> {
        let preferred = |busy_poll_usecs| EpollParams {
            busy_poll_usecs,
            busy_poll_budget: NAPI_POLL_WEIGHT,
            prefer_busy_poll: true,
        };
        match self {
            Self::Base | Self::Defer { .. } => Some(EpollParams::default()),
            Self::NapiBusy => Some(preferred(64)),
            Self::FullBusy => Some(preferred(1000)),
            Self::Suspend { .. } => Some(preferred(0)),
            Self::Threaded | Self::ThreadedBusy | Self::UserBusy | Self::SockPoll { .. } | Self::EventSpin { .. } => {
                None
            }
        }
    }
}
