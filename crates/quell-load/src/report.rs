//! What a run found: counts, latencies, the generator's own lateness and cost. Everything in it was
//! measured; what could not be read is absent.

use std::fmt;
use std::time::Duration;

use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadReport {
    /// How long the window was measured, ns.
    pub duration_ns: u64,
    /// Requests that were due in the window and sent.
    pub sent: u64,
    /// Responses that arrived in the window, whenever they were asked for.
    pub answered_in_window: u64,
    /// `answered_in_window` a second.
    pub qps: f64,
    /// Requests due in the window that no connection was free for until its end (open loop): the
    /// server was slower than the schedule. They are in no histogram.
    pub never_sent: u64,
    /// Requests sent in the window that were under way when the run gave up waiting.
    pub unanswered: u64,
    /// From the moment a request was due to its complete response, for requests due in the window;
    /// in a closed loop a request is due when it is sent.
    pub latency: LatencyHistogram,
    /// From the actual send to the complete response, which is what the published tables show.
    pub latency_from_send: LatencyHistogram,
    /// From the moment a request was due *and* a connection was free for it to the actual send:
    /// the generator's own delay. Empty in a closed loop, which has no due moments.
    pub lateness: LatencyHistogram,
    /// Requests that were due before a connection was free for them.
    pub waited_for_connection: u64,
    /// Gets that found their value.
    pub hits: u64,
    /// Gets that the server had no value for.
    pub misses: u64,
    /// What went wrong, from the start of the warm-up until the last answer.
    pub errors: ErrorCounts,
    /// Whether the generator itself was too late to be trusted; see [`LoadReport::LATENESS_MAX`].
    pub generator_was_late: bool,
    /// What the generator threads cost in the window; absent when /proc could not be read.
    pub cpu: Option<GeneratorCpu>,
    /// How each thread looked for answers.
    pub engines: Vec<EngineUsed>,
}

impl LoadReport {
    /// The rule of `generator_was_late`: more than one send in a hundred left later than this after
    /// it could have. (At 10 µs the generator has reached its aim; 100 µs is where its delay shows
    /// in the latencies of a server that answers in a few hundred.)
    pub const LATENESS_MAX: Duration = Duration::from_micros(100);
}

/// How one thread looked for answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EngineUsed {
    /// Which way.
    pub engine: Engine,
    /// Why busy polling was not used, where it was asked for or looked at.
    pub why_not_busy_poll: Option<String>,
}

/// A way to look for answers; see [`crate::Polling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Edge-triggered epoll.
    Epoll,
    /// Receives that busy-poll the device.
    BusyPoll,
}

/// What the generator threads cost in the measured window, all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GeneratorCpu {
    /// Run time, ns (`schedstat`).
    pub run_ns: u64,
    /// The part spent in user code, ns, in the kernel's clock ticks (usually 10 ms).
    pub user_ns: u64,
    /// The part spent in the kernel, ns, in ticks.
    pub system_ns: u64,
    /// Time that threads were ready but another task ran on their CPU, ns: not a quiet core.
    pub wait_ns: u64,
}

/// What went wrong, by kind. One lost connection loses every request that was under way on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorCounts {
    /// Connections that the server closed or reset.
    pub connections_lost: u64,
    /// Requests that were under way on a connection that was lost or given up.
    pub requests_lost: u64,
    /// Attempts to connect again that were refused or failed.
    pub reconnects_failed: u64,
    /// Connections made again.
    pub reconnected: u64,
    /// Requests that were not answered in time; their connections are given up and made again.
    pub timed_out: u64,
    /// `ERROR` and `SERVER_ERROR` answers.
    pub server_errors: u64,
    /// Bytes that are no answer to what was asked, or that nobody asked for; their connections are
    /// given up and made again.
    pub malformed: u64,
    /// Well-formed answers with the wrong bytes.
    pub wrong_content: u64,
}

impl fmt::Display for ErrorCounts {
    /// The kinds that occurred, in words: `3 timed out, 1 connections lost`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.connections_lost, "connections lost"),
            (self.requests_lost, "requests lost with them"),
            (self.reconnected, "connections made again"),
            (self.reconnects_failed, "attempts to connect again failed"),
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
        if separator.is_empty() { f.write_str("nothing went wrong") } else { Ok(()) }
    }
}

impl ErrorCounts {
    /// Whether nothing went wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
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

/// What one thread recorded in one run.
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
            qps: self.answered_in_window as f64 * 1e9 / duration_ns as f64,
            never_sent: self.never_sent,
            unanswered: self.unanswered,
            generator_was_late: self.lateness.p99().is_some_and(|p99| p99 > LoadReport::LATENESS_MAX),
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
    fn a_run_is_flagged_when_one_send_in_fifty_left_late() {
        let report = |late: u32| {
            let mut tally = Tally::default();
            tally.lateness.record_n(1_000, 1_000 - late);
            tally.lateness.record_n(200_000, late);
            tally.into_report(1, None, Vec::new())
        };
        assert!(!report(5).generator_was_late);
        assert!(report(20).generator_was_late);
    }

    #[test]
    fn errors_are_said_in_words() {
        assert_eq!(ErrorCounts::default().to_string(), "nothing went wrong");
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
