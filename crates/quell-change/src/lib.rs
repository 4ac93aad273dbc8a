//! Changes of the host. Every change is recorded in the [`journal`] before a [`transaction`] makes it, so that it can be
//! undone by this process, or by the next one after `kill -9`. [`settings`] reads, sets and restores each kind of
//! setting; `ownership` decides which value is in force while several owners hold the same one.
//!
//! This crate decides no values and does not print.

#![forbid(unsafe_code)]

pub mod change;
mod devices;
pub mod drift;
pub mod driver_inference;
pub mod journal;
pub mod missing_queue;
pub mod namespaces;
mod netns_processes;
mod ownership;
pub mod persistent;
pub mod recovery;
mod recreated;
pub mod resume;
pub mod reuseport_group;
pub mod settings;
pub mod target;
pub mod transaction;
mod undo;

pub use undo::UndoError;
