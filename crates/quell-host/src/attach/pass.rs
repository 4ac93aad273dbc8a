//! What one look at the programs of an attachment came to, as data, and what its steps are called.

use super::plan::{EpollStep, QueueStep, Step};
use super::pollers::{RingStep, SocketsStep};
use crate::journal::Target;
use crate::picture::Picture;
use crate::transaction::ChangeError;

/// What one look came to.
#[derive(Debug, Default)]
pub struct Pass {
    /// Processes that came.
    pub came: Vec<Target>,
    /// Processes that ended.
    pub ended: Vec<Target>,
    /// What was set.
    pub made: Vec<Step>,
    /// What somebody else has changed since it was set: it is left alone, and told once.
    pub changed_by_others: Vec<Step>,
    /// What could not be set; it is not tried again.
    pub failed: Vec<(Step, ChangeError)>,
    /// What was looked at, before anything was set; absent when none of the programs lives any more.
    pub picture: Option<Picture>,
    /// None of the programs lives any more.
    pub over: bool,
}

/// What a step is about, in words.
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
