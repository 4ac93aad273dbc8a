//! Plans the RSS contexts and flow rules of a profile. A table identifies an existing context, and a match identifies a
//! rule.

use std::net::IpAddr;

use quell_linux::ethtool::{
    FlowAction, FlowAddresses, FlowMatch, FlowRule, FlowTransport, Prefix, RssContext, RssContextId,
};
use quell_mode::profile::{
    DeviceProfile, FlowFamily, FlowProfile, FlowProtocol, FlowTarget, Placed, QueueSet, RssProfile,
};

use super::device::Outlook;
use super::{ContextRef, DeviceId, Diff, PlannedChange, ProfilePlan, RuleAction};
use crate::snapshot::{Device, Reading, UnknownReason};

pub(super) fn plan(plan: &mut ProfilePlan, device: &Device, id: &DeviceId, wanted: &DeviceProfile, outlook: Outlook) {
    let contexts = contexts(plan, device, id, wanted, outlook);
    rules(plan, device, id, wanted, &contexts);
}

/// Contexts of the profile by label, except those that cannot be created.
type Contexts = Vec<(String, ContextRef)>;

fn contexts(
    plan: &mut ProfilePlan,
    device: &Device,
    id: &DeviceId,
    wanted: &DeviceProfile,
    outlook: Outlook,
) -> Contexts {
    let now = match &device.rss_contexts {
        Reading::Known(contexts) => contexts,
        Reading::Unknown(reading) => {
            // A device without RSS needs no change to spread over all queues.
            for context in wanted.rss.iter().filter(|context| context.queues.value != QueueSet::All) {
                let what = format!("RSS context {} of {id}", context.label);
                plan.cannot_know(&context.queues.place, what, &reading.unknown);
            }
            return Vec::new();
        }
    };
    let main = now.iter().find(|context| context.id == RssContextId::MAIN);
    let length = main.and_then(|main| main.indirection.as_ref()).map_or(0, Vec::len);
    let mut found = Vec::new();
    for context in &wanted.rss {
        let what = format!("RSS context {} of {id}", context.label);
        let Some(table) = table(&context.queues.value, length, outlook) else {
            if context.queues.value != QueueSet::All {
                plan.cannot(
                    &context.queues.place,
                    what,
                    UnknownReason::UnsupportedByDriver,
                    "the driver does not report an indirection table",
                );
            }
            continue;
        };
        if let Some(queue) = outlook.rx_queues.and_then(|count| table.iter().find(|queue| **queue >= count)) {
            plan.cannot(&context.queues.place, what, UnknownReason::Absent, &format!("there is no queue {queue}"));
            continue;
        }
        let is_free = |one: &&RssContext| !found.iter().any(|(_, taken)| *taken == ContextRef::Existing(one.id));
        if context.label == RssProfile::MAIN {
            main_table(plan, id, main, table, context);
            continue;
        }
        let further = now.iter().filter(|one| one.id != RssContextId::MAIN);
        let same = further.filter(is_free).find(|one| one.indirection.as_ref() == Some(&table));
        let reference = match same {
            Some(same) => ContextRef::Existing(same.id),
            None => {
                let made = ContextRef::Planned(context.label.clone());
                let table = Diff { old: None, new: Some(table) };
                let change = PlannedChange::RssContext { device: id.clone(), context: made.clone(), table };
                plan.push(change, &context.queues.place);
                made
            }
        };
        found.push((context.label.clone(), reference));
    }
    if !wanted.rss.iter().any(|context| context.label == RssProfile::MAIN) {
        keep_off_queues_that_go(plan, id, wanted, main, outlook);
    }
    delete_others(plan, id, wanted, now, &found);
    found
}

/// The kernel refuses to reduce channels below the queues that a user-set main table names (`ethtool_check_max_channel`
/// in `net/ethtool/common.c`).
fn keep_off_queues_that_go(
    plan: &mut ProfilePlan,
    id: &DeviceId,
    wanted: &DeviceProfile,
    main: Option<&RssContext>,
    outlook: Outlook,
) {
    let place = wanted.channels.combined.as_ref().or(wanted.channels.rx.as_ref()).map(|count| &count.place);
    let old = main.and_then(|main| main.indirection.clone());
    let (Some(place), Some(old), Some(count)) = (place, old, outlook.rx_queues) else { return };
    if old.iter().all(|queue| *queue < count) {
        return;
    }
    let table = Diff { new: table(&QueueSet::All, old.len(), outlook), old: Some(old) };
    plan.push(PlannedChange::RssTable { device: id.clone(), context: RssContextId::MAIN, table }, place);
}

fn main_table(plan: &mut ProfilePlan, id: &DeviceId, main: Option<&RssContext>, new: Vec<u32>, wanted: &RssProfile) {
    let Some(old) = main.and_then(|main| main.indirection.clone()).filter(|old| *old != new) else { return };
    let table = Diff { old: Some(old), new: Some(new) };
    plan.push(PlannedChange::RssTable { device: id.clone(), context: RssContextId::MAIN, table }, &wanted.queues.place);
}

