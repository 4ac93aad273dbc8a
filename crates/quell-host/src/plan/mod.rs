//! Computes the changes that a profile requires, in the order that the kernel needs, and the reasons why others are not
//! possible. Pure: nothing here reads or changes a host, so `--dry-run` shows exactly the changes that would be made.
//!
//! After a plan was applied, the next plan is empty. Reversing a plan restores the previous state.

mod as_profile;
pub mod consequences;
mod cpus;
mod device;
mod queues;
mod steering;

use std::collections::BTreeMap;
use std::mem;

use quell_linux::capability::Capability;
use quell_linux::{NapiId, visible};
use quell_mode::PartialNapiSettings;
use quell_mode::profile::{DeviceProfile, Place, Placed, Profile};
use tracing::info;

use crate::snapshot::{Device, Reading, Snapshot, Unknown, UnknownReason};

pub use as_profile::{AsProfileError, as_profile, selects_device};
pub use quell_change::change::{
    ChangeText, ChannelCounts, ContextRef, DeviceId, Diff, PlannedChange, PlannedQueue, RingSizes, RuleAction,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanInput {
    pub snapshot: Snapshot,
    /// Values of [`Profile::sysctls`] as text, by name.
    pub sysctls: BTreeMap<String, Reading<String>>,
    /// Sysctls that affect the whole host and therefore do not exist in the namespace, with their host value.
    pub host_wide_sysctls: BTreeMap<String, Reading<String>>,
    /// Files that the caller may not write to.
    pub denied: DeniedFiles,
}

/// Files that the caller may not write to, with the kernel's answers. Other settings depend on capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeniedFiles {
    pub sysctls: BTreeMap<String, String>,
    pub irq_affinity: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileStep {
    pub change: PlannedChange,
    /// Location in the profile; `None` if the value is set again only because its queue is recreated.
    pub wanted_by: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpossibleSetting {
    /// The setting, in a few words: `coalescing of queue 3 of eth0`.
    pub what: String,
    /// Class of the reason: absent, unsupported by kernel or driver, denied.
    pub reason: UnknownReason,
    pub message: String,
    pub wanted_by: Place,
}

/// Ordered changes, and settings that cannot be applied. To verify a plan, plan again from a new snapshot: the result
/// must be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfilePlan {
    /// Changes in the order of application.
    pub steps: Vec<ProfileStep>,
    pub impossible: Vec<ImpossibleSetting>,
    /// Queues that have the values of the profile already. They need a record if another owner has set them, who may
    /// end earlier.
    pub matching: Vec<PlannedQueue>,
    /// Devices that are missing, or down and without queues, as the profile or the kernel names them. Their settings may
    /// become possible.
    pub awaited: Vec<String>,
}

impl ProfilePlan {
    /// Values to set on the present NAPI instances.
    #[must_use]
    pub fn values(&self) -> Vec<(NapiId, PartialNapiSettings)> {
        let of = |step: &ProfileStep| match &step.change {
            PlannedChange::Napi(queue) => queue.napi.zip(queue.values.new),
            _ => None,
        };
        self.steps.iter().filter_map(of).collect()
    }

    #[must_use]
    pub fn of(observed: &PlanInput, profile: &Profile) -> Self {
        let mut plan = Self::default();
        for wanted in &profile.devices {
            let is_meant = |device: &&Device| selects(wanted, device);
            let devices = &observed.snapshot.devices;
            if !devices.iter().any(|device| is_meant(&device)) {
                let present: Vec<_> = devices.iter().map(|device| visible::name(&device.name)).collect();
                let has = if present.is_empty() { "no device" } else { &present.join(", ") };
                let said =
                    format!("it selects no device in this namespace, which has {has}; --netns names another one");
                plan.cannot(&wanted.place, format!("device.{}", wanted.label), UnknownReason::Absent, &said);
                plan.awaited.push(format!("device.{}", wanted.label));
            }
        }
        for device in &observed.snapshot.devices {
            match profile.devices.iter().filter(|wanted| selects(wanted, device)).collect::<Vec<_>>().as_slice() {
                [] => {}
                [wanted] => device::plan(&mut plan, &observed.snapshot, device, wanted),
                [first, second, ..] => {
                    let said = format!("`device.{}` and `device.{}` both select it", first.label, second.label);
                    plan.cannot(&second.place, device.name.clone(), UnknownReason::Failed, &said);
                }
            }
        }
        for (name, wanted) in &profile.sysctls {
            match observed.host_wide_sysctls.get(name) {
                Some(on_host) => plan.host_wide_sysctl(name, wanted, on_host),
                None => plan.sysctl(name, wanted, observed.sysctls.get(name)),
            }
        }
        plan.sort();
        plan.refuse_without_privilege(observed);
        plan
    }

    /// Replaces steps that the caller may not make.
    fn refuse_without_privilege(&mut self, observed: &PlanInput) {
        let (denied, allowed) = mem::take(&mut self.steps)
            .into_iter()
            .map(|step| (why_denied(&step.change, observed), step))
            .partition::<Vec<_>, _>(|(why, _)| why.is_some());
        self.steps = allowed.into_iter().map(|(_, step)| step).collect();
        for (why, step) in denied {
            let (Some((needs, said)), Some(place)) = (why, step.wanted_by) else { continue };
            self.cannot(&place, step.change.text().to_string(), UnknownReason::Denied { needs }, &said);
        }
    }

    pub(crate) fn log(&self) {
        for ProfileStep { change, wanted_by } in &self.steps {
            let device = change.device().map(|device| device.name.as_str());
            let wanted_by = wanted_by.as_ref().map(ToString::to_string);
            info!(device, queue = change.queue(), change = %change.text(), wanted_by, "planned change");
        }
        for ImpossibleSetting { what, message: said, wanted_by, .. } in &self.impossible {
            info!(what, why = said, %wanted_by, "the setting cannot be applied");
        }
    }

    fn sort(&mut self) {
        self.steps.sort_by_key(|step| step.change.rank());
    }

    fn sysctl(&mut self, name: &str, wanted: &Placed<String>, current: Option<&Reading<String>>) {
        let Some(current) = current else {
            return self.cannot(
                &wanted.place,
                format!("sysctl {name}"),
                UnknownReason::NotAsked,
                "its value was not read",
            );
        };
        let make = |value| PlannedChange::Sysctl { name: name.to_owned(), value };
        let wish = Some((normalised(&wanted.value), &wanted.place));
        let current = Current::from(current).map(|value| normalised(&value));
        self.settle(format!("sysctl {name}"), Made::Stays, current, wish, None, make);
    }

    /// Refuses a sysctl that would affect more than the namespace, unless it already has the value.
    fn host_wide_sysctl(&mut self, name: &str, wanted: &Placed<String>, on_host: &Reading<String>) {
        let what = format!("sysctl {name}");
        match on_host {
            Reading::Known(value) if normalised(value) == normalised(&wanted.value) => {}
            Reading::Known(value) => {
                let said = format!(
                    "it is {value} and applies to the whole host; it cannot be set per network namespace: apply it \
                     without --netns"
                );
                self.cannot(&wanted.place, what, UnknownReason::Absent, &said);
            }
            Reading::Unknown(reading) => self.cannot_know(&wanted.place, what, &reading.unknown),
        }
    }

    fn cannot(&mut self, wanted_by: &Place, what: String, why: UnknownReason, said: &str) {
        self.impossible.push(ImpossibleSetting {
            what,
            reason: why,
            message: said.to_owned(),
            wanted_by: wanted_by.clone(),
        });
    }

    fn cannot_know(&mut self, wanted_by: &Place, what: String, unknown: &Unknown) {
        let words = match unknown.reason {
            UnknownReason::Absent => "it does not exist: ",
            UnknownReason::UnsupportedByKernel => "this kernel does not support it: ",
            UnknownReason::UnsupportedByDriver => "the driver does not support it: ",
            UnknownReason::Denied { .. } => "access was denied: ",
            UnknownReason::NotAsked | UnknownReason::Failed => "",
        };
        // The words replace the explanation that errors of netlink end with.
        let kernel = unknown.message.trim_end_matches("; not supported by this kernel or driver");
        self.cannot(wanted_by, what, unknown.reason, &format!("{words}{kernel}"));
    }

    fn settle<T: PartialEq + Clone>(
        &mut self,
        what: String,
        made: Made,
        current: Current<'_, T>,
        wish: Option<(T, &Place)>,
        default: Option<&T>,
        make: impl FnOnce(Diff<T>) -> PlannedChange,
    ) {
        let is_default = |value: &T| default == Some(value);
        let (old, new, place) = match (current, wish) {
            (Current::Unknown(unknown), Some((_, place))) => return self.cannot_know(place, what, unknown),
            (Current::Unknown(_), None) | (Current::NotYetCreated, None) => return,
            (Current::Known(old), _) if made == Made::Goes => match is_default(&old) {
                true => return,
                false => (Some(old), None, None),
            },
            (Current::Known(old), Some((new, place))) => {
                if old == new && (made == Made::Stays || is_default(&new)) {
                    return;
                }
                (Some(old), Some(new), Some(place))
            }
            (Current::Known(old), None) => {
                if made == Made::Stays || is_default(&old) {
                    return;
                }
                (Some(old.clone()), Some(old), None)
            }
            (Current::NotYetCreated, Some((new, place))) => match is_default(&new) {
                true => return,
                false => (None, Some(new), Some(place)),
            },
        };
        self.steps.push(ProfileStep { change: make(Diff { old, new }), wanted_by: place.cloned() });
    }
}

/// Why the caller may not make a change, and the capability that would help. `None` if nothing forbids it.
fn why_denied(change: &PlannedChange, observed: &PlanInput) -> Option<(Option<Capability>, String)> {
    let file = |said: &String| (None, format!("{said}; this needs root"));
    let needed = match change {
        PlannedChange::Sysctl { name, .. } => return observed.denied.sysctls.get(name).map(file),
        PlannedChange::IrqAffinity { .. } => return observed.denied.irq_affinity.as_ref().map(file),
        PlannedChange::ThreadCpus { .. } | PlannedChange::ThreadScheduling { .. } => Capability::SysNice,
        _ => Capability::NetAdmin,
    };
    let privileges = &observed.snapshot.privileges;
    if privileges.capabilities.known().is_some_and(|held| !held.contains(&needed)) {
        return Some((Some(needed), format!("needs {needed}")));
    }
    let is_in_other_namespace = privileges.in_initial_user_namespace.known() == Some(&false);
    (matches!(change, PlannedChange::Napi { .. }) && is_in_other_namespace)
        .then(|| (Some(needed), format!("needs {needed} in the initial user namespace")))
}

/// Effect of earlier steps on the object of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Stays,
    /// The object is recreated with the kernel's defaults.
    Recreated,
    Goes,
}

