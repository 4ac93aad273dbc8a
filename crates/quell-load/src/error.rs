//! What keeps a load from starting or going on at all. Errors of single requests are no `LoadError`:
//! they are counted in the report ([`crate::ErrorCounts`]).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::netns::NamespaceError;
use quell_linux::sched::SchedError;
use thiserror::Error;

/// Why a generator could not be set up or could not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The specification contradicts itself or exceeds a bound; nothing has been done.
    #[error("load: {field}: {problem}")]
    Spec {
        /// The field of [`crate::LoadSpec`] or [`crate::RunSpec`].
        field: &'static str,
        /// What is wrong with it and what is allowed.
        problem: String,
    },
    /// A connection could not be made before the run.
    #[error("connecting to {address}: {source}; is a server listening there?")]
    Connect {
        /// The server's address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A generator thread could not enter the network namespace.
    #[error("generator thread: {0}")]
    Namespace(#[from] NamespaceError),
    /// A thread could not be pinned.
    #[error("pinning a thread: {0}")]
    Pin(#[from] SchedError),
    /// Another system call failed.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Keys were stored but are not all there with their values: a server with too little memory,
    /// or one that answers something else.
    #[error(
        "preload: of {keys} keys the server holds {present} with the right value ({errors}); \
         one with too little memory needs more of it, or fewer keys"
    )]
    Preload {
        /// How many keys were to be stored.
        keys: u64,
        /// How many were read back with the value that was stored.
        present: u64,
        /// What went wrong on the way, in words.
        errors: String,
    },
    /// The server took too long to store the keys.
    #[error(
        "preload: the server has {phase} {done} of {keys} keys, and {limit:?} are over; \
         allow it more time, or ask for fewer keys"
    )]
    PreloadTooSlow {
        /// How many keys were to be stored and read back.
        keys: u64,
        /// What was being done: `stored` or `read back`.
        phase: &'static str,
        /// How many keys that was done with.
        done: u64,
        /// The time for all of it.
        limit: Duration,
    },
    /// The run was cancelled by its observer.
    #[error("the load was cancelled")]
    Cancelled,
    /// A generator thread ended unexpectedly.
    #[error("a generator thread has ended unexpectedly")]
    ThreadLost,
}

impl LoadError {
    pub(crate) fn spec(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Spec { field, problem: problem.into() }
    }

    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
