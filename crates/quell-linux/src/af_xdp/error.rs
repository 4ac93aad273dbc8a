//! Why an AF_XDP socket cannot be opened.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpSocketError {
    #[error("the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)")]
    Unsupported,
    #[error("creating an AF_XDP socket needs CAP_NET_RAW")]
    Denied,
    #[error(
        "{kib} KiB of memory for frames exceed the limit of locked memory; raise it (ulimit -l, LimitMEMLOCK=), or use \
         smaller rings"
    )]
    MemoryLimit { kib: usize },
    #[error("there is not enough memory for the AF_XDP socket; use smaller rings, or raise the limit of the cgroup")]
    OutOfMemory,
    #[error("queue {queue} belongs to another AF_XDP socket; close it, or use another queue")]
    QueueInUse { queue: u32 },
    #[error("the device has no queue {queue}, or cannot use these rings")]
    NoSuchQueue { queue: u32 },
    #[error("the driver or queue {queue} does not support zero-copy mode; use copy mode")]
    NoZeroCopy { queue: u32 },
    #[error("the device is down")]
    DeviceDown,
    #[error("the device is gone")]
    DeviceGone,
    #[error("AF_XDP: {action}: {source}")]
    Refused { action: &'static str, source: io::Error },
}

/// Error of a step, with the meaning that `net/xdp/xsk.c` gives to its number.
pub(super) fn refused(action: &'static str) -> impl Fn(Errno) -> XdpSocketError {
    move |errno| match errno {
        Errno::NOMEM => XdpSocketError::OutOfMemory,
        Errno::PERM | Errno::ACCESS => XdpSocketError::Denied,
        Errno::AFNOSUPPORT => XdpSocketError::Unsupported,
        Errno::NODEV | Errno::NXIO => XdpSocketError::DeviceGone,
        Errno::NETDOWN => XdpSocketError::DeviceDown,
        _ => XdpSocketError::Refused { action, source: errno.into() },
    }
}
