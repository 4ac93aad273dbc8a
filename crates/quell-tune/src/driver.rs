//! The search as a designer, and its run on a subject.

use std::fmt::Display;
use std::ops::ControlFlow;

use quell_experiment::{
    Designer, Driven, ExperimentEnd, ExperimentSubject, InvalidObservation, SliceObservation, SliceOrder, SliceStage,
    drive,
};
use quell_mode::DeliveryMode;

use crate::plan::{TunePlan, TunePlanError};
use crate::result::{TuneEnd, TuneResult};
use crate::tuner::Tuner;

#[derive(Debug)]
#[must_use = "it tells whether the subject was restored"]
pub struct FinishedTune<E> {
    pub result: TuneResult,
    pub restored: Result<(), E>,
}

/// Runs a search on a subject. It reports to `watch`, which can end the search by returning `Break`. If the plan is
/// invalid, the subject is not changed.
pub fn tune<T: ExperimentSubject<Setting = DeliveryMode>>(
    subject: &mut T,
    plan: TunePlan,
    watch: &mut dyn FnMut(&Tuner, SliceStage<'_>) -> ControlFlow<()>,
) -> Result<FinishedTune<T::Error>, TunePlanError>
where
    T::Error: Display,
{
    let mut tuner = Tuner::new(plan)?;
    let Driven { end, restored } = drive(subject, &mut tuner, watch);
    match end {
        ExperimentEnd::Ended => {}
        ExperimentEnd::Interrupted => tuner.stop(TuneEnd::Interrupted),
        ExperimentEnd::ReferenceNotSettable(error) => {
            tuner.stop(TuneEnd::PresentNotSettable { reason: error.to_string() });
        }
        ExperimentEnd::SubjectFailed(error) => tuner.stop(TuneEnd::SubjectFailed { reason: error.to_string() }),
        ExperimentEnd::InvalidObservation(invalid) => {
            tuner.stop(TuneEnd::SubjectFailed { reason: invalid.to_string() });
        }
    }
    Ok(FinishedTune { result: tuner.finish(), restored })
}

impl Designer for Tuner {
    type Setting = DeliveryMode;

    fn next(&self) -> Option<SliceOrder<DeliveryMode>> {
        let next = self.next_slice()?;
        let TunePlan { present, settle_ms, slice_ms, .. } = *self.plan();
        Some(SliceOrder { setting: next.mode, load: next.load, reference: present, settle_ms, slice_ms })
    }

    fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation> {
        self.record(observation)
    }

    fn not_settable(&mut self, reason: String) -> bool {
        self.not_settable(reason);
        true
    }

    fn end_by_budget(&mut self) -> bool {
        let has_slices = self.spent() > 0.0;
        if has_slices {
            self.stop(TuneEnd::BudgetSpent);
        }
        has_slices
    }
}
