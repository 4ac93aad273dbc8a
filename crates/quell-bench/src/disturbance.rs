//! Decides whether a trial is valid: pure functions of the counters. Each limit is a named constant with its reason.

use quell_load::{ErrorCounts, LoadReport};

use crate::result::{CpuUse, Disturbance, TrialCounters};

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
pub fn is_saturated(load: &LoadReport) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "counts of one trial are far below 2^53")]
    let (never_sent, sent) = (load.never_sent as f64, load.sent as f64);
    never_sent > NEVER_SENT_MAX * (sent + never_sent)
}

/// Whether a repeated measurement may give a better trial, because the disturbance was temporary.
#[must_use]
pub fn may_pass(disturbances: &[Disturbance]) -> bool {
    disturbances.iter().any(|disturbance| !matches!(disturbance, Disturbance::Saturated { .. }))
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
        is_saturated(load).then_some(Disturbance::Saturated { never_sent: load.never_sent }),
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
    fn a_mode_that_cannot_keep_up_is_saturated_and_not_repeated() {
        let kept_up = LoadReport { sent: 10_000, never_sent: 30, ..LoadReport::default() };
        let fell_behind = LoadReport { sent: 10_000, never_sent: 90, ..LoadReport::default() };
        assert!(!is_saturated(&kept_up) && is_saturated(&fell_behind));
        assert!(!may_pass(&disturbances(&fell_behind, &TrialCounters::default())));
        assert!(may_pass(&[Disturbance::Saturated { never_sent: 1 }, Disturbance::Drops { packets: 1 }]));
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
