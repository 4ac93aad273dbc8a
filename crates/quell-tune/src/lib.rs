//! Search for the best delivery mode of a running server. Arms are delivery modes; they race in randomized blocks, and
//! the winner is confirmed on fresh slices. The crate has no I/O and no clock: an
//! [`ExperimentSubject`](quell_experiment::ExperimentSubject) does all access to the system.
//!
//! - [`TuneGoal`], [`TuneGuard`]: parsed from text, and evaluated on the observation of a slice.
//! - [`TuneSpace`]: the grid of modes and values.
//! - [`ModelPrior`]: ranks modes with the model of a host. Without measurements, this is all that `--advise` needs.
//! - `belief`: what is known of every mode, from the model's table (`data/model.tsv`) and from slices.
//! - [`Tuner`]: the state machine. It selects the next slice (`race`), drops arms, confirms the winner
//!   (`confirm`), and compares it with modes that look better (`rivals`).
//! - [`tune`]: runs a [`Tuner`] on a subject, and restores the subject on every path.
//! - [`TuneResult`]: plan, arms, slices and answer, as stored in a file.

#![forbid(unsafe_code)]

mod belief;
mod confirm;
mod driver;
mod goal;
mod load_watch;
mod plan;
mod prior;
mod race;
mod result;
mod rivals;
mod space;
mod tuner;

pub use driver::{FinishedTune, tune};
pub use goal::{TuneDirection, TuneGoal, TuneGuard, TuneLimit, TuneMetric, TuneTextError};
pub use plan::{TunePlan, TunePlanError};
pub use prior::{ModelPrior, RUNS, RankedMode, RunRange, WhyNotMeasured, WorthMeasuring, observe_model};
pub use result::{
    ArmReport, ArmState, Confirmation, Rival, TuneAnswer, TuneEnd, TunePhase, TuneResult, TuneSliceRecord, WhyNotChosen,
};
pub use space::{RefusedMode, TuneSpace};
pub use tuner::{NextTuneSlice, Tuner};
