//! Tests of quell-sim from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::print_stdout, reason = "helpers of tests fail by panicking")]

mod allocation;
mod common;
mod determinism;
mod queueing_theory;
mod rules;
mod servers;
mod traps;
mod wait_bound;
mod xsk;
