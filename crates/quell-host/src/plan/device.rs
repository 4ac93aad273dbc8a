//! Plans the settings of a whole device: features, channels, rings, coalescing. `queues` plans its queues; `steering`
//! plans its RSS contexts and flow rules.

use std::collections::BTreeMap;

use quell_linux::ethtool::{Channels, CoalesceParameter, Coalescing, Rings};
use quell_mode::profile::{self, CoalesceKey, DeviceProfile, Place, Placed};

use super::{ChannelCounts, Current, DeviceId, Diff, Made, PlannedChange, ProfilePlan, RingSizes, queues, steering};
use crate::snapshot::{Device, Reading, Snapshot, UnknownReason};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    pub(super) rebuilt: bool,
    /// Whether enabling GRO creates NAPI instances (veth).
    pub(super) napis_come: bool,
    /// Whether disabling GRO removes them.
    pub(super) napis_go: bool,
    /// Number of receive queues afterwards; `None` if the driver does not report it.
    pub(super) rx_queues: Option<u32>,
    pub(super) tx_queues: Option<u32>,
}

pub(super) fn plan(plan: &mut ProfilePlan, snapshot: &Snapshot, device: &Device, wanted: &DeviceProfile) {
    let id = DeviceId { namespace: device.namespace, ifindex: device.ifindex, name: device.name.clone() };
    let gro = features(plan, device, &id, wanted);
    let counts = channels(plan, device, &id, &wanted.channels);
    let resized = rings(plan, device, &id, &wanted.rings);
    let coalesced = coalescing(plan, device, &id, &wanted.coalescing, counts.is_some() || resized);
    let outlook = outlook(device, counts, resized, gro);
    steering::plan(plan, device, &id, wanted, outlook);
    queues::Queues::new(snapshot, device, &id, wanted, outlook, coalesced).plan(plan);
}

fn features(plan: &mut ProfilePlan, device: &Device, id: &DeviceId, wanted: &DeviceProfile) -> Option<bool> {
    let mut gro = None;
    for (name, wish) in &wanted.features {
        let what = format!("feature {name} of {id}");
        let features = match &device.features {
            Reading::Known(features) => features,
            Reading::Unknown(reading) => {
                plan.cannot_know(&wish.place, what, &reading.unknown);
                continue;
            }
        };
        let Some(feature) = features.get(name) else {
            plan.cannot(&wish.place, what, UnknownReason::UnsupportedByKernel, "this kernel has no such feature");
            continue;
        };
        if feature.active == wish.value {
            continue;
        }
        if !feature.changeable {
            let said =
                format!("the driver does not allow changing it; it is {}", if feature.active { "on" } else { "off" });
            plan.cannot(&wish.place, what, UnknownReason::UnsupportedByDriver, &said);
            continue;
        }
        if name == "rx-gro" {
            gro = Some(wish.value);
        }
        let on = Diff { old: Some(feature.active), new: Some(wish.value) };
        let change = PlannedChange::Feature { device: id.clone(), name: name.clone(), on };
        plan.push(change, &wish.place);
    }
    gro
}

/// A number to change: name, current value, maximum, wanted value.
type Wish<'a> = (&'static str, Option<u32>, Option<u32>, &'a Option<Placed<u32>>);

/// Returns the numbers that change. `None` stands for unchanged and impossible ones.
fn numbers<'a>(plan: &mut ProfilePlan, what: &str, wishes: &[Wish<'a>]) -> Vec<Option<(u32, u32, &'a Place)>> {
    let mut decide = |&(name, now, max, wish): &Wish<'a>| {
        let wish = wish.as_ref()?;
        let what = format!("{what} ({name})");
        match (now, max) {
            (None, _) => plan.cannot(
                &wish.place,
                what,
                UnknownReason::UnsupportedByDriver,
                "the driver does not support this kind",
            ),
            (_, Some(max)) if wish.value > max => {
                plan.cannot(&wish.place, what, UnknownReason::UnsupportedByDriver, &format!("the maximum is {max}"));
            }
            (Some(now), _) if now != wish.value => return Some((now, wish.value, &wish.place)),
            _ => {}
        }
        None
    };
    wishes.iter().map(&mut decide).collect()
}

