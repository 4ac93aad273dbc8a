//! Statistics of measurements: latency histograms and the spread of repeated measurements. Pure computation: no I/O, no
//! clock, no formatting.

#![forbid(unsafe_code)]

mod latency_histogram;
mod spread;

pub use latency_histogram::{LatencyHistogram, ParseHistogramError};
pub use spread::Spread;
