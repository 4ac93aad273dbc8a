//! Settings of a NAPI instance, complete and partial, with the kernel's names and units.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::timeout::duration_text;

/// Highest `defer-hard-irqs` that the kernel accepts: `S32_MAX` in
/// `Documentation/netlink/specs/netdev.yaml`. Higher values fail with ERANGE.
pub const DEFER_HARD_IRQS_MAX: u32 = i32::MAX as u32;

/// Settings of a NAPI instance (netlink family `netdev`, `napi-set`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettings {
    /// Number of empty polls before the interrupt is enabled again, from 0 to [`DEFER_HARD_IRQS_MAX`]. 0 disables
    /// deferral.
    pub defer_hard_irqs: u32,
    /// Timeout of the timer that polls the queue while its interrupt is deferred, in ns. 0 disables deferral.
    #[serde(rename = "gro-flush-timeout")]
    pub gro_flush_timeout_ns: u64,
    /// Maximum time for which the interrupt stays masked while the application processes events from `epoll_wait`, in
    /// ns. 0 disables suspension.
    #[serde(rename = "irq-suspend-timeout")]
    pub irq_suspend_timeout_ns: u64,
    /// Whether a kernel thread polls the queue.
    pub threaded: Threaded,
}

impl NapiSettings {
    /// Whether interrupts are deferred, which requires that both deferral settings are above 0 (`napi_complete_done()`
    /// in `net/core/dev.c`).
    #[must_use]
    pub fn defers(&self) -> bool {
        self.defer_hard_irqs > 0 && self.gro_flush_timeout_ns > 0
    }
}

/// The context that polls a queue, from the attribute `threaded` of `napi-set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Threaded {
    /// The NET_RX softirq (attribute value 0).
    #[default]
    Off,
    /// The queue's NAPI thread, which the interrupt wakes (attribute value 1).
    Thread,
    /// The queue's NAPI thread, which busy polls permanently and takes a whole CPU (attribute value 2, Linux 6.19).
    BusyPoll,
}

impl Threaded {
    /// Value of the netlink attribute.
    #[must_use]
    pub fn kernel_value(self) -> u32 {
        NapiThreading::from(self).as_kernel()
    }

    /// Converts a value of the netlink attribute. Returns `None` for a value that no known kernel uses.
    #[must_use]
    pub fn from_kernel_value(value: u32) -> Option<Self> {
        NapiThreading::from_kernel(value).known()
    }
}

/// The context in which a NAPI instance is polled (`threaded`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NapiThreading {
    /// The instance is polled in softirq context (0).
    Disabled,
    /// The instance is polled in its own kernel thread (1).
    Enabled,
    /// The instance is polled in its own kernel thread, which busy polls (2, Linux 6.19).
    BusyPoll,
    /// A value that Quell does not know.
    Other(u32),
}

impl NapiThreading {
    /// Value of the netlink attribute.
    #[must_use]
    pub const fn as_kernel(self) -> u32 {
        match self {
            Self::Disabled => 0,
            Self::Enabled => 1,
            Self::BusyPoll => 2,
            Self::Other(value) => value,
        }
    }

    /// Converts a value of the netlink attribute.
    #[must_use]
    pub const fn from_kernel(value: u32) -> Self {
        match value {
            0 => Self::Disabled,
            1 => Self::Enabled,
            2 => Self::BusyPoll,
            other => Self::Other(other),
        }
    }

    /// Converts to the setting of a mode. Returns `None` for an unknown value.
    #[must_use]
    pub const fn known(self) -> Option<Threaded> {
        match self {
            Self::Disabled => Some(Threaded::Off),
            Self::Enabled => Some(Threaded::Thread),
            Self::BusyPoll => Some(Threaded::BusyPoll),
            Self::Other(_) => None,
        }
    }
}

impl From<Threaded> for NapiThreading {
    fn from(threaded: Threaded) -> Self {
        match threaded {
            Threaded::Off => Self::Disabled,
            Threaded::Thread => Self::Enabled,
            Threaded::BusyPoll => Self::BusyPoll,
        }
    }
}

/// One setting of a NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NapiAttribute {
    /// See [`NapiSettings::defer_hard_irqs`].
    DeferHardIrqs,
    /// See [`NapiSettings::gro_flush_timeout_ns`].
    GroFlushTimeout,
    /// See [`NapiSettings::irq_suspend_timeout_ns`].
    IrqSuspendTimeout,
    /// See [`NapiSettings::threaded`].
    Threaded,
}

impl NapiAttribute {
    /// All attributes.
    pub const ALL: [Self; 4] = [Self::DeferHardIrqs, Self::GroFlushTimeout, Self::IrqSuspendTimeout, Self::Threaded];

