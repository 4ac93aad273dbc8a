//! Settings of a delivery mode, in the kernel's terms and units. `check` finds contradictions between
//! them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Highest `defer-hard-irqs` that the kernel accepts: `S32_MAX` in
/// `Documentation/netlink/specs/netdev.yaml`. Higher values fail with ERANGE.
pub const DEFER_HARD_IRQS_MAX: u32 = i32::MAX as u32;

/// Highest busy-poll time in µs: `busy_poll_usecs` above `S32_MAX` is refused by
/// `ep_eventpoll_bp_ioctl()` in `fs/eventpoll.c`, and `SO_BUSY_POLL` is a signed int.
pub const USECS_MAX: u32 = i32::MAX as u32;

/// Highest `busy_poll_budget` without CAP_NET_ADMIN: `NAPI_POLL_WEIGHT`.
pub const BUDGET_WITHOUT_CAPABILITY: u16 = 64;

/// Settings of a NAPI instance (netlink family `netdev`, `napi-set`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettings {
    /// Number of empty polls before the interrupt is enabled again; 0 to [`DEFER_HARD_IRQS_MAX`], 0
    /// disables deferral.
    pub defer_hard_irqs: u32,
    /// Timeout of the timer that polls the queue while its interrupt is deferred, in ns; 0 disables
    /// deferral.
    #[serde(rename = "gro-flush-timeout")]
    pub gro_flush_timeout_ns: u64,
    /// Longest time that the interrupt stays masked while the application processes events from
    /// `epoll_wait`, in ns; 0 disables suspension.
    #[serde(rename = "irq-suspend-timeout")]
    pub irq_suspend_timeout_ns: u64,
    /// Whether a kernel thread polls the queue.
    pub threaded: Threaded,
}

impl NapiSettings {
    /// Whether interrupts are deferred: both values must be set (`napi_complete_done()` in
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
    /// NET_RX softirq (0).
    #[default]
    Off,
    /// The queue's NAPI thread, woken by the interrupt (1).
    Thread,
    /// The queue's NAPI thread, which busy polls without end and takes a whole CPU (2, Linux 6.19).
    BusyPoll,
}

impl Threaded {
    /// Value of the netlink attribute.
    #[must_use]
    pub fn kernel_value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Thread => 1,
            Self::BusyPoll => 2,
        }
    }

    /// Meaning of a value of the netlink attribute; `None` for a value that no known kernel uses.
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

/// Busy-poll parameters of an epoll (`EPIOCSPARAMS`, `struct epoll_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpollSettings {
    /// Time that `epoll_wait` busy polls before it sleeps, in units of 1,024 ns; 0 to [`USECS_MAX`].
    /// With 0 it polls once if `prefer_busy_poll` is set and `net.core.busy_poll` is 0.
    pub busy_poll_usecs: u32,
    /// Most packets per poll; 0 is the kernel's default of 8, more than [`BUDGET_WITHOUT_CAPABILITY`]
    /// needs CAP_NET_ADMIN.
    pub busy_poll_budget: u16,
    /// Whether busy polling by the application takes precedence over softirq. Also required for IRQ
    /// suspension.
    pub prefer_busy_poll: bool,
}

/// How the program's own waits change. Some modes need this to have their effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProgramWait {
    /// Waits are unchanged.
    AsWritten,
    /// No wait takes longer than this, because a sleeping program does not busy poll.
    AtMost(Duration),
    /// The program polls with timeout 0 for this long before it sleeps.
    SpinBeforeSleep(Duration),
}
