//! Switchback experiments. A running subject is switched between treatments in short slices. Randomized blocks contain
//! every treatment once and the reference twice. This crate contains the design, the order, the stopping rule and the
//! analysis. An [`ExperimentSubject`] implements all access to the system. `docs/statistics.md` names each method and
//! its source.
//!
//! - [`ExperimentDesign`]: treatments, criteria, slices, budget, error rate. [`Switchback::new`] checks it.
//! - [`Switchback`]: the state machine. It selects the next slice, records its observation and decides when to stop.
//! - [`drive`]: runs a [`Designer`], such as a [`Switchback`], on a subject, and restores the subject on every path.
//! - [`analyse`]: computes the results of an [`ExperimentRecord`], which are the same at any later time.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod alpha_spending;
mod analysis;
mod blocks;
mod design;
mod driver;
mod latency_counts;
mod latency_curve;
mod observation;
mod permutation;
mod switchback;

pub use analysis::{
    ContrastResult, ContrastVerdict, ControlResult, Look, PooledLatency, PooledQuantile, RatioEstimate,
    SwitchbackAnalysis, WhyUndecided, analyse,
};
pub use design::{ContrastSet, Criterion, DesignError, ExperimentDesign, Goal, Treatment};
pub use driver::{Designer, Driven, ExperimentEnd, ExperimentSubject, SetFailure, SliceOrder, SliceStage, drive};
pub use latency_counts::LatencyCounts;
pub use latency_curve::{LatencyCurvePoint, disturbed_blocks, latency_curve, pooled_latency};
pub use observation::{InvalidObservation, SliceFlag, SliceObservation, SliceRecord};
pub use permutation::{blocked_z, upper_quantile};
pub use switchback::{ExperimentRecord, NextSlice, StopReason, Switchback};
