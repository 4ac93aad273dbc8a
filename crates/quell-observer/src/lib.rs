//! Reports what happened on the queues and in the programs of a host during an interval: samples of polls joined with
//! snapshots of the host. `quell top` shows the reports. It only observes.

#![forbid(unsafe_code)]

mod drops;
mod observer;
mod skipped;
mod xdp;

pub use observer::Observer;
