//! A host profile and its TOML file: every constant with its value and where that comes from, and
//! the comments that say unit, range and meaning. Reading refuses what it does not know, and says
//! where.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{CONSTANTS, Constant, Constants};
use crate::engine::Ns;
use crate::mechanism::Coalescing;

/// An idle state of the host's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// The shortest expected idle time for which the governor chooses it, in ns.
    pub target_residency_ns: Ns,
    /// How long the hardware takes to leave it, in ns.
    pub exit_latency_ns: Ns,
}

/// A constant's value and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// In the unit at the end of the constant's name.
    pub value: f64,
    /// A document, a measurement, or `fitted`.
    pub source: String,
}

/// Everything about a host that the model needs.
#[derive(Debug, Clone, PartialEq)]
pub struct HostProfile {
    /// What it is called on the command line.
    pub name: String,
    /// The machine, in words.
    pub description: String,
    /// The clock of its CPUs when they execute, in GHz: turns executed time into cycles.
    pub cpu_ghz: f64,
    /// CPUs that take part.
    pub cpus: usize,
    /// CPUs that share a last-level cache.
    pub cpus_per_cache: usize,
    /// Entries of each RX ring.
    pub ring_size: usize,
    /// The NIC's interrupt coalescing.
    pub coalescing: Coalescing,
    /// Idle states, the lightest first.
    pub idle_states: Vec<IdleState>,
    /// What things cost.
    pub constants: Constants,
    /// Where each constant's value comes from, by its name.
    pub sources: BTreeMap<String, String>,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is no TOML, or not that of a profile.
    #[error("host profile: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A constant that does not exist.
    #[error("host profile: constant `{name}` is not known{}", hint(name))]
    UnknownConstant {
        /// As it was written.
        name: String,
    },
    /// A constant without a value.
    #[error("host profile: constant `{name}` is missing ({meaning}); the model needs every one of them")]
    MissingConstant {
        /// Its name.
        name: &'static str,
        /// What it is.
        meaning: &'static str,
    },
    /// A value that makes no sense.
    #[error("host profile: {name} = {value} is outside {least} to {greatest}")]
    OutOfRange {
        /// Its name.
        name: &'static str,
        /// The value that was given.
        value: f64,
        /// The least that makes sense.
        least: f64,
        /// The greatest that makes sense.
        greatest: f64,
    },
    /// No shipped profile has this name.
    #[error("no host profile `{name}` is shipped; there are: {known}")]
    UnknownHost {
        /// As it was asked for.
        name: String,
        /// Those that exist.
        known: String,
    },
}

