//! The settings that a delivery mode consists of, in the kernel's terms and units. Plain values:
//! which of them belong together is `check`'s business.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Highest `defer-hard-irqs` that the kernel accepts: `S32_MAX` in
/// `Documentation/netlink/specs/netdev.yaml`, above it ERANGE.
pub const DEFER_HARD_IRQS_MAX: u32 = i32::MAX as u32;

/// Highest busy-poll time in µs: `busy_poll_usecs` above `S32_MAX` is refused by
/// `ep_eventpoll_bp_ioctl()` in `fs/eventpoll.c`, and `SO_BUSY_POLL` is a signed int.
pub const USECS_MAX: u32 = i32::MAX as u32;

/// Highest `busy_poll_budget` without CAP_NET_ADMIN: `NAPI_POLL_WEIGHT`.
pub const BUDGET_WITHOUT_CAPABILITY: u16 = 64;

/// What one NAPI instance is told over netlink (`napi-set` of family `netdev`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettings {
    /// How many polls that found nothing go by before the interrupt is enabled again; 0 to
    /// [`DEFER_HARD_IRQS_MAX`], 0: no deferral.
    pub defer_hard_irqs: u32,
    /// The timer that polls a queue whose interrupt is deferred, in ns; 0: none.
    #[serde(rename = "gro-flush-timeout")]
    pub gro_flush_timeout_ns: u64,
    /// How long the interrupt stays off at most while the application works on events that
    /// `epoll_wait` gave it, in ns; 0: no suspension.
    #[serde(rename = "irq-suspend-timeout")]
    pub irq_suspend_timeout_ns: u64,
    /// Whether a kernel thread polls the queue.
    pub threaded: Threaded,
}

impl NapiSettings {
    /// Whether interrupts are deferred: the kernel needs both values (`napi_complete_done()` in
    /// `net/core/dev.c`).
    #[must_use]
    pub fn defers(&self) -> bool {
        self.defer_hard_irqs > 0 && self.gro_flush_timeout_ns > 0
    }
}

/// Who polls a queue: the attribute `threaded` of `napi-set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Threaded {
    /// The softirq (0).
    #[default]
    Off,
    /// The queue's own kernel thread, woken by the interrupt (1).
    Thread,
    /// The queue's own kernel thread, which never stops polling and takes a whole CPU (2, from
    /// Linux 6.19).
    BusyPoll,
}

impl Threaded {
    /// The value of the netlink attribute.
    #[must_use]
    pub fn kernel_value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Thread => 1,
            Self::BusyPoll => 2,
        }
    }

    /// The meaning of a value of the netlink attribute; absent for one that no known kernel has.
    #[must_use]
    pub fn from_kernel_value(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Off),
            1 => Some(Self::Thread),
            2 => Some(Self::BusyPoll),
            _ => None,
        }
    }
}

/// What one epoll file is told by `EPIOCSPARAMS` (`struct epoll_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpollSettings {
    /// How long `epoll_wait` busy polls before it sleeps, in units of 1,024 ns; 0 to [`USECS_MAX`].
    /// With 0 it polls once if `prefer_busy_poll` is set and `net.core.busy_poll` is 0.
    pub busy_poll_usecs: u32,
    /// Packets a poll takes at most; 0 means the kernel's 8, more than
    /// [`BUDGET_WITHOUT_CAPABILITY`] needs CAP_NET_ADMIN.
    pub busy_poll_budget: u16,
    /// Whether the application's polling goes before the softirq's; also what makes IRQ suspension
    /// work.
    pub prefer_busy_poll: bool,
}

/// What becomes of the program's own waits, without which some modes are not what their name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProgramWait {
    /// The program waits as it was written.
    AsWritten,
    /// No wait takes longer than this: a program that sleeps does not poll.
    AtMost(Duration),
    /// The program asks with a timeout of zero for this long before it sleeps.
    SpinBeforeSleep(Duration),
}
