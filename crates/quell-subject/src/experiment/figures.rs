//! Computes the metrics of a slice. Costs are divided by the number of answered requests. If that number is
//! unknown, they are divided by the number of polled packets.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_experiment::{Criterion, Goal};
use quell_result::figures::{
    BESIDE_P50, BESIDE_P99, BUSY, CPU, CYCLES, DROPS, EMPTY_POLLS, INSTRUCTIONS, IRQS, NET_RX, PACKETS, POLLS,
    PRINTED_ERRORS, PRINTED_REQUESTS, PROCESS_CPU, REQUESTS, SLEEPS, STALLS, TIMER_IRQS, WAIT_MEAN, WAIT_P99, Work,
};
use quell_stats::LatencyHistogram;

use super::judge::{BESIDE, PrintedFigures};
use crate::counters::{CpuUse, TrialCounters};

/// Computes the metrics of a slice from its counters. `requests` is the number of answered requests, if it is known.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of one slice are far below 2^53")]
pub fn of_counters(counters: &TrialCounters, requests: Option<u64>, seconds: f64) -> BTreeMap<String, f64> {
    let (work, amount) = match requests {
        Some(requests) => (Work::Request, Some(requests)),
        None => (Work::Packet, counters.polled_packets),
    };
    let per_work = |count: Option<u64>| {
        amount.filter(|amount| *amount > 0).zip(count).map(|(amount, count)| count as f64 / amount as f64)
    };
    let not_idle = |used: &CpuUse| used.capacity_ns.saturating_sub(used.idle_ns + used.steal_ns);
    // The threads of Quell that poll work for the server. Without such threads, the time is 0.
    let poller_run_ns = counters.poller_run_ns.unwrap_or(0);
    let process_ns = counters.server_run_ns.map(|server_run_ns| server_run_ns + poller_run_ns);
    let busy_ns = match counters.napi_run_ns {
        Some(napi_run_ns) => process_ns.map(|process_ns| process_ns + napi_run_ns),
        // Idle time is counted in ticks, which a short slice may not reach; the time of processes is exact.
        None => counters.server_cpus.as_ref().map(not_idle).map(|busy_ns| busy_ns.max(process_ns.unwrap_or(0))),
    };
    let us = |ns: Option<f64>| ns.map(|ns| ns / 1e3);
    let empty = counters.empty_polls.zip(counters.polls).filter(|(_, polls)| *polls > 0);
    let per_second = |count: Option<u64>| count.map(|count| count as f64 / seconds);
    let figures = [
        (work.name(CPU), us(per_work(busy_ns))),
        (work.name(PROCESS_CPU), us(per_work(process_ns))),
        (work.name(POLLS), per_work(counters.polls)),
        (work.name(IRQS), per_work(counters.irqs)),
        (work.name(NET_RX), per_work(counters.net_rx_softirqs)),
        (work.name(TIMER_IRQS), per_work(counters.timer_irqs)),
        (work.name(SLEEPS), per_work(counters.server_sleeps)),
        (work.name(CYCLES), per_work(counters.cycles)),
        (work.name(INSTRUCTIONS), per_work(counters.instructions)),
        (EMPTY_POLLS.to_owned(), empty.map(|(empty, polls)| empty as f64 / polls as f64)),
        (BUSY.to_owned(), counters.server_cpus.as_ref().and_then(CpuUse::busy_share)),
        (REQUESTS.to_owned(), per_second(requests)),
        (PACKETS.to_owned(), per_second(counters.polled_packets)),
        (DROPS.to_owned(), counters.drops.map(|drops| drops as f64)),
        (WAIT_MEAN.to_owned(), us(counters.wait_mean_ns.map(|ns| ns as f64))),
        (WAIT_P99.to_owned(), us(counters.wait_p99_ns.map(|ns| ns as f64))),
        (STALLS.to_owned(), counters.stalls.map(|stalls| stalls as f64)),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Returns the criteria that compare the latency of the second server.
pub(crate) fn criteria_of_beside() -> impl Iterator<Item = Criterion> {
    let criterion = |name: &str| Criterion::Metric { name: name.to_owned(), goal: Goal::Lowest };
    [BESIDE_P50, BESIDE_P99].into_iter().map(criterion)
}

/// Computes the metrics of the second server from its latencies.
#[must_use]
pub fn of_beside(latency: &LatencyHistogram) -> BTreeMap<String, f64> {
    let figures = [(BESIDE_P50, latency.p50()), (BESIDE_P99, latency.p99())];
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    figures.into_iter().filter_map(|(name, latency)| Some((name.to_owned(), us(latency?)))).collect()
}

/// Returns whether higher or lower values of a printed figure are better. Figures whose names end like a rate are
/// better when they are higher.
#[must_use]
pub fn goal_of(name: &str) -> Goal {
    let is_rate =
        ["/s", "/sec", "per-s", "per_s", "per-sec", "per_sec", "per-second", "per_second", "rps", "qps", "ops"]
            .iter()
            .any(|suffix| name.to_ascii_lowercase().ends_with(suffix));
    if is_rate { Goal::Highest } else { Goal::Lowest }
}

/// Returns the criteria of an experiment with a judge: CPU time per `work`, and each figure that the judge printed, except
/// for counts of its requests.
pub(crate) fn criteria_of_judge(figures: &PrintedFigures, work: Work) -> Vec<Criterion> {
    let counts = [PRINTED_REQUESTS, PRINTED_ERRORS];
    let is_count = |name: &str| counts.contains(&name.strip_prefix(BESIDE).unwrap_or(name));
    let printed = figures.keys().filter(|name| !is_count(name));
    let of_judge = |name: &String| Criterion::Metric { name: name.clone(), goal: goal_of(name) };
    std::iter::once(work.cpu()).chain(printed.map(of_judge)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_result::figures::names;

    #[test]
    fn costs_are_divided_by_requests_or_else_by_packets() {
        let cpus = CpuUse { capacity_ns: 1_000_000, idle_ns: 300_000, steal_ns: 100_000, ..CpuUse::default() };
        let counters = TrialCounters {
            server_cpus: Some(cpus),
            polls: Some(40),
            empty_polls: Some(10),
            polled_packets: Some(20),
            ..TrialCounters::default()
        };
        let by_packet = of_counters(&counters, None, 0.5);
        assert_eq!(by_packet["cpu-us-per-packet"], 30.0);
        assert_eq!((by_packet["polls-per-packet"], by_packet["empty-poll-share"]), (2.0, 0.25));
        assert_eq!(by_packet["packets-per-s"], 40.0);
        let by_request = of_counters(&counters, Some(10), 0.5);
        assert_eq!((by_request["cpu-us-per-request"], by_request["requests-per-s"]), (60.0, 20.0));
    }

    #[test]
    fn the_server_uses_at_least_the_time_of_its_processes() {
        let idle = CpuUse { capacity_ns: 1_000_000, idle_ns: 1_000_000, ..CpuUse::default() };
        let counters = TrialCounters {
            server_cpus: Some(idle),
            server_run_ns: Some(30_000),
            polled_packets: Some(10),
            ..TrialCounters::default()
        };
        assert_eq!(of_counters(&counters, None, 1.0)["cpu-us-per-packet"], 3.0);
    }

    #[test]
    fn if_threads_poll_the_queues_only_their_time_and_the_servers_counts() {
        let cpus = CpuUse { capacity_ns: 1_000_000, ..CpuUse::default() };
        let counters = TrialCounters {
            server_cpus: Some(cpus),
            server_run_ns: Some(20_000),
            napi_run_ns: Some(10_000),
            ..TrialCounters::default()
        };
        assert_eq!(of_counters(&counters, Some(10), 1.0)["cpu-us-per-request"], 3.0);
    }

    #[test]
    fn the_time_of_quells_pollers_is_the_servers() {
        let counters = TrialCounters {
            server_run_ns: Some(20_000),
            napi_run_ns: Some(10_000),
            poller_run_ns: Some(70_000),
            ..TrialCounters::default()
        };
        let figures = of_counters(&counters, Some(10), 1.0);
        assert_eq!((figures["cpu-us-per-request"], figures["process-us-per-request"]), (10.0, 9.0));
    }

    #[test]
    fn the_names_are_those_of_all_counters() {
        let counters = TrialCounters {
            server_cpus: Some(CpuUse { capacity_ns: 1, ..CpuUse::default() }),
            server_run_ns: Some(1),
            polls: Some(1),
            empty_polls: Some(1),
            polled_packets: Some(1),
            irqs: Some(1),
            net_rx_softirqs: Some(1),
            timer_irqs: Some(1),
            server_sleeps: Some(1),
            cycles: Some(1),
            instructions: Some(1),
            drops: Some(1),
            wait_mean_ns: Some(1),
            wait_p99_ns: Some(1),
            stalls: Some(1),
            ..TrialCounters::default()
        };
        for (work, requests) in [(Work::Packet, None), (Work::Request, Some(1))] {
            let mut names = names(work);
            names.sort();
            assert_eq!(names, of_counters(&counters, requests, 1.0).into_keys().collect::<Vec<_>>(), "{work:?}");
        }
    }

    #[test]
    fn metrics_without_counter_or_without_work_are_absent() {
        assert!(of_counters(&TrialCounters::default(), None, 1.0).is_empty());
        let idle = TrialCounters { polls: Some(3), polled_packets: Some(0), ..TrialCounters::default() };
        assert!(!of_counters(&idle, None, 1.0).contains_key("polls-per-packet"));
    }

    #[test]
    fn higher_is_better_for_rates_and_lower_for_everything_else() {
        for rate in ["Requests/sec", "rps", "ops_per_s", "read-iops", "GET/s"] {
            assert_eq!(goal_of(rate), Goal::Highest, "{rate}");
        }
        for cost in ["p99", "latency_ms", "errors", "requests"] {
            assert_eq!(goal_of(cost), Goal::Lowest, "{cost}");
        }
    }

    #[test]
    fn figures_of_judges_are_compared_except_for_counts_of_their_requests() {
        let names = ["p99-us", "requests", "errors", "beside p99-us", "beside requests", "beside errors"];
        let printed = PrintedFigures::from(names.map(|name| (name.to_owned(), 1.0)));
        let metric = |name: &str| Criterion::Metric { name: name.to_owned(), goal: Goal::Lowest };
        let compared = ["cpu-us-per-request", "beside p99-us", "p99-us"].map(metric);
        assert_eq!(criteria_of_judge(&printed, Work::Request), compared);
    }
}
