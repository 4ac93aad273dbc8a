//! Published experiment (c), 2025: threaded NAPI busy polling. The benchmark is `xsk_rr` on two hosts. One of four
//! mechanisms polls their queues.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::{PublishedError, rows};

/// Mechanism that polls the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollMechanism {
    /// Interrupts. The application's system calls also poll once, because `SO_BUSY_POLL` is set.
    Interrupts,
    /// System calls of the application, with deferred interrupts.
    Inline,
    /// A separate thread on a separate CPU, which only calls `recvfrom`.
    Separate,
    /// The NAPI thread, with `threaded` set to 2.
    Threaded,
}

impl PollMechanism {
    /// All mechanisms, in the order of the published table.
    pub const ALL: [Self; 4] = [Self::Interrupts, Self::Inline, Self::Separate, Self::Threaded];
}

impl fmt::Display for PollMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Interrupts => "interrupts",
            Self::Inline => "inline",
            Self::Separate => "separate",
            Self::Threaded => "threaded",
        })
    }
}

/// A published cell: one mechanism in one experiment.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct ThreadedNapiRow {
    /// Number of the experiment, from 1.
    pub experiment: u32,
    /// Packet rate in thousands per second.
    pub rate_kpps: f64,
    /// CPU time that the client spends on each reply, in µs.
    pub delay_us: f64,
    pub mechanism: PollMechanism,
    /// Mean of the lowest 5 % of the latencies, see [`xsk_rr_percentiles`].
    pub p5_ns: f64,
    /// Mean of the lowest 50 %.
    pub p50_ns: f64,
    /// Mean of the lowest 95 %.
    pub p95_ns: f64,
    /// Mean of the lowest 99 %.
    pub p99_ns: f64,
}

impl fmt::Display for ThreadedNapiRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate_kpps, delay_us, mechanism, .. } = self;
        write!(f, "{rate_kpps} Kpkt/s, {delay_us} us delay, {mechanism}")
    }
}

/// Rate in thousands per second and processing time in µs at which [`RECEIVE_CALLS`] was published.
pub const RECEIVE_CALLS_AT: (f64, f64) = (32.0, 30.0);
/// Published histogram of the time in `recvfrom` of the inline mechanism: lower end in ns of a range that ends at twice
/// the value, and the number of calls.
pub const RECEIVE_CALLS: [(u64, u64); 6] =
    [(128, 24_073), (256, 55_633), (512, 20_974), (1_024, 34_234), (2_048, 3_266), (4_096, 19)];

pub fn threaded_napi_rows() -> Result<Vec<ThreadedNapiRow>, PublishedError> {
    rows(include_str!("../data/threaded-napi-busy-poll.csv"))
}

const PERCENTAGES: [u64; 4] = [5, 50, 95, 99];
/// Width of a bucket of `xsk_rr`, in ns.
const BUCKET_NS: u64 = 100;

/// Figures in ns that `xsk_rr` prints as the 5th, 50th, 95th and 99th percentile of latencies, which are given in ns with
/// their numbers (`print_percentile` of its source). Each is the mean of the lowest 5, 50, 95 or 99 % in whole buckets,
/// rounded down at every bucket. Each also cuts the buckets off at which it ends. NaN without latencies.
#[must_use]
pub fn xsk_rr_percentiles(latencies: impl Iterator<Item = (u64, u32)>) -> [f64; 4] {
    let mut buckets = BTreeMap::<u64, u64>::new();
    for (ns, count) in latencies {
        *buckets.entry(ns / BUCKET_NS).or_default() += u64::from(count);
    }
    PERCENTAGES.map(|percentage| {
        let (mut left, mut counted, mut mean) = (buckets.values().sum::<u64>() * percentage / 100, 0, None);
        for (&bucket, count) in &mut buckets {
            if left == 0 {
                break;
            }
            *count = left.min(*count);
            left -= *count;
            mean = Some((*count * bucket + counted * mean.unwrap_or(0)) / (counted + *count));
            counted += *count;
        }
        mean.map_or(f64::NAN, |mean| (mean * BUCKET_NS) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_that_are_spread_evenly_are_printed_as_the_lowest() {
        let even = (130..160).map(|bucket| (bucket * BUCKET_NS, 100));
        assert_eq!(xsk_rr_percentiles(even), [13_000.0, 13_000.0, 13_100.0, 13_100.0]);
    }

    #[test]
    fn a_percentile_leaves_only_what_it_counted_of_its_bucket_for_the_next() {
        let two = [(13_000, 50), (21_000, 50)].into_iter();
        assert_eq!(xsk_rr_percentiles(two)[..2], [13_000.0, 100.0 * ((5 * 130 + 22 * 210) / 27) as f64]);
    }

    #[test]
    fn a_thin_tail_moves_no_printed_percentile() {
        let tail = (20..400).map(|bucket| (bucket * BUCKET_NS, 1));
        assert_eq!(xsk_rr_percentiles([(1_000, 10_000)].into_iter().chain(tail)), [1_000.0; 4]);
    }
}
