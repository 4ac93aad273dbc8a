//! Decides whether the reports of the clients are a valid measurement. All functions are pure.

use std::time::Duration;

use quell_linux::visible::{agree, counted};
use quell_load::LoadReport;
use quell_load::clients::ClientFacts;
use quell_load::cluster_run::client_name;
use quell_stats::LatencyHistogram;

/// Number of windows in a row after which a client counts as saturated. One window can be a hiccup.
const IN_A_ROW: u32 = 2;

/// Number of sends from which on a late hundredth is more than one send. Fewer are judged together with the next window's.
const SENDS_MIN: u64 = 100;

/// Minimum ratio of a client's median latency to that of the median client, from which on it counts as slower.
const SLOWER: f64 = 1.5;

/// Smallest number of loading clients of which one can be slower than the rest.
const CLIENTS_MIN: usize = 3;

/// Counts for each client the windows in a row in which it was saturated: its generator was late, or it alone could not
/// keep up with its rate.
#[derive(Debug)]
pub struct SaturatedClients {
    in_a_row: Vec<u32>,
    /// Lateness of sends that were too few to judge.
    lateness: Vec<LatencyHistogram>,
}

impl SaturatedClients {
    #[must_use]
    pub fn new(clients: usize) -> Self {
        Self { in_a_row: vec![0; clients], lateness: vec![LatencyHistogram::new(); clients] }
    }

    /// Adds the reports of a window, by rank. Returns a sentence if a client is saturated.
    pub fn add(&mut self, reports: &[LoadReport], clients: &[ClientFacts]) -> Option<String> {
        let behind = reports.iter().filter(|report| report.fell_behind()).count();
        // If half of the clients cannot keep up, the server is too slow.
        let is_server = 2 * behind >= reports.len();
        let mut late = vec![None; reports.len()];
        for (rank, (lateness, report)) in self.lateness.iter_mut().zip(reports).enumerate() {
            lateness.merge(&report.lateness);
            if lateness.count() >= SENDS_MIN {
                late[rank] = lateness.p99().filter(|p99| *p99 > LoadReport::LATENESS_MAX);
                lateness.clear();
            }
        }
        for (rank, (count, report)) in self.in_a_row.iter_mut().zip(reports).enumerate() {
            if late[rank].is_some() || (report.fell_behind() && !is_server) {
                *count += 1;
            } else if self.lateness[rank].is_empty() {
                // Nothing waits for the next window, so this one was judged.
                *count = 0;
            }
        }
        let rank = self.in_a_row.iter().position(|count| *count >= IN_A_ROW)?;
        let (client, report) = (clients.get(rank)?, reports.get(rank)?);
        let seen = match late[rank] {
            Some(p99) => format!(
                "more than 1 % of its sends were over {} µs late (p99 {} µs)",
                LoadReport::LATENESS_MAX.as_micros(),
                p99.as_micros()
            ),
            None => format!("{} of its requests were not sent or not answered", report.never_sent + report.unanswered),
        };
        Some(format!(
            "{} is saturated in {IN_A_ROW} windows in a row: {seen}; lower the rate, or use more threads or more clients",
            client_name(client.rank, &client.host),
        ))
    }
}

/// Reason why a whole run is not a valid measurement: clients whose requests failed or were sent late. `None` if it is
/// valid.
#[must_use]
pub fn why_invalid(totals: &[LoadReport], clients: &[ClientFacts]) -> Option<String> {
    let why = |total: &LoadReport| {
        let late = total.lateness.p99().filter(|_| total.generator_was_late);
        let late = late.map(|p99| format!("sends were late (p99 {} µs)", p99.as_micros()));
        let failed = (total.errors.failed_requests() > 0).then(|| total.errors.to_string());
        let why: Vec<String> = failed.into_iter().chain(late).collect();
        (!why.is_empty()).then(|| why.join(", "))
    };
    let named = |(client, total): (&ClientFacts, &LoadReport)| {
        Some(format!("{}: {}", client_name(client.rank, &client.host), why(total)?))
    };
    let named: Vec<String> = clients.iter().zip(totals).filter_map(named).collect();
    (!named.is_empty()).then(|| named.join("; "))
}

