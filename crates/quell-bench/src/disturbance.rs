//! Whether a trial can be trusted: pure decisions over what was counted, with their limits named and reasoned here.

use quell_load::{ErrorCounts, LoadReport};

use crate::result::{CpuUse, Disturbance, TrialCounters};

/// More than this share of the server's CPUs run by others, or taken by the hypervisor: CPU per request and latency are
/// somebody else's too. Interrupts of the machine's own devices stay far below it.
const FOREIGN_ON_SERVER_MAX: f64 = 0.05;
/// The client's CPUs also carry the observer and the kernel's own threads; what matters there shows as lateness.
const FOREIGN_ON_CLIENT_MAX: f64 = 0.10;

/// What speaks against a trial.
#[must_use]
pub fn disturbances(load: &LoadReport, counters: &TrialCounters) -> Vec<Disturbance> {
    let over = |used: &Option<CpuUse>, max: f64| used.as_ref()?.foreign_share().filter(|share| *share > max);
    let late = load.lateness.p99().filter(|_| load.generator_was_late);
    let failed = load.unanswered + failures(&load.errors);
    let found = [
        over(&counters.server_cpus, FOREIGN_ON_SERVER_MAX).map(|share| Disturbance::ForeignOnServer { share }),
        over(&counters.client_cpus, FOREIGN_ON_CLIENT_MAX).map(|share| Disturbance::ForeignOnClient { share }),
        late.map(|p99| Disturbance::GeneratorLate { p99_ns: u64::try_from(p99.as_nanos()).unwrap_or(u64::MAX) }),
        counters.drops.filter(|drops| *drops > 0).map(|packets| Disturbance::Drops { packets }),
        (failed > 0).then_some(Disturbance::Errors { requests: failed }),
    ];
    found.into_iter().flatten().collect()
}

fn failures(errors: &ErrorCounts) -> u64 {
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
    fn a_quiet_trial_has_nothing_against_it() {
        let counters = TrialCounters { server_cpus: foreign(1), client_cpus: foreign(1), ..TrialCounters::default() };
        assert_eq!(disturbances(&LoadReport::default(), &counters), []);
    }

    #[test]
    fn what_was_not_counted_speaks_neither_for_nor_against() {
        assert_eq!(disturbances(&LoadReport::default(), &TrialCounters::default()), []);
    }

    #[test]
    fn everything_that_disturbs_is_named() {
        let counters = TrialCounters {
            server_cpus: foreign(20),
            client_cpus: foreign(20),
            drops: Some(3),
            ..TrialCounters::default()
        };
        let mut load = LoadReport { unanswered: 1, generator_was_late: true, ..LoadReport::default() };
        load.errors.timed_out = 2;
        load.lateness.record(900_000);
        let found = disturbances(&load, &counters);
        assert_eq!(found.len(), 5);
        assert!(found.contains(&Disturbance::Errors { requests: 3 }));
    }
}
