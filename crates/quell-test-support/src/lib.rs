//! What the tests of all crates share. A crate depends on this one for its tests only (`[dev-dependencies]`).
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking and say when they skip"
)]

#[cfg(feature = "lab")]
pub mod lab;
mod skip;
pub mod small_disk;
mod turn;
mod wait;

pub use skip::{Lacks, kernel_threads_are_out_of_sight, skip, skip_missing, skip_part};
pub use turn::LabTurn;
pub use wait::{PATIENCE, wait_until};
