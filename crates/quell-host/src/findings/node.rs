//! Identifies the objects of a finding by key, with names for display.

use std::fmt;

use quell_linux::{Ifindex, NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Device, Process, Service, Thread};

/// An object of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(tag = "node", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Node {
    /// The whole host.
    Host,
    /// A network device.
    Device {
        /// Inode of its namespace.
        namespace: u64,
        /// Interface index.
        ifindex: Ifindex,
        /// Interface name.
        name: String,
        /// Name, or inode, of its namespace; absent if that is the one of this command.
        #[serde(skip_serializing_if = "Option::is_none")]
        netns: Option<String>,
    },
    /// A receive queue.
    RxQueue {
        /// Device name.
        device: String,
        /// Queue number on the device.
        queue: u32,
        /// As that of a device.
        #[serde(skip_serializing_if = "Option::is_none")]
        netns: Option<String>,
    },
    /// A NAPI instance.
    Napi {
        /// NAPI ID.
        id: NapiId,
        /// Device name; absent when the device is not in the snapshot.
        device: Option<String>,
    },
    /// An interrupt.
    Irq {
        /// IRQ number.
        number: u32,
    },
    /// A CPU.
    Cpu {
        /// CPU number.
        number: u32,
    },
    /// A process.
    Process {
        /// Process ID.
        pid: Pid,
        /// Process name (`comm`).
        name: String,
    },
    /// A thread.
    Thread {
        /// Thread ID.
        tid: Pid,
        /// Thread name (`comm`).
        name: String,
    },
    /// An epoll.
    Epoll {
        /// Process that owns the epoll.
        pid: Pid,
        /// File descriptor in that process.
        fd: i32,
    },
    /// A file of another type.
    File {
        /// Process that owns the file.
        pid: Pid,
        /// File descriptor in that process.
        fd: i32,
    },
}

impl EpollContext<'_> {
    pub(crate) fn node(&self) -> Node {
        Node::Epoll { pid: self.process.pid, fd: self.epoll.fd }
    }

    pub(crate) fn nodes(&self) -> Vec<Node> {
        vec![self.process.into(), self.node()]
    }
}

impl Node {
    /// Whether it is one of these processes, or a thread or file of one. `None` if it is of no process.
    pub(crate) fn is_of_any(&self, processes: &[&Process]) -> Option<bool> {
        let has_pid = |pid: Pid| processes.iter().any(|process| process.pid == pid);
        let has_thread =
            |tid: Pid| processes.iter().flat_map(|process| process.threads.known_elements()).any(|it| it.tid == tid);
        match self {
            Self::Process { pid, .. } | Self::Epoll { pid, .. } | Self::File { pid, .. } => Some(has_pid(*pid)),
            Self::Thread { tid, .. } => Some(has_pid(*tid) || has_thread(*tid)),
            _ => None,
        }
    }

    /// The same with the name of the namespace of a device.
    pub(super) fn in_namespace(self, query: &SnapshotQuery<'_>) -> Self {
        match self {
            Self::Device { namespace, ifindex, name, .. } => {
                Self::Device { namespace, ifindex, name, netns: query.now.other_netns(namespace) }
            }
            other => other,
        }
    }
}

impl SnapshotQuery<'_> {
    pub(crate) fn rx_queue_node(&self, device: &Device, queue: u32) -> Node {
        Node::RxQueue { device: device.name.clone(), queue, netns: self.now.other_netns(device.namespace) }
    }

    pub(crate) fn napi_node(&self, id: NapiId) -> Node {
        Node::Napi { id, device: self.napi(id).map(|(device, _)| device.name.clone()) }
    }
}

impl From<&Device> for Node {
    fn from(device: &Device) -> Self {
        Self::Device { namespace: device.namespace, ifindex: device.ifindex, name: device.name.clone(), netns: None }
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
            Self::Device { name, netns: None, .. } => f.write_str(name),
            Self::Device { name, netns: Some(netns), .. } => write!(f, "{name} (netns {netns})"),
            Self::RxQueue { device, queue, netns: None } => write!(f, "{device} rx-{queue}"),
            Self::RxQueue { device, queue, netns: Some(netns) } => write!(f, "{device} rx-{queue} (netns {netns})"),
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
