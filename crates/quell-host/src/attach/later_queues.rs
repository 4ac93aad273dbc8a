//! Queues that deliver nothing to programs yet, and can deliver their next connections. Pure.

use std::collections::BTreeSet;

use quell_linux::ethtool::RssContextId;
use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;

use super::affected_processes::affected_processes;
use super::plan::{AttachPlan, AttachStep};
use crate::findings::CONNECTIONS_THAT_SPREAD;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Snapshot, SnapshotNapi, SocketState, arrival};

impl AttachPlan {
    /// Adds the queues from which the next connections can come to a plan that has queues. Those with other settings than
    /// the queues in use are left alone: a mode would not replace the same values there.
    pub fn add_later_queues(&mut self, snapshot: &Snapshot, targets: &BTreeSet<Pid>, mode: &DeliveryMode) {
        let query = SnapshotQuery::new(snapshot, None);
        let planned: BTreeSet<NapiId> = self.queues().map(|step| step.napi).collect();
        if planned.is_empty() {
            return;
        }
        for (device, napi) in later_queues(&query, targets) {
            if !planned.contains(&napi.id) {
                self.add_queue(&query, device, napi, mode);
            }
        }
        self.steps.sort_by_key(|step| !matches!(step, AttachStep::Queue(_)));
        self.affected_processes = affected_processes(&query, targets, self);
    }
}

/// Queues of the devices from which sockets of the programs receive, as far as RSS selects them. None of a device whose
/// queues in use have so many connections that rules direct them there.
fn later_queues<'a>(query: &SnapshotQuery<'a>, targets: &BTreeSet<Pid>) -> Vec<(&'a Device, &'a SnapshotNapi)> {
    let programs = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let sockets = || programs.clone().flat_map(|process| query.sockets_of(process));
    let delivering: BTreeSet<NapiId> = sockets().flat_map(|socket| query.queues_of(socket)).collect();
    let mut later = Vec::new();
    for device in &query.now.devices {
        let all = arrival::receiving_napis(device);
        let used: BTreeSet<NapiId> = all.intersection(&delivering).copied().collect();
        let has_come =
            |inode: &u64| query.socket(*inode).is_some_and(|socket| !used.is_disjoint(&query.queues_of(socket)));
        let connections = sockets().filter(|socket| socket.state == SocketState::Established);
        let connections: BTreeSet<u64> = connections.map(|socket| socket.inode).filter(has_come).collect();
        if connections.len() >= CONNECTIONS_THAT_SPREAD * used.len() {
            continue;
        }
        let selected = selected_by_rss(device);
        let napis = || device.napis.known_elements();
        let is_like_used = |napi: &&SnapshotNapi| {
            napis().filter(|other| used.contains(&other.id)).all(|other| has_same_settings(napi, other))
        };
        let is_later = |napi: &&SnapshotNapi| {
            let is_selected = selected.as_ref().is_none_or(|selected| selected.contains(&napi.id));
            all.contains(&napi.id) && !used.contains(&napi.id) && is_selected
        };
        later.extend(napis().filter(is_later).filter(is_like_used).map(|napi| (device, napi)));
    }
    later
}

/// Absent if the driver has no RSS, or does not report its table.
fn selected_by_rss(device: &Device) -> Option<BTreeSet<NapiId>> {
    let main = device.rss_contexts.known()?.iter().find(|context| context.id == RssContextId::MAIN)?;
    let table = main.indirection.as_ref().filter(|table| !table.is_empty())?;
    let queues = device.rx_queues.known_elements().filter(|queue| table.contains(&queue.id));
    Some(queues.filter_map(|queue| queue.napi_id()).collect())
}

fn has_same_settings(one: &SnapshotNapi, other: &SnapshotNapi) -> bool {
    let settings = |napi: &SnapshotNapi| {
        (
            napi.defer_hard_irqs.known().copied(),
            napi.gro_flush_timeout_ns.known().copied(),
            napi.irq_suspend_timeout_ns.known().copied(),
            napi.threading.known().copied(),
        )
    };
    settings(one) == settings(other)
}
