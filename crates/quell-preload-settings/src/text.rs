//! Settings as text: the version, then what differs from doing nothing, separated by commas, in one order.

use core::fmt;

use crate::{BusyPoll, PreloadSettings, VERSION, Wait};

/// The words of the text.
pub(crate) mod word {
    pub(crate) const EPOLL: &str = "epoll";
    pub(crate) const SOCKETS: &str = "sockets";
    pub(crate) const ZERO_WAITS: &str = "zero-waits";
    pub(crate) const TIMED: &str = "timed";
    pub(crate) const WAIT_AT_MOST_MS: &str = "wait-at-most-ms";
    pub(crate) const SPIN_USECS: &str = "spin-usecs";
    pub(crate) const EVENTS_MAX: &str = "events-max";
}

impl fmt::Display for PreloadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERSION)?;
        if let Some(epoll) = self.epoll {
            write!(f, ",{}={epoll}", word::EPOLL)?;
        }
        if let Some(sockets) = self.sockets {
            write!(f, ",{}={sockets}", word::SOCKETS)?;
        }
        if self.timed_zero_waits {
            write!(f, ",{}={}", word::ZERO_WAITS, word::TIMED)?;
        }
        match self.wait {
            Wait::AsWritten => {}
            Wait::AtMost(millis) => write!(f, ",{}={}", word::WAIT_AT_MOST_MS, millis.get())?,
            Wait::SpinBeforeSleep(micros) => write!(f, ",{}={}", word::SPIN_USECS, micros.get())?,
        }
        if let Some(events) = self.events_max {
            write!(f, ",{}={}", word::EVENTS_MAX, events.get())?;
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
