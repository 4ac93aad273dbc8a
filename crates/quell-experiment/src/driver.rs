//! Runs an experiment on a subject. For each slice it sets the treatment, waits for it to settle, and observes the
//! subject. It restores the subject on every path.

use std::ops::ControlFlow;

use crate::analysis::{Look, SwitchbackAnalysis};
use crate::design::{DesignError, ExperimentDesign};
use crate::observation::{InvalidObservation, SliceObservation};
use crate::switchback::{Decision, ExperimentRecord, NextSlice, StopReason, Switchback};

/// A system that is switched between treatments: a lab, a guest, a model, a program on this host, or a started command.
pub trait ExperimentSubject {
    /// Type of a treatment's setting.
    type Setting;
    /// Error type of the subject.
    type Error;

    /// Sets and verifies a treatment while the load continues. Every slice begins with this call, even if the treatment
    /// stays the same, so that all slices have the same history.
    ///
    /// # Errors
    /// See [`SetFailure`]. After [`SetFailure::NotSettable`], the next treatment is set.
    fn set(&mut self, setting: &Self::Setting) -> Result<(), SetFailure<Self::Error>>;

    /// Lets the subject run until the effects of the last treatment are over.
    ///
    /// # Errors
    /// When the subject failed. The experiment then ends.
    fn settle(&mut self, settle_ms: u32) -> Result<(), Self::Error>;

    /// Observes the subject. Returns `None` if the subject was asked to stop before the end of the slice. The
    /// experiment then ends as interrupted.
    ///
    /// # Errors
    /// When the subject failed. The experiment then ends.
    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, Self::Error>;

    /// Whether an error of [`Self::observe`] concerns only the present treatment. It is dropped then, and the experiment
    /// continues.
    fn drops_treatment(&self, _: &Self::Error) -> bool {
        false
    }

    /// Restores the state that the subject had before the first treatment. It is called once on every path, even after
    /// a failure and during a panic.
    ///
    /// # Errors
    /// When something could not be restored.
    fn restore(&mut self) -> Result<(), Self::Error>;
}

/// Why a treatment was not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetFailure<E> {
    /// This treatment cannot be set. It is dropped, and the experiment continues.
    NotSettable(E),
    /// The subject failed, so the experiment ends.
    SubjectFailed(E),
}

/// Events of a running experiment.
#[derive(Debug)]
pub enum ExperimentEvent<'a, S> {
    /// A slice begins.
    SliceBegins {
        /// The slice that begins.
        slice: NextSlice<'a, S>,
        /// Share of the budget that is spent, from 0 to 1.
        spent: f64,
    },
    /// A treatment could not be set and was dropped.
    TreatmentDropped {
        /// Name of the treatment.
        name: &'a str,
        /// Why the treatment could not be set.
        reason: &'a str,
    },
    /// An analysis was made.
    Looked(Look),
}

/// How an experiment ended.
#[derive(Debug, PartialEq)]
pub enum ExperimentEnd<E> {
    /// The experiment's own stopping rule ended it.
    Stopped(StopReason),
    /// The caller or the subject was asked to stop.
    Interrupted,
    /// The reference cannot be set, so no comparison is possible.
    ReferenceNotSettable(E),
    /// The subject failed under a treatment.
    SubjectFailed {
        /// Name of the treatment.
        treatment: String,
        /// Error of the subject.
        error: E,
    },
    /// The subject reported a negative or infinite value.
    InvalidObservation(InvalidObservation),
}

/// Result of an experiment, for every way in which it can end. Earlier observations are valid even after a failure.
#[derive(Debug)]
#[must_use = "it tells whether the subject was restored"]
pub struct FinishedExperiment<S, E> {
    /// Design of the experiment and its slices.
    pub record: ExperimentRecord<S>,
    /// Results of the analysis.
    pub analysis: SwitchbackAnalysis,
    /// How the experiment ended.
    pub end: ExperimentEnd<E>,
    /// Whether the subject was restored.
    pub restored: Result<(), E>,
}

/// Runs an experiment on a subject. It reports events to `watch`, which can end the experiment by returning `Break`.
///
/// # Errors
/// When the design is invalid. The subject was not changed.
pub fn run<T: ExperimentSubject>(
    subject: &mut T,
    design: ExperimentDesign<T::Setting>,
    watch: &mut dyn FnMut(ExperimentEvent<'_, T::Setting>) -> ControlFlow<()>,
) -> Result<FinishedExperiment<T::Setting, T::Error>, DesignError>
where
    T::Error: std::fmt::Display,
{
    let mut experiment = Switchback::new(design)?;
    let mut guard = RestoreGuard::new(subject);
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
        let observed = subject.set(&treatment.setting).and_then(|()| {
            let observed = subject.settle(settle_ms).and_then(|()| subject.observe(slice_ms));
            observed.map_err(|error| match subject.drops_treatment(&error) {
                true => SetFailure::NotSettable(error),
                false => SetFailure::SubjectFailed(error),
            })
        });
        match observed {
            Ok(Some(observation)) => {
                if let Err(invalid) = experiment.record(observation) {
                    return ExperimentEnd::InvalidObservation(invalid);
                }
            }
            Ok(None) => return ExperimentEnd::Interrupted,
            Err(SetFailure::SubjectFailed(error)) => return failed(error),
            Err(SetFailure::NotSettable(error)) => {
                let (name, reason) = (treatment.name.clone(), error.to_string());
                if !experiment.drop_treatment(reason.clone()) {
                    return ExperimentEnd::ReferenceNotSettable(error);
                }
                if watch(ExperimentEvent::TreatmentDropped { name: &name, reason: &reason }).is_break() {
                    return ExperimentEnd::Interrupted;
                }
            }
        }
    }
}

/// Restores the subject exactly once. If a panic drops this value, it restores the subject then.
#[derive(Debug)]
pub struct RestoreGuard<'a, T: ExperimentSubject> {
    /// The subject, for as long as it runs.
    pub subject: &'a mut T,
    is_restored: bool,
}

impl<'a, T: ExperimentSubject> RestoreGuard<'a, T> {
    /// Guards a subject whose first treatment is about to be set.
    pub fn new(subject: &'a mut T) -> Self {
        Self { subject, is_restored: false }
    }

    /// Restores the subject.
    ///
    /// # Errors
    /// When something could not be restored.
    pub fn restore(&mut self) -> Result<(), T::Error> {
        self.is_restored = true;
        self.subject.restore()
    }
}

impl<T: ExperimentSubject> Drop for RestoreGuard<'_, T> {
    fn drop(&mut self) {
        if !self.is_restored {
            // Only a panic leads here. The panic is reported, so a second error is ignored.
            let _ = self.restore();
        }
    }
}
