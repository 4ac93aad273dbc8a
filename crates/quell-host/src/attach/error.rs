//! Errors of attaching.

use quell_change::journal::{JournalError, Purpose, TargetProgram};
use quell_change::persistent::PersistError;
use quell_change::target::TargetError;
use quell_change::transaction::ChangeError;
use quell_linux::Pid;

use super::pass::describe_step;
use super::plan::AttachStep;
use super::poller::PollerError;
use crate::snapshot::TakeError;
use crate::steer::{GroupKey, LookError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Look(#[from] TakeError),
    #[error("process {pid} is already attached ({purpose}): {}", end_first(*pid, purpose))]
    AlreadyAttached { pid: Pid, purpose: Purpose },
    #[error(
        "process {pid}: process {by} still makes its attachment ({purpose}): wait until that command says whether the \
         mode is in effect, or end it"
    )]
    BeingAttached { pid: Pid, purpose: Purpose, by: Pid },
    #[error(
        "process {pid} is attached ({purpose}) together with process {}, whose mode would change too: \
         select all of them, or run `quell detach {pid}` first",
        pids(others)
    )]
    AttachedWithOthers { pid: Pid, purpose: Purpose, others: Vec<TargetProgram> },
    #[error(transparent)]
    Kept(#[from] PersistError),
    #[error("could not wait for the programs: {0}")]
    Wait(#[source] std::io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Begin(ChangeError),
    #[error("could not start the keeper process: {0}")]
    Keeper(String),
    #[error(transparent)]
    Poller(#[from] PollerError),
    #[error("the keeper (process {0}) has exited; all changes were undone, because no process would revert them later")]
    KeeperEnded(Pid),
    #[error("the programs exited before the mode was applied")]
    ProgramsExited,
    #[error("{}: {source}", describe_step(.step))]
    Change { step: Box<AttachStep>, source: Box<ChangeError> },
    #[error("stopped on request")]
    Stopped,
    #[error("could not steer connections to {group}: {source}")]
    Steer { group: GroupKey, source: Box<ChangeError> },
    #[error(
        "workers of {group} receive connections from more queues than planned: the driver may not report the queue, \
         or the group may have changed"
    )]
    Mixed { group: GroupKey },
    /// Existing connections could not be listed, so that new ones cannot be attributed to the filter.
    #[error(transparent)]
    Connections(LookError),
    #[error("could not pin thread {tid} to the CPUs of its queue: {source}")]
    Pin { tid: Pid, source: Box<ChangeError> },
    #[error("{}: another program has changed the value that was set", describe_step(.0))]
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

fn pids(programs: &[TargetProgram]) -> String {
    programs.iter().map(|program| program.pid.to_string()).collect::<Vec<_>>().join(", ")
}

fn end_first(pid: Pid, purpose: &Purpose) -> String {
    match purpose {
        Purpose::Launch { .. } => "`quell run` started it, and undoes the mode when it exits: end it first".to_owned(),
        _ if purpose.is_of_programs() => format!("run `quell detach {pid}` first"),
        _ => "wait until that command has ended (`quell lab list`)".to_owned(),
    }
}
