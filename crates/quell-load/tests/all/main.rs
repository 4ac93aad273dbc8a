//! Tests of quell-load from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod hostile_servers;
mod responder;
mod running_load;
