//! Predicts the findings that a profile would cause about queues that exist already. Pure.

use std::collections::BTreeSet;

use quell_linux::NapiId;

use super::{DeviceId, PlanInput, PlannedChange, PlannedQueue, ProfilePlan};
use crate::findings::{Finding, Node, added};
use crate::snapshot::{Device, Reading, Snapshot};

/// Findings about queues that the plan would add, most severe first. Findings about epolls are not predicted, because a
/// profile is applied before its programs are attached.
#[must_use]
pub fn consequences_of_profile(input: &PlanInput, plan: &ProfilePlan) -> Vec<Finding> {
    let mut after = input.snapshot.clone();
    plan.steps.iter().for_each(|step| make(&mut after, &step.change));
    let napi = |change: &PlannedChange| match change {
        PlannedChange::Napi(queue) => queue.napi,
        _ => None,
    };
    let napis: BTreeSet<NapiId> = plan.steps.iter().filter_map(|step| napi(&step.change)).collect();
    let mut findings = added(&input.snapshot, &after, None, None);
    findings.retain(|finding| {
        let is_of_plan = |node: &Node| matches!(node, Node::Napi { id, .. } if napis.contains(id));
        finding.nodes.iter().any(is_of_plan) && finding.is_about_queues()
    });
    findings
}

/// Makes a change that rules about queues examine.
fn make(snapshot: &mut Snapshot, change: &PlannedChange) {
    match change {
        PlannedChange::Napi(PlannedQueue { napi: Some(id), values, .. }) => {
            let napis = snapshot.devices.iter_mut().flat_map(|device| elements(&mut device.napis));
            if let Some(new) = &values.new {
                napis.filter(|napi| napi.id == *id).for_each(|napi| napi.set(new));
            }
        }
        PlannedChange::RpsCpus { device, queue, cpus } => {
            let queues = device_of(snapshot, device).into_iter().flat_map(|device| elements(&mut device.rx_queues));
            if let Some(new) = &cpus.new {
                queues.filter(|rx| rx.id == *queue).for_each(|rx| rx.rps_cpus = Reading::Known(new.clone()));
            }
        }
        PlannedChange::ThreadCpus { thread: Some(tid), cpus, .. } => {
            let napis = snapshot.devices.iter_mut().flat_map(|device| elements(&mut device.napis));
            let threads = napis.filter_map(|napi| match &mut napi.thread {
                Reading::Known(thread) => thread.as_mut(),
                Reading::Unknown(_) => None,
            });
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

fn elements<T>(reading: &mut Reading<Vec<T>>) -> std::slice::IterMut<'_, T> {
    match reading {
        Reading::Known(list) => list.iter_mut(),
        Reading::Unknown(_) => [].iter_mut(),
    }
}
