//! Runs a designer on a subject. For each slice it offers the load, sets the setting, waits for it to settle, and observes
//! the subject. It restores the subject on every path.

use std::fmt::Display;
use std::ops::ControlFlow;

use crate::observation::{InvalidObservation, SliceObservation};

/// Selects the slices of an experiment, one after another, and derives an answer from them: a switchback, or a search. It
/// has no access to the subject and to clocks.
pub trait Designer {
    /// Type of the settings that it selects.
    type Setting: Clone + PartialEq;

    /// The next slice. `None` if the experiment has ended.
    fn next(&self) -> Option<SliceOrder<Self::Setting>>;

    /// Records the observation of the next slice. Fails if a value is below 0, infinite or not a number.
    fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation>;

    /// Leaves out the setting of the next slice, because it could not be set. Returns false if nothing can be compared
    /// without it.
    fn not_settable(&mut self, reason: String) -> bool;

    /// Ends the experiment without the next slice, because the budget was spent during it. Returns false if too little
    /// was observed for an answer.
    fn end_by_budget(&mut self) -> bool;
}

/// The slice that must be observed next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SliceOrder<S> {
    /// What must be set.
    pub setting: S,
    /// Index of the load that must be offered.
    pub load: usize,
    /// What is set while another load is offered: the setting with which others are compared.
    pub reference: S,
    /// Time between setting and observing, in milliseconds.
    pub settle_ms: u32,
    /// Observed time, in milliseconds.
    pub slice_ms: u32,
}

/// A system that is switched between settings: a lab, a guest, a model, a program on this host, or a started command.
pub trait ExperimentSubject {
    /// Type of what is set.
    type Setting;
    /// Error type of the subject.
    type Error;

    /// Offers the load with this index from now on. Called before the first slice, and whenever the load changes.
    fn offer(&mut self, _load: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Sets and verifies a setting while the load continues. Every slice begins with this call, even if the setting
    /// stays the same, so that all slices have the same history. After [`SetFailure::NotSettable`], the next setting is
    /// set.
    fn set(&mut self, setting: &Self::Setting) -> Result<(), SetFailure<Self::Error>>;

    /// Lets the subject run until the effects of the last setting are over.
    fn settle(&mut self, settle_ms: u32) -> Result<(), Self::Error>;

    /// Observes the subject. Returns `None` if the subject was asked to stop before the end of the slice. The
    /// experiment then ends as interrupted.
    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, Self::Error>;

    /// Whether an error of [`Self::observe`] concerns only the present setting. It is left out then, and the experiment
    /// continues.
    fn leaves_out_setting(&self, _: &Self::Error) -> bool {
        false
    }

    /// Whether a slice with this error of [`Self::observe`] is repeated once, after the reference was set. If it fails
    /// again, its setting is left out, unless it is the reference.
    fn repeats_slice(&self, _: &Self::Error) -> bool {
        false
    }

    /// Whether an error of [`Self::observe`] means that the budget was spent before the end of the slice.
    fn is_budget_spent(&self, _: &Self::Error) -> bool {
        false
    }

    /// Restores the state that the subject had before the first slice. It is called once on every path, even after
    /// a failure and during a panic.
    fn restore(&mut self) -> Result<(), Self::Error>;
}

/// Why a setting was not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetFailure<E> {
    /// It cannot be set. It is left out, and the experiment continues.
    NotSettable(E),
    /// The subject failed, so the experiment ends.
    SubjectFailed(E),
}

/// What happens to the next slice of a designer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceStage<'a> {
    /// It begins.
    Begins,
    /// It was recorded, so that the designer knows the slice after it.
    Recorded,
    /// Its setting will be left out, for this reason.
    NotSettable(&'a str),
}

/// How an experiment ended.
#[derive(Debug, PartialEq)]
pub enum ExperimentEnd<E> {
    /// The designer ended it.
    Ended,
    /// The caller or the subject was asked to stop.
    Interrupted,
    /// The reference cannot be set, so no comparison is possible.
    ReferenceNotSettable(E),
    /// The subject failed during the designer's next slice.
    SubjectFailed(E),
    /// The subject reported a negative or infinite value.
    InvalidObservation(InvalidObservation),
}

/// Outcome of an experiment. What the designer has recorded is valid in any case.
#[derive(Debug)]
#[must_use = "it tells whether the subject was restored"]
pub struct Driven<E> {
    /// How the experiment ended.
    pub end: ExperimentEnd<E>,
    /// Whether the subject was restored.
    pub restored: Result<(), E>,
}

