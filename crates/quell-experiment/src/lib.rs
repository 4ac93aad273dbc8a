//! Switchback experiments: one running subject is switched between treatments in short slices, in randomised blocks that
//! contain every treatment once and the reference twice. The crate holds the design, the order, the stopping rule and the
//! analysis. An [`ExperimentSubject`] does everything that touches the world. `docs/statistics.md` names each method and
//! its source.
//!
//! - [`ExperimentDesign`]: treatments, criteria, slices, budget, error rate. Checked by [`Switchback::new`].
//! - [`Switchback`]: the state machine. It names the next slice, takes its observation and decides when to stop.
//! - [`run`]: drives a subject through a [`Switchback`] and restores it on every path.
//! - [`analyse`]: the results of an [`ExperimentRecord`], the same at any later time.

#![forbid(unsafe_code)]

mod alpha_spending;
mod analysis;
mod blocks;
mod design;
mod driver;
mod latency_counts;
mod observation;
mod permutation;
mod switchback;

pub use analysis::{
    ContrastResult, ContrastVerdict, ControlResult, Look, PooledLatency, PooledQuantile, RatioEstimate,
    SwitchbackAnalysis, WhyUndecided, analyse,
};
pub use design::{ContrastSet, Criterion, DesignError, ExperimentDesign, Goal, Treatment};
pub use driver::{ExperimentEnd, ExperimentEvent, ExperimentSubject, FinishedExperiment, SetFailure, run};
pub use latency_counts::LatencyCounts;
pub use observation::{InvalidObservation, SliceFlag, SliceObservation, SliceRecord};
pub use switchback::{Decision, ExperimentRecord, NextSlice, StopReason, Switchback};
