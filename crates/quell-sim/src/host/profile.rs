//! Host profiles and their TOML files. A file contains every constant with its value and source. Comments give the
//! unit, the range and the meaning.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_mode::did_you_mean;
use serde::{Deserialize, Serialize};

use super::{CONSTANTS, Constant, Constants};
use crate::engine::Ns;
use crate::mechanism::SimCoalescing;

/// An idle state of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// Shortest expected idle time for which the governor selects it, in ns.
    pub target_residency_ns: Ns,
    /// Exit latency of the hardware, in ns.
    pub exit_latency_ns: Ns,
}

/// Value of a constant and its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Value in the unit that ends the constant's name.
    pub value: f64,
    /// Source of the value: a document, a measurement, or `fitted`.
    pub source: String,
}

/// Profile of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostProfile {
    /// Name of the profile on the command line.
    pub name: String,
    /// Description of the machine.
    pub description: String,
    /// CPU clock in GHz, which converts executed time to cycles.
    pub cpu_ghz: f64,
    /// Number of CPUs that serve requests.
    pub cpus: usize,
    /// Number of CPUs that share a last-level cache.
    pub cpus_per_cache: usize,
    /// Number of entries in each RX ring.
    pub ring_size: usize,
    /// Interrupt coalescing of the NIC.
    pub coalescing: SimCoalescing,
    /// Idle states, from the lightest to the deepest.
    pub idle_states: Vec<IdleState>,
    /// Values of the physical constants.
    pub constants: Constants,
    /// Source of each constant, by name.
    pub sources: BTreeMap<String, String>,
}

/// Why a profile is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostProfileError {
    /// The text is not valid TOML, or not a host profile.
    #[error("host profile: {0}")]
    Syntax(#[from] toml::de::Error),
    /// The profile contains an unknown constant.
    #[error("host profile: unknown constant `{name}`{}", hint(name))]
    UnknownConstant {
        /// Name in the profile.
        name: String,
    },
    /// The profile lacks a constant.
    #[error("host profile: constant `{name}` is missing ({meaning}); the model needs all constants")]
    MissingConstant {
        /// Name of the constant.
        name: &'static str,
        /// Meaning of the constant.
        meaning: &'static str,
    },
    /// A constant has a value outside its range.
    #[error("host profile: {name} = {value} is outside {least} to {greatest}")]
    OutOfRange {
        /// Name of the constant.
        name: &'static str,
        /// Value in the profile.
        value: f64,
        /// Smallest valid value.
        least: f64,
        /// Largest valid value.
        greatest: f64,
    },
    /// No shipped profile has this name.
    #[error("unknown host profile `{name}`{}; available: {known}", did_you_mean(name, known.split(", ")))]
    UnknownHost {
        /// Name as given by the caller.
        name: String,
        /// Names of the shipped profiles.
        known: String,
    },
}

fn hint(name: &str) -> String {
    let word = name.split('_').next().unwrap_or_default();
    let alike: Vec<_> = CONSTANTS.iter().map(|known| known.name).filter(|known| known.starts_with(word)).collect();
    if alike.is_empty() { String::new() } else { format!("; similar names: {}", alike.join(", ")) }
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
    coalescing: SimCoalescing,
    idle_states: Vec<IdleState>,
    constants: BTreeMap<String, Value>,
}

const SHIPPED: &[(&str, &str)] = &[
    ("epyc7662-cx5", include_str!("../../data/hosts/epyc7662-cx5.toml")),
    ("af-xdp-2025", include_str!("../../data/hosts/af-xdp-2025.toml")),
    ("neper-2024", include_str!("../../data/hosts/neper-2024.toml")),
    ("xeon-e5-2680-82599", include_str!("../../data/hosts/xeon-e5-2680-82599.toml")),
];

impl HostProfile {
    /// Finds a shipped profile by name.
    ///
    /// # Errors
    ///
    /// [`HostProfileError::UnknownHost`] with the names of the shipped profiles.
    pub fn shipped(name: &str) -> Result<Self, HostProfileError> {
        let Some((_, text)) = SHIPPED.iter().find(|(known, _)| *known == name) else {
            let known = Self::shipped_names().collect::<Vec<_>>().join(", ");
            return Err(HostProfileError::UnknownHost { name: name.to_owned(), known });
        };
        Self::from_toml(text)
    }

    /// Names of the shipped profiles.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Parses a profile.
    ///
    /// # Errors
    ///
    /// See [`HostProfileError`].
    pub fn from_toml(text: &str) -> Result<Self, HostProfileError> {
        let file: File = toml::from_str(text)?;
        let mut constants = Constants::default();
        for (name, value) in &file.constants {
            let constant =
                Constant::named(name).ok_or_else(|| HostProfileError::UnknownConstant { name: name.clone() })?;
            let Constant { name, least, greatest, .. } = *constant;
            if !(least..=greatest).contains(&value.value) {
                return Err(HostProfileError::OutOfRange { name, value: value.value, least, greatest });
            }
            constant.set(&mut constants, value.value);
        }
        if let Some(missing) = CONSTANTS.iter().find(|constant| !file.constants.contains_key(constant.name)) {
            return Err(HostProfileError::MissingConstant { name: missing.name, meaning: missing.meaning });
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

    /// Formats the profile as TOML. Comments give the unit, the range and the meaning of every constant.
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
    fn a_profile_survives_a_round_trip_through_toml() {
        let profile = profile();
        assert_eq!(HostProfile::from_toml(&profile.to_toml()).expect("own output"), profile);
    }

    #[test]
    fn every_shipped_profile_has_the_name_in_the_list() {
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
    fn a_missing_constant_and_a_value_out_of_range_are_refused() {
        let text = profile().to_toml();
        let without: String =
            text.lines().filter(|line| !line.starts_with("wake_ns")).map(|line| format!("{line}\n")).collect();
        assert!(matches!(
            HostProfile::from_toml(&without),
            Err(HostProfileError::MissingConstant { name: "wake_ns", .. })
        ));
        let line = text.lines().find(|line| line.starts_with("wake_ns")).expect("it is there");
        let wrong = text.replace(line, "wake_ns = { value = -1.0, source = \"nobody\" }");
        assert!(matches!(HostProfile::from_toml(&wrong), Err(HostProfileError::OutOfRange { name: "wake_ns", .. })));
    }
}
