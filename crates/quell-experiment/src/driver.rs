//! Drives a subject through an experiment. The order is fixed here: set, settle, observe; and restore on every path.

use std::ops::ControlFlow;

use crate::analysis::{Look, SwitchbackAnalysis};
use crate::design::{DesignError, ExperimentDesign};
use crate::observation::{InvalidObservation, SliceObservation};
use crate::switchback::{Decision, ExperimentRecord, NextSlice, StopReason, Switchback};

/// Something that is switched between treatments: a lab, a guest, a model, a program on this host, a started command.
pub trait ExperimentSubject {
    /// What a treatment sets.
    type Setting;
    /// Why the subject failed.
    type Error;

    /// Sets a treatment, and verifies it, while the load goes on. Every slice begins with it, also when the treatment stays
    /// the same: all slices are to have the same past.
    ///
    /// # Errors
    /// See [`SetFailure`]. After [`SetFailure::NotSettable`] the next treatment is set.
    fn set(&mut self, setting: &Self::Setting) -> Result<(), SetFailure<Self::Error>>;

    /// Lets the subject run until the effects of the last treatment are over.
    ///
    /// # Errors
    /// The subject failed; the experiment ends.
    fn settle(&mut self, settle_ms: u32) -> Result<(), Self::Error>;

    /// Observes the subject. `None` if it was asked to stop before the slice was over; the experiment ends as interrupted.
    ///
    /// # Errors
    /// The subject failed; the experiment ends.
    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, Self::Error>;

    /// Restores what the subject had before the first treatment. Called once, on every path, also after a failure and
    /// during a panic.
    ///
    /// # Errors
    /// Something was not restored.
    fn restore(&mut self) -> Result<(), Self::Error>;
}

/// Why a treatment was not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetFailure<E> {
    /// This treatment cannot be set here. It is dropped, and the experiment goes on.
    NotSettable(E),
    /// The subject failed. The experiment ends.
    SubjectFailed(E),
}

/// Events of a running experiment.
#[derive(Debug)]
pub enum ExperimentEvent<'a, S> {
    /// A slice begins.
    SliceBegins {
        /// Slice.
        slice: NextSlice<'a, S>,
        /// Share of the budget that is spent, 0 to 1.
        spent: f64,
    },
    /// A treatment could not be set and was dropped.
    TreatmentDropped {
        /// Name of the treatment.
        name: &'a str,
        /// Reason.
        reason: &'a str,
    },
    /// An analysis was made.
    Looked(Look),
}

/// How an experiment ended.
#[derive(Debug, PartialEq)]
pub enum ExperimentEnd<E> {
    /// By its own rule.
    Stopped(StopReason),
    /// The caller or the subject was asked to stop.
    Interrupted,
    /// The reference cannot be set, so nothing can be compared.
    ReferenceNotSettable(E),
    /// The subject failed under a treatment.
    SubjectFailed {
        /// Name of the treatment.
        treatment: String,
        /// Cause.
        error: E,
    },
    /// The subject reported a negative or infinite value.
    InvalidObservation(InvalidObservation),
}

/// An experiment that has ended, however it ended. What was observed until then is valid.
#[derive(Debug)]
#[must_use = "it says whether the subject was restored"]
pub struct FinishedExperiment<S, E> {
    /// Design and slices.
    pub record: ExperimentRecord<S>,
    /// Results.
    pub analysis: SwitchbackAnalysis,
    /// How it ended.
    pub end: ExperimentEnd<E>,
    /// Whether the subject was restored.
    pub restored: Result<(), E>,
}

/// Runs an experiment on a subject. Reports events to `watch`, which ends the experiment by breaking.
///
/// # Errors
/// The design is invalid; the subject was not touched.
pub fn run<T: ExperimentSubject>(
    subject: &mut T,
    design: ExperimentDesign<T::Setting>,
    watch: &mut dyn FnMut(ExperimentEvent<'_, T::Setting>) -> ControlFlow<()>,
) -> Result<FinishedExperiment<T::Setting, T::Error>, DesignError>
where
    T::Error: std::fmt::Display,
{
    let mut experiment = Switchback::new(design)?;
    let mut guard = RestoreGuard { subject, is_restored: false };
    let end = slice_by_slice(guard.subject, &mut experiment, watch);
    let restored = guard.restore();
    let (record, analysis) = experiment.finish();
    Ok(FinishedExperiment { record, analysis, end, restored })
}

fn slice_by_slice<T: ExperimentSubject>(
    subject: &mut T,
    experiment: &mut Switchback<T::Setting>,
    watch: &mut dyn FnMut(ExperimentEvent<'_, T::Setting>) -> ControlFlow<()>,
) -> ExperimentEnd<T::Error>
where
    T::Error: std::fmt::Display,
{
    let (slice_ms, settle_ms) = (experiment.so_far().design.slice_ms, experiment.so_far().design.settle_ms);
    let mut looks = 0;
    loop {
        if let Some(look) = experiment.last_look().filter(|look| look.blocks > looks) {
            looks = look.blocks;
            if watch(ExperimentEvent::Looked(look)).is_break() {
                return ExperimentEnd::Interrupted;
            }
        }
        if let Decision::Stop(reason) = experiment.decide() {
            return ExperimentEnd::Stopped(reason);
        }
        let Some(slice) = experiment.next_slice() else { return ExperimentEnd::Interrupted };
        let treatment = slice.treatment;
        if watch(ExperimentEvent::SliceBegins { slice, spent: experiment.spent() }).is_break() {
            return ExperimentEnd::Interrupted;
        }
        let failed = |error| ExperimentEnd::SubjectFailed { treatment: treatment.name.clone(), error };
        let observed = match subject.set(&treatment.setting) {
            Ok(()) => subject.settle(settle_ms).and_then(|()| subject.observe(slice_ms)),
            Err(SetFailure::SubjectFailed(error)) => return failed(error),
            Err(SetFailure::NotSettable(error)) => {
                let (name, reason) = (treatment.name.clone(), error.to_string());
                if !experiment.drop_treatment(reason.clone()) {
                    return ExperimentEnd::ReferenceNotSettable(error);
                }
                if watch(ExperimentEvent::TreatmentDropped { name: &name, reason: &reason }).is_break() {
                    return ExperimentEnd::Interrupted;
                }
                continue;
            }
        };
        match observed {
            Ok(Some(observation)) => {
                if let Err(invalid) = experiment.record(observation) {
                    return ExperimentEnd::InvalidObservation(invalid);
                }
            }
            Ok(None) => return ExperimentEnd::Interrupted,
            Err(error) => return failed(error),
        }
    }
}

/// Restores the subject once; during a panic when it is dropped.
struct RestoreGuard<'a, T: ExperimentSubject> {
    subject: &'a mut T,
    is_restored: bool,
}

impl<T: ExperimentSubject> RestoreGuard<'_, T> {
    fn restore(&mut self) -> Result<(), T::Error> {
        self.is_restored = true;
        self.subject.restore()
    }
}

impl<T: ExperimentSubject> Drop for RestoreGuard<'_, T> {
    fn drop(&mut self) {
        if !self.is_restored {
            // Only a panic comes here. It is reported; a second failure could not be.
            let _ = self.restore();
        }
    }
}
