//! Report of a run: counts, latencies, the generator's lateness and CPU cost. All values are measured. Values that
//! could not be read are absent.

use std::fmt;
use std::time::Duration;

use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Report of one run, or of one window of a [`crate::RunningLoad`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadReport {
    /// Length of the measured window, ns.
    pub duration_ns: u64,
    /// Requests that were due in the window and sent.
    pub sent: u64,
    /// Responses that arrived in the window, including those to earlier requests.
    pub answered_in_window: u64,
    /// `answered_in_window` per second.
    pub qps: f64,
    /// Open loop: requests due in the window for which no connection was free before it ended or, if the load
    /// continues, before it was collected. The server was slower than the schedule. These requests are in no histogram.
    pub never_sent: u64,
    /// Requests due in the window that were still outstanding when the measurement stopped waiting.
    pub unanswered: u64,
    /// Latency from a request's due time to its complete response, for requests due in the window. In a closed loop a
    /// request is due when the previous response arrives or, if the loop sends in batches, when it is sent. If the load goes
    /// on, `unanswered` and `never_sent` requests have the time that they have waited, at least 20 ms.
    pub latency: LatencyHistogram,
    /// Latency from the actual send to the complete response, as in the published tables. A closed loop uses the
    /// arrival of the previous response as the time of the send. This saves a clock reading, and includes the
    /// generator's own work between the two.
    pub latency_from_send: LatencyHistogram,
    /// The generator's own delay: from when a request was due *and* had a free connection to the actual send. Empty in
    /// a closed loop, which has no due times.
    pub lateness: LatencyHistogram,
    /// Requests that were due before a connection was free.
    pub waited_for_connection: u64,
    /// Gets that returned a value.
    pub hits: u64,
    /// Gets for which the server had no value.
    pub misses: u64,
    /// Errors from the start of the warm-up until the last answer. If the load continues, a report contains all errors
    /// since the previous report.
    pub errors: ErrorCounts,
    /// Whether the generator was too late for the result to be valid; see [`LoadReport::LATENESS_MAX`].
    pub generator_was_late: bool,
    /// CPU cost of the generator threads in the window. `None` if /proc could not be read.
    pub cpu: Option<GeneratorCpu>,
    /// Polling method of each thread.
    pub engines: Vec<EngineUsed>,
}

impl LoadReport {
    /// Limit for `generator_was_late`, which is set if more than 1 % of the sends were delayed by more than this. The
    /// generator aims at 10 µs. A delay of 100 µs is visible in the latencies of a server that answers within a few
    /// hundred µs.
    pub const LATENESS_MAX: Duration = Duration::from_micros(100);

    /// Whether the server or the generator could not keep up with the offered rate. Requests that are answered after the
    /// generator stops waiting are slow, not lost.
    #[must_use]
    pub fn fell_behind(&self) -> bool {
        is_backlog(self.sent, self.never_sent + self.unanswered)
    }

    /// Adds the report of another generator in the same window. Histograms are added slot by slot, so the result does not
    /// depend on the order. `generator_was_late` is set if it is set in one of the reports.
    pub fn add_generator(&mut self, other: &Self) {
        self.add_counts(other);
        self.qps += other.qps;
        self.generator_was_late |= other.generator_was_late;
        self.engines.extend_from_slice(&other.engines);
    }

    /// Adds the report of the same generator in another window. Histograms are added slot by slot.
    pub fn add_window(&mut self, other: &Self) {
        self.add_counts(other);
        self.duration_ns += other.duration_ns;
        self.qps = rate_per_s(self.answered_in_window, self.duration_ns);
        self.generator_was_late = is_late(&self.lateness);
    }

    fn add_counts(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered_in_window += other.answered_in_window;
        self.never_sent += other.never_sent;
        self.unanswered += other.unanswered;
        self.latency.merge(&other.latency);
        self.latency_from_send.merge(&other.latency_from_send);
        self.lateness.merge(&other.lateness);
        self.waited_for_connection += other.waited_for_connection;
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors.add(&other.errors);
        // The sum is unknown if one part is.
        self.cpu = self.cpu.zip(other.cpu).map(|(cpu, other)| cpu.plus(other));
    }
}

/// Upper limit of the share of requests that are never sent. A stall at the end of the measured time causes a lower
/// share. A higher share shows a growing backlog, so the quantiles from p99 on are lower bounds.
const NEVER_SENT_MAX: f64 = 0.005;

/// Whether so many requests were never sent that the highest quantiles are lower bounds.
#[must_use]
pub fn is_backlog(sent: u64, never_sent: u64) -> bool {
    never_sent as f64 > NEVER_SENT_MAX * (sent + never_sent) as f64
}

fn rate_per_s(count: u64, duration_ns: u64) -> f64 {
    count as f64 * 1e9 / duration_ns as f64
}

fn is_late(lateness: &LatencyHistogram) -> bool {
    lateness.p99().is_some_and(|p99| p99 > LoadReport::LATENESS_MAX)
}

/// Polling method of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EngineUsed {
    pub engine: Engine,
    /// Reason why the thread falls back to epoll, if busy polling was requested or considered.
    pub fallback_reason: Option<String>,
}