fn channels(
    plan: &mut ProfilePlan,
    device: &Device,
    id: &DeviceId,
    wanted: &profile::ChannelSettings,
) -> Option<ChannelCounts> {
    let first = [&wanted.combined, &wanted.rx, &wanted.tx].into_iter().find_map(Option::as_ref)?;
    let what = format!("channels of {id}");
    let now: &Channels = match &device.channels {
        Reading::Known(channels) => channels,
        Reading::Unknown(reading) => {
            plan.cannot_know(&first.place, what, &reading.unknown);
            return None;
        }
    };
    let wishes = [
        ("combined", now.combined_count, now.combined_max, &wanted.combined),
        ("rx", now.rx_count, now.rx_max, &wanted.rx),
        ("tx", now.tx_count, now.tx_max, &wanted.tx),
    ];
    let [combined, rx, tx] = numbers(plan, &what, &wishes)[..] else { return None };
    let place = combined.or(rx).or(tx)?.2;
    let counts = |side: fn((u32, u32, &Place)) -> u32| ChannelCounts {
        combined: combined.map(side),
        rx: rx.map(side),
        tx: tx.map(side),
    };
    let new = counts(|(_, new, _)| new);
    let counts = Diff { old: Some(counts(|(old, _, _)| old)), new: Some(new) };
    plan.push(PlannedChange::Channels { device: id.clone(), counts }, place);
    Some(new)
}

fn rings(plan: &mut ProfilePlan, device: &Device, id: &DeviceId, wanted: &profile::RingSettings) -> bool {
    let Some(first) = wanted.rx.as_ref().or(wanted.tx.as_ref()) else { return false };
    let what = format!("rings of {id}");
    let now: &Rings = match &device.rings {
        Reading::Known(rings) => rings,
        Reading::Unknown(reading) => {
            plan.cannot_know(&first.place, what, &reading.unknown);
            return false;
        }
    };
    let wishes = [("rx", now.rx, now.rx_max, &wanted.rx), ("tx", now.tx, now.tx_max, &wanted.tx)];
    let [rx, tx] = numbers(plan, &what, &wishes)[..] else { return false };
    let Some((_, _, place)) = rx.or(tx) else { return false };
    let sizes = |side: fn((u32, u32, &Place)) -> u32| RingSizes { rx: rx.map(side), tx: tx.map(side) };
    let sizes = Diff { old: Some(sizes(|(old, _, _)| old)), new: Some(sizes(|(_, new, _)| new)) };
    plan.push(PlannedChange::Rings { device: id.clone(), sizes }, place);
    true
}