/// Runs a designer on a subject until one of them ends. It reports to `watch`, which can end the experiment by returning
/// `Break`.
pub fn drive<D: Designer, T: ExperimentSubject<Setting = D::Setting>>(
    subject: &mut T,
    designer: &mut D,
    watch: &mut dyn FnMut(&D, SliceStage<'_>) -> ControlFlow<()>,
) -> Driven<T::Error>
where
    T::Error: Display,
{
    let mut guard = RestoreGuard { subject, is_restored: false };
    let end = slice_by_slice(guard.subject, designer, watch).unwrap_or_else(|end| end);
    Driven { end, restored: guard.restore() }
}

fn slice_by_slice<D: Designer, T: ExperimentSubject<Setting = D::Setting>>(
    subject: &mut T,
    designer: &mut D,
    watch: &mut dyn FnMut(&D, SliceStage<'_>) -> ControlFlow<()>,
) -> Result<ExperimentEnd<T::Error>, ExperimentEnd<T::Error>>
where
    T::Error: Display,
{
    let mut offered = None;
    let mut report = |designer: &D, stage: SliceStage<'_>| match watch(designer, stage) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ExperimentEnd::Interrupted),
    };
    while let Some(slice) = designer.next() {
        report(designer, SliceStage::Begins)?;
        if offered != Some(slice.load) {
            // The setting of the last slice may have violated a guard. It must not stay until the load is offered.
            if offered.is_some() {
                set_reference(subject, &slice)?;
            }
            subject.offer(slice.load).map_err(ExperimentEnd::SubjectFailed)?;
            offered = Some(slice.load);
        }
        let mut observed = observe(subject, &slice);
        if matches!(&observed, Err(SetFailure::SubjectFailed(error)) if subject.repeats_slice(error)) {
            set_reference(subject, &slice)?;
            observed = observe(subject, &slice).map_err(|failure| match failure {
                SetFailure::SubjectFailed(error)
                    if subject.repeats_slice(&error) && slice.setting != slice.reference =>
                {
                    SetFailure::NotSettable(error)
                }
                failure => failure,
            });
        }
        match observed {
            Ok(Some(observation)) => {
                designer.record(observation).map_err(ExperimentEnd::InvalidObservation)?;
                report(designer, SliceStage::Recorded)?;
            }
            Ok(None) => return Ok(ExperimentEnd::Interrupted),
            Err(SetFailure::SubjectFailed(error)) if subject.is_budget_spent(&error) && designer.end_by_budget() => {
                return Ok(ExperimentEnd::Ended);
            }
            Err(SetFailure::SubjectFailed(error)) => return Ok(ExperimentEnd::SubjectFailed(error)),
            Err(SetFailure::NotSettable(error)) => {
                let reason = error.to_string();
                report(designer, SliceStage::NotSettable(&reason))?;
                if !designer.not_settable(reason) {
                    return Ok(ExperimentEnd::ReferenceNotSettable(error));
                }
            }
        }
    }
    Ok(ExperimentEnd::Ended)
}

fn set_reference<T: ExperimentSubject>(
    subject: &mut T,
    slice: &SliceOrder<T::Setting>,
) -> Result<(), ExperimentEnd<T::Error>> {
    subject.set(&slice.reference).map_err(|failure| match failure {
        SetFailure::NotSettable(error) => ExperimentEnd::ReferenceNotSettable(error),
        SetFailure::SubjectFailed(error) => ExperimentEnd::SubjectFailed(error),
    })
}

fn observe<T: ExperimentSubject>(
    subject: &mut T,
    slice: &SliceOrder<T::Setting>,
) -> Result<Option<SliceObservation>, SetFailure<T::Error>> {
    subject.set(&slice.setting)?;
    let observed = subject.settle(slice.settle_ms).and_then(|()| subject.observe(slice.slice_ms));
    observed.map_err(|error| match subject.leaves_out_setting(&error) {
        true => SetFailure::NotSettable(error),
        false => SetFailure::SubjectFailed(error),
    })
}

/// Restores the subject exactly once. If a panic drops this value, it restores the subject then.
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
            // Only a panic leads here. The panic is reported, so a second error is ignored.
            let _ = self.restore();
        }
    }
}