    /// Name of the attribute of `napi-set`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeferHardIrqs => "defer-hard-irqs",
            Self::GroFlushTimeout => "gro-flush-timeout",
            Self::IrqSuspendTimeout => "irq-suspend-timeout",
            Self::Threaded => "threaded",
        }
    }
}

/// Some settings of a NAPI instance. An absent value is not reported by the kernel (it predates the attribute), or is
/// not part of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PartialNapiSettings {
    /// See [`NapiSettings::defer_hard_irqs`] (Linux 6.13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout_ns`] (Linux 6.13).
    #[serde(rename = "gro-flush-timeout", default, skip_serializing_if = "Option::is_none")]
    pub gro_flush_timeout_ns: Option<u64>,
    /// See [`NapiSettings::irq_suspend_timeout_ns`] (Linux 6.13).
    #[serde(rename = "irq-suspend-timeout", default, skip_serializing_if = "Option::is_none")]
    pub irq_suspend_timeout_ns: Option<u64>,
    /// See [`NapiSettings::threaded`]. It is per instance since Linux 6.17, and a setting of the whole device before.
    /// It is serialized as the number of the netlink attribute.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "threading_as_number")]
    #[schemars(with = "Option<u32>")]
    pub threaded: Option<NapiThreading>,
}

mod threading_as_number {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::NapiThreading;

    pub(super) fn serialize<S: Serializer>(value: &Option<NapiThreading>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(NapiThreading::as_kernel).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NapiThreading>, D::Error> {
        Ok(Option::<u32>::deserialize(deserializer)?.map(NapiThreading::from_kernel))
    }
}

impl From<NapiSettings> for PartialNapiSettings {
    fn from(settings: NapiSettings) -> Self {
        let NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns, threaded } = settings;
        Self {
            defer_hard_irqs: Some(defer_hard_irqs),
            gro_flush_timeout_ns: Some(gro_flush_timeout_ns),
            irq_suspend_timeout_ns: Some(irq_suspend_timeout_ns),
            threaded: Some(threaded.into()),
        }
    }
}

impl PartialNapiSettings {
    /// Settings in which all values are absent.
    pub const NONE: Self =
        Self { defer_hard_irqs: None, gro_flush_timeout_ns: None, irq_suspend_timeout_ns: None, threaded: None };

    /// Converts to complete settings. Returns `None` if a value is absent or `threaded` is unknown.
    #[must_use]
    pub fn complete(&self) -> Option<NapiSettings> {
        Some(NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs?,
            gro_flush_timeout_ns: self.gro_flush_timeout_ns?,
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns?,
            threaded: self.threaded?.known()?,
        })
    }

    /// Whether all values are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether interrupts are deferred; see [`NapiSettings::defers`]. An absent value counts as 0.
    #[must_use]
    pub fn defers(&self) -> bool {
        self.defer_hard_irqs > Some(0) && self.gro_flush_timeout_ns > Some(0)
    }

    /// Value of an attribute as the kernel's number.
    #[must_use]
    pub fn get(&self, attribute: NapiAttribute) -> Option<u64> {
        match attribute {
            NapiAttribute::DeferHardIrqs => self.defer_hard_irqs.map(u64::from),
            NapiAttribute::GroFlushTimeout => self.gro_flush_timeout_ns,
            NapiAttribute::IrqSuspendTimeout => self.irq_suspend_timeout_ns,
            NapiAttribute::Threaded => self.threaded.map(|threaded| threaded.as_kernel().into()),
        }
    }

    fn with(self, attribute: NapiAttribute, value: Option<u64>) -> Self {
        let narrow = value.and_then(|value| u32::try_from(value).ok());
        match attribute {
            NapiAttribute::DeferHardIrqs => Self { defer_hard_irqs: narrow, ..self },
            NapiAttribute::GroFlushTimeout => Self { gro_flush_timeout_ns: value, ..self },
            NapiAttribute::IrqSuspendTimeout => Self { irq_suspend_timeout_ns: value, ..self },
            NapiAttribute::Threaded => Self { threaded: narrow.map(NapiThreading::from_kernel), ..self },
        }
    }

    fn joined(&self, other: &Self, value: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        let attributes = NapiAttribute::ALL.into_iter();
        attributes.fold(Self::NONE, |settings, attribute| {
            settings.with(attribute, value(self.get(attribute), other.get(attribute)))
        })
    }

    /// Returns the present values that differ from those of `other`.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Self {
        self.joined(other, |this, other| this.filter(|_| this != other))
    }

    /// Returns the present values that equal those of `other`.
    #[must_use]
    pub fn where_equal(&self, other: &Self) -> Self {
        self.joined(other, |this, other| this.filter(|_| this == other))
    }

    /// Returns the values of the fields that are present in `other`.
    #[must_use]
    pub fn where_present_in(&self, other: &Self) -> Self {
        self.joined(other, |this, other| other.and(this))
    }

    /// Returns these values, overwritten by the values that are present in `change`.
    #[must_use]
    pub fn changed_by(&self, change: &Self) -> Self {
        self.joined(change, |this, change| change.or(this))
    }

    /// Whether a change to `after` can stall a suspended queue. This happens if the suspension timeout becomes shorter,
    /// or the deferral that the suspension depends on ends (`napi_complete_done` in `net/core/dev.c`).
    #[must_use]
    pub fn can_stall_on_the_way_to(&self, after: &Self) -> bool {
        let suspends = self.irq_suspend_timeout_ns.unwrap_or(0);
        suspends > 0 && (after.irq_suspend_timeout_ns.unwrap_or(0) < suspends || (self.defers() && !after.defers()))
    }
}

