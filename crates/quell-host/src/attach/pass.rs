//! Result of one pass over the programs of an attachment, and texts that identify its steps.

use std::collections::BTreeSet;

use quell_change::journal::TargetProgram;
use quell_change::transaction::ChangeError;
use quell_linux::visible::counted;

use super::plan::{AttachStep, EpollStep, QueueStep};
use super::pollers::{RingStep, SocketsStep};
use crate::snapshot::Snapshot;

#[derive(Debug, Default)]
pub struct Pass {
    pub started: Vec<TargetProgram>,
    pub ended: Vec<TargetProgram>,
    pub made: Vec<AttachStep>,
    /// Steps whose value another program has changed since. Each is reported once and not set again.
    pub changed_by_others: Vec<AttachStep>,
    /// Steps that failed; they are not retried.
    pub failed: Vec<(AttachStep, ChangeError)>,
    /// Queues of the attachment that do not exist at present: device, receive queue.
    pub missing: BTreeSet<(String, u32)>,
    /// Snapshot taken before any change of this pass; absent when all programs have exited.
    pub snapshot: Option<Snapshot>,
    pub over: bool,
}

#[must_use]
pub fn describe_step(step: &AttachStep) -> String {
    match step {
        AttachStep::Queue(QueueStep { device, napi, queues, .. }) if queues.is_empty() => {
            format!("NAPI {napi} of {device}")
        }
        AttachStep::Queue(QueueStep { device, napi, queues, .. }) => {
            let queues = queues.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("NAPI {napi} ({device} rx {queues})")
        }
        AttachStep::Epoll(EpollStep { pid, process, fd, .. }) => format!("epoll {fd} of {process} {pid}"),
        AttachStep::Sockets(SocketsStep { pid, process, sockets, .. }) => {
            format!("{} of {process} {pid}", counted(sockets.len(), "socket"))
        }
        AttachStep::Ring(RingStep { pid, process, fd, .. }) => format!("io_uring {fd} of {process} {pid}"),
    }
}
