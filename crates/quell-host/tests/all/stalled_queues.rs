//! The cause of a queue that stalled, as far as a snapshot shows it, and what to do.

use std::collections::BTreeMap;

use crate::causes::server;
use crate::snapshots::{before, set, snapshot};
use quell_host::findings::{Finding, Severity, examine_sampled};
use quell_linux::NapiId;
use quell_sampler::{QueueSample, WaitBounds};
use serde_json::{Value, json};

/// Cause and first fix of a queue that stalled between these snapshots.
fn stalled(now: &Value, then: &Value) -> String {
    let found = stalled_by(2, now, then);
    assert_eq!(found.severity, Severity::Serious);
    format!("{} => {}", found.observed, found.fix[0])
}

fn stalled_by(stalled_polls: u64, now: &Value, then: &Value) -> Finding {
    let wait = WaitBounds { stalled_polls, ..WaitBounds::default() };
    let sample = QueueSample { packets: 10, wait, ..QueueSample::default() };
    let polls = BTreeMap::from([(NapiId::from_kernel(8_193).unwrap(), sample)]);
    let report = examine_sampled(&snapshot(now), Some(&snapshot(then)), &polls);
    report.findings.into_iter().find(|finding| finding.id == "stalled-queue").unwrap()
}

#[test]
fn a_stalled_queue_has_the_cause_that_the_snapshot_shows() {
    let ready = "/processes/0/files/epolls/1/targets/0/file/other/ready";
    let of = |place: &str, value: Value| {
        let (mut now, mut then) = (server(), before());
        set(&mut now, place, value.clone());
        set(&mut then, place, value);
        stalled(&now, &then)
    };
    let is_ready = of(ready, json!(true));
    assert!(is_ready.contains("poll: ready-object-holds-suspension: file 6, an eventfd"), "{is_ready}");
    let several = of("/sockets/1/napi", json!(8_194));
    assert!(
        several.contains("has sockets on 2 queues") && several.contains("=> give each worker a listening socket"),
        "{several}"
    );
    let at_work = of("/processes/0/threads/1/epoll-wait", json!(null));
    assert!(at_work.contains("without a poll => the cause is unknown; `strace -f -e trace=epoll_wait,"), "{at_work}");
}

#[test]
fn one_stall_without_a_visible_cause_is_no_verdict() {
    let (mut now, mut then) = (server(), before());
    assert_eq!(stalled_by(1, &now, &then).severity, Severity::CannotTell);
    let ready = "/processes/0/files/epolls/1/targets/0/file/other/ready";
    [&mut now, &mut then].into_iter().for_each(|host| set(host, ready, json!(true)));
    assert_eq!(stalled_by(1, &now, &then).severity, Severity::Serious);
}

#[test]
fn a_stalled_queue_whose_program_gets_no_cpu_has_that_cause_and_the_user_of_the_cpu() {
    let bound_to_or_last_on_0 = |ran_ms: u64, waited_ms: u64, other: bool, affinity: &str| {
        let (mut now, mut then) = (server(), before());
        for (host, at) in [(&mut then, 0), (&mut now, 1)] {
            let thread = "/processes/0/threads/1";
            set(host, &format!("{thread}/affinity"), json!(affinity));
            set(host, &format!("{thread}/epoll-wait"), json!(null));
            set(host, &format!("{thread}/run-ns"), json!(5_000_000_000 + at * ran_ms * 1_000_000));
            set(host, &format!("{thread}/wait-ns"), json!(5_000_000_000 + at * waited_ms * 1_000_000));
            let mut stress = host["processes"][0].clone();
            stress["pid"] = json!(900);
            stress["name"] = json!("stress");
            stress["files"] = json!({"epolls": [], "sockets": [], "xdp-sockets": [], "io-urings": []});
            stress["threads"] = json!([host["processes"][0]["threads"][1].clone()]);
            for (field, value) in
                [("tid", json!(900)), ("name", json!("stress")), ("run-ns", json!(at * 1_800_000_000))]
            {
                stress["threads"][0][field] = value;
            }
            if other {
                set(host, "/processes/-", stress);
            }
        }
        stalled(&now, &then)
    };
    let of = |ran_ms, waited_ms, other| bound_to_or_last_on_0(ran_ms, waited_ms, other, "0-3");
    let starved = of(100, 1_800, true);
    let thread = "thread 4243 of server had no CPU 95 % of the time in which it wanted one";
    assert!(starved.contains(&format!("{thread}; stress 900 used CPU 0 90 % of the time => ")), "{starved}");
    assert!(
        starved.ends_with("let stress 900 and thread 4243 run on different CPUs: taskset -cp CPU 900"),
        "{starved}"
    );
    let by_a_limit = of(100, 1_800, false);
    assert!(by_a_limit.contains(&format!("{thread} => let thread 4243 run on another CPU than 0, or")), "{by_a_limit}");
    let bound = bound_to_or_last_on_0(100, 1_800, false, "0");
    assert!(bound.contains(&format!("{thread} => thread 4243 may run on CPU 0 only: ")), "{bound}");
    assert!(bound.contains("(without --pin, if quell attach has pinned it)"), "{bound}");
    for (ran_ms, waited_ms) in [(1_800, 100), (1, 100)] {
        let at_work = of(ran_ms, waited_ms, true);
        assert!(at_work.contains("=> the cause is unknown; `strace -f "), "{at_work}");
    }
}
