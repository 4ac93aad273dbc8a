//! Result documents of Quell: their types, and everything that follows from them without a measurement. Renderers read
//! documents and nothing else. This crate prints nothing.

#![forbid(unsafe_code)]

pub mod experiment;
pub mod facts;
pub mod figures;
pub mod guest_checks;
pub mod published;
pub mod tune;
