//! From a picture of the host and a profile to what has to be changed, in the order that the kernel
//! needs, and what cannot be done here, and why. Pure: nothing here reads or changes a host, so
//! `--dry-run` shows exactly what would be done.
//!
//! A plan against the state after it is empty; its reverse leads back to the state before.

mod change;
mod cpus;
mod device;
mod queues;
mod steering;
pub(crate) mod text;

use std::collections::BTreeMap;

use quell_mode::profile::{DeviceProfile, Place, Placed, Profile};

use crate::picture::{Device, Picture, Reading, Unknown, Why};

pub use change::{Change, ChannelCounts, ContextRef, DeviceId, Diff, RingSizes, RuleAction};
pub use text::ChangeText;

/// What a plan is made from: the picture, and the sysctls that the profile names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The host.
    pub picture: Picture,
    /// The values of [`Profile::sysctls`], by name, as text.
    pub sysctls: BTreeMap<String, Reading<String>>,
    /// Those of them that the namespace does not have, because they hold for the whole host: with the value that they
    /// have there.
    pub host_wide_sysctls: BTreeMap<String, Reading<String>>,
}

/// One change of a plan, and which line of a profile wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is set.
    pub change: Change,
    /// Where the profile says so; `None` for what is only set again because its queue is made anew.
    pub wanted_by: Option<Place>,
}

/// Something that the profile wants and that cannot be done here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// What, in a few words: `coalescing of queue 3 of eth0`.
    pub what: String,
    /// Absent, unsupported by kernel or driver, denied: as the picture says.
    pub why: Why,
    /// What was seen, in the kernel's words where there are some.
    pub said: String,
    /// Where the profile says so.
    pub wanted_by: Place,
}

/// What is to be done, in order, and what cannot be. Whether it has taken effect is told by planning
/// again from a new picture: nothing is left to be done then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes in the order in which they are made.
    pub steps: Vec<Step>,
    /// What cannot be done.
    pub impossible: Vec<Impossible>,
}

