//! Queues that can deliver the next connections of programs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::ethtool::RssContextId;
use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;

use super::affected_processes::affected_processes;
use super::plan::{AttachPlan, AttachStep};
use crate::findings::CONNECTIONS_THAT_SPREAD;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Snapshot, SnapshotNapi, SnapshotSocket, SocketState, arrival};

impl AttachPlan {
    /// Adds these queues to a plan that has queues.
    pub(crate) fn add_later_queues(
        &mut self,
        query: &SnapshotQuery<'_>,
        targets: &BTreeSet<Pid>,
        later: &BTreeSet<NapiId>,
        mode: &DeliveryMode,
    ) {
        if self.queues().next().is_none() {
            return;
        }
        for (device, napi) in later.iter().filter_map(|id| query.napi(*id)) {
            self.add_queue(query, device, napi, mode);
        }
        self.steps.sort_by_key(|step| !matches!(step, AttachStep::Queue(_)));
        self.affected_processes = affected_processes(query, targets, self);
    }
}

/// Queues that deliver nothing to the programs yet, and can deliver their next connections: those that RSS selects on
/// devices from which the programs receive. None of a device whose queues in use have so many connections that rules
/// direct them there. Queues with other settings than those in use are left out: a mode would not replace the same values.
#[must_use]
pub fn later_queues(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> BTreeSet<NapiId> {
    let query = SnapshotQuery::new(snapshot, None);
    let processes = || snapshot.processes.iter().filter(|process| programs.contains(&process.pid));
    let sockets: BTreeMap<u64, &SnapshotSocket> =
        processes().flat_map(|process| query.sockets_of(process)).map(|socket| (socket.inode, socket)).collect();
    let files = processes().filter_map(|process| process.files.known());
    let delivering: BTreeSet<NapiId> = files.flat_map(|files| query.napis_of(files)).collect();
    let connections = sockets.values().filter(|socket| socket.state == SocketState::Established);
    let queues_of_connections: Vec<BTreeSet<NapiId>> = connections.map(|socket| query.queues_of(socket)).collect();
    let mut later = BTreeSet::new();
    for device in &snapshot.devices {
        let all = arrival::receiving_napis(device);
        let used: BTreeSet<NapiId> = all.intersection(&delivering).copied().collect();
        let connections = queues_of_connections.iter().filter(|queues| !queues.is_disjoint(&used)).count();
        if connections >= CONNECTIONS_THAT_SPREAD * used.len() {
            continue;
        }
        let selected = selected_by_rss(device);
        let napis = || device.napis.known_elements();
        let is_like_used = |napi: &&SnapshotNapi| {
            napis().filter(|other| used.contains(&other.id)).all(|other| other.settings() == napi.settings())
        };
        let is_later = |napi: &&SnapshotNapi| {
            let is_selected = selected.as_ref().is_none_or(|selected| selected.contains(&napi.id));
            all.contains(&napi.id) && !used.contains(&napi.id) && is_selected
        };
        later.extend(napis().filter(is_later).filter(is_like_used).map(|napi| napi.id));
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
