//! The generic netlink family `netdev` (`Documentation/netlink/specs/netdev.yaml`): NAPI instances with their settings,
//! queues, and per-queue statistics. The module also handles threaded NAPI of a device, which older kernels support
//! only in sysfs.

mod device_threading;
mod napi;
mod policy;
mod qstats;
mod queue;

#[cfg(any(fuzzing, test))]
pub(crate) use {napi::decode_napi, qstats::decode_stats, queue::decode_queue};

pub use device_threading::{DeviceThreadingError, device_threading, set_device_threading};
pub use napi::Napi;
pub use qstats::{DeviceStats, QueueCounters, QueueStats};
pub use quell_mode::{NapiThreading, PartialNapiSettings};
pub use queue::{Queue, QueueKind, QueueLease};

use crate::netlink::{NetlinkError, NetlinkSocket};
use crate::netns::Namespace;

/// Handle to the `netdev` family of one network namespace. Reading needs no privilege.
#[derive(Debug)]
pub struct Netdev {
    socket: NetlinkSocket,
}

impl Netdev {
    /// Fails with `Unsupported` if the kernel lacks the family (before Linux 6.3).
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: open_socket()? })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, open_socket)? })
    }
}

fn open_socket() -> Result<NetlinkSocket, NetlinkError> {
    NetlinkSocket::open_generic("netdev")
}
