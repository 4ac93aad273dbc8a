//! A process as far as it receives packets: its threads, its epolls and their watched files, and its sockets.

use std::collections::BTreeSet;

use quell_linux::af_xdp::XdpSocketStats;
use quell_linux::epoll_params::EpollParams;
use quell_linux::proc::ProcessState;
use quell_linux::sched::Scheduling;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceKey, Reading};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Process {
    /// Process ID in the reader's PID namespace.
    pub pid: Pid,
    /// Start time, in clock ticks since boot. Together with the process ID it is unique within one boot.
    pub start_time_ticks: u64,
    /// Name of its main thread.
    pub name: String,
    /// Inode of its network namespace. Its sockets may be from other namespaces.
    pub namespace: Reading<u64>,
    /// Its threads, in ascending order.
    pub threads: Reading<Vec<Thread>>,
    /// Its open files.
    pub files: Reading<Files>,
}

impl Process {
    /// Whether it is a process of Quell, such as `quell load`.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.name == "quell"
    }
}

/// One thread, of a process or of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Thread {
    /// Thread ID.
    pub tid: Pid,
    /// Thread name (`comm`).
    pub name: String,
    /// Scheduler state.
    pub state: Reading<ProcessState>,
    /// CPU affinity.
    pub affinity: Reading<CpuList>,
    /// Scheduling class and priority.
    pub scheduling: Reading<Scheduling>,
    /// CPU that it last ran on.
    pub last_cpu: Reading<u32>,
    /// CPU time since its start in nanoseconds.
    pub run_ns: Reading<u64>,
    /// Time for which it was runnable but waited for a CPU, in nanoseconds.
    pub wait_ns: Reading<u64>,
    /// Epoll on which it slept when the snapshot was taken; null if it did something else.
    pub epoll_wait: Reading<Option<EpollWait>>,
    /// Other call in which it waited for a file when the snapshot was taken; absent if it did something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_wait: Option<FileWait>,
}

/// A call other than `epoll_wait` in which a thread waits for files. Busy polling of epolls does not affect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum FileWait {
    /// `poll` or `ppoll`.
    Poll,
    /// `select` or `pselect6`.
    Select,
    /// `recvfrom`, `read` or a similar call.
    Receive {
        /// File descriptor, which may belong to another file than a socket.
        fd: i32,
    },
    /// `accept` or `accept4`.
    Accept {
        /// File descriptor of the listening socket.
        fd: i32,
    },
}

/// A call of `epoll_wait` in which a thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollWait {
    /// File descriptor of the epoll in the process.
    pub epoll_fd: i32,
    /// Maximum number of events that the call returns.
    pub max_events: i32,
    /// Timeout in milliseconds; negative: infinite. Absent for `epoll_pwait2`, whose timeout is in the thread's memory.
    pub timeout_ms: Option<i32>,
}

/// An AF_XDP socket, read through a duplicate of its descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotXdpSocket {
    pub fd: i32,
    /// Queue from which it receives; null if it is not bound.
    pub bound: Reading<Option<BoundXdpQueue>>,
    /// Whether the device writes into the socket's memory. Otherwise the kernel copies.
    pub zero_copy: bool,
    /// NAPI ID (`SO_INCOMING_NAPI_ID`). Null if it is 0: such a socket cannot busy poll.
    pub napi: Option<NapiId>,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer_busy_poll: bool,
    /// `SO_BUSY_POLL` in µs.
    pub busy_poll_us: u32,
    /// Drops and errors since the socket was opened.
    pub stats: XdpSocketStats,
}

/// Queue to which an AF_XDP socket is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BoundXdpQueue {
    /// Inode of the network namespace of the device.
    pub namespace: u64,
    /// Interface index of the device.
    pub ifindex: Ifindex,
    /// Receive queue.
    pub rx_queue: u32,
    /// Whether the kernel says in the rings when it needs a call (`XDP_USE_NEED_WAKEUP`). Null if the queue was read by
    /// XDP_DIAG, which does not report it.
    pub need_wakeup: Option<bool>,
}

impl BoundXdpQueue {
    pub(crate) fn device(&self) -> DeviceKey {
        (self.namespace, self.ifindex)
    }
}

impl SnapshotXdpSocket {
    /// Whether the program polls the queue by this socket, or would if the socket had a NAPI ID.
    #[must_use]
    pub fn wants_to_poll(&self) -> bool {
        self.prefer_busy_poll || self.busy_poll_us > 0
    }

