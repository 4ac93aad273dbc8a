//! Reports what happened on the queues and in the programs of a host during an interval: samples of polls joined with
//! snapshots of the host. `quell top` shows the reports. It only observes.

#![forbid(unsafe_code)]

mod drops;
mod observer;
mod report;
mod skipped;

pub use observer::Observer;
pub use report::{
    IntervalReport, ObservedDevice, ObservedIdleState, ObservedProgram, ObservedQueue, SkipReason, SkippedPart,
};
