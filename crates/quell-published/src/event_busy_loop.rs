//! Published experiment (d), 2024: a busy loop for events inside `epoll_wait`, and one in the program. The benchmark is
//! neper tcp_rr with various message sizes, 5 threads and 30 flows on two identical hosts.

use std::fmt;

use serde::Deserialize;

use super::{PublishedError, rows};

pub const FLOWS: usize = 30;
/// Maximum relative difference between the median and Little's law in a consistent row.
const CONTRADICTION: f64 = 0.25;

/// Place of the loop for events: the kernel or the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLoopForm {
    /// The loop is in `epoll_wait`.
    Kernel,
    /// The loop is in the program, which calls `epoll_wait` with timeout 0.
    User,
}

impl fmt::Display for EventLoopForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel form",
            Self::User => "user form",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct EventLoopRow {
    /// Size of requests and responses, in bytes.
    pub message_bytes: u32,
    pub form: EventLoopForm,
    pub throughput_rps: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl EventLoopRow {
    /// Mean latency in µs that follows from the throughput by Little's law, if it contradicts the median.
    #[must_use]
    pub fn contradiction(&self) -> Option<f64> {
        let implied_us = FLOWS as f64 / self.throughput_rps * 1e6;
        ((self.p50_us / implied_us - 1.0).abs() > CONTRADICTION).then_some(implied_us)
    }
}

pub fn event_loop_rows() -> Result<Vec<EventLoopRow>, PublishedError> {
    rows(include_str!("../data/event-busyloop-2024.csv"))
}
