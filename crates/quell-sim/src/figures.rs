//! Metrics of a run, and the columns of tables that show them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::run::RunResult;

/// Metrics of one mode under one load. A metric without events is NaN, and null in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Figures {
    /// Responses per second.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub qps: f64,
    /// Mean latency in µs.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub mean_us: f64,
    /// Median latency in µs.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub p50_us: f64,
    /// 95th percentile of latency in µs.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub p95_us: f64,
    /// 99th percentile of latency in µs.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub p99_us: f64,
    /// CPU use as accounted by the kernel, in percent.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub cpu_pct: f64,
    /// Share of CPU time in softirqs and hard interrupts, in percent.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub softirq_pct: f64,
    /// Unhalted cycles per request.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub cycles_per_query: f64,
    /// Device interrupts per second, over all queues.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub irqs_per_s: f64,
    /// Packets per NAPI poll.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub poll_work: f64,
    /// NAPI polls per second and queue, with some of other interfaces, as the published counter has them.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub polls_per_s: f64,
    /// Share of empty polls, in percent.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub empty_polls_pct: f64,
    /// Number of events per `epoll_wait` call, counting only calls that returned events.
    #[serde(deserialize_with = "nan_if_null")]
    #[schemars(with = "Option<f64>")]
    pub epoll_events: f64,
}

/// JSON has no number for the latency of a run without responses.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Figures {
    /// Median of each metric over runs that differ in their seed. `None` if there are no runs.
    #[must_use]
    pub fn median(runs: &[Self]) -> Option<Self> {
        let median = |metric: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(metric).collect();
            values.sort_by(f64::total_cmp);
            let upper = *values.get(values.len() / 2)?;
            Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[values.len() / 2 - 1], upper) })
        };
        Some(Self {
            qps: median(|run| run.qps)?,
            mean_us: median(|run| run.mean_us)?,
            p50_us: median(|run| run.p50_us)?,
            p95_us: median(|run| run.p95_us)?,
            p99_us: median(|run| run.p99_us)?,
            cpu_pct: median(|run| run.cpu_pct)?,
            softirq_pct: median(|run| run.softirq_pct)?,
            cycles_per_query: median(|run| run.cycles_per_query)?,
            irqs_per_s: median(|run| run.irqs_per_s)?,
            poll_work: median(|run| run.poll_work)?,
            polls_per_s: median(|run| run.polls_per_s)?,
            empty_polls_pct: median(|run| run.empty_polls_pct)?,
            epoll_events: median(|run| run.epoll_events)?,
        })
    }
}

/// A column of the metrics table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Responses per second.
    Qps,
    /// Mean latency in µs.
    Mean,
    /// Median latency in µs.
    P50,
    /// 95th percentile of latency in µs.
    P95,
    /// 99th percentile of latency in µs.
    P99,
    /// CPU use as accounted by the kernel, in percent.
    Cpu,
    /// Share of CPU time in softirqs, in percent.
    Softirq,
    /// Unhalted cycles per request.
    Cycles,
    /// Device interrupts per second.
    Irqs,
    /// Packets per NAPI poll.
    PollWork,
    /// NAPI polls per second and queue.
    Polls,
    /// Number of events per `epoll_wait` call.
    EpollEvents,
}

impl Column {
    /// All columns, in the order in which tables show them.
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

    /// Heading of the column, including its unit.
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

    /// Heading without its unit, for tables that must fit 120 columns.
    #[must_use]
    pub fn short_heading(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Cpu => "cpu%",
            Self::Softirq => "soft%",
            Self::Cycles => "cyc/req",
            Self::Irqs => "irq/s",
            Self::PollWork => "pkt/poll",
            Self::Polls => "poll/s",
            Self::EpollEvents => "ev/wait",
        }
    }

    /// Value of this column for a run's metrics.
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

impl RunResult {
    /// Metrics of the run, scaled from its queues to the `host_queues` of the whole host. The number of polls includes
    /// those that only the published counter would have counted.
    #[must_use]
    pub fn figures(&self, host_queues: usize) -> Figures {
        let scale = host_queues as f64 / self.queues as f64;
        let us = |share: f64| self.latency.quantile(share).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6);
        let counters = &self.counters;
        let per_s = |count: u64| count as f64 / self.measured_s;
        let per_queue = |count: u64| per_s(count) / self.queues as f64;
        let unrelated = self.unrelated_polls;
        let polls_per_s = per_queue(counters.polls) + unrelated.polls_per_s;
        let per_poll = |per_s: f64| if polls_per_s > 0.0 { per_s / polls_per_s } else { 0.0 };
        Figures {
            qps: self.qps * scale,
            mean_us: self.mean_us,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            cpu_pct: self.cpu_pct,
            softirq_pct: 100.0 * self.cpu.interrupt_share(),
            cycles_per_query: self.cycles_per_query,
            irqs_per_s: per_s(counters.irqs) * scale,
            poll_work: per_poll(per_queue(counters.polled_packets) + unrelated.packets_per_s),
            polls_per_s,
            empty_polls_pct: 100.0 * per_poll(per_queue(counters.empty_polls) + unrelated.empty_polls_per_s),
            epoll_events: counters.epoll_events as f64 / counters.epoll_waits.max(1) as f64,
        }
    }
}
