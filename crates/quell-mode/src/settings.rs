//! Busy-poll parameters of an epoll, and changes to a program's waits.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum busy-poll time in µs. `ep_eventpoll_bp_ioctl()` in `fs/eventpoll.c` rejects a `busy_poll_usecs` above
/// `S32_MAX`, and `SO_BUSY_POLL` is a signed int.
pub const USECS_MAX: u32 = i32::MAX as u32;

/// Maximum number of packets per poll in a softirq (`include/linux/netdevice.h`). It is also the maximum
/// `busy_poll_budget` without CAP_NET_ADMIN.
pub const NAPI_POLL_WEIGHT: u16 = 64;

/// Busy-poll parameters of an epoll (`EPIOCSPARAMS`, `struct epoll_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpollParams {
    /// Time for which `epoll_wait` busy polls before it sleeps, in units of 1,024 ns, from 0 to [`USECS_MAX`]. With 0,
    /// it polls once if `prefer_busy_poll` is set and `net.core.busy_poll` is 0.
    pub busy_poll_usecs: u32,
    /// Maximum number of packets per poll. 0 selects the kernel's default of 8. A value above [`NAPI_POLL_WEIGHT`]
    /// needs CAP_NET_ADMIN.
    pub busy_poll_budget: u16,
    /// Whether busy polling by the application takes precedence over softirq processing. IRQ suspension requires it.
    pub prefer_busy_poll: bool,
}

impl EpollParams {
    /// Whether a busy poll without a packet ends before a timer of this length. The epoll then forgets its queue, and the
    /// next packet waits for the timer (`fs/eventpoll.c`, `ep_busy_loop`).
    #[must_use]
    pub fn ends_before(&self, timer_ns: u64) -> bool {
        self.busy_poll_usecs > 0 && u64::from(self.busy_poll_usecs) * 1_024 < timer_ns
    }

    /// Short form `busy_poll_usecs/busy_poll_budget/prefer_busy_poll`. Tables and the settings of the preload library
    /// use it.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{}/{}/{}", self.busy_poll_usecs, self.busy_poll_budget, u8::from(self.prefer_busy_poll))
    }
}

impl fmt::Display for EpollParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = *self;
        let prefer = u8::from(prefer_busy_poll);
        write!(f, "busy_poll_usecs {busy_poll_usecs}, busy_poll_budget {busy_poll_budget}, prefer_busy_poll {prefer}")
    }
}

/// How the program's own waits change. Some modes take effect only with such a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProgramWait {
    /// Waits are unchanged.
    AsWritten,
    /// No wait takes longer than this time, because a sleeping program does not busy poll.
    AtMost(Duration),
    /// The program polls with timeout 0 for this time before it sleeps.
    SpinBeforeSleep(Duration),
}
