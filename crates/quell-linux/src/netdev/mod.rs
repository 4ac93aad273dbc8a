//! The generic netlink family `netdev` (`Documentation/netlink/specs/netdev.yaml`): NAPI instances
//! and their settings, queues, and per-queue statistics; and the one setting that older kernels have
//! in sysfs instead. Which settings are worth having is not decided here.

mod device_threading;
mod napi;
mod policy;
mod qstats;
mod queue;

#[cfg(any(fuzzing, test))]
pub(crate) use {napi::decode_napi, qstats::decode_stats, queue::decode_queue};

pub use device_threading::{DeviceThreadingError, device_threading, set_device_threading};
pub use napi::{Napi, NapiChange, NapiThreading};
pub use qstats::{DeviceStats, QueueCounters, QueueStats};
pub use queue::{Queue, QueueKind};

use crate::netlink::{NetlinkError, NetlinkSocket};
use crate::netns::Namespace;

/// A handle on the `netdev` family of one namespace. Reading needs no privilege.
#[derive(Debug)]
pub struct Netdev {
    socket: NetlinkSocket,
}

impl Netdev {
    /// For the namespace of the calling thread, also after the thread has moved on.
    ///
    /// # Errors
    /// [`NetlinkError`], `Unsupported` when the kernel has no such family (before 6.3).
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: open_socket()? })
    }

    /// For another namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Netdev::open`], and `Denied` without `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, open_socket)? })
    }
}

fn open_socket() -> Result<NetlinkSocket, NetlinkError> {
    NetlinkSocket::open_generic("netdev")
}
