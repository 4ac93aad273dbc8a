//! Studies with the model of `quell-sim`: how near it comes to published measurements, which constants fit a host, what
//! each part of the model contributes, and what a delivery mode does step by step.
//!
//! | module | question |
//! | --- | --- |
//! | [`published`] | how far is the model from published experiments? |
//! | [`fit`] | which constants of a host reproduce published cells best? |
//! | [`ablation`] | which metric does each part of the model move? |
//! | [`explain`] | what happens to a request under a mode, step by step? |

#![forbid(unsafe_code)]

pub mod ablation;
pub mod explain;
pub mod fit;
pub mod published;
