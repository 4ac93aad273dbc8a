//! Studies with the model of `quell-sim`. They compare it with published measurements and fit the constants of a host.
//! They also measure the effect of each part of the model, and explain delivery modes step by step.
//!
//! | module | question |
//! | --- | --- |
//! | [`published`] | How much does the model differ from published experiments? |
//! | [`fit`] | Which constants of a host reproduce published cells best? |
//! | [`ablation`] | Which metrics does each part of the model affect? |
//! | [`explain`] | What happens to a request under a mode, step by step? |

#![forbid(unsafe_code)]

pub mod ablation;
pub mod explain;
pub mod fit;
pub mod published;
