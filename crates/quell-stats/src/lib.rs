//! Statistics of measurements: latency histograms, the spread of repeated measurements, paired
//! comparisons with a noise floor, and the choice of a winner. Pure computation: no I/O, no clock,
//! no formatting.

#![forbid(unsafe_code)]

mod choose;
mod latency_histogram;
mod paired;
mod spread;
mod verdict;

pub use choose::{Choice, Goal, Series, best, compromise};
pub use latency_histogram::{LatencyHistogram, ParseHistogramError};
pub use paired::{Interval, NotAMagnitude, PairedRatios, Resolution};
pub use spread::Spread;
pub use verdict::{Doubt, Effect, MIN_PAIRS, Verdict, compare};
