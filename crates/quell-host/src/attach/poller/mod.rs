//! Busy polls queues from outside their programs (`userbusy`). An io_uring polls the NAPI instance of a queue by its ID, so
//! that programs of every kind have a poller: also those that wait in poll(2) or recv(2).
//!
//! - [`threads`] polls, with one thread per queue.
//! - [`process`] is the process of an attachment. It polls the queues that the journal of the attachment lists.
//! - [`watch`] is used by the owner of the attachment. It finds out that the process no longer polls.
//!
//! The queue defers interrupts. Without a poller, the queue's timer polls it after `gro-flush-timeout`, which is the safety
//! net until the owner has restored the queue.

pub mod process;
pub mod threads;
pub mod watch;

use std::io;
use std::time::Duration;

use quell_linux::NapiId;
use quell_linux::io_uring::{NapiPollError, NapiPoller};
use quell_linux::sched::SchedError;
use quell_mode::DeliveryMode;

/// Line by which the polling process says that it may poll.
pub const READY: &str = "ready";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollerError {
    #[error(transparent)]
    Poll(#[from] NapiPollError),
    #[error("the polling thread of NAPI {napi}: {source}")]
    Sched { napi: NapiId, source: SchedError },
    #[error("could not start the polling thread of NAPI {napi}: {source}")]
    Thread { napi: NapiId, source: io::Error },
    #[error("the polling thread of NAPI {0} panicked")]
    Panicked(NapiId),
    #[error("could not start the polling process: {0}")]
    Process(String),
    #[error("the polling process {pid} did not begin to poll NAPI {napi} within {} s", within.as_secs())]
    DidNotBegin { pid: quell_linux::Pid, napi: NapiId, within: Duration },
    #[error("{0}")]
    Stopped(String),
}

/// Checks that this process may poll queues by their NAPI IDs, if the mode needs it.
pub fn check(mode: &DeliveryMode) -> Result<(), NapiPollError> {
    mode.poller().map_or(Ok(()), |_| NapiPoller::new(Duration::ZERO).map(drop))
}
