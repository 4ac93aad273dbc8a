//! The part of a profile for a device, or for all devices that a pattern selects.

use std::collections::BTreeMap;
use std::fmt;

use glob::Pattern;

use super::error::{ProfileError, ProfileRefusal};
use super::flow::{self, FlowProfile};
use super::keys;
use super::place::{Place, Placed};
use super::policy::{CpuPolicy, ThreadScheduling, XpsPolicy};
use super::queue_set::QueueSet;
use super::section::{Labelled, Section, wrong};
use super::tree::Table;
use crate::mode::DeliveryMode;

/// Configuration of the devices that the profile entry selects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// Label of the device entry in the profile.
    pub label: String,
    /// Position of the device entry in the profile.
    pub place: Place,
    /// Selects devices by name.
    pub name: Option<Placed<Pattern>>,
    /// Selects devices by driver. With `name`, both must match.
    pub driver: Option<Placed<Pattern>>,
    /// Channel counts.
    pub channels: ChannelSettings,
    /// Ring sizes.
    pub rings: RingSettings,
    /// Offload features by their kernel names.
    pub features: BTreeMap<String, Placed<bool>>,
    /// Coalescing parameters for all queues.
    pub coalescing: BTreeMap<CoalesceKey, Placed<u32>>,
    /// RSS contexts. The label `main` selects the device's default context.
    pub rss: Vec<RssProfile>,
    /// Whether all other RSS contexts are deleted.
    pub only_these_rss_contexts: Option<Placed<bool>>,
    /// Flow rules of the device.
    pub flows: Vec<FlowProfile>,
    /// Whether all other flow rules are deleted.
    pub only_these_flow_rules: Option<Placed<bool>>,
    /// Settings of groups of queues.
    pub queues: Vec<QueueGroup>,
}

/// Channel counts to set. `None` leaves a count unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Number of channels with a receive and a transmit queue.
    pub combined: Option<Placed<u32>>,
    /// Number of channels with a receive queue only.
    pub rx: Option<Placed<u32>>,
    /// Number of channels with a transmit queue only.
    pub tx: Option<Placed<u32>>,
}

/// Ring sizes in descriptors. `None` leaves a size unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingSettings {
    /// Ring size of each receive queue.
    pub rx: Option<Placed<u32>>,
    /// Ring size of each transmit queue.
    pub tx: Option<Placed<u32>>,
}

/// An RSS context, which distributes packets over queues by their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssProfile {
    /// Label in the profile. `main` selects the device's default context.
    pub label: String,
    /// Queues of the context, which all have the same weight.
    pub queues: Placed<QueueSet>,
}

impl RssProfile {
    /// Label of the default context.
    pub const MAIN: &str = "main";
}

/// Settings of some queues of a device. A receive and a transmit queue with the same number belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueGroup {
    /// Label of the group in the profile.
    pub label: String,
    /// Position of the group in the profile.
    pub place: Place,
    /// Queues of the group. The default is all queues.
    pub queues: QueueSet,
    /// Delivery mode whose NAPI settings apply to the queues. Its epoll settings apply when a program is launched or
    /// attached.
    pub mode: Option<Placed<DeliveryMode>>,
    /// Coalescing parameters of these queues.
    pub coalescing: BTreeMap<CoalesceKey, Placed<u32>>,
    /// CPUs for the IRQs of these queues.
    pub irq_cpus: Option<Placed<CpuPolicy>>,
    /// XPS settings of these queues.
    pub xps: Option<Placed<XpsPolicy>>,
    /// Position of the key that turns RPS off.
    pub rps_off: Option<Place>,
    /// CPUs of the NAPI threads.
    pub thread_cpus: Option<Placed<CpuPolicy>>,
    /// Scheduling of the NAPI threads.
    pub thread_scheduling: Option<Placed<ThreadScheduling>>,
}

/// A coalescing parameter, with ethtool's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoalesceKey {
    /// Whether the driver adapts the receive delay to the load; 0 or 1.
    AdaptiveRx,
    /// Whether the driver adapts the transmit delay to the load; 0 or 1.
    AdaptiveTx,
    /// Delay from the arrival of a packet to the receive interrupt, in µs.
    RxUsecs,
    /// Number of packets after which the device raises a receive interrupt.
    RxFrames,
    /// Delay from the transmission of a packet to the completion interrupt, in µs.
    TxUsecs,
    /// Number of packets after which the device raises a transmit-completion interrupt.
    TxFrames,
    /// Whether every receive completion restarts the delay; 0 or 1.
    CqeModeRx,
    /// Whether every transmit completion restarts the delay; 0 or 1.
    CqeModeTx,
}

impl CoalesceKey {
    /// All keys, in the order in which they are set. A switch precedes the values that it affects.
    pub const ALL: [Self; 8] = [
        Self::AdaptiveRx,
        Self::AdaptiveTx,
        Self::RxUsecs,
        Self::RxFrames,
        Self::TxUsecs,
        Self::TxFrames,
        Self::CqeModeRx,
        Self::CqeModeTx,
    ];

    /// Name of the parameter in a profile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        keys::COALESCING.keys[self as usize].name
    }

    /// Whether the value of the parameter is true or false.
    #[must_use]
    pub const fn is_switch(self) -> bool {
        matches!(self, Self::AdaptiveRx | Self::AdaptiveTx | Self::CqeModeRx | Self::CqeModeTx)
    }

    /// Whether the parameter can be set per queue. `struct ethtool_coalesce` has no CQE modes.
    #[must_use]
    pub const fn is_per_queue(self) -> bool {
        !matches!(self, Self::CqeModeRx | Self::CqeModeTx)
    }
}

