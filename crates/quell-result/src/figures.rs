//! Names and units of the metrics of a slice.

use quell_experiment::{Criterion, Goal};
use quell_tune::TuneMetric;

use crate::conclusion::Quantity;

/// Unit of work by which costs are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Requests that the server answered.
    Request,
    /// Packets that the queues delivered.
    Packet,
}

/// CPU time per request or packet, in µs, of the server's threads and of the NAPI threads of its queues. If softirqs
/// poll the queues, it is the time in which the server's CPUs were not idle, because the kernel charges softirq time to
/// no thread.
pub const CPU: &str = "cpu-us-per";
/// Run time of the server's threads, and of the threads of Quell that poll for it, per request or packet, in µs.
pub const PROCESS_CPU: &str = "process-us-per";
/// Number of polls of the queues per request or packet.
pub const POLLS: &str = "polls-per";
/// Number of interrupts of the queues per request or packet.
pub const IRQS: &str = "irqs-per";
/// Number of NET_RX softirqs on the server's CPUs per request or packet.
pub const NET_RX: &str = "net-rx-softirqs-per";
/// Number of timer interrupts on the server's CPUs per request or packet.
pub const TIMER_IRQS: &str = "timer-irqs-per";
/// Number of times that a thread of the server went to sleep, per request or packet.
pub const SLEEPS: &str = "sleeps-per";
/// Number of cycles of the server's CPUs per request or packet.
pub const CYCLES: &str = "cycles-per";
/// Number of instructions of the server's CPUs per request or packet.
pub const INSTRUCTIONS: &str = "instructions-per";
/// Share of the polls that found no packet, 0 to 1.
pub const EMPTY_POLLS: &str = "empty-poll-share";
/// Share of time in which the server's CPUs were not idle, 0 to 1.
pub const BUSY: &str = "busy-share";
/// Answered requests per second.
pub const REQUESTS: &str = "requests-per-s";
/// Number of packets that the devices of the queues dropped in the slice.
pub const DROPS: &str = "drops";
/// Mean upper bound of the time that a packet waited in a ring, in µs. Packets that came while the interrupt was enabled
/// have no bound.
pub const WAIT_MEAN: &str = "wait-mean-us";
/// 99th percentile of that bound in the queue where it is largest, in µs.
pub const WAIT_P99: &str = "wait-p99-us";
/// Number of queues in which a packet can have waited for 50 ms.
pub const STALLS: &str = "stalls";
/// Name under which a judge prints the number of requests that it sent. Costs are then divided by this number.
pub const PRINTED_REQUESTS: &str = "requests";
/// Name under which a judge prints the number of requests that failed. A mode under which more requests fail is not better.
pub const PRINTED_ERRORS: &str = "errors";
/// Name under which a judge prints a quantile of the latency, in µs: `p50-us`, `p99.9-us`.
#[must_use]
pub fn printed_latency(quantile: f64) -> String {
    format!("p{}-us", (quantile * 1e4).round() / 1e2)
}

/// Whether a printed figure is a quantile, the mean or the maximum of a latency, also that of a second server.
#[must_use]
pub fn is_latency(name: &str) -> bool {
    let Some(of) = name.strip_prefix("beside ").unwrap_or(name).strip_suffix("-us") else { return false };
    let quantile = of.strip_prefix('p').map(str::parse::<f64>);
    ["mean", "max"].contains(&of) || matches!(quantile, Some(Ok(_)))
}

impl Quantity {
    #[must_use]
    pub fn is_latency(&self) -> bool {
        match self {
            Self::Criterion(Criterion::Latency { .. }) | Self::Metric(TuneMetric::Latency { .. }) => true,
            Self::Criterion(Criterion::Metric { name, .. }) => is_latency(name),
            Self::Metric(_) => false,
        }
    }
}

/// Polled packets per second.
pub const PACKETS: &str = "packets-per-s";
/// Median latency of a second server on the same queues, in µs.
pub const BESIDE_P50: &str = "beside p50-us";
/// 99th percentile of the latency of a second server on the same queues, in µs.
pub const BESIDE_P99: &str = "beside p99-us";

impl Work {
    /// Returns the full name of a cost, for example `polls-per-request`.
    #[must_use]
    pub fn name(self, cost: &str) -> String {
        format!("{cost}-{}", self.word())
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Packet => "packet",
        }
    }

    /// Returns the criterion that compares CPU time.
    #[must_use]
    pub fn cpu(self) -> Criterion {
        self.criterion(CPU)
    }

    /// Returns the criterion that compares a cost.
    pub fn criterion(self, cost: &str) -> Criterion {
        Criterion::Metric { name: self.name(cost), goal: Goal::Lowest }
    }
}

/// Whether a criterion is what clients see, such as latencies and request rates, and not a count or cost on the server.
#[must_use]
pub fn is_of_clients(criterion: &Criterion) -> bool {
    match criterion {
        Criterion::Latency { .. } => true,
        Criterion::Metric { name, .. } => {
            name == REQUESTS || [Work::Request, Work::Packet].into_iter().all(|work| !names(work).contains(name))
        }
    }
}

/// Names of the metrics that a subject with counters can have. A metric whose counter cannot be read is absent from a slice.
#[must_use]
pub fn names(work: Work) -> Vec<String> {
    let costs = [CPU, PROCESS_CPU, POLLS, IRQS, NET_RX, TIMER_IRQS, SLEEPS, CYCLES, INSTRUCTIONS];
    let requests = if work == Work::Request { &[REQUESTS][..] } else { &[] };
    let others = [EMPTY_POLLS, BUSY, PACKETS, DROPS, WAIT_MEAN, WAIT_P99, STALLS];
    let others = requests.iter().chain(&others).map(|name| (*name).to_owned());
    costs.into_iter().map(|cost| work.name(cost)).chain(others).collect()
}
