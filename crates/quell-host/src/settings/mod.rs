//! Settings of queues and of epolls, changed so that no program is left stalled and put back so that nobody else's
//! change is lost. What is wanted is decided elsewhere; that it is written down first is [`crate::transaction`]'s.

pub(crate) mod affinity;
pub(crate) mod epoll;
pub(crate) mod host;
pub(crate) mod napi;
pub(crate) mod reuseport;
pub(crate) mod ring;
pub(crate) mod socket;
pub mod values;

use std::sync::Arc;

use quell_linux::CpuList;
use quell_linux::epoll_params::EpollParamsError;
use quell_linux::ethtool::FeatureError;
use quell_linux::io_uring_polling::RingPollingError;
use quell_linux::netdev::DeviceThreadingError;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::NamespaceError;
use quell_linux::pidfd::{PidFd, PidFdError};
use quell_linux::proc::{InvalidSysctlName, ProcError, ProcRoot, ProcWriteError, ProcessIdentity};
use quell_linux::reuseport::ReuseportError;
use quell_linux::sched::SchedError;
use quell_linux::socket_options::SocketOptionError;
use quell_linux::sysfs::SysfsError;

use crate::namespaces::SearchError;
use crate::resume::ResumeError;
use values::{EpollValues, NapiValues, SocketValues};

/// Why a setting could not be read, changed or put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The namespace could not be looked for.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A queue could not be read or set.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A process could not be looked at.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// A process's epoll could not be duplicated.
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    /// An epoll could not be read or set.
    #[error(transparent)]
    Epoll(#[from] EpollParamsError),
    /// A queue could not be freed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A feature could not be switched.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// Threaded NAPI could not be switched for a device.
    #[error(transparent)]
    DeviceThreading(#[from] DeviceThreadingError),
    /// A file of a device could not be read or written.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// A sysctl or the affinity of an interrupt could not be set.
    #[error(transparent)]
    ProcWrite(#[from] ProcWriteError),
    /// What is to be set is no sysctl.
    #[error(transparent)]
    SysctlName(#[from] InvalidSysctlName),
    /// A thread could not be placed.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The filter of a reuseport group could not be put on or taken off.
    #[error(transparent)]
    Reuseport(#[from] ReuseportError),
    /// A duplicate could not be looked at.
    #[error("looking at a duplicate of a socket: {0}")]
    Duplicate(#[source] std::io::Error),
    /// The sockets of a group are held by processes that may not be looked into.
    #[error("{group}: no process that holds one of its sockets may be looked into; that needs CAP_SYS_PTRACE")]
    HeldElsewhere {
        /// The group's address.
        group: String,
    },
    /// The group is not the one that was looked at.
    #[error("{group}: sockets came or went since it was looked at (a reload?); nothing was changed: try again")]
    GroupChanged {
        /// The group's address.
        group: String,
    },
    /// An io_uring could not be told how to poll.
    #[error(transparent)]
    Ring(#[from] RingPollingError),
    /// A socket could not be read or set.
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
    /// A socket's polling did not read back as it was set.
    #[error("a socket was told {asked}, and the kernel reads back {read}")]
    SocketReadBack {
        /// What it was told.
        asked: SocketValues,
        /// What came back.
        read: SocketValues,
    },
    /// A thread's CPUs did not read back as they were set.
    #[error(
        "thread {tid} was bound to CPUs {asked}, and the kernel lets it run on {read}: the others are offline, or outside of its cpuset"
    )]
    AffinityReadBack {
        /// The thread.
        tid: i32,
        /// What it was bound to.
        asked: CpuList,
        /// What came back.
        read: CpuList,
    },
    /// What was to be set is not there.
    #[error("{what} is not there")]
    Gone {
        /// What it was.
        what: String,
    },
    /// The process is not the one that was meant.
    #[error("process {pid} is gone, or is another one that got its number")]
    ProcessGone {
        /// Its number.
        pid: i32,
    },
    /// A queue's settings did not read back as they were set.
    #[error("NAPI {napi} was told {asked}, and the kernel reads back {read}")]
    NapiReadBack {
        /// The queue.
        napi: u32,
        /// What it was told.
        asked: NapiValues,
        /// What came back.
        read: NapiValues,
    },
    /// An epoll's parameters did not read back as they were set.
    #[error("epoll {fd} of process {pid} was told {asked}, and the kernel reads back {read}")]
    EpollReadBack {
        /// Whose epoll.
        pid: i32,
        /// Its number there.
        fd: i32,
        /// What it was told.
        asked: EpollValues,
        /// What came back.
        read: EpollValues,
    },
    /// All changes of one process failed for one reason.
    #[error(transparent)]
    OfAll(Arc<SettingsError>),
}

/// A handle of the process, through which its files are duplicated. It holds none of them.
///
/// # Errors
/// When the process is gone, or may not be looked at.
fn handle_of(proc: &ProcRoot, process: ProcessIdentity) -> Result<PidFd, SettingsError> {
    let handle = PidFd::open(process.pid)?;
    // Looked at while the handle is open: what is seen now is the process that the handle names.
    if !process.is_running(proc)? {
        return Err(SettingsError::ProcessGone { pid: process.pid.get() });
    }
    match proc.process(process.pid).thread_with_files(process.pid)? {
        pid if pid == process.pid => Ok(handle),
        tid => Ok(PidFd::open_thread(tid)?),
    }
}

impl SettingsError {
    /// What was to be set was not found, and may be in a network namespace that may not be opened.
    pub(crate) fn is_out_of_sight(&self) -> bool {
        match self {
            Self::Search(SearchError::Namespace(error)) | Self::Namespace(error) => error.is_denied(),
            Self::Sysfs(error) => error.is_denied(),
            _ => false,
        }
    }

    /// What was to be set is not there: the device, the queue, the process, its thread or its file is gone, or the number
    /// is another one's by now.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Netlink(error) | Self::Feature(FeatureError::Netlink(error)) => error.failure() == Failure::Absent,
            Self::Sysfs(error) => error.is_absent(),
            Self::Proc(error) => error.is_absent(),
            Self::ProcWrite(error) => error.is_absent(),
            Self::PidFd(PidFdError::NoSuchFd { .. }) | Self::Epoll(EpollParamsError::NotAnEpoll) => true,
            Self::PidFd(error) => error.is_gone(),
            Self::OfAll(error) => error.is_absent(),
            Self::Sched(SchedError::Gone { .. }) | Self::Gone { .. } | Self::ProcessGone { .. } => true,
            _ => false,
        }
    }
}
