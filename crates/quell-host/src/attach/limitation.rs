//! Parts of a mode that an attachment cannot provide. `plan` finds them; the command line says them.

use quell_linux::{NapiId, Pid};
use serde::Serialize;

/// A part of a mode that the attachment cannot provide, or cannot provide yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Limitation {
    /// The mode limits the time of sleep in `epoll_wait`. Only the preload library can impose that limit.
    EpollWaitUnlimited {
        /// The limit in milliseconds.
        at_most_ms: u64,
    },
    /// An epoll watches the busy-polling sockets; `epoll_wait` ignores `SO_BUSY_POLL`.
    WatchedByEpoll {
        /// Process that owns the sockets.
        pid: Pid,
        /// Number of sockets.
        sockets: usize,
    },
    /// A process has no epoll with network sockets.
    NoEpoll {
        /// Process ID.
        pid: Pid,
    },
    /// The mode suspends interrupts, and the process receives through interfaces that never do.
    NotSuspended {
        /// Process ID.
        pid: Pid,
        /// Number of AF_XDP sockets.
        xdp_sockets: usize,
        /// Number of io_urings with requests for sockets.
        io_urings: usize,
    },
    /// The kernel does not show whether io_urings of the process receive from sockets.
    UnknownRings {
        /// Process ID.
        pid: Pid,
        /// Number of io_urings.
        io_urings: usize,
        /// Whether the mode suspends interrupts, which io_uring never does.
        suspends: bool,
    },
    /// The queues of AF_XDP sockets are unknown, so they are not set.
    UnknownXdpQueues {
        /// Process ID.
        pid: Pid,
        /// Number of AF_XDP sockets.
        xdp_sockets: usize,
        /// Reason.
        why: String,
    },
    /// A socket receives from a NAPI instance that belongs to no visible device.
    UnknownQueue {
        /// NAPI instance.
        napi: NapiId,
    },
    /// A queue keeps its NAPI kthread, although the mode does not use it.
    NapiThreadRemains {
        /// NAPI instance.
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
            | Self::UnknownRings { pid, .. }
            | Self::UnknownXdpQueues { pid, .. } => Some(*pid),
            Self::EpollWaitUnlimited { .. } | Self::UnknownQueue { .. } | Self::NapiThreadRemains { .. } => None,
        }
    }
}
