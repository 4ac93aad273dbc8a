//! What the command lines of `quell` and `quell-study` share: exit codes and errors, output that escapes what a terminal
//! would interpret, files, progress, numbers, and the options of simulations.

#![forbid(unsafe_code)]

pub mod exit;
pub mod file;
pub mod number;
pub mod output;
pub mod progress;
pub mod simulation;
pub mod table;
pub mod terminal;
