//! Queues of an attachment whose NAPI instance is gone. A driver recreates them when the link goes down and up, or the
//! number of queues changes. The successor gets the mode before the first packet of the program: its sockets report the new
//! instance only with their next packet, which can be late. Pure.

use std::collections::BTreeSet;

use quell_linux::NapiId;
use quell_mode::DeliveryMode;

use super::plan::{AttachPlan, QueueStep};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Snapshot};

/// Plans the successors of `queues`, which have the mode. Returns the queues without one at present, with the names of
/// their devices.
pub(super) fn add_successors<'a>(
    plan: &mut AttachPlan,
    snapshot: &Snapshot,
    queues: impl Iterator<Item = &'a QueueStep>,
    mode: &DeliveryMode,
) -> BTreeSet<(String, u32)> {
    let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
    let present: BTreeSet<NapiId> = napis.map(|napi| napi.id).collect();
    let lost: Vec<&QueueStep> = queues.filter(|queue| !present.contains(&queue.napi)).collect();
    let mut missing = BTreeSet::new();
    if lost.is_empty() {
        return missing;
    }
    let query = SnapshotQuery::new(snapshot, None);
    for lost in lost {
        // A device that is gone, renamed, or in a namespace that the snapshot leaves out has no known successors.
        let Some(device) = device_of(snapshot, lost) else { continue };
        for &number in &lost.queues {
            let polls = |id: &NapiId| {
                device.rx_queues.known_elements().any(|queue| queue.id == number && queue.napi_id() == Some(*id))
            };
            let successor = device.napis.known_elements().find(|napi| polls(&napi.id));
            let Some(napi) = successor else {
                missing.insert((device.name.clone(), number));
                continue;
            };
            if plan.queues().all(|step| step.napi != napi.id) {
                plan.add_queue(&query, device, napi, mode);
            }
        }
    }
    missing
}

fn device_of<'a>(snapshot: &'a Snapshot, queue: &QueueStep) -> Option<&'a Device> {
    let is_its = |cookie: &u64| *cookie == queue.namespace_cookie;
    let namespace = snapshot.namespaces.iter().find(|namespace| namespace.cookie.known().is_some_and(is_its))?;
    snapshot.devices.iter().find(|device| (device.namespace, &device.name) == (namespace.inode, &queue.device))
}

#[cfg(test)]
mod tests {
    use quell_mode::PartialNapiSettings;

    use super::*;

    fn host() -> (Snapshot, QueueStep) {
        let snapshot = Snapshot::parse(include_bytes!("../../tests/fixtures/healthy.json")).unwrap();
        let has_napi = |device: &&Device| device.rx_queues.known_elements().any(|queue| queue.napi_id().is_some());
        let device = snapshot.devices.iter().find(has_napi).unwrap();
        let queue = device.rx_queues.known_elements().find(|queue| queue.napi_id().is_some()).unwrap();
        let namespace = snapshot.namespaces.iter().find(|namespace| namespace.inode == device.namespace).unwrap();
        let step = QueueStep {
            namespace_cookie: *namespace.cookie.known().unwrap(),
            device: device.name.clone(),
            queues: vec![queue.id],
            napi: queue.napi_id().unwrap(),
            irq: None,
            old: PartialNapiSettings::NONE,
            new: PartialNapiSettings::NONE,
        };
        (snapshot, step)
    }

    fn planned(snapshot: &Snapshot, queue: &QueueStep) -> (Vec<NapiId>, BTreeSet<(String, u32)>) {
        let mut plan = AttachPlan::default();
        let mode = "suspend20".parse().unwrap();
        let missing = add_successors(&mut plan, snapshot, std::iter::once(queue), &mode);
        (plan.queues().map(|step| step.napi).collect(), missing)
    }

    #[test]
    fn a_queue_that_a_driver_has_recreated_gets_the_mode_before_a_packet_arrives() {
        let (snapshot, queue) = host();
        assert_eq!(planned(&snapshot, &queue), (Vec::new(), BTreeSet::new()), "its instance is there");
        let before = QueueStep { napi: NapiId::from_kernel(1_000_000).unwrap(), ..queue.clone() };
        assert_eq!(planned(&snapshot, &before), (vec![queue.napi], BTreeSet::new()));
    }

    #[test]
    fn a_queue_without_a_successor_is_missing_and_a_device_that_is_gone_has_none() {
        let (snapshot, queue) = host();
        let lost = QueueStep { napi: NapiId::from_kernel(1_000_000).unwrap(), queues: vec![4_000], ..queue.clone() };
        assert_eq!(planned(&snapshot, &lost), (Vec::new(), BTreeSet::from([(queue.device.clone(), 4_000)])));
        let gone = QueueStep { device: "gone0".to_owned(), ..lost };
        assert_eq!(planned(&snapshot, &gone), (Vec::new(), BTreeSet::new()));
    }
}