/// Sentence that names the clients that are slower than the rest. `None` if there are none, or too few clients to say.
/// A client that only measures has another rate, so it is not compared.
#[must_use]
pub fn slower_clients(totals: &[LoadReport], clients: &[ClientFacts]) -> Option<String> {
    let loading = clients.iter().zip(totals).filter(|(client, _)| !client.measures_only);
    let medians: Vec<(&ClientFacts, Duration)> =
        loading.filter_map(|(client, total)| Some((client, total.latency.p50()?))).collect();
    if medians.len() < CLIENTS_MIN {
        return None;
    }
    let mut sorted: Vec<Duration> = medians.iter().map(|(_, p50)| *p50).collect();
    sorted.sort_unstable();
    let typical = sorted[(sorted.len() - 1) / 2];
    let slower = medians.iter().filter(|(_, p50)| *p50 > typical.mul_f64(SLOWER));
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    let slower: Vec<String> = slower
        .map(|(client, p50)| format!("{} with p50 {:.0} µs", client_name(client.rank, &client.host), us(*p50)))
        .collect();
    (!slower.is_empty()).then(|| {
        let (count, all) = (slower.len(), medians.len());
        let are = agree(&count, "is", "are");
        format!(
            "{count} of {} {are} slower than the rest (p50 {:.0} µs): {}",
            counted(all, "client"),
            us(typical),
            slower.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use quell_load::clients::ClockOffset;

    use super::*;

    fn clients(count: u32) -> Vec<ClientFacts> {
        let facts = |rank| ClientFacts {
            rank,
            host: format!("host{rank}"),
            measures_only: false,
            connections: 1,
            clock: ClockOffset::SAME_CLOCK,
            start_skew_ns: 0,
        };
        (0..count).map(facts).collect()
    }

    fn with_lateness(is_late: bool) -> LoadReport {
        let mut report = LoadReport { generator_was_late: is_late, ..LoadReport::default() };
        report.lateness.record_n(if is_late { 1_000_000 } else { 5_000 }, 200);
        report
    }

    #[test]
    fn one_late_send_of_a_few_is_not_saturation() {
        let clients = clients(1);
        let window = |late_sends| {
            let mut report = LoadReport::default();
            report.lateness.record_n(5_000, 20);
            report.lateness.record_n(1_000_000, late_sends);
            [report]
        };
        let mut saturated = SaturatedClients::new(1);
        for number in 0..50 {
            assert_eq!(saturated.add(&window(u32::from(number % 10 == 0)), &clients), None);
        }
        assert!((0..20).any(|_| saturated.add(&window(20), &clients).is_some()));
    }

    #[test]
    fn a_client_that_alone_falls_behind_is_saturated_but_all_together_show_a_slow_server() {
        let clients = clients(3);
        let behind = |ranks: &[usize]| -> Vec<LoadReport> {
            let never_sent = |rank| if ranks.contains(&rank) { 50 } else { 0 };
            (0..3).map(|rank| LoadReport { sent: 100, never_sent: never_sent(rank), ..LoadReport::default() }).collect()
        };
        let mut saturated = SaturatedClients::new(3);
        for _ in 0..3 {
            assert_eq!(saturated.add(&behind(&[0, 1, 2]), &clients), None);
        }
        assert_eq!(saturated.add(&behind(&[2]), &clients), None);
        let sentence = saturated.add(&behind(&[2]), &clients).unwrap();
        assert!(
            sentence.starts_with("rank 2 (host2) is saturated in 2 windows in a row: 50 of its requests"),
            "{sentence}"
        );
    }

    fn with_p50(ns: u64) -> LoadReport {
        let mut report = LoadReport::default();
        report.latency.record_n(ns, 10);
        report
    }

    #[test]
    fn a_client_is_saturated_after_two_late_windows_in_a_row() {
        let clients = clients(3);
        let window =
            |late: Option<usize>| -> Vec<LoadReport> { (0..3).map(|rank| with_lateness(Some(rank) == late)).collect() };
        let mut late = SaturatedClients::new(3);
        assert_eq!(late.add(&window(Some(1)), &clients), None);
        assert_eq!(late.add(&window(None), &clients), None);
        assert_eq!(late.add(&window(Some(1)), &clients), None, "a hiccup is not saturation");
        let sentence = late.add(&window(Some(1)), &clients).unwrap();
        assert!(
            sentence.starts_with("rank 1 (host1) is saturated in 2 windows in a row: more than 1 % of its sends"),
            "{sentence}"
        );
    }

    #[test]
    fn a_fifth_of_the_clients_that_is_slower_is_named() {
        let totals: Vec<LoadReport> = [100_000, 110_000, 90_000, 400_000, 100_000].map(with_p50).to_vec();
        let sentence = slower_clients(&totals, &clients(5)).unwrap();
        assert_eq!(sentence, "1 of 5 clients is slower than the rest (p50 100 µs): rank 3 (host3) with p50 400 µs");
        assert_eq!(slower_clients(&totals[..3], &clients(3)), None);
        assert_eq!(slower_clients(&totals[2..4], &clients(2)), None, "of two clients none is typical");
    }

    #[test]
    fn clients_whose_requests_failed_or_were_late_are_named() {
        let mut totals = vec![LoadReport::default(), with_lateness(false), with_lateness(true)];
        assert_eq!(why_invalid(&totals[..2], &clients(2)), None);
        totals[1].errors.timed_out = 3;
        let sentence = why_invalid(&totals, &clients(3)).unwrap();
        assert_eq!(sentence, "rank 1 (host1): 3 timed out; rank 2 (host2): sends were late (p99 1000 µs)");
    }
}
