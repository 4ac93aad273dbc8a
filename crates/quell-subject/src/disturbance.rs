//! Decides from the counters whether a trial is valid. All functions are pure.

use quell_load::{LoadReport, is_backlog};

use crate::counters::{CpuUse, TrialCounters};

/// A reason to distrust the result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Disturbance {
    /// Other programs ran on the server's CPUs.
    ForeignOnServer {
        /// CPU share of other programs, 0 to 1.
        share: f64,
    },
    /// Other programs ran on the client's CPUs.
    ForeignOnClient {
        /// CPU share of other programs, 0 to 1.
        share: f64,
    },
    /// The generator sent requests late.
    GeneratorLate {
        /// 99th percentile of the delay with which requests were sent, in nanoseconds.
        p99_ns: u64,
    },
    /// The server was slower than the offered rate, so some requests were never sent. The slowest latencies are
    /// missing.
    Saturated {
        /// Number of requests that were due but never sent.
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

/// Upper limit of the CPU share of other programs and steal time on the server's CPUs. A higher share distorts CPU time
/// per request and latency. Interrupts of the machine's own devices use much less.
const FOREIGN_ON_SERVER_MAX: f64 = 0.05;
/// Upper limit of the same share on the client's CPUs. The limit is higher because these CPUs also run the observer and
/// kernel threads. Relevant disturbances of the generator are detected by late requests.
pub(crate) const FOREIGN_ON_CLIENT_MAX: f64 = 0.10;

/// Returns the disturbances of a trial.
#[must_use]
pub fn disturbances(load: &LoadReport, counters: &TrialCounters) -> Vec<Disturbance> {
    let over = |used: &Option<CpuUse>, max: f64| used.as_ref()?.foreign_share().filter(|share| *share > max);
    let late = load.lateness.p99().filter(|_| load.generator_was_late);
    let failed = load.unanswered + load.errors.failed_requests();
    let found = [
        over(&counters.server_cpus, FOREIGN_ON_SERVER_MAX).map(|share| Disturbance::ForeignOnServer { share }),
        over(&counters.client_cpus, FOREIGN_ON_CLIENT_MAX).map(|share| Disturbance::ForeignOnClient { share }),
        late.map(|p99| Disturbance::GeneratorLate { p99_ns: u64::try_from(p99.as_nanos()).unwrap_or(u64::MAX) }),
        is_backlog(load.sent, load.never_sent).then_some(Disturbance::Saturated { never_sent: load.never_sent }),
        counters.drops.filter(|drops| *drops > 0).map(|packets| Disturbance::Drops { packets }),
        (failed > 0).then_some(Disturbance::Errors { requests: failed }),
    ];
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(share: u64) -> Option<CpuUse> {
        Some(CpuUse { capacity_ns: 100, idle_ns: 0, steal_ns: 0, lab_ns: 100 - share, tasks_ns: 100 })
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
