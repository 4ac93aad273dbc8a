//! Tests of quell-subject from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod client_outputs;
mod common;
mod drops_on_the_kernel;
mod modelled;
mod published_xdp_on_the_kernel;
mod run_on_the_kernel;
