//! Values of settings as the journal stores them, in kernel terms and units, and the decision which to restore. Pure.

use std::fmt;

use quell_linux::epoll_params::EpollParams;
use quell_linux::netdev::{Napi, NapiChange, NapiThreading};
use serde::{Deserialize, Serialize};

/// Settings of a NAPI instance (`napi-get`, `napi-set` of the `netdev` family). Absent values are not reported by the
/// kernel, or not part of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiValues {
    /// Number of consecutive empty polls during which the interrupt stays masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer_hard_irqs: Option<u32>,
    /// Time until the next poll while the interrupt is masked, nanoseconds.
    #[serde(rename = "gro-flush-timeout", default, skip_serializing_if = "Option::is_none")]
    pub gro_flush_timeout_ns: Option<u64>,
    /// Longest time for which the interrupt stays suspended after an application received events, nanoseconds.
    #[serde(rename = "irq-suspend-timeout", default, skip_serializing_if = "Option::is_none")]
    pub irq_suspend_timeout_ns: Option<u64>,
    /// 0: softirq; 1: NAPI kthread; 2: kthread that busy polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threaded: Option<u32>,
}

/// Busy-poll parameters of an epoll (`struct epoll_params`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct EpollValues {
    /// Duration of busy polling in a wait, in units of 1,024 ns.
    pub busy_poll_usecs: u32,
    /// Packets per poll; 0 means 8.
    pub busy_poll_budget: u16,
    /// The application's polling takes precedence over softirqs, and interrupts are suspended while events arrive.
    pub prefer_busy_poll: bool,
}

/// Busy polling of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct SocketValues {
    /// Time for which a blocking receive polls before it sleeps, microseconds (`SO_BUSY_POLL`).
    pub busy_poll_us: u32,
    /// The socket's polling takes precedence over softirqs (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: bool,
}

/// Busy polling to set on a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct SocketPolling {
    /// Values that can be read.
    pub values: SocketValues,
    /// Packets per poll (`SO_BUSY_POLL_BUDGET`), which cannot be read. Absent: unchanged, 8 by default. Sockets that
    /// busy polled before keep their own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u16>,
}

impl SocketValues {
    /// Whether the socket busy polls or lets others poll for it.
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

/// Decides which settings of a queue to restore, and which another program has changed since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restoration {
    /// Values to set.
    pub back: NapiValues,
    /// Current values that are neither the old nor the new ones.
    pub changed_by_others: NapiValues,
}

impl NapiValues {
    /// Values that the kernel reports.
    #[must_use]
    pub fn of(napi: &Napi) -> Self {
        Self {
            defer_hard_irqs: napi.defer_hard_irqs,
            gro_flush_timeout_ns: napi.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: napi.irq_suspend_timeout_ns,
            threaded: napi.threading.map(NapiThreading::as_kernel),
        }
    }

    /// Values of a change request.
    #[must_use]
    pub fn of_change(change: &NapiChange) -> Self {
        Self {
            defer_hard_irqs: change.defer_hard_irqs,
            gro_flush_timeout_ns: change.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: change.irq_suspend_timeout_ns,
            threaded: change.threading.map(NapiThreading::as_kernel),
        }
    }

    /// Change request for the present values.
    #[must_use]
    pub fn as_change(&self) -> NapiChange {
        NapiChange {
            defer_hard_irqs: self.defer_hard_irqs,
            gro_flush_timeout_ns: self.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns,
            threading: self.threaded.map(NapiThreading::from_kernel),
        }
    }

    /// Whether all values are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Present values that differ from `other`.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Self {
        self.zip(
            other,
            |this, other| (this != other).then_some(this).flatten(),
            |this, other| (this != other).then_some(this).flatten(),
        )
    }

    /// Values of those fields that are present in `other`.
    #[must_use]
    pub fn where_present_in(&self, other: &Self) -> Self {
        self.zip(other, |this, other| other.and(this), |this, other| other.and(this))
    }

    /// These values, overwritten by those present in `change`.
    #[must_use]
    pub fn changed_by(&self, change: &Self) -> Self {
        self.zip(change, |this, change| change.or(this), |this, change| change.or(this))
    }

    /// Whether the change to `after` can leave a suspended queue stalled: the suspension gets shorter, or the deferral
    /// that it depends on ends (`napi_complete_done` in `net/core/dev.c`).
    #[must_use]
    pub fn can_stall_on_the_way_to(&self, after: &Self) -> bool {
        let suspends = self.irq_suspend_timeout_ns.unwrap_or(0);
        let defers =
            |values: &Self| values.defer_hard_irqs.unwrap_or(0) > 0 && values.gro_flush_timeout_ns.unwrap_or(0) > 0;
        suspends > 0 && (after.irq_suspend_timeout_ns.unwrap_or(0) < suspends || (defers(self) && !defers(after)))
    }

    fn zip(
        &self,
        other: &Self,
        narrow: impl Fn(Option<u32>, Option<u32>) -> Option<u32>,
        wide: impl Fn(Option<u64>, Option<u64>) -> Option<u64>,
    ) -> Self {
        Self {
            defer_hard_irqs: narrow(self.defer_hard_irqs, other.defer_hard_irqs),
            gro_flush_timeout_ns: wide(self.gro_flush_timeout_ns, other.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: wide(self.irq_suspend_timeout_ns, other.irq_suspend_timeout_ns),
            threaded: narrow(self.threaded, other.threaded),
        }
    }
}

