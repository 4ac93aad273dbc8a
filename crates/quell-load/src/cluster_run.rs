//! Result of a load from many clients (`quell-mpi`), as JSON and as a table.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clients::ClientFacts;
use crate::{LoadReport, LoadSpec, RunSpec};

/// Value of the `schema` field.
pub const SCHEMA: &str = "quell-mpi/1";

/// Result of a run on many clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClusterRun {
    /// Format of the document: [`SCHEMA`].
    pub schema: String,
    pub quell_version: String,
    /// Specification of the whole load.
    pub spec: LoadSpec,
    /// Schedule and durations of the whole load.
    pub run: RunSpec,
    /// Number of measured windows. Their lengths add up to the measured time.
    pub windows: u32,
    /// All clients, by rank.
    pub clients: Vec<ClientRun>,
    /// Result of all clients together. If a client measures only, the latencies are its own.
    pub report: LoadReport,
    /// Difference between the earliest and the latest start of the load, ns, and its maximum error.
    pub start_skew_ns: u64,
    /// Maximum error of `start_skew_ns`, ns.
    pub start_skew_error_ns: u64,
    /// Reason why the result is not a valid measurement. Absent if it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// Clients that are slower than the rest. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_clients: Option<String>,
}

/// One client and what it measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClientRun {
    pub client: ClientFacts,
    /// Its report over all windows.
    pub report: LoadReport,
}

#[must_use]
pub fn client_name(rank: u32, host: &str) -> String {
    format!("rank {rank} ({host})")
}

/// Difference between the earliest and the latest start, and its maximum error, both ns.
#[must_use]
pub fn start_skew(clients: &[ClientFacts]) -> (u64, u64) {
    let starts = || clients.iter().map(|client| client.start_skew_ns);
    let skew_ns = starts().max().unwrap_or(0).saturating_sub(starts().min().unwrap_or(0));
    let mut errors_ns: Vec<u64> = clients.iter().map(|client| client.clock.error_ns).collect();
    errors_ns.sort_unstable();
    (skew_ns.unsigned_abs(), errors_ns.iter().rev().take(2).sum())
}

impl ClusterRun {
    #[must_use]
    pub fn table(&self) -> String {
        let seconds = Duration::from_nanos(self.report.duration_ns).as_secs_f64();
        let names: Vec<String> = self
            .clients
            .iter()
            .map(|run| {
                let note = if run.client.measures_only { ", measures only" } else { "" };
                format!("{}{note}", client_name(run.client.rank, &run.client.host))
            })
            .collect();
        let width = names.iter().map(String::len).max().unwrap_or(0).max("all clients".len());
        let mut out = format!(
            "{:.0} requests/s answered by {} clients ({} in {seconds:.1} s, {} windows)\n\n",
            self.report.qps,
            self.clients.len(),
            self.report.answered_in_window,
            self.windows
        );
        let heading = ["requests/s", "p50 µs", "p99 µs", "p99.9 µs", "late p99 µs"];
        out.push_str(&row("client", width, heading.map(str::to_owned)));
        for (name, run) in names.iter().zip(&self.clients) {
            out.push_str(&row(name, width, cells(&run.report)));
        }
        if self.clients.len() > 1 {
            out.push_str(&row("all clients", width, cells(&self.report)));
        }
        out.push('\n');
        for note in self.notes() {
            out.push_str(&format!("{note}\n"));
        }
        out
    }

    /// What a reader has to know besides the figures.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let ms = |ns: u64| ns as f64 / 1e6;
        let measuring = self.clients.iter().any(|run| run.client.measures_only);
        let report = &self.report;
        let count = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
        [
            measuring.then(|| "latencies of all clients are those of the client that measures only".to_owned()),
            (self.clients.len() > 1).then(|| {
                format!(
                    "start skew: {:.3} ms ± {:.3} ms (clocks compared by ping-pong)",
                    ms(self.start_skew_ns),
                    ms(self.start_skew_error_ns)
                )
            }),
            count(report.never_sent, "requests were never sent: the server is slower than the rate"),
            count(report.unanswered, "requests got no response before the end of their window"),
            (!report.errors.is_empty()).then(|| format!("errors: {}", report.errors)),
            self.slower_clients.clone(),
            self.invalid.as_ref().map(|why| format!("INVALID: {why}")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn row(name: &str, width: usize, cells: [String; 5]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>11}")).collect();
    format!("{name:<width$}{cells}\n")
}

fn cells(report: &LoadReport) -> [String; 5] {
    let us = |latency: Option<Duration>| {
        latency.map_or_else(|| "–".to_owned(), |latency| format!("{:.0}", latency.as_secs_f64() * 1e6))
    };
    let latency = &report.latency;
    [format!("{:.0}", report.qps), us(latency.p50()), us(latency.p99()), us(latency.p99_9()), us(report.lateness.p99())]
}
