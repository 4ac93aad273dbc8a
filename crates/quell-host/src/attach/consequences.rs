//! What would be wrong with the host once an attachment is made: the findings of its picture as it would be then, without
//! those that there are anyway. So every rule that examines a host also examines a plan. Pure.

use std::collections::BTreeSet;

use quell_linux::netdev::NapiThreading;
use quell_linux::{NapiId, Pid};

use super::plan::{EpollStep, Plan, QueueStep};
use crate::findings::{Finding, Node, Severity, examine};
use crate::picture::{Picture, Reading};

/// The findings that come with the plan, the worst first.
#[must_use]
pub fn consequences(picture: &Picture, before: Option<&Picture>, plan: &Plan) -> Vec<Finding> {
    let now = examine(picture, before).findings;
    let is_there = |finding: &Finding| {
        now.iter()
            .any(|known| (known.id, &known.nodes, known.severity) == (finding.id, &finding.nodes, finding.severity))
    };
    let then = examine(&after(picture, plan), before).findings;
    let new = then.into_iter().filter(|finding| finding.severity > Severity::CannotTell && !is_there(finding));
    new.filter(|finding| concerns(finding, plan)).collect()
}

fn concerns(finding: &Finding, plan: &Plan) -> bool {
    let napis: BTreeSet<NapiId> = plan.queues().map(|step| step.napi).collect();
    let epolls: BTreeSet<(Pid, i32)> = plan.epolls().map(|step| (step.pid, step.fd)).collect();
    finding.nodes.iter().any(|node| match node {
        Node::Napi { id, .. } => napis.contains(id),
        Node::Epoll { pid, fd } => epolls.contains(&(*pid, *fd)),
        _ => false,
    })
}

/// The picture as it would be with every value of the plan.
fn after(picture: &Picture, plan: &Plan) -> Picture {
    let mut after = picture.clone();
    plan.queues().for_each(|step| set_queue(&mut after, step));
    plan.epolls().for_each(|step| set_epoll(&mut after, step));
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

fn set_epoll(picture: &mut Picture, step: &EpollStep) {
    for process in picture.processes.iter_mut().filter(|process| process.pid == step.pid) {
        let Reading::Known(files) = &mut process.files else { continue };
        for epoll in files.epolls.iter_mut().filter(|epoll| epoll.fd == step.fd) {
            epoll.params = Reading::Known(step.new.into());
        }
    }
}

fn set<T>(reading: &mut Reading<T>, value: Option<T>) {
    if let Some(value) = value {
        *reading = Reading::Known(value);
    }
}
