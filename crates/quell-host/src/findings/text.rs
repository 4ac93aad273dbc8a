//! Formats times in findings.

use std::time::Duration;

pub(super) fn duration_text(time: Duration) -> String {
    time_text(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

pub(crate) fn time_text(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}
