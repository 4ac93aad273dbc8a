//! Decides whether a trial is valid: pure functions of the counters. Each limit is a named constant with its reason.

use quell_load::{ErrorCounts, LoadReport};

use crate::counters::{CpuUse, TrialCounters};

/// A reason to distrust a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Disturbance {
    /// Other programs ran on the server's CPUs.
    ForeignOnServer {
        /// Share of the CPU time.
        share: f64,
    },
    /// Other programs ran on the client's CPUs.
    ForeignOnClient {
        /// Share of the CPU time.
        share: f64,
    },
    /// The generator sent requests late.
    GeneratorLate {
        /// 99th percentile of its lateness, in nanoseconds.
        p99_ns: u64,
    },
    /// The server was slower than the rate, so some due requests were never sent. The remaining latencies mean little.
    Saturated {
        /// Number of requests never sent.
        never_sent: u64,
    },
    /// Packets were dropped.
    Drops {
        /// Number of dropped packets.
        packets: u64,
    },
    /// Requests failed.
    Errors {
        /// Number of failed requests.
        requests: u64,
    },
}

/// Upper limit of the share of the server's CPUs that is used by others or stolen by the hypervisor. Above it, CPU per
/// request and latency are distorted. Interrupts of the machine's own devices stay far below it.
const FOREIGN_ON_SERVER_MAX: f64 = 0.05;
/// Limit for the client's CPUs. They also run the observer and kernel threads; interference that matters shows as
/// lateness.
const FOREIGN_ON_CLIENT_MAX: f64 = 0.10;

/// Upper limit of the share of requests that are never sent. A higher share is more than a stall at the end of the
/// measured time: the backlog grows, and the quantiles from p99 on miss the slowest requests.
const NEVER_SENT_MAX: f64 = 0.005;

/// Whether the server could not keep up with the rate. The slowest latencies are then missing, and the reported ones
/// are lower bounds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of one trial are far below 2^53")]
pub(crate) fn is_saturated(sent: u64, never_sent: u64) -> bool {
    never_sent as f64 > NEVER_SENT_MAX * (sent + never_sent) as f64
}

/// Disturbances of a trial.
#[must_use]
pub fn disturbances(load: &LoadReport, counters: &TrialCounters) -> Vec<Disturbance> {
    let over = |used: &Option<CpuUse>, max: f64| used.as_ref()?.foreign_share().filter(|share| *share > max);
    let late = load.lateness.p99().filter(|_| load.generator_was_late);
    let failed = load.unanswered + failures(&load.errors);
    let found = [
        over(&counters.server_cpus, FOREIGN_ON_SERVER_MAX).map(|share| Disturbance::ForeignOnServer { share }),
        over(&counters.client_cpus, FOREIGN_ON_CLIENT_MAX).map(|share| Disturbance::ForeignOnClient { share }),
        late.map(|p99| Disturbance::GeneratorLate { p99_ns: u64::try_from(p99.as_nanos()).unwrap_or(u64::MAX) }),
        is_saturated(load.sent, load.never_sent).then_some(Disturbance::Saturated { never_sent: load.never_sent }),
        counters.drops.filter(|drops| *drops > 0).map(|packets| Disturbance::Drops { packets }),
        (failed > 0).then_some(Disturbance::Errors { requests: failed }),
    ];
    found.into_iter().flatten().collect()
}

pub(crate) fn failures(errors: &ErrorCounts) -> u64 {
    let ErrorCounts { requests_lost, timed_out, server_errors, malformed, wrong_content, .. } = errors;
    requests_lost + timed_out + server_errors + malformed + wrong_content
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(share: u64) -> Option<CpuUse> {
        Some(CpuUse { capacity_ns: 100, idle_ns: 0, steal_ns: 0, lab_ns: 100 - share })
    }

    #[test]
    fn a_quiet_trial_has_no_disturbance() {
        let counters = TrialCounters { server_cpus: foreign(1), client_cpus: foreign(1), ..TrialCounters::default() };
        assert_eq!(disturbances(&LoadReport::default(), &counters), []);
    }

    #[test]
    fn absent_counters_cause_no_disturbance() {
        assert_eq!(disturbances(&LoadReport::default(), &TrialCounters::default()), []);
    }

    #[test]
    fn a_stall_at_the_end_is_no_saturation_and_a_growing_backlog_is() {
        assert!(!is_saturated(10_000, 30) && is_saturated(10_000, 90));
    }

    #[test]
    fn every_disturbance_is_reported() {
        let counters = TrialCounters {
            server_cpus: foreign(20),
            client_cpus: foreign(20),
            drops: Some(3),
            ..TrialCounters::default()
        };
        let mut load = LoadReport { unanswered: 1, never_sent: 5, generator_was_late: true, ..LoadReport::default() };
        load.errors.timed_out = 2;
        load.lateness.record(900_000);
        let found = disturbances(&load, &counters);
        assert_eq!(found.len(), 6);
        assert!(found.contains(&Disturbance::Errors { requests: 3 }));
    }
}
