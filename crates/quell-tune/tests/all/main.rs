//! Tests of quell-tune from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod equal_cpus;
mod model_table;
mod regret;
mod rivals;
mod searches;
mod ticks;
