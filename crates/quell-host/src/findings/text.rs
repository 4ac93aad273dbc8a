//! Formats times in findings.

use std::time::Duration;

pub(super) fn duration_text(time: Duration) -> String {
    time_text(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// A duration in its largest unit, rounded.
#[must_use]
pub fn time_text(ns: u64) -> String {
    let (size, unit) = match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {unit}", ns.saturating_add(size / 2) / size)
}
