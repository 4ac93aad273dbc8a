//! Settings of the preload library. The types exclude invalid values. One line of text carries the settings in the
//! environment; `parse` in `preload/preload.c` reads it.
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

/// Environment variable that carries the settings.
pub const ENVIRONMENT_VARIABLE: &str = "QUELL_PRELOAD_SETTINGS";

/// Version prefix of the text. A library that does not know the version does nothing.
pub const VERSION: &str = "1";

/// Changes that the library makes to the behaviour of a program. The default changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreloadSettings {
    /// Busy-poll parameters that every new epoll gets (`EPIOCSPARAMS`).
    pub epoll: Option<BusyPoll>,
    /// Options that every new internet socket gets: `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`.
    pub sockets: Option<BusyPoll>,
    /// Whether waits with timeout zero become waits of 1 ns. In a wait with timeout zero, the kernel neither polls nor
    /// resumes interrupts (`ep_poll` in `fs/eventpoll.c`). Under suspension, a program that spins would otherwise
    /// depend on the suspend timeout.
    pub timed_zero_waits: bool,
    /// Change to waits that may sleep.
    pub wait: Wait,
    /// Maximum number of events that a wait returns.
    pub events_max: Option<EventsMax>,
}

/// Change to the program's waits that may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// Waits are not changed.
    #[default]
    AsWritten,
    /// Waits are split into waits of at most this length. The program does not notice.
    AtMost(WaitMillis),
    /// Waits spin for this time with timeout zero before they sleep.
    SpinBeforeSleep(SpinMicros),
}

/// Busy-poll settings of an epoll or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    usecs: u32,
    budget: u16,
    prefer: bool,
}

impl BusyPoll {
    /// Maximum time, µs: `S32_MAX`, for an epoll (`fs/eventpoll.c`) and for a socket.
    pub const USECS_MAX: u32 = i32::MAX as u32;

    /// Settings with the time in µs, the packets per poll, and whether busy polling is preferred. `None` if `usecs` is
    /// above [`Self::USECS_MAX`].
    #[must_use]
    pub fn new(usecs: u32, budget: u16, prefer: bool) -> Option<Self> {
        (usecs <= Self::USECS_MAX).then_some(Self { usecs, budget, prefer })
    }

    /// Busy-poll time, µs. In an epoll, the unit is 1,024 ns.
    #[must_use]
    pub fn usecs(self) -> u32 {
        self.usecs
    }

    /// Maximum packets per poll. 0 is the kernel's default, 8. Values above 64 require CAP_NET_ADMIN.
    #[must_use]
    pub fn budget(self) -> u16 {
        self.budget
    }

    /// Whether busy polling by the application takes precedence over softirq.
    #[must_use]
    pub fn prefer(self) -> bool {
        self.prefer
    }
}

/// A number from `MIN` to `MAX`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranged<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Ranged<MIN, MAX> {
    /// Creates the number. `None` if it is out of range.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    /// Value of the number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Maximum length of one part of a split wait, ms. `epoll_wait` takes its timeout in ms.
pub type WaitMillis = Ranged<1, 1_000>;

/// Spin time before sleeping, µs.
pub type SpinMicros = Ranged<1, { i32::MAX as u32 }>;

/// Events per wait: at least one, at most the kernel's limit (`EP_MAX_EVENTS` in `fs/eventpoll.c`, with 12 bytes each).
pub type EventsMax = Ranged<1, { i32::MAX as u32 / 12 }>;

/// The version, then all settings that differ from the default, separated by commas, in a fixed order.
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

/// Same format as in the table of modes: usecs/budget/prefer.
impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.usecs, self.budget, u8::from(self.prefer))
    }
}