/// Value of an object before the plan.
#[derive(Debug, Clone)]
enum Current<'a, T> {
    Known(T),
    Unknown(&'a Unknown),
    /// An earlier step of the plan creates the object.
    NotYetCreated,
}

impl<'a, T: Clone> From<&'a Reading<T>> for Current<'a, T> {
    fn from(reading: &'a Reading<T>) -> Self {
        match (reading.known(), reading.why_unknown()) {
            (Some(value), _) => Self::Known(value.clone()),
            (None, Some(unknown)) => Self::Unknown(unknown),
            (None, None) => Self::NotYetCreated,
        }
    }
}

impl<'a, T> Current<'a, T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Current<'a, U> {
        match self {
            Self::Known(value) => Current::Known(f(value)),
            Self::Unknown(unknown) => Current::Unknown(unknown),
            Self::NotYetCreated => Current::NotYetCreated,
        }
    }
}

/// Whether a section of a profile applies to a device. Patterns do not match the loopback device, which has no queues;
/// its exact name does.
fn selects(wanted: &DeviceProfile, device: &Device) -> bool {
    let by_name = wanted.name.as_ref().is_none_or(|name| name.value.matches(&device.name));
    let driver = device.driver.known().and_then(|driver| driver.driver.as_deref());
    let by_driver = |pattern: &glob::Pattern| driver.is_some_and(|driver| pattern.matches(driver));
    let is_loopback_by_pattern =
        device.name == "lo" && wanted.name.as_ref().is_none_or(|name| name.value.as_str() != "lo");
    by_name && wanted.driver.as_ref().is_none_or(|pattern| by_driver(&pattern.value)) && !is_loopback_by_pattern
}

/// Fields separated by single spaces, for comparing sysctl values.
fn normalised(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}