impl Restoration {
    /// Decides each value of a change from `old` to `new`. Restores values that are still the new ones. Ignores values
    /// that are the old ones already. Leaves all others to the program that changed them.
    #[must_use]
    pub fn plan(old: &NapiValues, new: &NapiValues, current: &NapiValues) -> Self {
        let current = current.where_present_in(new);
        let not_old = current.unlike(old);
        let changed_by_others = not_old.unlike(new);
        let ours = not_old.unlike(&changed_by_others);
        Self { back: old.where_present_in(&ours), changed_by_others }
    }
}

impl fmt::Display for NapiValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = [
            ("defer-hard-irqs", self.defer_hard_irqs.map(u64::from), ""),
            ("gro-flush-timeout", self.gro_flush_timeout_ns, " ns"),
            ("irq-suspend-timeout", self.irq_suspend_timeout_ns, " ns"),
            ("threaded", self.threaded.map(u64::from), ""),
        ];
        let present = values.iter().filter_map(|&(name, value, unit)| Some((name, value?, unit)));
        let texts: Vec<String> = present.map(|(name, value, unit)| format!("{name} {value}{unit}")).collect();
        f.write_str(if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }.as_str())
    }
}

impl From<EpollParams> for EpollValues {
    fn from(params: EpollParams) -> Self {
        Self {
            busy_poll_usecs: params.busy_poll_usecs,
            busy_poll_budget: params.busy_poll_budget,
            prefer_busy_poll: params.prefer_busy_poll,
        }
    }
}

impl From<EpollValues> for EpollParams {
    fn from(values: EpollValues) -> Self {
        Self {
            busy_poll_usecs: values.busy_poll_usecs,
            busy_poll_budget: values.busy_poll_budget,
            prefer_busy_poll: values.prefer_busy_poll,
        }
    }
}

impl fmt::Display for EpollValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = *self;
        let prefer = u8::from(prefer_busy_poll);
        write!(f, "busy_poll_usecs {busy_poll_usecs}, busy_poll_budget {busy_poll_budget}, prefer_busy_poll {prefer}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = NapiValues> {
        let narrow = || proptest::option::of(0..3_u32);
        let wide = || proptest::option::of(0..3_u64);
        (narrow(), wide(), wide(), narrow()).prop_map(|(defer, gro, suspend, threaded)| NapiValues {
            defer_hard_irqs: defer,
            gro_flush_timeout_ns: gro,
            irq_suspend_timeout_ns: suspend,
            threaded,
        })
    }

    /// The old and new values of a change to `wanted`, as the journal stores them.
    fn change(reading: &NapiValues, wanted: &NapiValues) -> (NapiValues, NapiValues) {
        let new = wanted.where_present_in(reading).unlike(reading);
        (reading.where_present_in(&new), new)
    }

    proptest! {
        #[test]
        fn what_nobody_else_changed_goes_back_to_what_it_was(before in values(), wanted in values()) {
            let (old, new) = change(&before, &wanted);
            let now = before.changed_by(&new);
            let plan = Restoration::plan(&old, &new, &now);
            prop_assert!(plan.changed_by_others.is_empty());
            prop_assert_eq!(now.changed_by(&plan.back), before);
        }

        #[test]
        fn what_is_put_back_twice_is_not_set_again(before in values(), wanted in values()) {
            let (old, new) = change(&before, &wanted);
            prop_assert_eq!(Restoration::plan(&old, &new, &before), Restoration::default());
        }

        #[test]
        fn what_others_changed_since_is_not_touched(before in values(), wanted in values(), now in values()) {
            let (old, new) = change(&before, &wanted);
            let plan = Restoration::plan(&old, &new, &now);
            prop_assert!(plan.back.where_present_in(&plan.changed_by_others).is_empty());
            let after = now.changed_by(&plan.back);
            prop_assert_eq!(after.where_present_in(&plan.changed_by_others), plan.changed_by_others);
        }
    }

    const SUSPENDING: NapiValues = NapiValues {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(20_000_000),
        threaded: Some(0),
    };

    #[test]
    fn taking_away_suspension_or_deferral_can_stall() {
        let ends = [
            NapiValues { irq_suspend_timeout_ns: Some(0), ..SUSPENDING },
            NapiValues { irq_suspend_timeout_ns: Some(19_999_999), ..SUSPENDING },
            NapiValues { defer_hard_irqs: Some(0), ..SUSPENDING },
            NapiValues { gro_flush_timeout_ns: Some(0), ..SUSPENDING },
        ];
        for after in ends {
            assert!(SUSPENDING.can_stall_on_the_way_to(&after), "{after}");
        }
    }

    #[test]
    fn what_lengthens_or_leaves_a_suspension_stalls_nobody() {
        let longer = NapiValues { irq_suspend_timeout_ns: Some(u64::MAX), threaded: Some(1), ..SUSPENDING };
        assert!(!SUSPENDING.can_stall_on_the_way_to(&longer));
        let base = NapiValues { irq_suspend_timeout_ns: Some(0), ..SUSPENDING };
        assert!(!base.can_stall_on_the_way_to(&NapiValues::default()));
    }
}
