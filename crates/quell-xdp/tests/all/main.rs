//! Integration tests of the crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a failed precondition fails the test")]

mod counting;
mod faults_on_the_kernel;
mod lab;
mod ways_on_the_kernel;
