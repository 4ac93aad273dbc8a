//! Why an attachment was not made.

use quell_linux::Pid;

use super::pass::place;
use super::plan::Step;
use super::target::TargetError;
use crate::journal::JournalError;
use crate::kept::KeptError;
use crate::picture::TakeError;
use crate::steer::{GroupKey, LookError};
use crate::transaction::ChangeError;

/// Why a program could not be attached to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The programs could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The host could not be looked at.
    #[error(transparent)]
    Look(#[from] TakeError),
    /// One of the programs has a mode already.
    #[error("process {pid} is attached to already ({purpose}): `quell detach {pid}` first")]
    AlreadyAttached {
        /// The process.
        pid: u32,
        /// What its journal says.
        purpose: String,
    },
    /// Journals could not be read, or those from before the last boot not be removed.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The end of the programs cannot be waited for.
    #[error("waiting for the end of the programs: {0}")]
    Wait(#[source] std::io::Error),
    /// The journal could not be begun or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The transaction could not be begun.
    #[error(transparent)]
    Begin(ChangeError),
    /// The keeper could not be started, and nothing was done.
    #[error("the keeper, which puts everything back when the program ends, could not be started: {0}")]
    Keeper(String),
    /// The keeper has ended, so that nobody would put anything back.
    #[error("the keeper, process {0}, has ended: nobody would put back what was set, so it was put back now")]
    KeeperEnded(u32),
    /// A change could not be made.
    #[error("{}: {source}", place(.step))]
    Change {
        /// Which.
        step: Box<Step>,
        /// Why.
        source: Box<ChangeError>,
    },
    /// Who looked on had enough.
    #[error("stopped on request")]
    Stopped,
    /// A filter could not be put on.
    #[error("steering connections to {group}: {source}")]
    Steer {
        /// The group.
        group: GroupKey,
        /// Why.
        source: Box<ChangeError>,
    },
    /// A filter does not do what it is for.
    #[error(
        "connections to {group} that came since reach a worker by more queues than they should: the driver does not tell \
         the queue, or the group has changed"
    )]
    Mixed {
        /// The group.
        group: GroupKey,
    },
    /// The connections that are there could not be listed, so that it cannot be said of those that come whom they reach.
    #[error(transparent)]
    Connections(LookError),
    /// A thread could not be bound.
    #[error("binding thread {tid} to the CPUs of its queue: {source}")]
    Pin {
        /// Which.
        tid: Pid,
        /// Why.
        source: Box<ChangeError>,
    },
    /// Everything was set, but it did not last.
    #[error("{} was set and did not last: somebody else sets it too", place(.0))]
    DidNotLast(Box<Step>),
}

impl AttachError {
    /// It was stopped on request, after Ctrl-C for example.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Stopped => true,
            Self::Change { source, .. } | Self::Steer { source, .. } | Self::Pin { source, .. } => {
                matches!(**source, ChangeError::Stopped)
            }
            _ => false,
        }
    }
}
