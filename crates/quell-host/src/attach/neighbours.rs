//! Whom an attachment touches besides the program that it is for: everybody with sockets on the same queues, and how long
//! a packet of theirs can wait then. Pure: a function of pictures.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::{NapiId, Pid};
use serde::Serialize;

use super::plan::{Plan, QueueStep};
use crate::findings::view::{EpollView, View};

/// Another process with sockets on the queues of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Neighbour {
    /// Its number.
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// How many of its sockets arrive by these queues.
    pub sockets: usize,
    /// The queues' instances.
    pub napis: Vec<NapiId>,
    /// The longest that a packet of it can wait; absent where the mode has nobody wait.
    pub longest_wait: Option<LongestWait>,
}

/// How long a packet of a neighbour can wait at most, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LongestWait {
    /// How long, nanoseconds.
    pub ns: u64,
    /// For what.
    pub until: Until,
}

/// What ends the wait of a neighbour's packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "until", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Until {
    /// The queue's timer (`gro-flush-timeout`).
    Timer,
    /// The program has worked on all events that one `epoll_wait` gives it at most.
    BatchIsDone {
        /// How many those are.
        max_events: u32,
        /// How long it works on one, nanoseconds: measured between two pictures.
        each_ns: u64,
    },
    /// The suspension is over (`irq-suspend-timeout`): how long the program works on its events is not known, or is longer.
    SuspensionIsOver,
}

/// The other processes on the queues of `plan`, by their numbers.
pub(super) fn neighbours(view: &View<'_>, targets: &BTreeSet<Pid>, plan: &Plan) -> Vec<Neighbour> {
    let waits: BTreeMap<NapiId, Option<LongestWait>> =
        plan.queues().map(|step| (step.napi, longest_wait(view, targets, step))).collect();
    let others = view.now.processes.iter().filter(|process| !targets.contains(&process.pid));
    let neighbour = |process: &crate::picture::Process| {
        let sockets = process.files.known()?.sockets.iter().filter_map(|held| view.socket(held.inode));
        let arrive_by = sockets.filter_map(|socket| *socket.napi.known()?).filter(|napi| waits.contains_key(napi));
        let by: Vec<NapiId> = arrive_by.collect();
        let napis: BTreeSet<NapiId> = by.iter().copied().collect();
        let longest_wait = napis.iter().filter_map(|napi| waits[napi]).max();
        let (pid, name) = (process.pid, process.name.clone());
        let napis: Vec<NapiId> = napis.into_iter().collect();
        (!napis.is_empty()).then_some(Neighbour { pid, name, sockets: by.len(), napis, longest_wait })
    };
    others.filter_map(neighbour).collect()
}

/// While the program works on events the queue is not polled (`ep_poll` in `fs/eventpoll.c`), and while its interrupt is
/// deferred it is polled by the timer.
fn longest_wait(view: &View<'_>, targets: &BTreeSet<Pid>, step: &QueueStep) -> Option<LongestWait> {
    let timer_ns = step.new.gro_flush_timeout_ns.filter(|&ns| ns > 0 && step.new.defer_hard_irqs.unwrap_or(0) > 0)?;
    let timer = LongestWait { ns: timer_ns, until: Until::Timer };
    let Some(suspend_ns) = step.new.irq_suspend_timeout_ns.filter(|&ns| ns > 0) else { return Some(timer) };
    let its = view.epolls.iter().filter(|epoll| targets.contains(&epoll.process.pid));
    let batches = its.filter(|epoll| epoll.by_napi.contains_key(&step.napi)).map(|epoll| batch(view, epoll));
    // One epoll of which it is not known can be the longest.
    let longest = batches.collect::<Option<Vec<_>>>().and_then(|batches| batches.into_iter().max());
    let suspension = match longest {
        Some(batch) if batch.ns < suspend_ns => batch,
        _ => LongestWait { ns: suspend_ns, until: Until::SuspensionIsOver },
    };
    Some(timer.max(suspension))
}

fn batch(view: &View<'_>, epoll: &EpollView<'_>) -> Option<LongestWait> {
    let (_, wait) = *epoll.waiters.first()?;
    let max_events = u32::try_from(wait.max_events).ok()?;
    let each_ns = view.work_per_packet_ns(epoll)? as u64;
    let ns = each_ns.saturating_mul(max_events.into());
    Some(LongestWait { ns, until: Until::BatchIsDone { max_events, each_ns } })
}