/// How a thread looks for answers; see [`crate::Polling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Edge-triggered epoll.
    Epoll,
    /// Non-blocking receives that busy poll the device.
    BusyPoll,
}

/// CPU cost of all generator threads in the measured window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GeneratorCpu {
    /// Run time, ns (`schedstat`).
    pub run_ns: u64,
    /// User time, ns. Its resolution is the kernel's clock tick, usually 10 ms.
    pub user_ns: u64,
    /// System time, ns. Its resolution is the kernel's clock tick.
    pub system_ns: u64,
    /// Time that threads were runnable while another task used their CPU, ns. Above 0, the core was shared.
    pub wait_ns: u64,
}

impl GeneratorCpu {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            run_ns: self.run_ns + other.run_ns,
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            wait_ns: self.wait_ns + other.wait_ns,
        }
    }
}

/// Number of errors by type. A lost connection loses all of its outstanding requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorCounts {
    /// Connections that the server closed or reset.
    pub connections_lost: u64,
    /// Outstanding requests on connections that were lost or dropped.
    pub requests_lost: u64,
    /// Failed attempts to reconnect.
    pub reconnects_failed: u64,
    /// Connections that were reopened.
    pub reconnected: u64,
    /// Requests that were not answered in time. Their connections are dropped and reopened.
    pub timed_out: u64,
    /// Errors in answers: `ERROR` and `SERVER_ERROR` of memcached, errors of Redis, and HTTP status codes outside 200 to 299.
    pub server_errors: u64,
    /// Data that is not an answer to an outstanding request. The connections are dropped and reopened.
    pub malformed: u64,
    /// Well-formed answers with wrong content.
    pub wrong_content: u64,
}

impl fmt::Display for ErrorCounts {
    /// Lists the errors that occurred: `3 timed out, 1 connections lost`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.connections_lost, "connections lost"),
            (self.requests_lost, "requests lost with them"),
            (self.reconnected, "connections reopened"),
            (self.reconnects_failed, "attempts to reconnect failed"),
            (self.timed_out, "timed out"),
            (self.server_errors, "server errors"),
            (self.malformed, "malformed answers"),
            (self.wrong_content, "answers with wrong content"),
        ];
        let mut separator = "";
        for (count, what) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("no errors") } else { Ok(()) }
    }
}