    /// Received frames that the socket lost, by reason.
    #[must_use]
    pub fn losses(&self) -> [(u64, &'static str); 3] {
        let XdpSocketStats { rx_dropped, rx_ring_full, rx_fill_ring_empty, .. } = self.stats;
        [
            (rx_dropped, "dropped"),
            (rx_ring_full.unwrap_or(0), "found the RX ring full"),
            (rx_fill_ring_empty.unwrap_or(0), "found the fill ring empty"),
        ]
    }
}

/// Open files of a process that are relevant for packet delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Files {
    /// Its epolls, in ascending order.
    pub epolls: Vec<SnapshotEpoll>,
    /// Its TCP and UDP sockets, in ascending order of descriptors.
    pub sockets: Vec<HeldSocket>,
    /// Kinds of its sockets that are neither TCP nor UDP.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub other_sockets: BTreeSet<OtherSocket>,
    /// Descriptors of AF_XDP sockets. They busy poll on their own and never suspend interrupts.
    pub xdp_sockets: Vec<i32>,
    /// What could be read of these sockets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xdp_details: Vec<SnapshotXdpSocket>,
    /// NAPI instances of TCP and UDP sockets that its threads read during an observation beside the snapshot, also if the
    /// sockets were closed at once. Empty without an observation.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub read_queues: BTreeSet<NapiId>,
    /// Descriptors of io_urings. They busy poll without suspending interrupts.
    pub io_urings: Vec<i32>,
    /// Descriptors of io_urings with requests for sockets. It is unknown of rings in neither of the two lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings_with_sockets: Vec<i32>,
    /// Descriptors of io_urings without requests for sockets, according to several lists of their requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings_without_sockets: Vec<i32>,
}

impl Files {
    /// Whether the process can busy poll a queue: by an epoll that polls or whose parameters are unknown, by an AF_XDP
    /// socket, or by an io_uring.
    #[must_use]
    pub fn can_poll(&self) -> bool {
        let polls = |epoll: &SnapshotEpoll| {
            epoll.params.known().is_none_or(|params| params.prefer_busy_poll || params.busy_poll_usecs > 0)
        };
        self.epolls.iter().any(polls) || !self.xdp_sockets.is_empty() || self.receiving_rings().next().is_some()
    }

    pub(crate) fn receiving_rings(&self) -> impl Iterator<Item = i32> + '_ {
        self.io_urings.iter().copied().filter(|fd| !self.rings_without_sockets.contains(fd))
    }
}

/// Kind of a socket that is neither TCP nor UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OtherSocket {
    Xdp,
    UnixListener,
    /// A Unix socket that does not listen.
    Unix,
    VsockListener,
    /// A vsock socket that does not listen.
    Vsock,
    Netlink,
    /// A socket of another family, or one whose family could not be read.
    Unknown,
}

impl OtherSocket {
    /// Whether it is known that none of its data passes a receive queue of a network device.
    pub(crate) fn has_no_queue(self) -> bool {
        !matches!(self, Self::Xdp | Self::Unknown)
    }
}

/// A socket and its descriptor in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HeldSocket {
    /// File descriptor.
    pub fd: i32,
    /// Inode, the key of the socket.
    pub inode: u64,
}

/// One epoll. Its key is the pair of process and file descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotEpoll {
    /// File descriptor in the process.
    pub fd: i32,
    /// Busy-poll parameters.
    pub params: Reading<EpollParams>,
    /// Watched files, in kernel order.
    pub targets: Reading<Vec<WatchedTarget>>,
    /// Those of the [`Files::read_queues`] that were read by threads which received events from this epoll.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub read_queues: BTreeSet<NapiId>,
    /// An earlier descriptor of the same epoll. A descriptor can be duplicated or inherited. Absent for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<HeldEpoll>,
}

/// A descriptor of an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HeldEpoll {
    /// Process ID.
    pub pid: Pid,
    /// File descriptor in the process.
    pub fd: i32,
}

/// A file that an epoll watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WatchedTarget {
    /// File descriptor used to add it.
    pub fd: i32,
    /// Requested events as in `epoll_ctl(2)`: `EPOLLIN` is 1, `EPOLLONESHOT` 1 << 30, `EPOLLET` 1 << 31.
    pub events: u32,
    /// The file.
    pub file: WatchedFile,
}

/// Identity of a watched file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum WatchedFile {
    /// A TCP or UDP socket.
    Socket {
        /// Inode, the key of the socket.
        inode: u64,
    },
    /// A file whose events do not come from a NAPI instance.
    Other {
        /// File type.
        kind: WatchedKind,
        /// Whether a requested event was pending when the snapshot was taken. A file that always has one keeps
        /// interrupts suspended.
        ready: Reading<bool>,
    },
}

/// Types of watched files without a NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WatchedKind {
    /// An eventfd.
    EventFd,
    /// A timerfd.
    TimerFd,
    /// A signalfd.
    SignalFd,
    /// A pipe or FIFO.
    Pipe,
    /// Another epoll. The kernel ignores its NAPI instances for the outer epoll.
    Epoll,
    /// A Unix, netlink, packet or other socket without a NAPI instance.
    OtherSocket,
    /// Another type, with the kernel's name for it.
    Named(String),
    /// The descriptor was closed or reused, so the file cannot be identified.
    Unnamed,
}
