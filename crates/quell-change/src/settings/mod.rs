//! Changes settings of queues, epolls and other objects without stalling a program, and restores them without
//! overwriting changes by other programs. Other modules decide the values; [`crate::transaction`] records each change
//! first.

pub mod affinity;
pub mod epoll;
pub(crate) mod host;
pub(crate) mod launched;
pub(crate) mod napi;
pub(crate) mod objects;
#[cfg(test)]
mod owners_model;
pub(crate) mod reuseport;
pub(crate) mod ring;
pub mod socket;
pub mod values;

use std::fmt;
use std::sync::Arc;

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
use quell_linux::{CpuList, Pid};
use quell_mode::{EpollParams, PartialNapiSettings};
use tracing::debug;

use crate::namespaces::SearchError;
use crate::resume::ResumeError;
pub use napi::{instance_of_change, set as set_queue};
use values::SocketValues;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    #[error(transparent)]
    Epoll(#[from] EpollParamsError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error(transparent)]
    Feature(#[from] FeatureError),
    #[error(transparent)]
    DeviceThreading(#[from] DeviceThreadingError),
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error(transparent)]
    ProcWrite(#[from] ProcWriteError),
    #[error(transparent)]
    SysctlName(#[from] InvalidSysctlName),
    #[error(transparent)]
    Sched(#[from] SchedError),
    #[error(transparent)]
    Reuseport(#[from] ReuseportError),
    #[error("could not inspect a duplicate of a socket: {0}")]
    Duplicate(#[source] std::io::Error),
    #[error("{group}: no permission to inspect a process that holds one of its sockets; needs CAP_SYS_PTRACE")]
    HeldElsewhere { group: String },
    #[error("{group}: its sockets have changed since the snapshot (a reload?); nothing was changed: try again")]
    GroupChanged { group: String },
    #[error("{group}: could not keep the server's own filter: {source}; nothing was changed")]
    FilterNotKept { group: String, source: std::io::Error },
    #[error("{group}: could not attach the server's own filter again: {path}: {source}")]
    FilterGone { group: String, path: String, source: std::io::Error },
    #[error(transparent)]
    Ring(#[from] RingPollingError),
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
    #[error("a socket was set to {asked}, but the kernel reports {read}")]
    SocketReadBack { asked: SocketValues, read: SocketValues },
    #[error(
        "thread {tid} was pinned to CPUs {asked}, but the kernel reports {read}: the remaining CPUs are offline or outside its cpuset"
    )]
    AffinityReadBack { tid: Pid, asked: CpuList, read: CpuList },
    #[error("{what} does not exist")]
    Gone { what: String },
    #[error("process {pid} has exited; its PID may have been reused")]
    ProcessGone { pid: Pid },
    #[error("NAPI {napi} was set to {asked}, but the kernel reports {read}")]
    NapiReadBack { napi: u32, asked: PartialNapiSettings, read: PartialNapiSettings },
    #[error("epoll {fd} of process {pid} was set to {asked}, but the kernel reports {read}")]
    EpollReadBack { pid: Pid, fd: i32, asked: EpollParams, read: EpollParams },
    /// All changes of one process failed for the same reason.
    #[error(transparent)]
    OfAll(Arc<SettingsError>),
}

pub(crate) fn answered<T, E: fmt::Display>(answer: Result<T, E>) -> Result<T, E> {
    match &answer {
        Ok(_) => debug!("the kernel accepted the change"),
        Err(error) => debug!(%error, "the kernel refused the change"),
    }
    answer
}

pub(crate) fn not_possible(error: &SettingsError) {
    debug!(%error, "the change cannot be prepared");
}

/// Opens a pidfd, through which descriptors of the process are duplicated. It keeps no file open.
fn handle_of(proc: &ProcRoot, process: ProcessIdentity) -> Result<PidFd, SettingsError> {
    let handle = PidFd::open(process.pid)?;
    // Check while the pidfd is open, so that both refer to the same process.
    if !process.is_running(proc)? {
        return Err(SettingsError::ProcessGone { pid: process.pid });
    }
    match proc.process(process.pid).thread_with_files(process.pid)? {
        pid if pid == process.pid => Ok(handle),
        tid => Ok(PidFd::open_thread(tid)?),
    }
}

impl SettingsError {
    /// Whether the object was not found, but may be in an inaccessible network namespace.
    pub fn is_out_of_sight(&self) -> bool {
        match self {
            Self::Search(SearchError::Namespace(error)) | Self::Namespace(error) => error.is_denied(),
            Self::Sysfs(error) => error.is_denied(),
            _ => false,
        }
    }

    /// Whether the object is absent: the device, queue, process, thread or file is gone, or its number was reused.
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
