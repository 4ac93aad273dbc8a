//! Finds the queues that can deliver packets to a socket, and the interface that a filter sees for each. Pure.
//!
//! A filter sees `skb->dev`. For a port of a bond, bridge, team or VRF this is the upper device; for a tagged packet it
//! is the VLAN device. The queue number remains that of the lower device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_change::reuseport_group::GroupKey;
use quell_linux::{Ifindex, NapiId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::snapshot::arrival::lies_on;
use crate::snapshot::{Device, Reading, Snapshot};

/// A receive queue that a filter can distinguish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SteerQueue {
    pub device: String,
    pub queue: u32,
    /// NAPI instance that polls it; absent if the driver or the kernel does not report it.
    pub napi: Option<NapiId>,
}

/// A device whose queues a filter cannot distinguish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub device: String,
    pub why: WhyLeftOut,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyLeftOut {
    /// Several of its ports have queues. The filter sees this device for all of them, with queue numbers that are not
    /// unique among the ports.
    SeveralPorts {
        ports: Vec<String>,
    },
    UnknownQueues {
        said: String,
    },
    Down,
    NoNapi,
    /// No present connection came from it, and there are fewer sockets than queues.
    NoConnection,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        match &self.why {
            WhyLeftOut::SeveralPorts { ports } => write!(
                f,
                "{device} receives packets from {}; a filter sees only {device} and a queue number that is not unique \
                 among them",
                ports.join(" and ")
            ),
            WhyLeftOut::UnknownQueues { said } => write!(f, "{device}: its queues are unknown: {said}"),
            WhyLeftOut::Down => write!(f, "{device} is down"),
            WhyLeftOut::NoNapi => write!(f, "{device} receives without NAPI"),
            WhyLeftOut::NoConnection => write!(
                f,
                "no connection came from {device}, and there are fewer sockets than queues (--steer=DEVICE chooses devices)"
            ),
        }
    }
}

/// An interface as a filter sees it, and the device whose queues deliver its packets.
struct Seen<'a> {
    as_interface: &'a Device,
    feeder: &'a Device,
}

/// Interfaces that a filter can distinguish, each with its delivering device, and the devices that were left out.
#[derive(Default)]
pub(super) struct Ways<'a> {
    seen: Vec<Seen<'a>>,
    left_out: Vec<LeftOut>,
}

/// Interfaces of a filter and the indices of their queues.
pub(super) struct Chosen {
    /// Each interface with the index of its first queue and the number of queues.
    pub(super) interfaces: Vec<(Ifindex, u32, u32)>,
    pub(super) places: Vec<SteerQueue>,
    pub(super) left_out: Vec<LeftOut>,
}

impl<'a> Ways<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, namespace: u64) -> Self {
        let devices: BTreeMap<Ifindex, &Device> = snapshot
            .devices
            .iter()
            .filter(|device| device.namespace == namespace)
            .map(|device| (device.ifindex, device))
            .collect();
        let mut ways = Self::default();
        let mut feeders: BTreeMap<Ifindex, Vec<&Device>> = BTreeMap::new();
        for &device in devices.values() {
            match why_no_feeder(device) {
                None => {
                    seen_as(device, &devices).into_iter().for_each(|top| feeders.entry(top).or_default().push(device))
                }
                Some(why) => ways.left_out.push(LeftOut { device: device.name.clone(), why }),
            }
        }
        for (top, ports) in feeders {
            let as_interface = devices[&top];
            match ports[..] {
                [feeder] => ways.seen.push(Seen { as_interface, feeder }),
                _ => ways.left_out.push(LeftOut {
                    device: as_interface.name.clone(),
                    why: WhyLeftOut::SeveralPorts { ports: ports.iter().map(|port| port.name.clone()).collect() },
                }),
            }
        }
        // If another device delivers the packets of this one, reasons that concern only the device itself are
        // irrelevant.
        let Self { seen, left_out } = &mut ways;
        left_out.retain(|left| !seen.iter().any(|seen| seen.as_interface.name == left.device));
        ways
    }

    /// Selects the interfaces that can deliver to a socket with this key: the bound device, or the devices in `only`
    /// (empty: all). If some of these have the socket's address, selects only those.
    pub(super) fn choose(self, key: &GroupKey, only: &[String]) -> Chosen {
        let Self { mut seen, mut left_out } = self;
        let is_named = |name: &String| only.is_empty() || only.contains(name);
        seen.retain(|seen| is_named(&seen.as_interface.name) || is_named(&seen.feeder.name));
        left_out.retain(|left| match left.why {
            // Most hosts have such devices; the user needs to see them only after naming them.
            WhyLeftOut::Down | WhyLeftOut::NoNapi => only.contains(&left.device),
            _ => is_named(&left.device),
        });
        if let Some(bound) = key.bound_to {
            seen.retain(|seen| seen.as_interface.ifindex == bound);
            left_out.clear();
        } else if !key.local.ip().is_unspecified() {
            let has_address = |seen: &Seen<'_>| seen.as_interface.has_address(key.local.ip());
            if seen.iter().any(has_address) {
                seen.retain(has_address);
                left_out.clear();
            }
        }
        let (interfaces, places) = places(&seen);
        Chosen { interfaces, places, left_out }
    }
}

