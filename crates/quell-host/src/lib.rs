//! The host as Quell sees and changes it. What there is, is a [`picture`]; what is wrong with it, [`findings`]. Every
//! change goes through a [`journal`]: written down first, then made, and undone in the reverse order at exit, after
//! Ctrl-C or a panic, and after a `kill -9` by whoever comes next.
//!
//! A [`plan`] says what has to be changed so that the host is as a profile wants it.
//!
//! Nothing here prints, and nothing here decides which changes are wanted.

#![forbid(unsafe_code)]

pub mod apply;
pub mod attach;
mod concluded;
mod devices;
pub mod drift;
pub mod findings;
mod inhabitants;
pub mod journal;
pub mod kept;
mod namespaces;
pub mod picture;
pub mod plan;
pub mod recovery;
pub mod resume;
pub mod settings;
pub mod steer;
pub mod transaction;
mod undo;

pub use undo::UndoError;
