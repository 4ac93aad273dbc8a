//! Checks the preconditions for valid lab results. The functions are pure and use observations made while the generator
//! sent a few requests.

use quell_linux::proc::Softirqs;
use quell_linux::visible::counted;
use quell_result::facts::{Check, WorkerFacts};

/// Upper limit of NET_RX softirqs per request on the server's CPUs. A higher count means that these CPUs process
/// packets for other programs. If NAPI threads poll all queues, the lab itself causes no NET_RX softirqs, but other
/// programs cause a few.
const NET_RX_PER_REQUEST_MAX: f64 = 0.1;

/// Checks that each worker polls exactly one queue, that each queue has one worker, and that no connection bypasses
/// NAPI.
#[must_use]
pub fn of_workers(workers: &[WorkerFacts], server_napi_ids: &[u32]) -> Vec<Check> {
    let lists: Vec<String> = workers
        .iter()
        .map(|worker| {
            let connections = counted(worker.connections, "connection");
            format!("epoll {}: {connections} on NAPI {:?}", worker.epoll_fd, worker.napi_ids)
        })
        .collect();
    let one_each = workers.iter().all(|worker| worker.napi_ids.len() == 1);
    let mut seen: Vec<u32> = workers.iter().flat_map(|worker| worker.napi_ids.iter().copied()).collect();
    seen.sort_unstable();
    let mut queues = server_napi_ids.to_vec();
    queues.sort_unstable();
    let bypassing: u32 = workers.iter().map(|worker| worker.connections_without_napi).sum();
    vec![
        Check {
            claim: "the connections of each worker arrive on exactly one queue, and each queue has one worker".into(),
            observed: if lists.is_empty() {
                "the server has no epoll with connections".into()
            } else {
                lists.join("; ")
            },
            holds: one_each && seen == queues,
        },
        Check {
            claim: "no connection bypasses NAPI".into(),
            observed: format!("{} with SO_INCOMING_NAPI_ID 0", counted(bypassing, "connection")),
            holds: bypassing == 0 && !workers.is_empty(),
        },
    ]
}

/// Checks that no sysctl enables busy polling for every epoll. Such a sysctl would also affect the epolls of `base`.
#[must_use]
pub fn of_system_wide_busy_polling(busy_poll_us: Option<u32>) -> Check {
    Check {
        claim: "no sysctl enables busy polling for all programs".into(),
        observed: busy_poll_us.map_or_else(
            || "net.core.busy_poll does not exist".into(),
            |us| format!("net.core.busy_poll is {us} µs; to fix this, run: sysctl net.core.busy_poll=0"),
        ),
        holds: busy_poll_us.unwrap_or(0) == 0,
    }
}

/// Checks that the server's CPUs do no receive work for the client.
#[must_use]
pub fn of_receive_work(from: &Softirqs, to: &Softirqs, server_cpus: &[u32], requests: u64) -> Check {
    let on =
        |softirqs: &Softirqs| -> Option<u64> { server_cpus.iter().map(|&cpu| softirqs.count("NET_RX", cpu)).sum() };
    let claim = "the server's CPUs do no receive work for the client".to_owned();
    let (Some(before), Some(after)) = (on(from), on(to)) else {
        return Check { claim, observed: "the softirq counters of these CPUs could not be read".into(), holds: false };
    };
    let softirqs = after.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "counts of less than a second are far below 2^53")]
    let per_request = softirqs as f64 / requests.max(1) as f64;
    Check {
        claim,
        observed: format!(
            "{} on the server's CPUs for {}; packets of other programs count too (watch -d grep NET_RX /proc/softirqs), \
             so repeat it when they are quiet",
            counted(softirqs, "NET_RX softirq"),
            counted(requests, "request")
        ),
        holds: requests > 0 && per_request <= NET_RX_PER_REQUEST_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(napi_ids: &[u32], connections_without_napi: u32) -> WorkerFacts {
        WorkerFacts {
            tid: None,
            cpu: None,
            epoll_fd: 5,
            connections: 8,
            connections_without_napi,
            napi_ids: napi_ids.to_vec(),
        }
    }

    fn holds(checks: &[Check]) -> Vec<bool> {
        checks.iter().map(|check| check.holds).collect()
    }

    #[test]
    fn one_worker_per_queue_passes() {
        assert_eq!(holds(&of_workers(&[worker(&[300], 0), worker(&[301], 0)], &[301, 300])), [true, true]);
    }

    #[test]
    fn two_queues_per_worker_two_workers_per_queue_and_unused_queues_fail() {
        for workers in
            [vec![worker(&[300, 301], 0)], vec![worker(&[300], 0), worker(&[300], 0)], vec![worker(&[300], 0)]]
        {
            assert!(!of_workers(&workers, &[300, 301])[0].holds, "{workers:?}");
        }
    }

    #[test]
    fn a_server_without_workers_fails_the_check() {
        assert_eq!(holds(&of_workers(&[], &[300])), [false, false]);
    }

    #[test]
    fn connections_that_bypass_napi_are_counted() {
        assert!(!of_workers(&[worker(&[300], 2)], &[300])[1].holds);
    }

    #[test]
    fn a_sysctl_that_makes_base_busy_poll_fails_the_check() {
        assert!(!of_system_wide_busy_polling(Some(50)).holds);
        assert!(of_system_wide_busy_polling(Some(0)).holds && of_system_wide_busy_polling(None).holds);
    }

    #[test]
    fn a_failed_check_states_the_expectation_and_the_observation() {
        let softirqs = |count: u64| Softirqs::parse(format!("CPU0\n  NET_RX: {count}\n").as_bytes()).unwrap();
        let check = of_receive_work(&softirqs(0), &softirqs(1_675), &[0], 6_726);
        let said = crate::run::LabRunError::Check(check).to_string();
        assert!(said.starts_with("lab check failed"), "{said}");
        assert!(
            said.contains("expected: the server's CPUs do no receive work for the client; found: 1,675 "),
            "{said}"
        );
    }

    #[test]
    fn only_softirqs_on_the_servers_cpus_count() {
        let softirqs = |cpu0: u64, cpu1: u64| {
            Softirqs::parse(format!("          CPU0       CPU1\n  NET_RX: {cpu0} {cpu1}\n").as_bytes()).unwrap()
        };
        assert!(of_receive_work(&softirqs(0, 0), &softirqs(3, 5_000), &[0], 1_000).holds);
        assert!(!of_receive_work(&softirqs(0, 0), &softirqs(1_000, 0), &[0], 1_000).holds);
        assert!(!of_receive_work(&softirqs(0, 0), &softirqs(0, 0), &[0], 0).holds, "the generator sent no request");
    }
}
