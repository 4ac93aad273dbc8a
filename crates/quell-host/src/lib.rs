//! Observes the host and decides its changes. [`snapshot`] reads its state, [`findings`] diagnoses it, [`servers`] lists
//! the programs that receive packets, [`plan`] computes the changes that a profile requires, and [`attach`] those that a
//! mode requires. [`quell_change`] records, makes and undoes them.
//!
//! This crate does not print, and it does not choose modes or profiles.

#![forbid(unsafe_code)]

pub mod apply;
pub mod attach;
pub mod behavior;
pub mod findings;
pub mod plan;
pub mod servers;
pub mod snapshot;
pub mod steer;
pub mod switching;
