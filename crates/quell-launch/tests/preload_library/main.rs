//! The preload library, built as it travels: as a file, in programs in C, and counted in instructions.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod behaviour;
mod file;
mod instructions;
mod programs;
mod settings;
