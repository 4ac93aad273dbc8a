//! Finds contradictions in a syntactically valid profile. The error refers to the later of the two settings.

use std::collections::BTreeMap;

use super::Profile;
use super::device::{CoalesceKey, DeviceProfile, QueueGroup, RssProfile};
use super::error::{Contradiction, ProfileError, ProfileRefusal};
use super::flow::FlowTarget;
use super::place::{Place, Placed};
use super::queue_set::QueueSet;
use crate::kind::ModeKind;
use crate::napi::Threaded;

type Checked = Result<(), ProfileError>;

pub(super) fn check(profile: &Profile) -> Checked {
    profile.devices.iter().try_for_each(check_device)
}

fn refuse(place: &Place, contradiction: Contradiction) -> Checked {
    Err(ProfileError::new(place, ProfileRefusal::Contradiction(contradiction)))
}

fn check_device(device: &DeviceProfile) -> Checked {
    check_coalescing(&device.coalescing)?;
    for group in &device.queues {
        check_group(group)?;
        check_gro(device, group)?;
    }
    check_twice(&device.queues)?;
    check_flows(device)?;
    check_channels(device)
}

fn check_coalescing(values: &BTreeMap<CoalesceKey, Placed<u32>>) -> Checked {
    for (adaptive, given) in
        [(CoalesceKey::AdaptiveRx, CoalesceKey::RxUsecs), (CoalesceKey::AdaptiveTx, CoalesceKey::TxUsecs)]
    {
        let is_adaptive = values.get(&adaptive).is_some_and(|value| value.value != 0);
        if let (true, Some(value)) = (is_adaptive, values.get(&given)) {
            let names = Contradiction::AdaptiveAndGiven { adaptive: adaptive.name(), given: given.name() };
            return refuse(&value.place, names);
        }
    }
    Ok(())
}

fn check_group(group: &QueueGroup) -> Checked {
    check_coalescing(&group.coalescing)?;
    if let Some((key, value)) = group.coalescing.iter().find(|(key, _)| !key.is_per_queue()) {
        let refusal =
            ProfileRefusal::Value { key: key.to_string(), expected: "set in the coalescing table of the device" };
        return Err(ProfileError::new(&value.place, refusal));
    }
    if let Some(mode) = &group.mode
        && matches!(mode.value.kind(), ModeKind::SockPoll { .. } | ModeKind::EventSpin { .. })
    {
        return refuse(&mode.place, Contradiction::ModeOfPrograms { mode: mode.value.name() });
    }
    // Without a mode in the group, the queues may already have NAPI threads.
    let has_no_thread = group.mode.as_ref().is_some_and(|mode| mode.value.napi().threaded == Threaded::Off);
    let cpus = group.thread_cpus.as_ref().map(|cpus| &cpus.place);
    let place_of_thread = cpus.or(group.thread_scheduling.as_ref().map(|scheduling| &scheduling.place));
    match place_of_thread {
        Some(place) if has_no_thread => refuse(place, Contradiction::NoThread),
        _ => Ok(()),
    }
}

fn check_gro(device: &DeviceProfile, group: &QueueGroup) -> Checked {
    let gro_is_off = device.features.get("rx-gro").is_some_and(|feature| !feature.value);
    match &group.mode {
        Some(mode) if gro_is_off && mode.value.napi().defers() => {
            refuse(&mode.place, Contradiction::DeferralWithoutGro)
        }
        _ => Ok(()),
    }
}

/// Settings of a group that no other group may change for the same queue.
fn settings(group: &QueueGroup) -> impl Iterator<Item = (&'static str, &Place)> {
    let coalescing = group.coalescing.iter().map(|(key, value)| (key.name(), &value.place));
    let others = [
        ("mode", group.mode.as_ref().map(|placed| &placed.place)),
        ("irq-cpus", group.irq_cpus.as_ref().map(|placed| &placed.place)),
        ("xps", group.xps.as_ref().map(|placed| &placed.place)),
        ("thread-cpus", group.thread_cpus.as_ref().map(|placed| &placed.place)),
        ("thread-scheduling", group.thread_scheduling.as_ref().map(|placed| &placed.place)),
    ];
    coalescing.chain(others.into_iter().filter_map(|(key, place)| Some((key, place?))))
}

/// Checks that groups do not overlap. A group of all queues is an exception, because it sets defaults for the other
/// groups.
fn check_twice(groups: &[QueueGroup]) -> Checked {
    for (position, group) in groups.iter().enumerate() {
        for other in &groups[..position] {
            let twice = settings(group).find(|(key, _)| settings(other).any(|(other_key, _)| other_key == *key));
            let Some((key, place)) = twice else { continue };
            if let Some(queue) = common_queue(&group.queues, &other.queues) {
                return refuse(place, Contradiction::QueueTwice { queue, other: other.label.clone(), key });
            }
        }
    }
    Ok(())
}

fn common_queue(one: &QueueSet, other: &QueueSet) -> Option<u32> {
    match (one, other) {
        (QueueSet::All, QueueSet::All) => Some(0),
        (QueueSet::These(one), QueueSet::These(other)) => {
            // The binary search is possible because both lists are in ascending order.
            one.iter().copied().find(|queue| other.binary_search(queue).is_ok())
        }
        _ => None,
    }
}

fn check_flows(device: &DeviceProfile) -> Checked {
    let filter_is_off = device.features.get("rx-ntuple-filter").is_some_and(|feature| !feature.value);
    for (position, flow) in device.flows.iter().enumerate() {
        if filter_is_off {
            return refuse(&flow.place, Contradiction::FlowRulesOff);
        }
        if let FlowTarget::Rss(label) = &flow.target.value {
            if label == RssProfile::MAIN {
                return refuse(&flow.target.place, Contradiction::RuleToMain);
            }
            if !device.rss.iter().any(|context| context.label == *label) {
                return refuse(&flow.target.place, Contradiction::NoSuchContext { label: label.clone() });
            }
        }
        let same_packets = device.flows[..position].iter().find(|other| {
            (flow.protocol, flow.port, flow.address) == (other.protocol, other.port, other.address)
                && flow.families.iter().any(|family| other.families.contains(family))
        });
        if let Some(other) = same_packets {
            return refuse(&flow.place, Contradiction::RuleTwice { other: other.label.clone() });
        }
    }
    Ok(())
}

fn check_channels(device: &DeviceProfile) -> Checked {
    let count = |placed: &Option<Placed<u32>>| placed.as_ref().map(|placed| placed.value);
    let Some(channels) = count(&device.channels.combined).or(count(&device.channels.rx)) else { return Ok(()) };
    let channels = channels.saturating_add(match device.channels.combined {
        Some(_) => count(&device.channels.rx).unwrap_or(0),
        None => 0,
    });
    let beyond = |queue: &u32| *queue >= channels;
    let contexts = device.rss.iter().map(|context| (&context.queues.value, &context.queues.place));
    let groups = device.queues.iter().map(|group| (&group.queues, &group.place));
    for (queues, place) in contexts.chain(groups) {
        if let QueueSet::These(queues) = queues
            && let Some(&queue) = queues.iter().find(|queue| beyond(queue))
        {
            return refuse(place, Contradiction::QueueBeyondChannels { queue, channels });
        }
    }
    for flow in &device.flows {
        if let FlowTarget::Queue(queue) = flow.target.value
            && beyond(&queue)
        {
            return refuse(&flow.target.place, Contradiction::QueueBeyondChannels { queue, channels });
        }
    }
    Ok(())
}
