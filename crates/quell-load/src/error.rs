//! Errors that prevent or abort a load. Errors of single requests are counted in the report instead
//! ([`crate::ErrorCounts`]).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::netns::NamespaceError;
use quell_linux::sched::SchedError;
use thiserror::Error;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The specification is contradictory or exceeds a limit. Nothing has been done.
    #[error("load: {field}: {problem}")]
    Spec {
        field: &'static str,
        /// Description of the error, with the allowed values.
        problem: String,
    },
    #[error("could not connect to {address}: {source}; is a server listening there?")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("could not listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("a generator thread could not enter the network namespace: {0}")]
    Namespace(#[from] NamespaceError),
    #[error("could not pin a thread: {0}")]
    Pin(#[from] SchedError),
    #[error("could not {action}: {source}")]
    System {
        /// Attempted action, in the infinitive: `create a socket`.
        action: &'static str,
        source: io::Error,
    },
    /// Some stored keys are missing or have wrong values: the server has too little memory or answers incorrectly.
    #[error(
        "preload: the server holds {present} of {keys} keys with the expected value ({errors}); \
         give it more memory, or use fewer keys"
    )]
    Preload {
        keys: u64,
        /// Number of keys that were read back with the stored value.
        present: u64,
        errors: String,
    },
    #[error(
        "preload: the server has {phase} {done} of {keys} keys within the time limit of {limit:?}; \
         increase the limit, or use fewer keys"
    )]
    PreloadTooSlow {
        keys: u64,
        /// Current phase: `stored` or `read back`.
        phase: &'static str,
        done: u64,
        limit: Duration,
    },
    #[error("the load was cancelled")]
    Cancelled,
    #[error("a generator thread has exited unexpectedly")]
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
