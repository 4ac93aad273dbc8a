//! What searches on all subjects have in common.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::time::Duration;

use quell_experiment::{ExperimentSubject, SliceStage};
use quell_linux::CpuList;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::figures;
use quell_tune::{RefusedMode, TuneEnd, TuneMetric, TunePlan, TuneResult, Tuner, tune};

use super::Unanswered;
use crate::counters::CpuUse;
use crate::question::{Follow, SubjectStep};

/// The kind of mode whose polling threads need CPUs of their own.
pub(super) const USERBUSY: &str = "userbusy";

/// Longest time for which a mode that violates a guard is set, in ms: the slice, and the time to evaluate it.
const GUARDED_MS: u64 = 1_000;
const EVALUATED_MS: u64 = 100;
/// Longest slice with its settling time in ms, if there are guards.
const GUARDED_SLICE_MAX_MS: u64 = GUARDED_MS - EVALUATED_MS - 1;

/// Slices are too long for a mode that violates a guard to be left in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "with --never, a mode that violates a guard is left within 1 s, so a slice and its settling time can take at most \
     {GUARDED_SLICE_MAX_MS} ms together; they take {taken_ms} ms (--slice, --settle)"
)]
pub struct GuardError {
    taken_ms: u64,
}

/// Time limit of a command that measures a slice, so that a mode which violates a guard is left within 1 s.
/// `None` without guards.
///
/// # Errors
/// When the slices are too long.
pub fn guarded_run_max(plan: &TunePlan) -> Result<Option<Duration>, GuardError> {
    let taken_ms = plan.slice_and_settle_ms();
    match plan.guards.is_empty() {
        true => Ok(None),
        false if taken_ms > GUARDED_SLICE_MAX_MS => Err(GuardError { taken_ms }),
        false => Ok(Some(Duration::from_millis(GUARDED_MS - EVALUATED_MS - u64::from(plan.settle_ms)))),
    }
}

/// Largest error of the CPU time of a slice by ticks, as a share.
const TICKS_SHARE: f64 = 0.05;
/// Number of times that the shortest search must fit into the budget, so that longer slices leave time to try modes.
const SEARCHES: u64 = 2;

/// Makes slices so long that ticks are a small error of their CPU time, as far as budget and guards have time for it. `used`
/// is the use of the server's `cpus` under its load.
pub(super) fn lengthen_slices(plan: &mut TunePlan, used: &CpuUse, cpus: &CpuList) {
    let counts_ticks = |metric: &TuneMetric| match metric {
        TuneMetric::Cpu | TuneMetric::Busy => true,
        TuneMetric::Recorded { name } => name.starts_with(figures::CPU) || name == figures::BUSY,
        _ => false,
    };
    if !plan.goal.metrics().any(counts_ticks) {
        return;
    }
    let slice_max_ms = plan.budget_ms * plan.slice_and_settle_ms() / (SEARCHES * plan.budget_min_ms());
    let slice_max_ms = if plan.guards.is_empty() { slice_max_ms } else { slice_max_ms.min(GUARDED_SLICE_MAX_MS) };
    let max_ms = slice_max_ms.saturating_sub(u64::from(plan.settle_ms));
    let needed_ms = used.resolved_after_ms(cpus, TICKS_SHARE).min(max_ms as f64);
    plan.slice_ms = plan.slice_ms.max(needed_ms as u32);
}

/// Searches on a subject and restores it.
pub(super) fn search<T>(
    subject: &mut T,
    plan: TunePlan,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<TuneResult, Unanswered>
where
    T: ExperimentSubject<Setting = DeliveryMode>,
    T::Error: Display,
    Unanswered: From<T::Error>,
{
    let mut watch = |tuner: &Tuner, stage: SliceStage<'_>| {
        if stage == SliceStage::Recorded {
            follow(SubjectStep::Searching(tuner));
        }
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finished = tune(subject, plan.clone(), &mut watch);
    let finished = finished.map_err(|error| Unanswered::Plan { error, plan: Box::new(plan) })?;
    finished.restored?;
    Ok(finished.result)
}

/// Kinds of mode of which no value can be set, with the reason for the first one.
pub(super) fn refused_kinds<W: Display>(
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

/// Leaves out the mode whose polling threads have no CPUs on a subject.
pub(super) fn refuse_userbusy(plan: &mut TunePlan, reason: &str) {
    let Some(space) = plan.space.as_mut().filter(|space| !space.refuses(USERBUSY)) else { return };
    space.refused.push(RefusedMode { kind: USERBUSY.to_owned(), reason: reason.to_owned() });
    plan.arms = space.coarse();
}

/// Replaces an interruption by its cause.
pub(super) fn interrupted_because(result: &mut TuneResult, why: String) {
    if result.end == TuneEnd::Interrupted {
        result.end = TuneEnd::SubjectFailed { reason: visible::name(&why).into_owned() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_tune::TuneSpace;

    /// Slices of a search on two CPUs of which this share is busy.
    fn slice_ms(goal: &str, busy: f64, budget_s: u64, guards: &[&str]) -> u32 {
        let goal = goal.parse().unwrap_or_else(|why| panic!("{why}"));
        let guards = guards.iter().map(|guard| guard.parse().unwrap_or_else(|why| panic!("{why}"))).collect();
        let plan = TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), 1);
        let mut plan = TunePlan { guards, budget_ms: budget_s * 1_000, ..plan };
        let used = CpuUse { capacity_ns: 1_000_000, idle_ns: (1e6 * (1.0 - busy)) as u64, ..CpuUse::default() };
        lengthen_slices(&mut plan, &used, &"0-1".parse().unwrap_or_else(|why| panic!("{why}")));
        assert!(plan.slice_ms == 200 || plan.check().is_ok(), "{:?}", plan.check());
        plan.slice_ms
    }

    #[test]
    fn slices_are_long_enough_for_ticks_of_cpu_time_as_far_as_the_budget_has_time() {
        assert_eq!(slice_ms("least cpu", 0.9, 180, &[]), 200);
        assert_eq!(slice_ms("least cpu", 0.1, 180, &[]), 579);
        let longest = slice_ms("least cpu", 0.014, 180, &[]);
        assert!((1_000..1_400).contains(&longest), "{longest}");
        assert_eq!(slice_ms("least cpu", 0.0, 180, &[]), longest, "an idle server");
        assert_eq!(slice_ms("least cpu", 0.014, 20, &[]), 200, "a short budget");
        assert_eq!(slice_ms("least cpu", 0.014, 360, &["drops"]), 889, "a guard ends a slice within 1 s");
        assert_eq!(slice_ms("least p99", 0.014, 180, &[]), 200, "latency has no ticks");
    }
}