impl Plan {
    /// What has to be changed on the host so that it is as the profile says.
    #[must_use]
    pub fn of(observed: &Observed, profile: &Profile) -> Self {
        let mut plan = Self::default();
        for wanted in &profile.devices {
            let is_meant = |device: &&Device| selects(wanted, device);
            if !observed.picture.devices.iter().any(|device| is_meant(&device)) {
                plan.cannot(
                    &wanted.place,
                    format!("device.{}", wanted.label),
                    Why::Absent,
                    "no device here is selected by it",
                );
            }
        }
        for device in &observed.picture.devices {
            match profile.devices.iter().filter(|wanted| selects(wanted, device)).collect::<Vec<_>>().as_slice() {
                [] => {}
                [wanted] => device::plan(&mut plan, &observed.picture, device, wanted),
                [first, second, ..] => {
                    let said = format!("`device.{}` and `device.{}` both select it", first.label, second.label);
                    plan.cannot(&second.place, device.name.clone(), Why::Failed, &said);
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
        plan
    }

    fn sort(&mut self) {
        self.steps.sort_by_key(|step| step.change.rank());
    }

    fn sysctl(&mut self, name: &str, wanted: &Placed<String>, current: Option<&Reading<String>>) {
        let Some(current) = current else {
            return self.cannot(&wanted.place, format!("sysctl {name}"), Why::NotAsked, "its value was not read");
        };
        let make = |value| Change::Sysctl { name: name.to_owned(), value };
        let wish = Some((normalised(&wanted.value), &wanted.place));
        let current = Current::from(current).map(|value| normalised(&value));
        self.settle(format!("sysctl {name}"), Made::Stays, current, wish, None, make);
    }

    /// Set for the whole host it would reach more than the namespace that is meant; it may have the value already.
    fn host_wide_sysctl(&mut self, name: &str, wanted: &Placed<String>, on_host: &Reading<String>) {
        let what = format!("sysctl {name}");
        match on_host {
            Reading::Known(value) if normalised(value) == normalised(&wanted.value) => {}
            Reading::Known(value) => {
                let said = format!(
                    "it holds for the whole host, where it is {value}, and network namespaces have none of their own: \
                     apply it without --netns"
                );
                self.cannot(&wanted.place, what, Why::Absent, &said);
            }
            Reading::Unknown(reading) => self.cannot_know(&wanted.place, what, &reading.unknown),
        }
    }

    /// Notes what cannot be done.
    fn cannot(&mut self, wanted_by: &Place, what: String, why: Why, said: &str) {
        self.impossible.push(Impossible { what, why, said: said.to_owned(), wanted_by: wanted_by.clone() });
    }

    fn cannot_know(&mut self, wanted_by: &Place, what: String, unknown: &Unknown) {
        self.cannot(wanted_by, what, unknown.why, &unknown.said);
    }

    /// Adds the step that takes a value to the one wished for, if one is needed.
    fn settle<T: PartialEq + Clone>(
        &mut self,
        what: String,
        made: Made,
        current: Current<'_, T>,
        wish: Option<(T, &Place)>,
        default: Option<&T>,
        make: impl FnOnce(Diff<T>) -> Change,
    ) {
        let is_default = |value: &T| default == Some(value);
        let (old, new, place) = match (current, wish) {
            (Current::Unknown(unknown), Some((_, place))) => return self.cannot_know(place, what, unknown),
            (Current::Unknown(_), None) | (Current::ToCome, None) => return,
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
            (Current::ToCome, Some((new, place))) => match is_default(&new) {
                true => return,
                false => (None, Some(new), Some(place)),
            },
        };
        self.steps.push(Step { change: make(Diff { old, new }), wanted_by: place.cloned() });
    }
}

/// What an earlier step of the plan does to the thing that a value is set on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Nothing.
    Stays,
    /// It is made anew, and has the kernel's defaults then.
    Anew,
    /// It is no longer there.
    Goes,
}

/// A value as it is before the plan.
#[derive(Debug, Clone)]
enum Current<'a, T> {
    Known(T),
    Unknown(&'a Unknown),
    /// The thing is made by an earlier step of the plan.
    ToCome,
}

impl<'a, T: Clone> From<&'a Reading<T>> for Current<'a, T> {
    fn from(reading: &'a Reading<T>) -> Self {
        match (reading.known(), reading.why_unknown()) {
            (Some(value), _) => Self::Known(value.clone()),
            (None, Some(unknown)) => Self::Unknown(unknown),
            (None, None) => Self::ToCome,
        }
    }
}

impl<'a, T> Current<'a, T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Current<'a, U> {
        match self {
            Self::Known(value) => Current::Known(f(value)),
            Self::Unknown(unknown) => Current::Unknown(unknown),
            Self::ToCome => Current::ToCome,
        }
    }
}

/// Whether a part of a profile is about a device. The loopback device has no queue and is never meant
/// by a pattern, only by its name.
fn selects(wanted: &DeviceProfile, device: &Device) -> bool {
    let by_name = wanted.name.as_ref().is_none_or(|name| name.value.matches(&device.name));
    let driver = device.driver.known().and_then(|driver| driver.driver.as_deref());
    let by_driver = |pattern: &glob::Pattern| driver.is_some_and(|driver| pattern.matches(driver));
    let is_loopback_by_pattern =
        device.name == "lo" && wanted.name.as_ref().is_none_or(|name| name.value.as_str() != "lo");
    by_name && wanted.driver.as_ref().is_none_or(|pattern| by_driver(&pattern.value)) && !is_loopback_by_pattern
}

/// Fields separated by single blanks, as two texts of a sysctl are compared.
fn normalised(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl DeviceId {
    /// The device of a picture.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        Self { namespace: device.namespace, ifindex: device.ifindex, name: device.name.clone() }
    }
}
