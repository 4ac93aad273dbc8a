//! Profiles: the configuration of a whole host as TOML. A profile configures devices with their queues, RSS contexts,
//! flow rules, coalescing, interrupt affinity and delivery modes. It can also contain settings of the program that
//! `quell run` launches. This module parses and checks profiles without accessing the host.
//!
//! Several files form layers. A key in a later file replaces the same key in an earlier file. Every value contains the
//! file and line that it comes from ([`Placed`]).
//!
//! ```
//! use quell_mode::profile::{Profile, Source};
//!
//! let vendor = Source::new("memcached.toml", "[device.nic]\nname = 'ens*'\n[device.nic.queues.all]\nmode = 'suspend20'");
//! let local = Source::new("10-local.toml", "[device.nic.queues.all]\nmode = 'suspend50'");
//! let profile = Profile::parse(&[vendor, local])?;
//! let mode = profile.devices[0].queues[0].mode.as_ref().unwrap();
//! assert_eq!(mode.value.to_string(), "suspend50");
//! assert_eq!(mode.place.to_string(), "10-local.toml:2:8");
//! # Ok::<(), quell_mode::profile::ProfileError>(())
//! ```

mod check;
mod device;
mod error;
mod flow;
pub mod keys;
mod place;
mod policy;
mod queue_set;
mod section;
mod tree;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

pub use device::{ChannelSettings, CoalesceKey, DeviceProfile, QueueGroup, RingSettings, RssProfile};
pub use error::{Contradiction, ProfileError, ProfileRefusal};
pub use flow::{FlowFamily, FlowProfile, FlowProtocol, FlowTarget};
pub use place::{Place, Placed, Source};
pub use policy::{CpuPolicy, ThreadScheduling, XpsPolicy};
pub use queue_set::QueueSet;

use section::{Section, wrong};
use tree::Table;

use crate::mode::DeliveryMode;

/// `EP_MAX_EVENTS` of `fs/eventpoll.c`: an event takes 12 bytes.
const EVENTS_MAX: u32 = i32::MAX as u32 / 12;

/// Configuration of a host. Settings that are absent from the profile stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// Purpose of the profile, in one sentence.
    pub description: Option<Placed<String>>,
    /// Devices, in the order of their labels.
    pub devices: Vec<DeviceProfile>,
    /// Settings of the launched program.
    pub program: Option<ProgramProfile>,
    /// Network sysctls by name (`net.core.busy_poll`), with values as `sysctl(8)` prints them.
    pub sysctls: BTreeMap<String, Placed<String>>,
}

/// Settings of the program that `quell run` launches. `quell apply` ignores them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramProfile {
    /// Delivery mode of the program.
    pub mode: Option<Placed<DeliveryMode>>,
    /// Maximum number of events that a wait returns. While the program processes events, its queue is not polled.
    pub max_events: Option<Placed<NonZeroU32>>,
    /// Where the mode was found, if that was not by a measurement of this program.
    pub found_elsewhere: Option<Placed<String>>,
}

impl Profile {
    /// Parses a profile from its layers. A later layer overrides an earlier one.
    pub fn parse(layers: &[Source]) -> Result<Self, ProfileError> {
        let mut merged = Table::default();
        for layer in layers {
            merged.cover_with(tree::parse(layer)?);
        }
        let profile = Self::read(&merged)?;
        check::check(&profile)?;
        Ok(profile)
    }

    fn read(table: &Table) -> Result<Self, ProfileError> {
        let section = Section::new(table, &keys::ROOT)?;
        Ok(Self {
            description: section.text("description")?,
            devices: section.tables("device")?.into_iter().map(device::read).collect::<Result<_, _>>()?,
            program: section.table("program")?.map(read_program).transpose()?,
            sysctls: section.table("sysctl")?.map(read_sysctls).transpose()?.unwrap_or_default(),
        })
    }
}

fn read_program(table: &Table) -> Result<ProgramProfile, ProfileError> {
    let section = Section::new(table, &keys::PROGRAM)?;
    Ok(ProgramProfile {
        mode: section.text("mode")?.map(device::read_mode).transpose()?,
        max_events: section.number_as("max-events", EVENTS)?.map(events).transpose()?,
        found_elsewhere: section.text("found-elsewhere")?,
    })
}

const EVENTS: &str = "a number of events from 1 to 178956970";

fn events(number: Placed<u32>) -> Result<Placed<NonZeroU32>, ProfileError> {
    match NonZeroU32::new(number.value).filter(|events| events.get() <= EVENTS_MAX) {
        Some(value) => Ok(Placed { value, place: number.place }),
        None => Err(wrong("max-events", EVENTS, &number.place)),
    }
}

/// Reads sysctls: `"net.core.busy_poll" = 0`, or dotted keys without quotes.
fn read_sysctls(table: &Table) -> Result<BTreeMap<String, Placed<String>>, ProfileError> {
    let mut sysctls = BTreeMap::new();
    for (name, leaf) in table.leaves() {
        let value =
            leaf.as_sysctl().ok_or_else(|| leaf.wrong_type(&name, "a number, or a text without control characters"))?;
        if !is_sysctl_name(&name) {
            let expected = "the name of a network sysctl (net.*), for example net.core.busy_poll";
            return Err(ProfileError::new(&leaf.place, ProfileRefusal::Value { key: name, expected }));
        }
        sysctls.insert(name, Placed { value, place: leaf.place.clone() });
    }
    Ok(sysctls)
}

/// Whether the text is the name of a network sysctl. It consists of `net` and further components, separated by dots. A
/// component contains letters, digits, `_`, `-`, and `/` in place of a dot. Other sysctls do not concern packet
/// delivery, and some can run programs (`kernel.core_pattern`).
fn is_sysctl_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut bytes = part.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/'))
    };
    name.starts_with("net.") && name.split('.').all(is_part)
}
