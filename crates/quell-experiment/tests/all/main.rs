//! Tests of quell-experiment from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod experiments;
mod false_positives;
mod replay;
