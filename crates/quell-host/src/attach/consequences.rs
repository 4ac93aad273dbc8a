//! Predicts the findings that an attachment would cause. It applies the plan to a copy of the snapshot, runs all rules,
//! and drops findings that exist already. Every host rule is therefore also a check of plans. Pure.

use std::collections::BTreeMap;

use quell_linux::{NapiId, Pid};
use quell_mode::EpollParams;

use super::plan::{AttachPlan, QueueStep};
use crate::behavior::Behavior;
use crate::findings::{Finding, Node, added};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Reading, Snapshot};

/// Findings that the plan would add, most severe first.
#[must_use]
pub fn consequences(snapshot: &Snapshot, before: Option<&Snapshot>, plan: &AttachPlan) -> Vec<Finding> {
    consequences_observed(snapshot, before, plan, None)
}

/// The same for programs that were observed, which shows whether they would stall.
#[must_use]
pub fn consequences_observed(
    snapshot: &Snapshot,
    before: Option<&Snapshot>,
    plan: &AttachPlan,
    behavior: Option<&Behavior>,
) -> Vec<Finding> {
    let epolls = epolls_of(snapshot, plan);
    let mut findings = added(snapshot, &after(snapshot, plan, &epolls), before, behavior);
    findings.retain(|finding| is_of(finding, &[plan], &epolls));
    findings
}

/// Findings under a plan that are not there under another one: `snapshot` can have settings of either.
#[must_use]
pub fn consequences_beside(
    snapshot: &Snapshot,
    other: &AttachPlan,
    plan: &AttachPlan,
    behavior: Option<&Behavior>,
) -> Vec<Finding> {
    let [of_other, epolls] = [other, plan].map(|plan| epolls_of(snapshot, plan));
    let [under_other, under] = [(other, &of_other), (plan, &epolls)].map(|(plan, set)| after(snapshot, plan, set));
    let mut findings = added(&under_other, &under, None, behavior);
    findings.retain(|finding| is_of(finding, &[other, plan], &epolls));
    findings
}

/// Whether a finding is about a queue of these plans, or about one of these epolls.
fn is_of(finding: &Finding, plans: &[&AttachPlan], epolls: &BTreeMap<(Pid, i32), EpollParams>) -> bool {
    let has = |napi: NapiId| plans.iter().flat_map(|plan| plan.queues()).any(|step| step.napi == napi);
    finding.nodes.iter().any(|node| match node {
        Node::Napi { id, .. } => has(*id),
        Node::Epoll { pid, fd } => epolls.contains_key(&(*pid, *fd)),
        _ => false,
    })
}

/// The parameters that the plan sets, by each descriptor of an epoll.
fn epolls_of(snapshot: &Snapshot, plan: &AttachPlan) -> BTreeMap<(Pid, i32), EpollParams> {
    let set: BTreeMap<(Pid, i32), EpollParams> = plan.epolls().map(|step| ((step.pid, step.fd), step.new)).collect();
    let query = SnapshotQuery::new(snapshot, None);
    let of = |epoll: &EpollContext<'_>| (epoll.process.pid, epoll.epoll.fd);
    let new = |epoll: &EpollContext<'_>| query.descriptors(epoll).find_map(|one| set.get(&of(one)).copied());
    query.epolls_by_descriptor.iter().filter_map(|epoll| Some((of(epoll), new(epoll)?))).collect()
}

fn after(snapshot: &Snapshot, plan: &AttachPlan, epolls: &BTreeMap<(Pid, i32), EpollParams>) -> Snapshot {
    let mut after = snapshot.clone();
    plan.queues().for_each(|step| set_queue(&mut after, step));
    for process in &mut after.processes {
        let Reading::Known(files) = &mut process.files else { continue };
        for epoll in &mut files.epolls {
            if let Some(new) = epolls.get(&(process.pid, epoll.fd)) {
                epoll.params = Reading::Known(*new);
            }
        }
    }
    after
}

fn set_queue(snapshot: &mut Snapshot, step: &QueueStep) {
    let devices = snapshot.devices.iter_mut().filter_map(|device| match &mut device.napis {
        Reading::Known(napis) => Some(napis),
        Reading::Unknown(_) => None,
    });
    for napi in devices.flatten().filter(|napi| napi.id == step.napi) {
        napi.set(&step.new);
    }
}