/// Values of attributes as the kernel's numbers. A number that the attribute cannot have is left out.
impl FromIterator<(NapiAttribute, u64)> for PartialNapiSettings {
    fn from_iter<I: IntoIterator<Item = (NapiAttribute, u64)>>(values: I) -> Self {
        let mut settings = Self::NONE;
        settings.extend(values);
        settings
    }
}

impl Extend<(NapiAttribute, u64)> for PartialNapiSettings {
    fn extend<I: IntoIterator<Item = (NapiAttribute, u64)>>(&mut self, values: I) {
        *self = values.into_iter().fold(*self, |settings, (attribute, value)| settings.with(attribute, Some(value)));
    }
}

impl fmt::Display for PartialNapiSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |attribute: NapiAttribute| {
            let value = self.get(attribute)?;
            let is_time = matches!(attribute, NapiAttribute::GroFlushTimeout | NapiAttribute::IrqSuspendTimeout);
            Some(format!("{} {}", attribute.name(), if is_time { duration_text(value) } else { value.to_string() }))
        };
        let texts: Vec<String> = NapiAttribute::ALL.into_iter().filter_map(text).collect();
        f.write_str(if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPENDING: PartialNapiSettings = PartialNapiSettings {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(20_000_000),
        threaded: Some(NapiThreading::Disabled),
    };

    #[test]
    fn partial_settings_are_read_and_written_with_the_kernels_numbers_and_without_absent_values() {
        let all = r#"{"defer-hard-irqs":100,"gro-flush-timeout":20000,"irq-suspend-timeout":20000000,"threaded":0}"#;
        let unknown = PartialNapiSettings { threaded: Some(NapiThreading::Other(7)), ..PartialNapiSettings::NONE };
        for (settings, text) in [(SUSPENDING, all), (PartialNapiSettings::NONE, "{}"), (unknown, r#"{"threaded":7}"#)] {
            assert_eq!(serde_json::to_string(&settings).unwrap(), text);
            assert_eq!(serde_json::from_str::<PartialNapiSettings>(text).unwrap(), settings);
        }
        let null = serde_json::from_str::<PartialNapiSettings>(r#"{"threaded":null}"#).unwrap();
        assert_eq!(null, PartialNapiSettings::NONE);
        assert!(serde_json::from_str::<PartialNapiSettings>(r#"{"threading":0}"#).is_err());
    }

    #[test]
    fn settings_are_complete_when_no_value_is_absent_or_unknown() {
        let settings = NapiSettings { defer_hard_irqs: 1, threaded: Threaded::BusyPoll, ..NapiSettings::default() };
        assert_eq!(PartialNapiSettings::from(settings).complete(), Some(settings));
        assert_eq!(PartialNapiSettings { gro_flush_timeout_ns: None, ..SUSPENDING }.complete(), None);
        assert_eq!(PartialNapiSettings { threaded: Some(NapiThreading::Other(7)), ..SUSPENDING }.complete(), None);
    }

    #[test]
    fn disabling_suspension_or_deferral_can_stall_a_queue() {
        let ends = [
            PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..SUSPENDING },
            PartialNapiSettings { irq_suspend_timeout_ns: Some(19_999_999), ..SUSPENDING },
            PartialNapiSettings { defer_hard_irqs: Some(0), ..SUSPENDING },
            PartialNapiSettings { gro_flush_timeout_ns: Some(0), ..SUSPENDING },
        ];
        for after in ends {
            assert!(SUSPENDING.can_stall_on_the_way_to(&after), "{after}");
        }
    }

    #[test]
    fn a_longer_or_unchanged_suspension_cannot_stall_a_queue() {
        let longer = PartialNapiSettings {
            irq_suspend_timeout_ns: Some(u64::MAX),
            threaded: Some(NapiThreading::Enabled),
            ..SUSPENDING
        };
        assert!(!SUSPENDING.can_stall_on_the_way_to(&longer));
        let base = PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..SUSPENDING };
        assert!(!base.can_stall_on_the_way_to(&PartialNapiSettings::NONE));
    }
}
