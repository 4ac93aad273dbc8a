//! What is asked of subjects, and what they report meanwhile.

use quell_change::recovery::Found;
use quell_experiment::{SliceStage, Switchback};
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_tune::{TunePlan, TuneSpace, Tuner};
use serde::{Deserialize, Serialize};

/// What is asked of a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Which of these modes is best.
    Compare(Comparison),
    /// Which mode is best for a goal.
    Search(Box<TunePlan>),
}

/// Modes to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Comparison {
    /// Delivery modes. The first one is the reference.
    pub modes: Vec<DeliveryMode>,
    pub timing: Timing,
    /// Up to where the budget grows, in ms, if the commands that measure slices take longer than these.
    pub budget_max_ms: u64,
    /// Whether modes that would stall the programs are left out instead of refused, because nobody asked for them.
    pub leaves_out_stalls: bool,
}

impl Question {
    /// Modes that can be set.
    #[must_use]
    pub fn modes(&self) -> Vec<DeliveryMode> {
        match self {
            Self::Compare(comparison) => comparison.modes.clone(),
            Self::Search(_) => TuneSpace::default().all(),
        }
    }

    pub(crate) fn slice_ms(&self) -> u32 {
        match self {
            Self::Compare(comparison) => comparison.timing.slice_ms,
            Self::Search(plan) => plan.slice_ms,
        }
    }

    pub(crate) fn settle_ms(&self) -> u32 {
        match self {
            Self::Compare(comparison) => comparison.timing.settle_ms,
            Self::Search(plan) => plan.settle_ms,
        }
    }
}

/// Durations and limits of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timing {
    /// Maximum duration of the experiment, in milliseconds.
    pub budget_ms: u64,
    /// Measured time of a slice, in milliseconds.
    pub slice_ms: u32,
    /// Time between setting a mode and the start of the measurement, in milliseconds.
    pub settle_ms: u32,
    /// Smallest relevant difference, as a share: 0.05 means 5 %.
    pub margin: f64,
    /// Seed of the random order of modes.
    pub seed: u64,
}

/// What a subject does.
#[derive(Debug)]
pub enum SubjectStep<'a> {
    /// Something that takes a while.
    Doing(&'static str),
    /// Changes left by killed runs were searched for and reverted, because they would disturb the measurement.
    Recovered(&'a [Found]),
    /// Something that the operator should know.
    Note(&'a str),
    /// A part of a published experiment begins; its number is from 1.
    PartBegins { number: usize, of: usize, name: &'a str },
    /// A slice of a comparison begins.
    Slice {
        /// Offered load. `None` if Quell does not generate it.
        load: Option<OfferedLoad>,
        /// Share of the budget that is used, 0 to 1.
        spent: f64,
        block: u32,
        mode: &'a str,
    },
    /// A mode cannot be set, and is left out.
    NotSettable { mode: &'a str, reason: &'a str },
    /// A slice of a search was recorded.
    Searching(&'a Tuner),
}

/// Receives the steps of a subject.
pub type Follow<'a> = dyn FnMut(SubjectStep<'_>) + 'a;

/// Reports what happens to the next slice of a comparison.
pub(crate) fn report_slice<T>(
    follow: &mut Follow<'_>,
    load: Option<OfferedLoad>,
    experiment: &Switchback<T>,
    stage: SliceStage<'_>,
) {
    let Some(slice) = experiment.next_slice() else { return };
    let mode = &slice.treatment.name;
    match stage {
        SliceStage::Begins => follow(SubjectStep::Slice { load, spent: experiment.spent(), block: slice.block, mode }),
        SliceStage::NotSettable(reason) => follow(SubjectStep::NotSettable { mode, reason }),
        SliceStage::Recorded => {}
    }
}
