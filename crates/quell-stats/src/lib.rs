//! Statistics of measurements: latency histograms and the spread of repeated measurements. The crate only computes: it
//! has no I/O, no clock and no formatting.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod latency_histogram;
mod spread;

pub use latency_histogram::{LatencyHistogram, ParseHistogramError};
pub use spread::Spread;