/// Returns a table of this length that spreads evenly over the queues; `None` if there are no queues.
fn table(queues: &QueueSet, length: usize, outlook: Outlook) -> Option<Vec<u32>> {
    let queues = queues.of_device(outlook.rx_queues?);
    (length > 0 && !queues.is_empty()).then(|| queues.into_iter().cycle().take(length).collect())
}

fn delete_others(plan: &mut ProfilePlan, id: &DeviceId, wanted: &DeviceProfile, now: &[RssContext], kept: &Contexts) {
    let Some(Placed { value: true, place }) = &wanted.only_these_rss_contexts else { return };
    for context in now.iter().filter(|context| context.id != RssContextId::MAIN) {
        let reference = ContextRef::Existing(context.id);
        if kept.iter().any(|(_, kept)| *kept == reference) {
            continue;
        }
        let Some(old) = context.indirection.clone() else {
            let what = format!("RSS context {} of {id}", context.id);
            plan.cannot(
                place,
                what,
                UnknownReason::UnsupportedByDriver,
                "the driver does not report its table, so an undo could not recreate the context",
            );
            continue;
        };
        let table = Diff { old: Some(old), new: None };
        plan.push(PlannedChange::RssContext { device: id.clone(), context: reference, table }, place);
    }
}

fn rules(plan: &mut ProfilePlan, device: &Device, id: &DeviceId, wanted: &DeviceProfile, contexts: &Contexts) {
    let now = match &device.flow_rules {
        Reading::Known(rules) => rules,
        Reading::Unknown(reading) => {
            for flow in &wanted.flows {
                plan.cannot_know(&flow.place, format!("flow rule {} of {id}", flow.label), &reading.unknown);
            }
            return;
        }
    };
    let known: Vec<FlowRule> = now.iter().filter_map(|installed| installed.rule).collect();
    let mut kept = Vec::new();
    for flow in &wanted.flows {
        // The context's own obstacle was reported already.
        let Some(action) = action(flow, contexts) else { continue };
        for matches in flow.families.iter().map(|family| matches(flow, *family)) {
            kept.push(matches);
            let same = known.iter().find(|rule| rule.matches == matches).map(|rule| existing_action(rule.action));
            if same.as_ref() == Some(&action) {
                continue;
            }
            if let Some(old) = same {
                plan.push(rule(id, matches, Diff { old: Some(old), new: None }), &flow.place);
            }
            plan.push(rule(id, matches, Diff { old: None, new: Some(action.clone()) }), &flow.place);
        }
    }
    let Some(Placed { value: true, place }) = &wanted.only_these_flow_rules else { return };
    for installed in now {
        match installed.rule {
            Some(other) if !kept.contains(&other.matches) => {
                let action = Diff { old: Some(existing_action(other.action)), new: None };
                plan.push(rule(id, other.matches, action), place);
            }
            Some(_) => {}
            None => {
                let what = format!("flow rule at location {} of {id}", installed.location);
                plan.cannot(
                    place,
                    what,
                    UnknownReason::Failed,
                    "Quell cannot represent it, so an undo could not restore it; it was left in place",
                );
            }
        }
    }
}

fn rule(id: &DeviceId, matches: FlowMatch, action: Diff<RuleAction>) -> PlannedChange {
    PlannedChange::FlowRule { device: id.clone(), matches, action }
}

fn existing_action(action: FlowAction) -> RuleAction {
    match action {
        FlowAction::Queue(queue) => RuleAction::Queue(queue),
        FlowAction::Context(context) => RuleAction::Context(ContextRef::Existing(context)),
        FlowAction::Discard => RuleAction::Discard,
    }
}

fn action(flow: &FlowProfile, contexts: &Contexts) -> Option<RuleAction> {
    match &flow.target.value {
        FlowTarget::Queue(queue) => Some(RuleAction::Queue(*queue)),
        FlowTarget::Rss(label) => {
            let context = contexts.iter().find(|(known, _)| known == label);
            context.map(|(_, context)| RuleAction::Context(context.clone()))
        }
    }
}

fn matches(flow: &FlowProfile, family: FlowFamily) -> FlowMatch {
    let addresses = match (family, flow.address) {
        (_, Some(IpAddr::V4(address))) => FlowAddresses::V4 { source: None, destination: Some(Prefix::host(address)) },
        (_, Some(IpAddr::V6(address))) => FlowAddresses::V6 { source: None, destination: Some(Prefix::host(address)) },
        (FlowFamily::V4, None) => FlowAddresses::V4 { source: None, destination: None },
        (FlowFamily::V6, None) => FlowAddresses::V6 { source: None, destination: None },
    };
    let transport = match flow.protocol {
        FlowProtocol::Tcp => FlowTransport::Tcp,
        FlowProtocol::Udp => FlowTransport::Udp,
    };
    FlowMatch { transport, addresses, source_port: None, destination_port: flow.port }
}
