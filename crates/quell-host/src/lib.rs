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
pub mod findings;
pub mod plan;
pub mod snapshot;
pub mod steer;
pub mod switching;
