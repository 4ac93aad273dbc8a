//! Columns of the result table: label, unit and computation from a trial. Pure. A value is absent when one of its
//! counters is absent.

use std::time::Duration;

use crate::disturbance::is_saturated;
use crate::result::{CpuUse, Trial};

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Requests answered per second.
    Qps,
    /// Mean latency from the intended send time, µs.
    Mean,
    /// Median latency from the intended send time, µs.
    P50,
    /// 95th percentile of latency from the intended send time, µs.
    P95,
    /// 99th percentile of latency from the intended send time, µs.
    P99,
    /// 99.9th percentile of latency from the intended send time, µs.
    P999,
    /// Mean latency from the actual send time, µs. The published tables use it.
    MeanFromSend,
    /// 99th percentile of latency from the actual send time, µs.
    P99FromSend,
    /// Run time of the server's threads and of the NAPI threads of its queues, per request, µs.
    CpuPerRequest,
    /// Busy share of the server's CPUs, %.
    ServerCpu,
    /// Wake-ups of the NAPI threads of the server's queues per 1,000 requests.
    NapiWakeups,
    /// Device interrupts of the server's queues per 1,000 requests.
    Interrupts,
    /// Polls of the server's queues per 1,000 requests.
    Polls,
    /// Share of the polls of the server's queues that found no packet, %.
    EmptyPolls,
    /// Packets received by busy polling, as a share of all packets received by the server's queues, %. A lower bound.
    BusyPolled,
    /// Events returned per successful wait for events.
    EventsPerWait,
    /// Requests that were due but never sent, %. Not 0 if the server was slower than the rate; latency is then
    /// meaningless.
    Unsent,
    /// Packets dropped.
    Drops,
    /// 99th percentile of the generator's lateness, µs.
    Lateness,
    /// Time of the server's CPUs spent outside the server and its queues, or stolen by the hypervisor, %.
    ForeignOnServer,
    /// Time of the client's CPUs spent outside the generator and its queues, or stolen by the hypervisor, %.
    ForeignOnClient,
}

impl Metric {
    /// Every figure, in table order.
    pub const ALL: [Self; 21] = [
        Self::Qps,
        Self::Mean,
        Self::P50,
        Self::P95,
        Self::P99,
        Self::P999,
        Self::MeanFromSend,
        Self::P99FromSend,
        Self::CpuPerRequest,
        Self::ServerCpu,
        Self::NapiWakeups,
        Self::Interrupts,
        Self::Polls,
        Self::EmptyPolls,
        Self::BusyPolled,
        Self::EventsPerWait,
        Self::Unsent,
        Self::Drops,
        Self::Lateness,
        Self::ForeignOnServer,
        Self::ForeignOnClient,
    ];

    /// Column header.
    #[must_use]
    pub fn heading(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::MeanFromSend => "mean(s)",
            Self::P99FromSend => "p99(s)",
            Self::CpuPerRequest => "cpu/req",
            Self::ServerCpu => "cpu%",
            Self::NapiWakeups => "wake/k",
            Self::Interrupts => "irq/k",
            Self::Polls => "poll/k",
            Self::EmptyPolls => "empty%",
            Self::BusyPolled => "busy%",
            Self::EventsPerWait => "ev/wait",
            Self::Unsent => "unsent%",
            Self::Drops => "drops",
            Self::Lateness => "late99",
            Self::ForeignOnServer => "for-s%",
            Self::ForeignOnClient => "for-c%",
        }
    }

    /// Value in one trial. Absent if a required counter was not read, or if the value has no meaning there. Latency has
    /// no meaning if the server was slower than the rate.
    #[must_use]
    pub fn of(self, trial: &Trial) -> Option<f64> {
        if self.is_latency() && is_saturated(&trial.load) { None } else { self.at_least(trial) }
    }

    fn is_latency(self) -> bool {
        use Metric::{Mean, MeanFromSend, P50, P95, P99, P99FromSend, P999};
        matches!(self, Mean | P50 | P95 | P99 | P999 | MeanFromSend | P99FromSend)
    }

    /// Like [`Self::of`], but returns latency as a lower bound where the server was slower than the rate.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of one trial are far below 2^53")]
    pub fn at_least(self, trial: &Trial) -> Option<f64> {
        let counters = &trial.counters;
        let load = &trial.load;
        let answered = load.answered_in_window;
        let per_thousand = |count: Option<u64>| ratio(count?, answered).map(|per_request| per_request * 1e3);
        match self {
            Self::Qps => Some(load.qps),
            Self::Mean => us(load.latency.mean()),
            Self::P50 => us(load.latency.p50()),
            Self::P95 => us(load.latency.p95()),
            Self::P99 => us(load.latency.p99()),
            Self::P999 => us(load.latency.p99_9()),
            Self::MeanFromSend => us(load.latency_from_send.mean()),
            Self::P99FromSend => us(load.latency_from_send.p99()),
            Self::CpuPerRequest => {
                let run_ns = counters.server_run_ns? + counters.napi_run_ns?;
                ratio(run_ns, answered).map(|ns| ns / 1e3)
            }
            Self::ServerCpu => percent(counters.server_cpus.as_ref().and_then(CpuUse::busy_share)),
            Self::NapiWakeups => per_thousand(counters.napi_wakeups),
            Self::Interrupts => per_thousand(counters.irqs),
            Self::Polls => per_thousand(counters.polls),
            Self::EmptyPolls => percent(ratio(counters.empty_polls?, counters.polls?)),
            Self::BusyPolled => percent(ratio(counters.busy_poll_rx_packets?, counters.polled_packets?)),
            Self::EventsPerWait => ratio(counters.epoll_events?, counters.epoll_waits?),
            Self::Unsent => trial.offered_per_s.and(percent(ratio(load.never_sent, load.sent + load.never_sent))),
            Self::Drops => counters.drops.map(|drops| drops as f64),
            Self::Lateness => us(load.lateness.p99()),
            Self::ForeignOnServer => percent(counters.server_cpus.as_ref().and_then(CpuUse::foreign_share)),
            Self::ForeignOnClient => percent(counters.client_cpus.as_ref().and_then(CpuUse::foreign_share)),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of one trial are far below 2^53")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| share * 100.0)
}

fn us(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64() * 1e6)
}
