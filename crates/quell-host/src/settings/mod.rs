//! Settings of queues and of epolls, changed so that no program is left stalled and put back so that nobody else's
//! change is lost. What is wanted is decided elsewhere; that it is written down first is [`crate::transaction`]'s.

pub(crate) mod epoll;
pub(crate) mod napi;
pub mod values;

use quell_linux::epoll_params::EpollParamsError;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::NamespaceError;
use quell_linux::pidfd::PidFdError;
use quell_linux::proc::ProcError;

use crate::namespaces::SearchError;
use crate::resume::ResumeError;
use values::{EpollValues, NapiValues};

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
}
