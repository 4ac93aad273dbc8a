//! Integration tests of the crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a failed precondition fails the test")]

mod allocations;
mod faults_on_the_kernel;
mod lab;
mod process;
mod steady_state_on_the_kernel;
mod ways_on_the_kernel;
