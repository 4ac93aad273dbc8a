//! Tests of quell-conformance from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod files;
mod judging;
mod on_the_kernel;
mod on_the_model;
mod reports;
