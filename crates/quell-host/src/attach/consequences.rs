//! Predicts the findings that an attachment would cause. Applies the plan to a copy of the snapshot, runs all rules on
//! it, and drops findings that exist already. Every rule for hosts therefore also checks plans. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::netdev::NapiThreading;
use quell_linux::{NapiId, Pid};

use super::plan::{Plan, QueueStep};
use crate::findings::{Finding, Node, Severity, examine};
use crate::picture::{Picture, Reading};
use crate::settings::values::EpollValues;

/// Findings that the plan would add, most severe first.
#[must_use]
pub fn consequences(picture: &Picture, before: Option<&Picture>, plan: &Plan) -> Vec<Finding> {
    let now = examine(picture, before).findings;
    let there: BTreeSet<_> = now.iter().map(|known| (known.id, &known.nodes, known.severity)).collect();
    let napis: BTreeSet<NapiId> = plan.queues().map(|step| step.napi).collect();
    let epolls: BTreeMap<(Pid, i32), EpollValues> = plan.epolls().map(|step| ((step.pid, step.fd), step.new)).collect();
    let is_of_plan = |node: &Node| match node {
        Node::Napi { id, .. } => napis.contains(id),
        Node::Epoll { pid, fd } => epolls.contains_key(&(*pid, *fd)),
        _ => false,
    };
    let mut then = examine(&after(picture, plan, &epolls), before).findings;
    then.retain(|finding| {
        finding.severity > Severity::CannotTell
            && !there.contains(&(finding.id, &finding.nodes, finding.severity))
            && finding.nodes.iter().any(is_of_plan)
    });
    then
}

/// Returns the snapshot with every value of the plan applied.
fn after(picture: &Picture, plan: &Plan, epolls: &BTreeMap<(Pid, i32), EpollValues>) -> Picture {
    let mut after = picture.clone();
    plan.queues().for_each(|step| set_queue(&mut after, step));
    for process in &mut after.processes {
        let Reading::Known(files) = &mut process.files else { continue };
        for epoll in &mut files.epolls {
            if let Some(new) = epolls.get(&(process.pid, epoll.fd)) {
                epoll.params = Reading::Known((*new).into());
            }
        }
    }
    after
}

fn set_queue(picture: &mut Picture, step: &QueueStep) {
    let devices = picture.devices.iter_mut().filter_map(|device| match &mut device.napis {
        Reading::Known(napis) => Some(napis),
        Reading::Unknown(_) => None,
    });
    for napi in devices.flatten().filter(|napi| napi.id == step.napi) {
        set(&mut napi.defer_hard_irqs, step.new.defer_hard_irqs);
        set(&mut napi.gro_flush_timeout_ns, step.new.gro_flush_timeout_ns);
        set(&mut napi.irq_suspend_timeout_ns, step.new.irq_suspend_timeout_ns);
        set(&mut napi.threading, step.new.threaded.map(NapiThreading::from_kernel));
    }
}

fn set<T>(reading: &mut Reading<T>, value: Option<T>) {
    if let Some(value) = value {
        *reading = Reading::Known(value);
    }
}
