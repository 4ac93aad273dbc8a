//! Parts of a mode that an attachment cannot provide. `plan` finds them; the command line says them.

use quell_linux::{NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Limitation {
    /// The mode limits the time of sleep in `epoll_wait`. Only the preload library can impose that limit.
    EpollWaitUnlimited {
        at_most_ms: u64,
    },
    /// An epoll watches the busy-polling sockets; `epoll_wait` ignores `SO_BUSY_POLL`.
    WatchedByEpoll {
        pid: Pid,
        sockets: usize,
    },
    NoEpoll {
        pid: Pid,
    },
    /// The mode suspends interrupts, and the process receives through interfaces that never do.
    NotSuspended {
        pid: Pid,
        xdp_sockets: usize,
        io_urings: usize,
    },
    /// AF_XDP sockets of the process have no NAPI ID, so busy polling on them polls nothing and is not set.
    XdpCannotBusyPoll {
        pid: Pid,
        xdp_sockets: usize,
    },
    /// AF_XDP sockets of the process do not busy poll: their frames wait for the timer of the deferred queue.
    XdpFramesWait {
        pid: Pid,
        xdp_sockets: usize,
        up_to_ns: u64,
    },
    /// The kernel does not show whether io_urings of the process receive from sockets.
    UnknownRings {
        pid: Pid,
        io_urings: usize,
        /// Whether the mode suspends interrupts, which io_uring never does.
        suspends: bool,
    },
    /// The queues of AF_XDP sockets are unknown, so they are not set.
    UnknownXdpQueues {
        pid: Pid,
        xdp_sockets: usize,
        reason: String,
    },
    /// A socket receives from a NAPI instance that belongs to no visible device.
    UnknownQueue {
        napi: NapiId,
    },
    /// A queue keeps its NAPI kthread, although the mode does not use it.
    NapiThreadRemains {
        napi: NapiId,
    },
}

impl Limitation {
    /// The process that it concerns; absent if it concerns queues or all processes.
    #[must_use]
    pub const fn pid(&self) -> Option<Pid> {
        match self {
            Self::WatchedByEpoll { pid, .. }
            | Self::NoEpoll { pid }
            | Self::NotSuspended { pid, .. }
            | Self::XdpCannotBusyPoll { pid, .. }
            | Self::XdpFramesWait { pid, .. }
            | Self::UnknownRings { pid, .. }
            | Self::UnknownXdpQueues { pid, .. } => Some(*pid),
            Self::EpollWaitUnlimited { .. } | Self::UnknownQueue { .. } | Self::NapiThreadRemains { .. } => None,
        }
    }
}
