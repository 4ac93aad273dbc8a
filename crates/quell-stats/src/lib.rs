//! What was measured, made comparable: latencies recorded into histograms, the spread of repeated
//! figures, paired comparisons that know what this machine can tell apart, and the choice of a
//! winner. Pure computation: no I/O, no clock, no formatting.

#![forbid(unsafe_code)]

mod latency_histogram;

pub use latency_histogram::{LatencyHistogram, ParseHistogramError};
