//! Tests of quell-mode from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod profile_keys;
mod profiles;
mod refusals;
mod table;
mod text;
