//! Tests of the preload library: its file, its effect on C programs, and its instruction counts.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod behaviour;
mod file;
mod instructions;
mod programs;
mod settings;
