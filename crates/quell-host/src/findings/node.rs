//! Where in the picture a finding is: an object by its key, and by the words that a person knows it by.

use std::fmt;

use quell_linux::{Ifindex, NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

use crate::picture::{Device, Process, Service, Thread};

/// An object of a picture.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(tag = "node", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Node {
    /// The host as a whole.
    Host,
    /// A device.
    Device {
        /// The inode of its namespace.
        namespace: u64,
        /// Its number there.
        ifindex: Ifindex,
        /// Its name there.
        name: String,
    },
    /// A receive queue.
    RxQueue {
        /// Its device's name.
        device: String,
        /// Its number there.
        queue: u32,
    },
    /// A NAPI instance.
    Napi {
        /// Its id.
        id: NapiId,
        /// Its device's name; absent when the device is not in the picture.
        device: Option<String>,
    },
    /// An interrupt.
    Irq {
        /// Its number.
        number: u32,
    },
    /// A CPU.
    Cpu {
        /// Its number.
        number: u32,
    },
    /// A process.
    Process {
        /// Its number.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// A thread.
    Thread {
        /// Its number.
        tid: Pid,
        /// Its name.
        name: String,
    },
    /// An epoll.
    Epoll {
        /// Whose.
        pid: Pid,
        /// Its number there.
        fd: i32,
    },
    /// A file descriptor of another kind.
    File {
        /// Whose.
        pid: Pid,
        /// Its number there.
        fd: i32,
    },
}

impl From<&Device> for Node {
    fn from(device: &Device) -> Self {
        Self::Device { namespace: device.namespace, ifindex: device.ifindex, name: device.name.clone() }
    }
}

impl From<&Process> for Node {
    fn from(process: &Process) -> Self {
        Self::Process { pid: process.pid, name: process.name.clone() }
    }
}

impl From<&Thread> for Node {
    fn from(thread: &Thread) -> Self {
        Self::Thread { tid: thread.tid, name: thread.name.clone() }
    }
}

impl From<&Service> for Node {
    fn from(service: &Service) -> Self {
        Self::Process { pid: service.pid, name: service.name.clone() }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("this host"),
            Self::Device { name, .. } => f.write_str(name),
            Self::RxQueue { device, queue } => write!(f, "{device} rx-{queue}"),
            Self::Napi { id, device: Some(device) } => write!(f, "{device} NAPI {id}"),
            Self::Napi { id, device: None } => write!(f, "NAPI {id}"),
            Self::Irq { number } => write!(f, "IRQ {number}"),
            Self::Cpu { number } => write!(f, "CPU {number}"),
            Self::Process { pid, name } => write!(f, "{name} ({pid})"),
            Self::Thread { tid, name } => write!(f, "thread {tid} ({name})"),
            Self::Epoll { pid, fd } => write!(f, "epoll {fd} of {pid}"),
            Self::File { pid, fd } => write!(f, "file {fd} of {pid}"),
        }
    }
}