pub(super) fn parameter(key: CoalesceKey) -> CoalesceParameter {
    match key {
        CoalesceKey::AdaptiveRx => CoalesceParameter::UseAdaptiveRx,
        CoalesceKey::AdaptiveTx => CoalesceParameter::UseAdaptiveTx,
        CoalesceKey::RxUsecs => CoalesceParameter::RxUsecs,
        CoalesceKey::RxFrames => CoalesceParameter::RxMaxFrames,
        CoalesceKey::TxUsecs => CoalesceParameter::TxUsecs,
        CoalesceKey::TxFrames => CoalesceParameter::TxMaxFrames,
        CoalesceKey::CqeModeRx => CoalesceParameter::UseCqeModeRx,
        CoalesceKey::CqeModeTx => CoalesceParameter::UseCqeModeTx,
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Coalesced {
    /// Values of queues that have none of their own.
    pub(super) values: Coalescing,
    /// Whether the plan sets the coalescing of the device, which overrides values of single queues.
    pub(super) is_set: bool,
}

fn coalescing(
    plan: &mut ProfilePlan,
    device: &Device,
    id: &DeviceId,
    wanted: &BTreeMap<CoalesceKey, Placed<u32>>,
    rebuilt: bool,
) -> Coalesced {
    let what = format!("coalescing of {id}");
    let now = match (&device.coalescing, wanted.values().next()) {
        (Reading::Known(now), _) => now,
        (Reading::Unknown(reading), Some(first)) => {
            plan.cannot_know(&first.place, what, &reading.unknown);
            return Coalesced::default();
        }
        (Reading::Unknown(_), None) => return Coalesced::default(),
    };
    let diff = parameters(plan, &what, now, wanted, None, rebuilt);
    let new = diff.as_ref().and_then(|(diff, _)| diff.new.as_ref());
    let values = now.iter().chain(new.into_iter().flat_map(Coalescing::iter)).collect();
    let after = Coalesced { values, is_set: diff.is_some() };
    if let Some((values, place)) = diff {
        plan.steps.push(super::ProfileStep {
            change: PlannedChange::Coalescing { device: id.clone(), values },
            wanted_by: place,
        });
    }
    after
}

/// Returns the parameters that change. If an earlier step resets the values (`rebuilt`), also includes unchanged wanted
/// parameters and those in which a queue differs from its device.
pub(super) fn parameters(
    plan: &mut ProfilePlan,
    what: &str,
    now: &Coalescing,
    wanted: &BTreeMap<CoalesceKey, Placed<u32>>,
    of_device: Option<&Coalescing>,
    rebuilt: bool,
) -> Option<(Diff<Coalescing>, Option<Place>)> {
    let mut new: BTreeMap<CoalesceParameter, u32> = BTreeMap::new();
    let mut place = None;
    for (key, wish) in wanted {
        let parameter = parameter(*key);
        match now.get(parameter) {
            None => plan.cannot(
                &wish.place,
                format!("{what}: {key}"),
                UnknownReason::UnsupportedByDriver,
                "the driver has no such parameter",
            ),
            Some(now) if now == wish.value && !rebuilt => {}
            Some(now) => {
                new.insert(parameter, wish.value);
                if now != wish.value {
                    place.get_or_insert(wish.place.clone());
                }
            }
        }
    }
    if rebuilt && of_device.is_some() {
        for (parameter, value) in unlike(now, of_device) {
            new.entry(parameter).or_insert(value);
        }
    }
    if new.is_empty() {
        return None;
    }
    let old = now.iter().filter(|(parameter, _)| new.contains_key(parameter)).collect();
    Some((Diff { old: Some(old), new: Some(new.into_iter().collect()) }, place))
}

/// Parameters in which a queue differs from its device.
pub(super) fn unlike<'a>(
    queue: &'a Coalescing,
    device: Option<&'a Coalescing>,
) -> impl Iterator<Item = (CoalesceParameter, u32)> + 'a {
    queue.iter().filter(move |(parameter, value)| device.and_then(|device| device.get(*parameter)) != Some(*value))
}

fn outlook(device: &Device, counts: Option<ChannelCounts>, resized: bool, gro: Option<bool>) -> Outlook {
    let listed = |known: Option<usize>| known.and_then(|count| u32::try_from(count).ok());
    let rx_now = listed(device.rx_queues.known().map(Vec::len));
    let tx_now = listed(device.tx_queues.known().map(Vec::len));
    let now = device.channels.known().copied().unwrap_or_default();
    let after = |wanted: Option<u32>, now: Option<u32>| wanted.or(now).unwrap_or(0);
    let sum = |counts: ChannelCounts, wanted: Option<u32>, one_way: Option<u32>| {
        after(counts.combined, now.combined_count).saturating_add(after(wanted, one_way))
    };
    let is_veth = device.kind.as_deref() == Some("veth");
    Outlook {
        rebuilt: counts.is_some() || resized,
        napis_come: gro == Some(true) && device.napis.known_elements().next().is_none(),
        napis_go: gro == Some(false) && is_veth && device.has_xdp.known() == Some(&false),
        rx_queues: counts.map_or(rx_now, |counts| Some(sum(counts, counts.rx, now.rx_count))),
        tx_queues: counts.map_or(tx_now, |counts| Some(sum(counts, counts.tx, now.tx_count))),
    }
}

impl ProfilePlan {
    pub(super) fn push(&mut self, change: PlannedChange, wanted_by: &Place) {
        self.steps.push(super::ProfileStep { change, wanted_by: Some(wanted_by.clone()) });
    }
}

impl Outlook {
    pub(super) fn of_queue(self, queue: u32, count: Option<u32>) -> Made {
        match (count, self.rebuilt) {
            (Some(count), _) if queue >= count => Made::Goes,
            (_, true) => Made::Recreated,
            (_, false) => Made::Stays,
        }
    }

    /// Current value of a queue that may not exist yet.
    pub(super) fn current<'a, T: Clone>(self, reading: Option<&'a Reading<T>>) -> Current<'a, T> {
        reading.map_or(Current::NotYetCreated, Current::from)
    }
}
