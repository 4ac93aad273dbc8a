//! Runs a search on a subject. It restores the subject on every path.

use std::fmt::Display;
use std::ops::ControlFlow;

use quell_experiment::{ExperimentSubject, RestoreGuard, SetFailure};
use quell_mode::DeliveryMode;

use crate::plan::{TunePlan, TunePlanError};
use crate::result::{TuneEnd, TuneResult};
use crate::tuner::{NextTuneSlice, Tuner};

/// Events of a running search.
#[derive(Debug)]
pub enum TuneEvent<'a> {
    /// A slice begins.
    SliceBegins(NextTuneSlice),
    /// A slice was recorded. The arms' states may have changed.
    SliceRecorded(&'a Tuner),
}

/// Result of a search, for every way in which it can end.
#[derive(Debug)]
#[must_use = "it tells whether the subject was restored"]
pub struct FinishedTune<E> {
    /// Everything that the search knows.
    pub result: TuneResult,
    /// Whether the subject was restored.
    pub restored: Result<(), E>,
}

/// Makes the load with an index of the plan the current one.
pub type OfferLoad<'a, T> = dyn FnMut(&mut T, usize) -> Result<(), <T as ExperimentSubject>::Error> + 'a;

/// Runs a search on a subject. `offer` makes the load with the given index the current one; it is called before the
/// first slice and whenever the load changes. Events are reported to `watch`, which can end the search by returning
/// `Break`.
///
/// # Errors
/// When the plan is invalid. The subject was not changed.
pub fn tune<T: ExperimentSubject<Setting = DeliveryMode>>(
    subject: &mut T,
    plan: TunePlan,
    offer: &mut OfferLoad<'_, T>,
    watch: &mut dyn FnMut(TuneEvent<'_>) -> ControlFlow<()>,
) -> Result<FinishedTune<T::Error>, TunePlanError>
where
    T::Error: Display,
{
    let mut tuner = Tuner::new(plan)?;
    let mut guard = RestoreGuard::new(subject);
    let end = slice_by_slice(guard.subject, &mut tuner, offer, watch);
    let restored = guard.restore();
    if let Err(end) = end {
        tuner.stop(end);
    }
    Ok(FinishedTune { result: tuner.finish(), restored })
}

fn slice_by_slice<T: ExperimentSubject<Setting = DeliveryMode>>(
    subject: &mut T,
    tuner: &mut Tuner,
    offer: &mut OfferLoad<'_, T>,
    watch: &mut dyn FnMut(TuneEvent<'_>) -> ControlFlow<()>,
) -> Result<(), TuneEnd>
where
    T::Error: Display,
{
    let failed = |error: T::Error| TuneEnd::SubjectFailed { reason: error.to_string() };
    let (slice_ms, settle_ms) = (tuner.plan().slice_ms, tuner.plan().settle_ms);
    let (mut offered, present) = (None, tuner.plan().present);
    while let Some(next) = tuner.next_slice() {
        if watch(TuneEvent::SliceBegins(next)).is_break() {
            return Err(TuneEnd::Interrupted);
        }
        if offered != Some(next.load) {
            // The mode of the last slice may have violated a guard. It must not stay until the load is offered.
            if offered.is_some() {
                set(subject, &present)?.map_err(|error| TuneEnd::PresentNotSettable { reason: error.to_string() })?;
            }
            offer(subject, next.load).map_err(failed)?;
            offered = Some(next.load);
        }
        if let Err(error) = set(subject, &next.mode)? {
            tuner.not_settable(error.to_string());
            continue;
        }
        subject.settle(settle_ms).map_err(failed)?;
        let observation = match subject.observe(slice_ms) {
            Err(error) if subject.drops_treatment(&error) => {
                tuner.not_settable(error.to_string());
                continue;
            }
            observed => observed.map_err(failed)?.ok_or(TuneEnd::Interrupted)?,
        };
        tuner.record(observation).map_err(|invalid| TuneEnd::SubjectFailed { reason: invalid.to_string() })?;
        if watch(TuneEvent::SliceRecorded(tuner)).is_break() {
            return Err(TuneEnd::Interrupted);
        }
    }
    Ok(())
}

/// Sets a mode. The inner error is that of a mode that cannot be set.
fn set<T: ExperimentSubject<Setting = DeliveryMode>>(
    subject: &mut T,
    mode: &DeliveryMode,
) -> Result<Result<(), T::Error>, TuneEnd>
where
    T::Error: Display,
{
    match subject.set(mode) {
        Ok(()) => Ok(Ok(())),
        Err(SetFailure::NotSettable(error)) => Ok(Err(error)),
        Err(SetFailure::SubjectFailed(error)) => Err(TuneEnd::SubjectFailed { reason: error.to_string() }),
    }
}
