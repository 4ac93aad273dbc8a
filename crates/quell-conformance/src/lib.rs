//! Conformance of the model with the kernel. A scenario is a file that states settings, packets with their times, steps
//! of applications, and required observations. The same scenario runs on the model in virtual time and on a real
//! kernel. Every difference must be explained. Nothing here prints.
//!
//! | module | what for |
//! | --- | --- |
//! | [`suite`] | the scenarios that ship with the project |
//! | [`run`] | playing scenarios on arms, as often as they say, and what came of it |
//! | [`parse`], [`scenario`] | the file and what it means; `conformance/README.md` is the language's reference |
//! | [`expect`], [`observe`] | what must be observed, as a pure function of what was |
//! | [`model`], [`kernel`] | the arms; the third is the kernel's in a guest, which [`in_guest`] starts |
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
