//! Tests of quell-change from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod persistent_on_the_kernel;
mod settings_on_the_kernel;
mod suspension_on_the_kernel;
mod transaction_on_the_kernel;
