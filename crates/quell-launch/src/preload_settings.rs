//! What the launcher asks of the preload library: types that hold no nonsense, and the one line of text that carries them
//! in the environment. The library reads it (`parse` in `preload/preload.c`).
//!
//! ```
//! use quell_launch::preload_settings::{BusyPoll, PreloadSettings};
//!
//! let settings = PreloadSettings {
//!     epoll: BusyPoll::new(0, 64, true),
//!     timed_zero_waits: true,
//!     ..PreloadSettings::default()
//! };
//! assert_eq!(settings.to_string(), "1,epoll=0/64/1,zero-waits=timed");
//! ```

use std::fmt;

/// The environment variable that carries the text.
pub const ENVIRONMENT_VARIABLE: &str = "QUELL_PRELOAD_SETTINGS";

/// What the text begins with. A library that does not know the version does nothing.
pub const VERSION: &str = "1";

/// What the library does to the program that it is loaded into. By default nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreloadSettings {
    /// What every epoll is told at its birth (`EPIOCSPARAMS`).
    pub epoll: Option<BusyPoll>,
    /// What every internet socket is told at its birth: `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`.
    pub sockets: Option<BusyPoll>,
    /// Whether a wait with timeout zero becomes one of 1 ns. The kernel neither polls nor resumes interrupts in a wait
    /// of zero (`ep_poll` in `fs/eventpoll.c`), so under suspension a program that spins would wait for a timeout.
    pub timed_zero_waits: bool,
    /// What becomes of longer waits.
    pub wait: Wait,
    /// The most events that a wait returns.
    pub events_max: Option<EventsMax>,
}

/// What becomes of the program's waits that may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// They are as the program wrote them.
    #[default]
    AsWritten,
    /// They are made of waits of at most so long, without the program noticing.
    AtMost(WaitMillis),
    /// They spin so long, with timeout zero, before they sleep.
    SpinBeforeSleep(SpinMicros),
}

/// The busy-poll settings that the kernel has of an epoll and of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    usecs: u32,
    budget: u16,
    prefer: bool,
}

impl BusyPoll {
    /// The longest time in µs: `S32_MAX`, for an epoll (`fs/eventpoll.c`) as for a socket.
    pub const USECS_MAX: u32 = i32::MAX as u32;

    /// So many µs, so many packets a poll, and whether the program's polling goes before the softirq's; absent when
    /// `usecs` is above [`Self::USECS_MAX`].
    #[must_use]
    pub fn new(usecs: u32, budget: u16, prefer: bool) -> Option<Self> {
        (usecs <= Self::USECS_MAX).then_some(Self { usecs, budget, prefer })
    }

    /// How long is polled, in µs (in an epoll, in units of 1,024 ns).
    #[must_use]
    pub fn usecs(self) -> u32 {
        self.usecs
    }

    /// Packets a poll takes; 0 is the kernel's own choice, 8. Above 64 needs CAP_NET_ADMIN.
    #[must_use]
    pub fn budget(self) -> u16 {
        self.budget
    }

    /// Whether the program's polling goes before the softirq's.
    #[must_use]
    pub fn prefer(self) -> bool {
        self.prefer
    }
}

/// A number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranged<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Ranged<MIN, MAX> {
    /// The number; absent when it is out of range.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// The longest piece of a wait, in ms: `epoll_wait` counts in them.
pub type WaitMillis = Ranged<1, 1_000>;

/// How long is spun before sleeping, in µs.
pub type SpinMicros = Ranged<1, { i32::MAX as u32 }>;

/// Events a wait: at least one, at most what the kernel takes (`EP_MAX_EVENTS` in `fs/eventpoll.c`, with 12 bytes each).
pub type EventsMax = Ranged<1, { i32::MAX as u32 / 12 }>;

/// The version, then what differs from doing nothing, separated by commas, in one order.
impl fmt::Display for PreloadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERSION)?;
        if let Some(epoll) = self.epoll {
            write!(f, ",epoll={epoll}")?;
        }
        if let Some(sockets) = self.sockets {
            write!(f, ",sockets={sockets}")?;
        }
        if self.timed_zero_waits {
            f.write_str(",zero-waits=timed")?;
        }
        match self.wait {
            Wait::AsWritten => {}
            Wait::AtMost(millis) => write!(f, ",wait-at-most-ms={}", millis.get())?,
            Wait::SpinBeforeSleep(micros) => write!(f, ",spin-usecs={}", micros.get())?,
        }
        if let Some(events) = self.events_max {
            write!(f, ",events-max={}", events.get())?;
        }
        Ok(())
    }
}

/// As the modes' table has it: usecs/budget/prefer.
impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.usecs, self.budget, u8::from(self.prefer))
    }
}
