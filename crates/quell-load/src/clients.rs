//! Generators on several machines that share a load: the offset of their clocks, and the lines by which an experiment on
//! the server's machine orders windows and receives reports.
//!
//! The experiment writes [`ClientsOrder`]s to standard input of the clients' command and reads [`ClientsNotice`]s from
//! its standard output, one JSON object per line. Times are on the [`monotonic_ns`](quell_linux::clock::monotonic_ns)
//! clock of the first client's machine.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::LoadReport;
use crate::spec::{LoadSpec, RunSpec};

/// Difference between the clocks of two machines, from exchanges of a request and a response.
///
/// The remote clock was read between the request and the response. The offset assumes the middle; the error is half of
/// the time in between, whatever the two directions took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClockOffset {
    /// Remote clock minus local clock, ns.
    pub offset_ns: i64,
    /// Maximum error of `offset_ns` at the time of the exchange, ns.
    pub error_ns: u64,
}

impl ClockOffset {
    /// A clock compared with itself.
    pub const SAME_CLOCK: Self = Self { offset_ns: 0, error_ns: 0 };

    /// Offset from one exchange: local times of the request and of the response, and the remote time in between. `None`
    /// if the times are contradictory.
    #[must_use]
    pub fn from_exchange(sent_ns: u64, remote_ns: u64, received_ns: u64) -> Option<Self> {
        let half_ns = received_ns.checked_sub(sent_ns)?.div_ceil(2);
        let middle_ns = sent_ns.checked_add(half_ns)?;
        Some(Self { offset_ns: i64::try_from(i128::from(remote_ns) - i128::from(middle_ns)).ok()?, error_ns: half_ns })
    }

    /// The more exact of several offsets that were measured in quick succession.
    #[must_use]
    pub fn most_exact(offsets: impl IntoIterator<Item = Self>) -> Option<Self> {
        offsets.into_iter().min_by_key(|offset| offset.error_ns)
    }

    #[must_use]
    pub fn to_remote_ns(self, local_ns: u64) -> u64 {
        local_ns.saturating_add_signed(self.offset_ns)
    }

    #[must_use]
    pub fn to_local_ns(self, remote_ns: u64) -> u64 {
        remote_ns.saturating_add_signed(self.offset_ns.saturating_neg())
    }
}

/// A client: one generator, on a machine of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClientFacts {
    /// Rank in `MPI_COMM_WORLD`.
    pub rank: u32,
    pub host: String,
    /// Whether the client measures at a low rate while the others load the server.
    pub measures_only: bool,
    pub connections: u32,
    /// Its clock relative to that of rank 0.
    pub clock: ClockOffset,
    /// Time from the agreed start of the load to its start on this client, ns, with the error of `clock`.
    pub start_skew_ns: i64,
}

/// A line from the experiment to the clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum ClientsOrder {
    /// Asks for the time; answered at once.
    Time { number: u64 },
    /// Measure requests that are due in a window. Requests due outside all windows are in no report.
    Window { number: u64, window_ns: Range<u64> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum ClientsNotice {
    /// All clients have connected, and the load runs.
    Ready {
        version: String,
        spec: Box<LoadSpec>,
        run: RunSpec,
        clients: Vec<ClientFacts>,
    },
    Time {
        number: u64,
        clock_ns: u64,
    },
    /// A window was measured, or its order arrived at a client after its start.
    Window {
        number: u64,
        /// Reports by rank. `None` if the order was too late; order a later window.
        reports: Option<Vec<LoadReport>>,
    },
    /// A client failed. The load ends.
    Failed {
        /// Names the client and the reason.
        why: String,
    },
}

/// Combines the reports of a window by rank into the result of the whole load. If a client measures only, the latencies
/// are its own and the counts are of all clients. `None` without reports.
#[must_use]
pub fn combined(reports: &[LoadReport], measures_only: Option<usize>) -> Option<LoadReport> {
    let (first, others) = reports.split_first()?;
    let mut total = first.clone();
    others.iter().for_each(|report| total.add_generator(report));
    if let Some(measuring) = measures_only.and_then(|rank| reports.get(rank)) {
        total.latency = measuring.latency.clone();
        total.latency_from_send = measuring.latency_from_send.clone();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_offset_covers_both_directions() {
        // The remote clock is 1,000 ahead. The request took 10, the response 90.
        let offset = ClockOffset::from_exchange(500, 1_510, 600).unwrap();
        assert_eq!(offset, ClockOffset { offset_ns: 960, error_ns: 50 });
        assert_eq!(offset.to_local_ns(offset.to_remote_ns(7_000)), 7_000);
        assert_eq!(ClockOffset::from_exchange(600, 0, 500), None);
    }

    #[test]
    fn the_shortest_exchange_is_the_most_exact() {
        let offset = |error_ns| ClockOffset { offset_ns: 0, error_ns };
        assert_eq!(ClockOffset::most_exact([7, 3, 5].map(offset)), Some(offset(3)));
        assert_eq!(ClockOffset::most_exact([]), None);
    }

    #[test]
    fn latencies_of_a_measuring_client_replace_those_of_the_load() {
        let report = |ns, count| {
            let mut report = LoadReport { answered_in_window: count, ..LoadReport::default() };
            report.latency.record_n(ns, count as u32);
            report
        };
        let reports = [report(100, 5), report(9_000, 1_000)];
        let total = combined(&reports, Some(0)).unwrap();
        assert_eq!((total.answered_in_window, total.latency.count()), (1_005, 5));
        assert_eq!(combined(&reports, None).unwrap().latency.count(), 1_005);
        assert_eq!(combined(&[], None), None);
    }

    #[test]
    fn lines_survive_json() {
        let order = ClientsOrder::Window { number: 3, window_ns: 5..9 };
        let line = serde_json::to_string(&order).unwrap();
        assert_eq!(line, r#"{"window":{"number":3,"window-ns":{"start":5,"end":9}}}"#);
        assert_eq!(serde_json::from_str::<ClientsOrder>(&line).unwrap(), order);
        let notice = ClientsNotice::Window { number: 3, reports: Some(vec![LoadReport::default()]) };
        let line = serde_json::to_string(&notice).unwrap();
        assert_eq!(serde_json::from_str::<ClientsNotice>(&line).unwrap(), notice);
    }
}
