//! Result of one pass over the programs of an attachment, and texts that identify its steps.

use super::plan::{EpollStep, QueueStep, Step};
use super::pollers::{RingStep, SocketsStep};
use crate::journal::Target;
use crate::snapshot::Snapshot;
use crate::transaction::ChangeError;

/// Result of one pass.
#[derive(Debug, Default)]
pub struct Pass {
    /// Processes that appeared.
    pub came: Vec<Target>,
    /// Processes that exited.
    pub ended: Vec<Target>,
    /// Steps that were applied.
    pub made: Vec<Step>,
    /// Steps whose value another program has changed since. Each is reported once and not set again.
    pub changed_by_others: Vec<Step>,
    /// Steps that failed; they are not retried.
    pub failed: Vec<(Step, ChangeError)>,
    /// Snapshot taken before any change of this pass; absent when all programs have exited.
    pub snapshot: Option<Snapshot>,
    /// Whether all programs have exited.
    pub over: bool,
}

/// Text that identifies the object of a step.
#[must_use]
pub fn place(step: &Step) -> String {
    match step {
        Step::Queue(QueueStep { device, napi, queues, .. }) if queues.is_empty() => format!("NAPI {napi} of {device}"),
        Step::Queue(QueueStep { device, napi, queues, .. }) => {
            let queues = queues.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("NAPI {napi} ({device} rx {queues})")
        }
        Step::Epoll(EpollStep { pid, process, fd, .. }) => format!("epoll {fd} of {process} {pid}"),
        Step::Sockets(SocketsStep { pid, process, sockets, .. }) => {
            format!("{} sockets of {process} {pid}", sockets.len())
        }
        Step::Ring(RingStep { pid, process, fd, .. }) => format!("io_uring {fd} of {process} {pid}"),
    }
}
