//! The figures of one cell of a table, published or modelled, and the columns by which they are
//! compared.

use serde::{Deserialize, Serialize};

/// Figures of one (mode, load).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests a second.
    pub qps: f64,
    /// Mean latency in µs.
    pub mean_us: f64,
    /// Median latency in µs.
    pub p50_us: f64,
    /// 95th percentile of latency in µs.
    pub p95_us: f64,
    /// 99th percentile of latency in µs.
    pub p99_us: f64,
    /// Accounted CPU use in percent.
    pub cpu_pct: f64,
    /// Share of CPU time in softirqs, hard interrupts included, in percent.
    pub softirq_pct: f64,
    /// Unhalted cycles per request.
    pub cycles_per_query: f64,
    /// Device interrupts a second, all queues.
    pub irqs_per_s: f64,
    /// Packets per NAPI poll.
    pub poll_work: f64,
    /// NAPI polls a second and queue.
    pub polls_per_s: f64,
    /// Share of polls that found nothing, in percent.
    pub empty_polls_pct: f64,
    /// Events per `epoll_wait` that returned some.
    pub epoll_events: f64,
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Requests a second.
    Qps,
    /// Mean latency.
    Mean,
    /// Median latency.
    P50,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// Accounted CPU use.
    Cpu,
    /// CPU time in softirqs.
    Softirq,
    /// Cycles per request.
    Cycles,
    /// Device interrupts a second.
    Irqs,
    /// Packets per NAPI poll.
    PollWork,
    /// NAPI polls a second and queue.
    Polls,
    /// Events per `epoll_wait`.
    EpollEvents,
}

impl Column {
    /// All columns, in the order of a table.
    pub const ALL: [Self; 12] = [
        Self::Qps,
        Self::Mean,
        Self::P50,
        Self::P95,
        Self::P99,
        Self::Cpu,
        Self::Softirq,
        Self::Cycles,
        Self::Irqs,
        Self::PollWork,
        Self::Polls,
        Self::EpollEvents,
    ];

    /// The heading, with the unit.
    #[must_use]
    pub fn heading(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Mean => "mean us",
            Self::P50 => "p50 us",
            Self::P95 => "p95 us",
            Self::P99 => "p99 us",
            Self::Cpu => "cpu %",
            Self::Softirq => "softirq %",
            Self::Cycles => "cycles/query",
            Self::Irqs => "irqs/s",
            Self::PollWork => "packets/poll",
            Self::Polls => "polls/s/queue",
            Self::EpollEvents => "events/wait",
        }
    }

    /// This column of some figures.
    #[must_use]
    pub fn of(self, figures: &Figures) -> f64 {
        match self {
            Self::Qps => figures.qps,
            Self::Mean => figures.mean_us,
            Self::P50 => figures.p50_us,
            Self::P95 => figures.p95_us,
            Self::P99 => figures.p99_us,
            Self::Cpu => figures.cpu_pct,
            Self::Softirq => figures.softirq_pct,
            Self::Cycles => figures.cycles_per_query,
            Self::Irqs => figures.irqs_per_s,
            Self::PollWork => figures.poll_work,
            Self::Polls => figures.polls_per_s,
            Self::EpollEvents => figures.epoll_events,
        }
    }
}
