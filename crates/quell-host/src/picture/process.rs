//! A process as far as it receives packets: its threads, its epolls with what they watch, and its sockets.

use quell_linux::epoll_params::EpollParams;
use quell_linux::proc::ProcessState;
use quell_linux::sched::Scheduling;
use quell_linux::{CpuList, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Process {
    /// Its number, in the reader's pid namespace.
    pub pid: Pid,
    /// When it started, clock ticks since boot: with its number it is told from all others of this boot.
    pub start_time_ticks: u64,
    /// The name of its main thread.
    pub name: String,
    /// The inode of its network namespace. A socket of it may have been made in another.
    pub namespace: Reading<u64>,
    /// Its threads, ascending.
    pub threads: Reading<Vec<Thread>>,
    /// What it has open.
    pub files: Reading<Files>,
}

/// One thread, of a process or of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Thread {
    /// Its number.
    pub tid: Pid,
    /// Its name.
    pub name: String,
    /// What it was doing.
    pub state: Reading<ProcessState>,
    /// The CPUs that it may run on.
    pub affinity: Reading<CpuList>,
    /// How it is scheduled.
    pub scheduling: Reading<Scheduling>,
    /// The CPU that it ran on last.
    pub last_cpu: Reading<u32>,
    /// Time on a CPU since it started, nanoseconds.
    pub run_ns: Reading<u64>,
    /// Time that it was ready but had no CPU, nanoseconds.
    pub wait_ns: Reading<u64>,
    /// The epoll that it slept on when the picture was taken; known to be none when it did something else.
    pub epoll_wait: Reading<Option<EpollWait>>,
}

/// A call of `epoll_wait` that a thread sleeps in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollWait {
    /// The epoll, by its number in the process.
    pub epoll_fd: i32,
    /// How many events it takes at most.
    pub max_events: i32,
    /// How long it waits at most, milliseconds, negative: forever; absent for `epoll_pwait2`, whose timeout is in the
    /// thread's memory.
    pub timeout_ms: Option<i32>,
}

/// What a process has open, as far as it matters to packet delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Files {
    /// Its epolls, ascending.
    pub epolls: Vec<Epoll>,
    /// Its TCP and UDP sockets, ascending by number.
    pub sockets: Vec<HeldSocket>,
    /// AF_XDP sockets, by number: they busy poll by themselves, and nothing suspends interrupts for them.
    pub xdp_sockets: Vec<i32>,
    /// io_urings, by number: they busy poll, but suspend no interrupts.
    pub io_urings: Vec<i32>,
}

/// A socket under the number that the process has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HeldSocket {
    /// The number.
    pub fd: i32,
    /// The key of the socket.
    pub inode: u64,
}

/// One epoll. Its key is its process with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Epoll {
    /// Its number in the process.
    pub fd: i32,
    /// Its busy-poll parameters.
    pub params: Reading<EpollParams>,
    /// What it watches, in the kernel's order.
    pub targets: Reading<Vec<WatchedTarget>>,
}

/// One file that an epoll watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WatchedTarget {
    /// The number by which it was added.
    pub fd: i32,
    /// The events of interest as in `epoll_ctl(2)`: `EPOLLIN` is 1, `EPOLLONESHOT` 1 << 30, `EPOLLET` 1 << 31.
    pub events: u32,
    /// What it is.
    pub file: WatchedFile,
}

/// What an epoll watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum WatchedFile {
    /// A TCP or UDP socket.
    Socket {
        /// Its key.
        inode: u64,
    },
    /// A file whose events do not come by a NAPI.
    Other {
        /// What kind it is.
        kind: WatchedKind,
        /// An event of interest was there when the picture was taken. One that always is keeps interrupts suspended.
        ready: Reading<bool>,
    },
}

/// Files that can be watched and have no NAPI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Another epoll, which gives the outer one no NAPI.
    Epoll,
    /// A unix, netlink, packet or other socket without a NAPI of its own.
    OtherSocket,
    /// Something else, by the kernel's name for it.
    Named(String),
    /// The number was closed or used again since it was added, so that the file cannot be named.
    Unnamed,
}
