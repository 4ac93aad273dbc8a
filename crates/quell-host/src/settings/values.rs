//! Values of settings as the journal stores them, in the kernel's terms and units, and the decision which values to
//! restore. Pure.

use std::fmt;

use quell_mode::PartialNapiSettings;
use serde::{Deserialize, Serialize};

/// Busy polling of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct SocketValues {
    /// Duration in microseconds for which a blocking receive polls before it sleeps (`SO_BUSY_POLL`).
    pub busy_poll_us: u32,
    /// Whether busy polling of the socket takes precedence over softirqs (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: bool,
}

/// Busy polling to set on a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct SocketPolling {
    /// The values that the kernel reports.
    pub values: SocketValues,
    /// Packets per poll (`SO_BUSY_POLL_BUDGET`), which the kernel does not report. Absent: unchanged, 8 by default.
    /// Sockets that busy polled before keep their own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u16>,
}

impl SocketValues {
    /// Whether the socket busy polls, or prefers busy polling by others.
    #[must_use]
    pub fn polls(&self) -> bool {
        self.busy_poll_us > 0 || self.prefer_busy_poll
    }
}

impl fmt::Display for SocketValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "busy-poll {} µs, prefer {}", self.busy_poll_us, u8::from(self.prefer_busy_poll))
    }
}

/// Decides which settings of a queue to restore, and which settings another program has changed since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restoration {
    /// Values to set.
    pub back: PartialNapiSettings,
    /// Current values that are neither the old nor the new ones.
    pub changed_by_others: PartialNapiSettings,
}

impl Restoration {
    /// Decides each value of a change from `old` to `new`. Restores new values that are still in place. Ignores values
    /// that are the old ones again. Leaves all other values to the program that changed them.
    #[must_use]
    pub fn plan(old: &PartialNapiSettings, new: &PartialNapiSettings, current: &PartialNapiSettings) -> Self {
        let current = current.where_present_in(new);
        let not_old = current.unlike(old);
        let changed_by_others = not_old.unlike(new);
        let ours = not_old.unlike(&changed_by_others);
        Self { back: old.where_present_in(&ours), changed_by_others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quell_mode::NapiThreading;

    fn values() -> impl Strategy<Value = PartialNapiSettings> {
        let narrow = || proptest::option::of(0..3_u32);
        let wide = || proptest::option::of(0..3_u64);
        (narrow(), wide(), wide(), narrow()).prop_map(|(defer, gro, suspend, threaded)| PartialNapiSettings {
            defer_hard_irqs: defer,
            gro_flush_timeout_ns: gro,
            irq_suspend_timeout_ns: suspend,
            threaded: threaded.map(NapiThreading::from_kernel),
        })
    }

    /// Returns the old and new values of a change to `wanted`, as the journal stores them.
    fn change(
        reading: &PartialNapiSettings,
        wanted: &PartialNapiSettings,
    ) -> (PartialNapiSettings, PartialNapiSettings) {
        let new = wanted.where_present_in(reading).unlike(reading);
        (reading.where_present_in(&new), new)
    }

    proptest! {
        #[test]
        fn values_that_nobody_changed_are_restored(before in values(), wanted in values()) {
            let (old, new) = change(&before, &wanted);
            let now = before.changed_by(&new);
            let plan = Restoration::plan(&old, &new, &now);
            prop_assert!(plan.changed_by_others.is_empty());
            prop_assert_eq!(now.changed_by(&plan.back), before);
        }

        #[test]
        fn a_second_restore_sets_nothing(before in values(), wanted in values()) {
            let (old, new) = change(&before, &wanted);
            prop_assert_eq!(Restoration::plan(&old, &new, &before), Restoration::default());
        }

        #[test]
        fn values_that_others_changed_are_left_alone(before in values(), wanted in values(), now in values()) {
            let (old, new) = change(&before, &wanted);
            let plan = Restoration::plan(&old, &new, &now);
            prop_assert!(plan.back.where_present_in(&plan.changed_by_others).is_empty());
            let after = now.changed_by(&plan.back);
            prop_assert_eq!(after.where_present_in(&plan.changed_by_others), plan.changed_by_others);
        }
    }
}