impl Chosen {
    /// Those of the devices that deliver connections, if there are some: a device for management, for example, must not take
    /// workers from them.
    pub(super) fn without_idle(self, mut delivering: Self) -> Self {
        if delivering.places.is_empty() {
            return self;
        }
        let delivers = |device: &String| delivering.places.iter().any(|place| place.device == *device);
        let mut idle: Vec<String> = self.places.into_iter().map(|place| place.device).collect();
        idle.dedup();
        idle.retain(|device| !delivers(device));
        let left_out = idle.into_iter().map(|device| LeftOut { device, why: WhyLeftOut::NoConnection });
        delivering.left_out.extend(left_out);
        delivering
    }
}

/// Returns the reason why the queues of a device deliver nothing; `None` if they deliver packets.
fn why_no_feeder(device: &Device) -> Option<WhyLeftOut> {
    let queues = match &device.rx_queues {
        Reading::Known(queues) => queues,
        Reading::Unknown(unknown) => {
            return Some(WhyLeftOut::UnknownQueues { said: unknown.unknown.message.clone() });
        }
    };
    let has_no_napi = |napi: &Reading<_>| matches!(napi, Reading::Known(None));
    match device.is_up {
        false => Some(WhyLeftOut::Down),
        true if queues.iter().all(|queue| has_no_napi(&queue.napi)) => Some(WhyLeftOut::NoNapi),
        true => None,
    }
}

/// Interfaces on which packets of a device's queues appear: the device or its upper device, and VLANs and similar
/// devices on either.
fn seen_as(device: &Device, devices: &BTreeMap<Ifindex, &Device>) -> BTreeSet<Ifindex> {
    let (mut seen, mut looked_at, mut to_look_at) = (BTreeSet::new(), BTreeSet::new(), vec![device.ifindex]);
    while let Some(ifindex) = to_look_at.pop() {
        let Some(device) = devices.get(&ifindex).filter(|_| looked_at.insert(ifindex)) else { continue };
        match device.master {
            Some(master) => to_look_at.push(master),
            None => drop(seen.insert(ifindex)),
        }
        to_look_at.extend(devices.values().filter(|upper| lies_on(upper, ifindex)).map(|upper| upper.ifindex));
    }
    seen
}

/// Assigns consecutive indices to the queues of each delivering device.
fn places(seen: &[Seen<'_>]) -> (Vec<(Ifindex, u32, u32)>, Vec<SteerQueue>) {
    let mut places = Vec::new();
    let mut first_of: BTreeMap<Ifindex, (u32, u32)> = BTreeMap::new();
    let mut interfaces = Vec::new();
    for Seen { as_interface, feeder } in seen {
        let (first, queues) = *first_of.entry(feeder.ifindex).or_insert_with(|| {
            let first = count(places.len());
            places.extend(feeder.rx_queues.known_elements().map(|queue| SteerQueue {
                device: feeder.name.clone(),
                queue: queue.id,
                napi: queue.napi.known().copied().flatten().map(|linked| linked.to),
            }));
            (first, count(places.len()) - first)
        });
        interfaces.push((as_interface.ifindex, first, queues));
    }
    (interfaces, places)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
