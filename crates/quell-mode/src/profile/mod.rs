//! Profiles: how a whole host is to deliver packets, written as TOML. Which devices are meant, their
//! queues, RSS contexts, flow rules, coalescing, interrupt affinity, and the delivery mode of each
//! queue; and what the program that is served gets when it is launched. Parsed and checked here, without looking at any host; what of it can be done is decided above.
//!
//! Several files are layers: what a later one says of a key replaces what an earlier one says, and
//! every value knows the file and line that it came from ([`Placed`]).
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
mod place;
mod policy;
mod program;
mod queue_set;
mod section;
mod tree;

use std::collections::BTreeMap;

pub use device::{Channels, CoalesceKey, DeviceProfile, QueueGroup, Rings, RssProfile};
pub use error::{Contradiction, ProfileError, ProfileRefusal};
pub use flow::{FlowFamily, FlowProfile, FlowProtocol, FlowTarget};
pub use place::{Place, Placed, Source};
pub use policy::{CpuPolicy, ThreadScheduling, XpsPolicy};
pub use program::ProgramProfile;
pub use queue_set::QueueSet;

use section::Section;
use tree::Table;

/// How a host is to deliver packets. What a profile does not mention stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// What it is for, in a sentence.
    pub description: Option<Placed<String>>,
    /// The devices, in the order of their labels.
    pub devices: Vec<DeviceProfile>,
    /// What the program gets that the host is to serve, when it is launched.
    pub program: Option<ProgramProfile>,
    /// Sysctls by name (`net.core.busy_poll`), each a text as `sysctl(8)` shows it.
    pub sysctls: BTreeMap<String, Placed<String>>,
}

impl Profile {
    /// Reads a profile from its layers, the first the lowest.
    ///
    /// # Errors
    /// [`ProfileError`]: no TOML, a key that is not known, a value out of range, a contradiction; each
    /// with its place.
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
        let section = Section::new(table, &["description", "device", "program", "sysctl"])?;
        Ok(Self {
            description: section.text("description")?,
            devices: section.tables("device")?.into_iter().map(device::read).collect::<Result<_, _>>()?,
            program: section.table("program")?.map(program::read).transpose()?,
            sysctls: section.table("sysctl")?.map(read_sysctls).transpose()?.unwrap_or_default(),
        })
    }
}

/// Sysctls are keys of their own: `"net.core.busy_poll" = 0`, or dotted without quotes.
fn read_sysctls(table: &Table) -> Result<BTreeMap<String, Placed<String>>, ProfileError> {
    let mut sysctls = BTreeMap::new();
    for (name, leaf) in table.leaves() {
        let value = leaf.as_sysctl().ok_or_else(|| leaf.wrong_type(&name, "a number or a text"))?;
        if !is_sysctl_name(&name) {
            let expected = "not the name of a network sysctl: a profile sets net.* only, such as net.core.busy_poll";
            return Err(ProfileError::new(&leaf.place, ProfileRefusal::Value { key: name, expected }));
        }
        sysctls.insert(name, Placed { value, place: leaf.place.clone() });
    }
    Ok(sysctls)
}

/// `net` and parts of letters, digits, `_`, `-` and `/` (for a dot within a part), separated by dots. Others than those
/// of the network (`kernel.core_pattern`) can run programs, and none of them is about packet delivery.
fn is_sysctl_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut bytes = part.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/'))
    };
    name.starts_with("net.") && name.split('.').all(is_part)
}