fn hint(name: &str) -> String {
    let word = name.split('_').next().unwrap_or_default();
    let alike: Vec<_> = CONSTANTS.iter().map(|known| known.name).filter(|known| known.starts_with(word)).collect();
    if alike.is_empty() { String::new() } else { format!("; there are: {}", alike.join(", ")) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    description: String,
    cpu_ghz: f64,
    cpus: usize,
    cpus_per_cache: usize,
    ring_size: usize,
    coalescing: Coalescing,
    idle_states: Vec<IdleState>,
    constants: BTreeMap<String, Value>,
}

/// The profiles that ship with the project, by name.
const SHIPPED: &[(&str, &str)] = &[
    ("epyc7662-cx5", include_str!("../../data/hosts/epyc7662-cx5.toml")),
    ("af-xdp-2025", include_str!("../../data/hosts/af-xdp-2025.toml")),
    ("neper-2024", include_str!("../../data/hosts/neper-2024.toml")),
    ("xeon-e5-2680-82599", include_str!("../../data/hosts/xeon-e5-2680-82599.toml")),
];

impl HostProfile {
    /// The shipped profile of that name.
    ///
    /// # Errors
    ///
    /// [`ProfileError::UnknownHost`] with the names that exist.
    pub fn shipped(name: &str) -> Result<Self, ProfileError> {
        let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
            let known = Self::shipped_names().collect::<Vec<_>>().join(", ");
            return Err(ProfileError::UnknownHost { name: name.to_owned(), known });
        };
        Self::from_toml(text)
    }

    /// The names of the shipped profiles.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Reads a profile.
    ///
    /// # Errors
    ///
    /// What is not TOML, an unknown or missing constant, a value out of its range.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let file: File = toml::from_str(text)?;
        let mut constants = Constants::default();
        for (name, value) in &file.constants {
            let constant = Constant::named(name).ok_or_else(|| ProfileError::UnknownConstant { name: name.clone() })?;
            let Constant { name, least, greatest, .. } = *constant;
            if !(least..=greatest).contains(&value.value) {
                return Err(ProfileError::OutOfRange { name, value: value.value, least, greatest });
            }
            constant.set(&mut constants, value.value);
        }
        if let Some(missing) = CONSTANTS.iter().find(|constant| !file.constants.contains_key(constant.name)) {
            return Err(ProfileError::MissingConstant { name: missing.name, meaning: missing.meaning });
        }
        Ok(Self {
            name: file.name,
            description: file.description,
            cpu_ghz: file.cpu_ghz,
            cpus: file.cpus.max(1),
            cpus_per_cache: file.cpus_per_cache.max(1),
            ring_size: file.ring_size.max(1),
            coalescing: file.coalescing,
            idle_states: file.idle_states,
            constants,
            sources: file.constants.into_iter().map(|(name, value)| (name, value.source)).collect(),
        })
    }

    /// The profile as a file, with unit, range and meaning of every constant as comments.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::from("# A host profile of `quell sim`. Times are in ns, the clock in GHz.\n");
        let quoted = |value: &str| toml::Value::String(value.to_owned()).to_string();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "name = {}\ndescription = {}", quoted(&self.name), quoted(&self.description));
        let _ = writeln!(
            text,
            "cpu_ghz = {:?}\ncpus = {}\ncpus_per_cache = {}",
            self.cpu_ghz, self.cpus, self.cpus_per_cache
        );
        let _ = writeln!(text, "ring_size = {}", self.ring_size);
        let states: Vec<_> = self
            .idle_states
            .iter()
            .map(|state| {
                format!(
                    "{{ target_residency_ns = {}, exit_latency_ns = {} }}",
                    state.target_residency_ns, state.exit_latency_ns
                )
            })
            .collect();
        let _ = writeln!(text, "idle_states = [{}]", states.join(", "));
        let coalescing = toml::to_string(&self.coalescing).unwrap_or_default();
        let _ = writeln!(text, "\n[coalescing]\n{coalescing}\n[constants]");
        for constant in CONSTANTS {
            let source = self.sources.get(constant.name).map_or("not stated", String::as_str);
            let Constant { name, least, greatest, meaning, .. } = *constant;
            let value = constant.of(&self.constants);
            let _ = writeln!(text, "# {meaning} ({least} to {greatest}).");
            let _ = writeln!(text, "{name} = {{ value = {value:?}, source = {} }}", quoted(source));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> HostProfile {
        HostProfile::shipped("epyc7662-cx5").expect("it ships")
    }

    #[test]
    fn a_profile_reads_back_as_it_was_written() {
        let profile = profile();
        assert_eq!(HostProfile::from_toml(&profile.to_toml()).expect("own output"), profile);
    }

    #[test]
    fn every_shipped_profile_names_itself() {
        for name in HostProfile::shipped_names() {
            assert_eq!(HostProfile::shipped(name).expect("it ships").name, name);
        }
    }

    #[test]
    fn an_unknown_constant_is_refused_by_name() {
        let text = profile().to_toml().replace("device_irq_ns =", "device_interrupt_ns =");
        let error = HostProfile::from_toml(&text).expect_err("the name is wrong").to_string();
        assert!(error.contains("device_interrupt_ns") && error.contains("device_irq_ns"), "{error}");
    }

    #[test]
    fn a_missing_constant_and_one_out_of_range_are_refused() {
        let text = profile().to_toml();
        let without: String =
            text.lines().filter(|line| !line.starts_with("wake_ns")).map(|line| format!("{line}\n")).collect();
        assert!(matches!(HostProfile::from_toml(&without), Err(ProfileError::MissingConstant { name: "wake_ns", .. })));
        let line = text.lines().find(|line| line.starts_with("wake_ns")).expect("it is there");
        let wrong = text.replace(line, "wake_ns = { value = -1.0, source = \"nobody\" }");
        assert!(matches!(HostProfile::from_toml(&wrong), Err(ProfileError::OutOfRange { name: "wake_ns", .. })));
    }
}
