//! Studies with the model of `quell-sim`: they compare it with published measurements, fit the constants of a host, and
//! measure the effect of each part of the model.
//!
//! | module | question |
//! | --- | --- |
//! | [`published`] | How much does the model differ from published experiments? |
//! | [`fit`] | Which constants of a host reproduce published cells best? |
//! | [`ablation`] | Which metrics does each part of the model affect? |

#![forbid(unsafe_code)]

pub mod ablation;
pub mod fit;
pub mod published;
