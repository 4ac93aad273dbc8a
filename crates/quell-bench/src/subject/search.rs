//! What searches on all subjects have in common.

use std::fmt::Display;
use std::time::Duration;

use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_tune::{RefusedMode, TuneEnd, TunePlan, TuneResult};

/// Longest time for which a mode that violates a guard is set, in ms: the slice, and the time to evaluate it.
const GUARDED_MS: u64 = 1_000;
const EVALUATED_MS: u64 = 100;
/// Longest slice with its settling time in ms, if there are guards.
pub const GUARDED_SLICE_MAX_MS: u64 = GUARDED_MS - EVALUATED_MS - 1;

/// Time limit of a command that measures a slice, so that a mode which violates a guard is left within `GUARDED_MS`.
/// `Some(None)` without guards; `None` if the slices are too long.
#[must_use]
pub fn guarded_run_max(plan: &TunePlan) -> Option<Option<Duration>> {
    match plan.guards.is_empty() {
        true => Some(None),
        false if plan.slice_and_settle_ms() > GUARDED_SLICE_MAX_MS => None,
        false => Some(Some(Duration::from_millis(GUARDED_MS - EVALUATED_MS - u64::from(plan.settle_ms)))),
    }
}

/// Kinds of mode of which no value can be set, with the reason for the first one.
pub fn refused_kinds<W: Display>(
    modes: &[DeliveryMode],
    why_impossible: &dyn Fn(&DeliveryMode) -> Option<W>,
) -> Vec<RefusedMode> {
    let mut refused: Vec<RefusedMode> = Vec::new();
    for mode in modes.iter().filter(|mode| **mode != DeliveryMode::default()) {
        let kind = mode.kind().word();
        let mut of_kind = modes.iter().filter(|other| other.kind().word() == kind);
        if let Some(reason) = why_impossible(mode)
            && refused.iter().all(|one| one.kind != kind)
            && of_kind.all(|other| why_impossible(other).is_some())
        {
            refused.push(RefusedMode { kind: kind.to_owned(), reason: reason.to_string() });
        }
    }
    refused
}

/// Replaces an interruption by its cause.
pub(super) fn interrupted_because(result: &mut TuneResult, why: String) {
    if result.end == TuneEnd::Interrupted {
        result.end = TuneEnd::SubjectFailed { reason: visible::name(&why).into_owned() };
    }
}
