//! Published experiment (c), 2025: threaded NAPI busy polling. The benchmark is `xsk_rr` on two hosts. One of four
//! mechanisms polls their queues.

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
    pub p5_ns: f64,
    pub p50_ns: f64,
    pub p95_ns: f64,
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
