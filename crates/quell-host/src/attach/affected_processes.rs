//! Processes outside the attachment whose sockets use the same queues, and the longest delay of their packets. Pure:
//! computed from snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::{NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

use super::plan::{AttachPlan, QueueStep};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Process, SnapshotSocket};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AffectedProcess {
    pub pid: Pid,
    pub name: String,
    pub sockets: usize,
    /// Whether each of these sockets is the other end of a connection of the programs.
    pub is_client: bool,
    pub napis: Vec<NapiId>,
    /// Longest delay of one of its packets; absent if the mode delays no packets.
    pub longest_wait: Option<LongestWait>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LongestWait {
    pub ns: u64,
    pub until: Until,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(tag = "until", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Until {
    GroFlushTimeout,
    /// The suspension times out (`irq-suspend-timeout`), because the program still handles the events of one `epoll_wait`.
    IrqSuspendTimeout,
}

pub(super) fn affected_processes(
    query: &SnapshotQuery<'_>,
    targets: &BTreeSet<Pid>,
    plan: &AttachPlan,
) -> Vec<AffectedProcess> {
    let waits: BTreeMap<NapiId, Option<LongestWait>> =
        plan.queues().map(|step| (step.napi, longest_wait(step))).collect();
    let (theirs, others): (Vec<&Process>, Vec<_>) =
        query.now.processes.iter().partition(|process| targets.contains(&process.pid));
    let ends = |socket: &SnapshotSocket| {
        let end = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Some((end(socket.local?), end(socket.remote?)))
    };
    let accepted: BTreeSet<_> =
        theirs.into_iter().flat_map(|process| query.sockets_of(process)).filter_map(ends).collect();
    let is_theirs =
        |socket: &SnapshotSocket| ends(socket).is_some_and(|(local, remote)| accepted.contains(&(remote, local)));
    let is_set = |napis: &BTreeSet<NapiId>| napis.iter().any(|napi| waits.contains_key(napi));
    let affected = |process: &Process| {
        let files = process.files.known()?;
        let sockets = query.sockets_of(process).map(|socket| (query.queues_of(socket), is_theirs(socket)));
        let by_xdp = files.xdp_details.iter().filter_map(|socket| query.napi_of_xdp(socket).ok()?);
        let arrive_by = sockets.chain(by_xdp.map(|napi| (BTreeSet::from([napi]), false)));
        let (by, are_theirs): (Vec<BTreeSet<NapiId>>, Vec<bool>) = arrive_by.filter(|(napis, _)| is_set(napis)).unzip();
        let napis: BTreeSet<NapiId> = by.iter().flatten().copied().filter(|napi| waits.contains_key(napi)).collect();
        let longest_wait = napis.iter().filter_map(|napi| waits[napi]).max();
        let (pid, name) = (process.pid, process.name.clone());
        let napis: Vec<NapiId> = napis.into_iter().collect();
        (!napis.is_empty()).then_some(AffectedProcess {
            pid,
            name,
            sockets: by.len(),
            is_client: are_theirs.iter().all(|is_theirs| *is_theirs),
            napis,
            longest_wait,
        })
    };
    others.into_iter().filter_map(affected).collect()
}

/// Nothing polls the queue while the program handles events (`ep_poll` in `fs/eventpoll.c`). With a deferred interrupt,
/// the timer polls it.
fn longest_wait(step: &QueueStep) -> Option<LongestWait> {
    let timer_ns = step.new.gro_flush_timeout_ns.filter(|&ns| ns > 0 && step.new.defer_hard_irqs.unwrap_or(0) > 0)?;
    let timer = LongestWait { ns: timer_ns, until: Until::GroFlushTimeout };
    let Some(suspend_ns) = step.new.irq_suspend_timeout_ns.filter(|&ns| ns > 0) else { return Some(timer) };
    Some(timer.max(LongestWait { ns: suspend_ns, until: Until::IrqSuspendTimeout }))
}
