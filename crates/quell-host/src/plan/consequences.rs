//! Predicts the findings that a profile would cause. Pure.

use quell_linux::NapiId;
use quell_linux::ethtool::{Coalescing, EthtoolFeature, Features};

use super::{DeviceId, PlannedChange, PlannedQueue, ProfilePlan};
use crate::behavior::Behavior;
use crate::findings::{Finding, added};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Reading, RxQueue, Snapshot};

/// Findings that the plan would add, most severe first. `before` is an earlier snapshot, `behavior` what the programs did
/// in between.
#[must_use]
pub fn consequences_of_profile(
    now: &Snapshot,
    before: Option<&Snapshot>,
    plan: &ProfilePlan,
    behavior: Option<&Behavior>,
) -> Vec<Finding> {
    added(now, &after(now, plan), before, behavior)
}

/// The snapshot with the changes that rules examine. Queues that the plan creates are missing.
pub(crate) fn after(now: &Snapshot, plan: &ProfilePlan) -> Snapshot {
    let mut after = now.clone();
    plan.steps.iter().for_each(|step| make(&mut after, &step.change));
    after
}

/// Whether a program has an epoll with sockets on a queue that the plan sets.
pub(crate) fn concerns_programs(now: &Snapshot, plan: &ProfilePlan) -> bool {
    let query = SnapshotQuery::new(now, None);
    let napi = |change: &PlannedChange| match change {
        PlannedChange::Napi(queue) => queue.napi,
        _ => None,
    };
    plan.steps.iter().filter_map(|step| napi(&step.change)).any(|id: NapiId| query.epolls_on(id).next().is_some())
}

fn make(snapshot: &mut Snapshot, change: &PlannedChange) {
    match change {
        PlannedChange::Napi(PlannedQueue { napi: Some(id), values, .. }) => {
            let napis = snapshot.devices.iter_mut().flat_map(|device| elements(&mut device.napis));
            if let Some(new) = &values.new {
                napis.filter(|napi| napi.id == *id).for_each(|napi| napi.set(new));
            }
        }
        PlannedChange::Feature { device, name, on } => {
            let features = device_of(snapshot, device).and_then(|device| known(&mut device.features));
            if let Some((features, &active)) = features.zip(on.new.as_ref()) {
                let switched = |(its, now): (&str, EthtoolFeature)| {
                    let new = EthtoolFeature { active, wanted: active, ..now };
                    (its.to_owned(), if its == name { new } else { now })
                };
                *features = features.iter().map(switched).collect::<Features>();
            }
        }
        PlannedChange::Channels { device, counts } => {
            let channels = device_of(snapshot, device).and_then(|device| known(&mut device.channels));
            if let Some((channels, new)) = channels.zip(counts.new) {
                channels.combined_count = new.combined.or(channels.combined_count);
                channels.rx_count = new.rx.or(channels.rx_count);
                channels.tx_count = new.tx.or(channels.tx_count);
            }
        }
        PlannedChange::Rings { device, sizes } => {
            let rings = device_of(snapshot, device).and_then(|device| known(&mut device.rings));
            if let Some((rings, new)) = rings.zip(sizes.new) {
                (rings.rx, rings.tx) = (new.rx.or(rings.rx), new.tx.or(rings.tx));
            }
        }
        PlannedChange::Coalescing { device, values } => {
            let present = device_of(snapshot, device).and_then(|device| known(&mut device.coalescing));
            present.zip(values.new.as_ref()).into_iter().for_each(|(present, new)| coalesce(present, new));
        }
        PlannedChange::QueueCoalescing { device, queue, values } => {
            let present = rx_queue(snapshot, device, *queue).and_then(|rx| known(&mut rx.coalescing));
            present.zip(values.new.as_ref()).into_iter().for_each(|(present, new)| coalesce(present, new));
        }
        PlannedChange::Sysctl { name, value } => {
            let sysctl = match name.as_str() {
                "net.core.busy_poll" => &mut snapshot.sysctls.busy_poll_us,
                "net.core.busy_read" => &mut snapshot.sysctls.busy_read_us,
                _ => return,
            };
            if let Some(us) = value.new.as_ref().and_then(|new| new.parse().ok()) {
                *sysctl = Reading::Known(us);
            }
        }
        PlannedChange::RpsCpus { device, queue, cpus } => {
            if let Some((rx, new)) = rx_queue(snapshot, device, *queue).zip(cpus.new.as_ref()) {
                rx.rps_cpus = Reading::Known(new.clone());
            }
        }
        PlannedChange::ThreadCpus { thread: Some(tid), cpus, .. } => {
            let napis = snapshot.devices.iter_mut().flat_map(|device| elements(&mut device.napis));
            let threads = napis.filter_map(|napi| known(&mut napi.thread)?.as_mut());
            if let Some(new) = &cpus.new {
                threads.filter(|its| its.tid == *tid).for_each(|its| its.affinity = Reading::Known(new.clone()));
            }
        }
        PlannedChange::IrqAffinity { irq: Some(number), cpus, .. } => {
            if let Some(new) = &cpus.new {
                let irqs = elements(&mut snapshot.irqs).filter(|irq| irq.number == *number);
                irqs.for_each(|irq| irq.effective_affinity = Reading::Known(new.clone()));
            }
        }
        _ => {}
    }
}

fn device_of<'a>(snapshot: &'a mut Snapshot, id: &DeviceId) -> Option<&'a mut Device> {
    snapshot.devices.iter_mut().find(|device| (device.namespace, device.ifindex) == (id.namespace, id.ifindex))
}

fn rx_queue<'a>(snapshot: &'a mut Snapshot, id: &DeviceId, queue: u32) -> Option<&'a mut RxQueue> {
    elements(&mut device_of(snapshot, id)?.rx_queues).find(|rx| rx.id == queue)
}

fn coalesce(present: &mut Coalescing, new: &Coalescing) {
    *present = present.iter().chain(new.iter()).collect();
}

fn known<T>(reading: &mut Reading<T>) -> Option<&mut T> {
    match reading {
        Reading::Known(value) => Some(value),
        Reading::Unknown(_) => None,
    }
}

fn elements<T>(reading: &mut Reading<Vec<T>>) -> std::slice::IterMut<'_, T> {
    known(reading).map(Vec::as_mut_slice).unwrap_or_default().iter_mut()
}
