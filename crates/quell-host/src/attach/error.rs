//! Errors of attaching.

use quell_change::journal::{JournalError, Purpose};
use quell_change::persistent::PersistError;
use quell_change::target::TargetError;
use quell_change::transaction::ChangeError;
use quell_linux::Pid;

use super::pass::place;
use super::plan::AttachStep;
use crate::snapshot::TakeError;
use crate::steer::{GroupKey, LookError};

/// Reason why an attachment failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The programs could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The host could not be observed.
    #[error(transparent)]
    Look(#[from] TakeError),
    /// One of the programs is attached already.
    #[error("process {pid} is already attached ({purpose}): {}", end_first(*pid, purpose))]
    AlreadyAttached {
        /// Process ID.
        pid: Pid,
        /// Purpose recorded in its journal.
        purpose: Purpose,
    },
    /// Journals could not be read, or journals of earlier boots could not be removed.
    #[error(transparent)]
    Kept(#[from] PersistError),
    /// The kernel refused to wait for the exit of the programs.
    #[error("could not wait for the programs: {0}")]
    Wait(#[source] std::io::Error),
    /// The journal could not be created or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The transaction could not be started.
    #[error(transparent)]
    Begin(ChangeError),
    /// The keeper could not be started; nothing was changed.
    #[error("could not start the keeper process: {0}")]
    Keeper(String),
    /// The keeper has exited, so that no process would restore the settings.
    #[error("the keeper (process {0}) has exited; all changes were undone, because no process would revert them later")]
    KeeperEnded(Pid),
    /// All programs exited while the mode was applied.
    #[error("the programs exited before the mode was applied")]
    ProgramsExited,
    /// A change failed.
    #[error("{}: {source}", place(.step))]
    Change {
        /// Step that failed.
        step: Box<AttachStep>,
        /// Cause.
        source: Box<ChangeError>,
    },
    /// The change observer stopped the attachment.
    #[error("stopped on request")]
    Stopped,
    /// A filter could not be attached.
    #[error("could not steer connections to {group}: {source}")]
    Steer {
        /// Reuseport group.
        group: GroupKey,
        /// Cause.
        source: Box<ChangeError>,
    },
    /// A filter does not separate the queues of its workers.
    #[error(
        "workers of {group} receive connections from more queues than planned: the driver may not report the queue, \
         or the group may have changed"
    )]
    Mixed {
        /// Reuseport group.
        group: GroupKey,
    },
    /// Existing connections could not be listed, so that new ones cannot be attributed to the filter.
    #[error(transparent)]
    Connections(LookError),
    /// A thread could not be bound.
    #[error("could not pin thread {tid} to the CPUs of its queue: {source}")]
    Pin {
        /// Thread ID.
        tid: Pid,
        /// Cause.
        source: Box<ChangeError>,
    },
    /// Everything was set, but this value did not persist.
    #[error("{}: another program has changed the value that was set", place(.0))]
    DidNotLast(Box<AttachStep>),
}

impl AttachError {
    /// Whether the user stopped it, for example with Ctrl-C.
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

fn end_first(pid: Pid, purpose: &Purpose) -> String {
    match purpose {
        Purpose::Launch { .. } => "`quell run` started it, and undoes the mode when it exits: end it first".to_owned(),
        _ if purpose.is_of_programs() => format!("run `quell detach {pid}` first"),
        _ => "wait until that command has ended (`quell lab list`)".to_owned(),
    }
}
