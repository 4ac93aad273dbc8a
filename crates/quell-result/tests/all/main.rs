//! Tests of quell-result from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, reason = "a document that cannot be read fails the test")]

mod choice;
mod commands;
mod conclusions;
mod documents;
mod open_gains;
mod placement;
mod searches;
