//! Helpers for the tests of all crates, which may depend on this crate only in `[dev-dependencies]`.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, and print skipped tests"
)]

mod entry;
pub mod kernel_values;
#[cfg(feature = "lab")]
pub mod lab;
mod numbers;
#[cfg(feature = "lab")]
pub mod shapes;
mod skip;
pub mod small_disk;
mod turn;
mod wait;

pub use entry::entry;
pub use numbers::{Numbers, number_of_variable};
pub use skip::{Lacks, kernel_threads_are_out_of_sight, skip, skip_missing, skip_part};
pub use turn::LabTurn;
pub use wait::{PATIENCE, wait_until};
