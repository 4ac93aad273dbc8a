//! Observes and changes the host. [`snapshot`] reads its state, [`findings`] diagnoses it, and [`plan`] computes the
//! changes that a profile requires.
//!
//! The [`journal`] records every change before it is made. Changes are undone in reverse order at exit, after Ctrl-C
//! and after a panic. After `kill -9`, the next Quell process undoes them.
//!
//! This crate does not print, and it does not choose modes or profiles.

#![forbid(unsafe_code)]

pub mod apply;
pub mod attach;
pub mod behavior;
mod devices;
pub mod drift;
mod driver_inference;
pub mod findings;
pub mod journal;

mod namespaces;
mod netns_processes;
mod ownership;
pub mod persistent;
pub mod plan;
pub mod recovery;
mod recreated;
pub mod resume;
pub mod settings;
pub mod snapshot;
pub mod steer;
pub mod switching;
pub mod transaction;
mod undo;

pub use undo::UndoError;