impl ErrorCounts {
    /// Whether no request and no connection failed. A server may close a connection after it has announced that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self { reconnected: self.reconnected, ..Self::default() }
    }

    /// Number of requests that were lost, not answered in time, or answered incorrectly.
    #[must_use]
    pub fn failed_requests(&self) -> u64 {
        self.requests_lost + self.timed_out + self.server_errors + self.malformed + self.wrong_content
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.connections_lost += other.connections_lost;
        self.requests_lost += other.requests_lost;
        self.reconnects_failed += other.reconnects_failed;
        self.reconnected += other.reconnected;
        self.timed_out += other.timed_out;
        self.server_errors += other.server_errors;
        self.malformed += other.malformed;
        self.wrong_content += other.wrong_content;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) answered_in_window: u64,
    pub(crate) never_sent: u64,
    pub(crate) unanswered: u64,
    pub(crate) waited_for_connection: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: ErrorCounts,
    pub(crate) latency: LatencyHistogram,
    pub(crate) latency_from_send: LatencyHistogram,
    pub(crate) lateness: LatencyHistogram,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.answered_in_window += other.answered_in_window;
        self.never_sent += other.never_sent;
        self.unanswered += other.unanswered;
        self.waited_for_connection += other.waited_for_connection;
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors.add(&other.errors);
        self.latency.merge(&other.latency);
        self.latency_from_send.merge(&other.latency_from_send);
        self.lateness.merge(&other.lateness);
    }

    pub(crate) fn into_report(
        self,
        duration_ns: u64,
        cpu: Option<GeneratorCpu>,
        engines: Vec<EngineUsed>,
    ) -> LoadReport {
        LoadReport {
            duration_ns,
            sent: self.sent,
            answered_in_window: self.answered_in_window,
            qps: rate_per_s(self.answered_in_window, duration_ns),
            never_sent: self.never_sent,
            unanswered: self.unanswered,
            generator_was_late: is_late(&self.lateness),
            latency: self.latency,
            latency_from_send: self.latency_from_send,
            lateness: self.lateness,
            waited_for_connection: self.waited_for_connection,
            hits: self.hits,
            misses: self.misses,
            errors: self.errors,
            cpu,
            engines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_flagged_when_one_send_in_fifty_is_late() {
        let report = |late: u32| {
            let mut tally = Tally::default();
            tally.lateness.record_n(1_000, 1_000 - late);
            tally.lateness.record_n(200_000, late);
            tally.into_report(1, None, Vec::new())
        };
        assert!(!report(5).generator_was_late);
        assert!(report(20).generator_was_late);
    }

    fn report(latencies: std::ops::Range<u64>) -> LoadReport {
        let mut tally = Tally { answered_in_window: latencies.end - latencies.start, ..Tally::default() };
        // Steps of 7,919 ns spread the latencies over several powers of two.
        latencies.for_each(|number| tally.latency.record(number * 7_919));
        tally.into_report(1_000_000_000, Some(GeneratorCpu { run_ns: 5, ..GeneratorCpu::default() }), Vec::new())
    }

    #[test]
    fn reports_of_generators_add_up_to_the_report_of_one_bit_for_bit() {
        let mut merged = report(0..1_000);
        merged.add_generator(&report(1_000..7_000));
        merged.add_generator(&report(7_000..10_000));
        let one = report(0..10_000);
        assert_eq!(merged.latency.to_string(), one.latency.to_string());
        assert_eq!((merged.answered_in_window, merged.qps, merged.duration_ns), (10_000, 10_000.0, 1_000_000_000));
        assert_eq!(merged.cpu.map(|cpu| cpu.run_ns), Some(15));
    }

    #[test]
    fn reports_of_windows_have_the_mean_rate() {
        let mut merged = report(0..1_000);
        merged.add_window(&LoadReport { cpu: None, ..report(1_000..4_000) });
        assert_eq!((merged.answered_in_window, merged.qps, merged.duration_ns), (4_000, 2_000.0, 2_000_000_000));
        assert_eq!(merged.cpu, None, "an unknown part makes the sum unknown");
    }

    #[test]
    fn a_growing_backlog_is_saturation_but_a_stall_at_the_end_is_not() {
        assert!(!is_backlog(10_000, 30) && is_backlog(10_000, 90));
    }

    #[test]
    fn errors_are_displayed_in_words() {
        assert_eq!(ErrorCounts::default().to_string(), "no errors");
        let errors = ErrorCounts { timed_out: 3, malformed: 1, ..ErrorCounts::default() };
        assert_eq!(errors.to_string(), "3 timed out, 1 malformed answers");
    }

    #[test]
    fn a_report_survives_json() {
        let mut tally = Tally { answered_in_window: 10, ..Tally::default() };
        tally.latency.record(1_234);
        let report = tally.into_report(2_000_000_000, Some(GeneratorCpu::default()), Vec::new());
        assert!((report.qps - 5.0).abs() < 1e-9);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<LoadReport>(&json).unwrap(), report);
    }
}
