//! Conformance of the model with the kernel. A scenario is a file with settings, packets and their times, steps of
//! applications, and required observations. The same scenario runs on the model in virtual time and on a real kernel.
//! Every difference must be explained. Nothing here prints.
//!
//! | module | contents |
//! | --- | --- |
//! | [`suite`] | the scenarios that ship with the project |
//! | [`run`] | runs scenarios on backends and reports their outcomes |
//! | [`parse`], [`scenario`] | the file format and its resolved form; `conformance/README.md` is the reference |
//! | [`expect`], [`observe`] | observations, and the pure function that judges them |
//! | [`model`], [`kernel`] | the backends; [`in_guest`] runs the kernel backend in a guest |
//!
//! ```
//! use quell_conformance::{expect::Backend, expect::judge, model, suite};
//!
//! let scenario = suite::scenario("deferral-counts-down")?;
//! let findings = judge(&scenario, &model::play(&scenario)?, Backend::Model);
//! assert!(findings.iter().all(|finding| finding.holds));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod duration;
pub mod expect;
pub mod in_guest;
pub mod kernel;
pub mod model;
pub mod observe;
pub mod parse;
mod place;
pub mod run;
pub mod scenario;
mod stretch;
pub mod suite;

pub use place::FileError;
