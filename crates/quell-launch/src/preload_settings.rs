//! Settings of the preload library. The types exclude invalid values. An environment variable contains the settings as
//! one line of text, which `parse` in `preload/preload.c` reads.
//!
//! ```
//! use quell_launch::preload_settings::PreloadSettings;
//! use quell_mode::EpollParams;
//!
//! let settings = PreloadSettings {
//!     epoll: Some(EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true }),
//!     timed_zero_waits: true,
//!     ..PreloadSettings::default()
//! };
//! assert_eq!(settings.to_string(), "1,epoll=0/64/1,zero-waits=timed");
//! ```

use std::fmt;

use quell_mode::{EpollParams, NAPI_POLL_WEIGHT, PollUsecs};

pub const ENVIRONMENT_VARIABLE: &str = "QUELL_PRELOAD_SETTINGS";

/// Version prefix of the text. A library that does not support the version changes nothing.
pub const VERSION: &str = "1";

/// Changes that the library makes in a program. The default changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreloadSettings {
    /// Busy-poll parameters that every new epoll gets (`EPIOCSPARAMS`). The library ignores all settings if
    /// `busy_poll_usecs` is above [`USECS_MAX`](quell_mode::USECS_MAX).
    pub epoll: Option<EpollParams>,
    /// `SO_BUSY_POLL` of every new internet socket, with `SO_PREFER_BUSY_POLL` and a `SO_BUSY_POLL_BUDGET` of
    /// [`NAPI_POLL_WEIGHT`].
    pub sockets: Option<PollUsecs>,
    /// Whether waits with timeout zero become waits of 1 ns. With timeout zero, the kernel neither polls the queue nor
    /// resumes interrupts (`ep_poll` in `fs/eventpoll.c`). Under IRQ suspension, a program that spins would get packets
    /// only after the suspend timeout.
    pub timed_zero_waits: bool,
    pub wait: WaitChange,
    pub events_max: Option<EventsMax>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitChange {
    #[default]
    AsWritten,
    /// Waits are split into waits of at most this length. This is invisible to the program.
    AtMost(WaitMillis),
    /// A wait polls with timeout zero for this time before it sleeps.
    SpinBeforeSleep(SpinMicros),
}

/// A number from `MIN` to `MAX`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranged<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Ranged<MIN, MAX> {
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }

    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Maximum length of one part of a split wait, in ms, which is the unit of `epoll_wait`.
pub type WaitMillis = Ranged<1, 1_000>;

/// Time for which a wait spins before it sleeps, in µs.
pub type SpinMicros = Ranged<1, { i32::MAX as u32 }>;

/// Number of events per wait. The maximum is `EP_MAX_EVENTS` in `fs/eventpoll.c`, for events of 12 bytes.
pub type EventsMax = Ranged<1, { i32::MAX as u32 / 12 }>;

/// Writes the version and then all settings that differ from the default, separated by commas, in a fixed order.
impl fmt::Display for PreloadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERSION)?;
        if let Some(epoll) = self.epoll {
            write!(f, ",epoll={}", epoll.short())?;
        }
        if let Some(usecs) = self.sockets {
            write!(f, ",sockets={}/{NAPI_POLL_WEIGHT}/1", usecs.get())?;
        }
        if self.timed_zero_waits {
            f.write_str(",zero-waits=timed")?;
        }
        match self.wait {
            WaitChange::AsWritten => {}
            WaitChange::AtMost(millis) => write!(f, ",wait-at-most-ms={}", millis.get())?,
            WaitChange::SpinBeforeSleep(micros) => write!(f, ",spin-usecs={}", micros.get())?,
        }
        if let Some(events) = self.events_max {
            write!(f, ",events-max={}", events.get())?;
        }
        Ok(())
    }
}