impl fmt::Display for CoalesceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) fn read(device: Labelled<'_>) -> Result<DeviceProfile, ProfileError> {
    let section = Section::new(device.table, &keys::DEVICE)?;
    let pattern = |key| section.parsed(key, "a name, or a pattern like \"ens*\"", |text| Pattern::new(text).ok());
    let (name, driver) = (pattern("name")?, pattern("driver")?);
    if name.is_none() && driver.is_none() {
        return Err(ProfileError::new(device.place, ProfileRefusal::Missing { key: "name` or `driver" }));
    }
    Ok(DeviceProfile {
        label: device.label.to_owned(),
        place: device.place.clone(),
        name,
        driver,
        channels: section.table("channels")?.map(read_channels).transpose()?.unwrap_or_default(),
        rings: section.table("rings")?.map(read_rings).transpose()?.unwrap_or_default(),
        features: section.booleans("features")?.into_iter().collect(),
        coalescing: section.table("coalescing")?.map(read_coalescing).transpose()?.unwrap_or_default(),
        rss: section.tables("rss")?.into_iter().map(read_rss).collect::<Result<_, _>>()?,
        only_these_rss_contexts: section.boolean("only-these-rss-contexts")?,
        flows: section.tables("flow")?.into_iter().map(flow::read).collect::<Result<_, _>>()?,
        only_these_flow_rules: section.boolean("only-these-flow-rules")?,
        queues: section.tables("queues")?.into_iter().map(read_group).collect::<Result<_, _>>()?,
    })
}

fn read_channels(table: &Table) -> Result<ChannelSettings, ProfileError> {
    let section = Section::new(table, &keys::CHANNELS)?;
    Ok(ChannelSettings {
        combined: above_zero(&section, "combined")?,
        rx: above_zero(&section, "rx")?,
        tx: above_zero(&section, "tx")?,
    })
}

fn read_rings(table: &Table) -> Result<RingSettings, ProfileError> {
    let section = Section::new(table, &keys::RINGS)?;
    Ok(RingSettings { rx: above_zero(&section, "rx")?, tx: above_zero(&section, "tx")? })
}

fn above_zero(section: &Section<'_>, key: &'static str) -> Result<Option<Placed<u32>>, ProfileError> {
    let number = section.number(key)?;
    number.map(|n| if n.value == 0 { Err(wrong(key, "above 0", &n.place)) } else { Ok(n) }).transpose()
}

fn read_coalescing(table: &Table) -> Result<BTreeMap<CoalesceKey, Placed<u32>>, ProfileError> {
    let section = Section::new(table, &keys::COALESCING)?;
    let mut values = BTreeMap::new();
    for key in CoalesceKey::ALL {
        let value = if key.is_switch() {
            section.boolean(key.name())?.map(|placed| Placed { value: placed.value.into(), place: placed.place })
        } else {
            section.number(key.name())?
        };
        values.extend(value.map(|value| (key, value)));
    }
    Ok(values)
}

fn read_rss(context: Labelled<'_>) -> Result<RssProfile, ProfileError> {
    let section = Section::new(context.table, &keys::RSS)?;
    let missing = || ProfileError::new(context.place, ProfileRefusal::Missing { key: "queues" });
    let queues = read_queues(&section)?.ok_or_else(missing)?;
    Ok(RssProfile { label: context.label.to_owned(), queues })
}

/// Reads `queues`, which is `"all"` or a set of numbers.
fn read_queues(section: &Section<'_>) -> Result<Option<Placed<QueueSet>>, ProfileError> {
    if let Ok(Some(Placed { value, place })) = section.text("queues")
        && value == "all"
    {
        return Ok(Some(Placed { value: QueueSet::All, place }));
    }
    let numbers = section.numbers("queues")?;
    Ok(numbers.map(|numbers| Placed { value: QueueSet::of(numbers.value), place: numbers.place }))
}

fn read_group(group: Labelled<'_>) -> Result<QueueGroup, ProfileError> {
    let section = Section::new(group.table, &keys::QUEUES)?;
    let cpus = |key| section.parsed(key, CpuPolicy::EXPECTED, CpuPolicy::parse);
    let rps = section.boolean("rps")?;
    if let Some(Placed { value: true, place }) = &rps {
        return Err(wrong("rps", "false: a profile turns RPS off, or does not change it", place));
    }
    let scheduling = section.parsed("thread-scheduling", ThreadScheduling::EXPECTED, ThreadScheduling::parse)?;
    Ok(QueueGroup {
        label: group.label.to_owned(),
        place: group.place.clone(),
        queues: read_queues(&section)?.map_or(QueueSet::All, |queues| queues.value),
        mode: section.text("mode")?.map(read_mode).transpose()?,
        coalescing: section.table("coalescing")?.map(read_coalescing).transpose()?.unwrap_or_default(),
        irq_cpus: cpus("irq-cpus")?,
        xps: section.parsed("xps", XpsPolicy::EXPECTED, XpsPolicy::parse)?,
        rps_off: rps.map(|rps| rps.place),
        thread_cpus: cpus("thread-cpus")?,
        thread_scheduling: scheduling,
    })
}

pub(super) fn read_mode(text: Placed<String>) -> Result<Placed<DeliveryMode>, ProfileError> {
    match text.value.parse() {
        Ok(value) => Ok(Placed { value, place: text.place }),
        Err(error) => {
            let written = text.place.written();
            // The position of an error refers to the text within the quotes.
            let place = match written.find(error.input()) {
                Some(start) if !error.input().is_empty() => {
                    text.place.part(start + error.span().start..start + error.span().end)
                }
                _ => text.place.clone(),
            };
            Err(ProfileError::new(&place, ProfileRefusal::Mode(error.refusal().clone())))
        }
    }
}
