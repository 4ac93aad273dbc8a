//! The rule about queues that do not exist at present. A snapshot shows a link that is down; the owners of settings know
//! the queues that they have set, and what brings these back.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quell_change::journal::Purpose;
use quell_change::missing_queue::MissingQueue;
use quell_linux::{CpuList, Ifindex};

use super::fix::Fix;
use super::setting::parents_of_targets;
use super::{Finding, Node, Observation, Rule, Severity};
use crate::attach::ModeCommand;
use crate::attach::attached::OwnerCondition;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Snapshot, SnapshotSocket};

pub(super) const RULES: &[&Rule] = &[&MISSING_QUEUE];

pub const MISSING_QUEUE_ID: &str = "missing-queue";

static MISSING_QUEUE: Rule = Rule {
    id: MISSING_QUEUE_ID,
    severity: Severity::Serious,
    title: "queues of a program or a mode do not exist",
    impact: "No packet arrives through them, and their settings are lost. Other findings about the program can follow \
             from it.",
    source: "net/core/dev.c, __dev_close_many; drivers/net/veth.c, veth_napi_enable and veth_set_features; measured: a \
             veth has no NAPI instances while it is down or without GRO",
    explanation: "Detected if a queue that quell attach, run or apply has set has no NAPI instance, because its link is \
                  down, GRO is off on a veth, fewer channels are in use, or the device is in another network namespace \
                  now. Without settings of Quell: if a link is down, and a program that waits for connections is bound \
                  to it (SO_BINDTODEVICE), or no other device of the network namespace has received packets. A warning \
                  for profiles. Fix: the command that brings the queue back; then the mode again, unless `--follow` or \
                  quell run sets it.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: links_down,
};

fn links_down(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        if device.is_up || device.name == "lo" {
            return None;
        }
        let received = |device: &Device| device.counters.known().map(|counters| counters.rx_packets > 0);
        let is_other = |other: &&Device| other.namespace == device.namespace && other.name != "lo" && other.is_up;
        let has_other = query.now.devices.iter().filter(is_other).any(|other| received(other) != Some(false));
        let programs = |can_reach: &dyn Fn(Option<Ifindex>) -> bool| -> Vec<Node> {
            let of_device =
                |socket: &SnapshotSocket| socket.namespace == device.namespace && can_reach(socket.bound_to);
            query.now.processes.iter().filter(|process| query.serves_by(process, of_device)).map(Node::from).collect()
        };
        let bound = programs(&|bound_to| bound_to == Some(device.ifindex));
        let (programs, why) = match (bound.is_empty(), has_other || received(device) != Some(true)) {
            (false, _) => (bound, "a program is bound to it"),
            (true, true) => return None,
            (true, false) => (
                programs(&|bound_to| bound_to.is_none()),
                "no other device of its network namespace has received a packet",
            ),
        };
        (!programs.is_empty()).then(|| Observation {
            severity: Severity::Serious,
            nodes: [Node::from(device)].into_iter().chain(programs).collect(),
            observed: format!("the link {} is down, and {why}", device.name),
            fix: vec![link_up(query, device)],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

pub(crate) fn link_up(query: &SnapshotQuery<'_>, device: &Device) -> Fix {
    Fix::in_namespace(query, device.namespace, &["ip", "link", "set", &device.name, "up"])
}

/// Adds the queues that owners of settings miss, before all that follows from it.
pub fn add_missing_queues(findings: &mut Vec<Finding>, now: &Snapshot, owners: &[OwnerCondition<'_>]) {
    let query = SnapshotQuery::new(now, None);
    let observed = owners.iter().flat_map(|owner| of_owner(&query, owner));
    let missing: Vec<Finding> = observed.map(|observation| MISSING_QUEUE.finding(&query, observation)).collect();
    // The same link, without what the owner knows.
    let says_less = |finding: &Finding| {
        let covers = |other: &Finding| finding.nodes.iter().all(|node| other.nodes.contains(node));
        finding.id == MISSING_QUEUE_ID && missing.iter().any(covers)
    };
    findings.retain(|finding| !says_less(finding));
    findings.splice(0..0, missing);
    findings.sort_by_key(|finding| Reverse(finding.severity));
}

fn of_owner(query: &SnapshotQuery<'_>, owner: &OwnerCondition<'_>) -> Vec<Observation> {
    let history = &owner.owner.history;
    let purpose = &history.begin.purpose;
    if owner.owner.mode().is_none() && purpose.profile().is_none() {
        return Vec::new();
    }
    let mut by_cause: BTreeMap<String, (&MissingQueue, Vec<u32>)> = BTreeMap::new();
    for drift in &owner.condition.drifted {
        if let Some(missing) = &drift.missing {
            by_cause.entry(missing.to_string()).or_insert((missing, Vec::new())).1.extend(drift.queue);
        }
    }
    let is_target = |pid| history.targets.iter().any(|target| target.pid == pid);
    let programs: Vec<_> = query.now.processes.iter().filter(|process| is_target(process.pid)).collect();
    let of = |(missing, queues): (&MissingQueue, Vec<u32>)| {
        let has_name = |device: &&Device| device.name == missing.device;
        let is_theirs =
            |device: &Device| programs.iter().any(|program| program.namespace.known() == Some(&device.namespace));
        // A device that was moved away can be invisible here.
        let device = query.now.devices.iter().filter(has_name).max_by_key(|device| is_theirs(device));
        let nodes: Vec<Node> =
            device.map(Node::from).into_iter().chain(programs.iter().map(|&program| program.into())).collect();
        let queues = match queues.is_empty() {
            true => "queues".to_owned(),
            false => format!("rx {}", queues.into_iter().collect::<CpuList>()),
        };
        let repair = missing.command.iter().map(|command| Fix::Command(command.clone()));
        (!nodes.is_empty()).then(|| Observation {
            severity: if purpose.profile().is_some() { Severity::Warning } else { Severity::Serious },
            nodes,
            observed: format!("{}: {queues} of {purpose}", missing.reason()),
            fix: repair.chain(set_again(owner, query.now)).collect(),
        })
    };
    by_cause.into_values().filter_map(of).collect()
}

/// What sets the queues once they are back. A follower does it without being asked.
fn set_again(owner: &OwnerCondition<'_>, now: &Snapshot) -> Option<Fix> {
    let history = &owner.owner.history;
    if matches!(history.begin.purpose, Purpose::Profile { .. }) {
        return Some(Fix::Command("quell apply --reassert".to_owned()));
    }
    let attached = owner.owner.mode().filter(|_| !history.is_followed())?;
    let command = ModeCommand::of_programs(Some(attached.mode), &parents_of_targets(history, now), now);
    let command = command.placed(attached.steers, attached.pins).if_attached(&attached);
    Some(Fix::Mode { first: "then set the mode again:".to_owned(), command, otherwise: None })
}
