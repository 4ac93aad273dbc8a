//! Tests of quell-sampler from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod sampler_on_the_kernel;
mod waits_on_the_kernel;
mod xdp_echo_on_the_kernel;
mod xdp_sockets_on_the_kernel;
