//! Applies the rules to recorded snapshots. A healthy snapshot has no relevant finding, each edit causes its finding,
//! unknown values cause none, and no snapshot makes a rule panic.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshots::{self, Edit, HarmlessEdit, before, healthy, set, snapshot};
use proptest::prelude::*;
use quell_host::behavior::{Behavior, EpollWaits, OBSERVED, ReadyCause, ReadyGroup};
use quell_host::findings::{Finding, Fix, FixText, Node, Severity, examine, examine_observed, examine_sampled, rules};
use quell_host::snapshot::Snapshot;
use quell_linux::NapiId;
use quell_sampler::{PollsByPoller, QueueSample, WaitBounds};
use serde_json::{Value, json};

const UNKNOWN: &str = r#"{"unknown": {"reason": "failed", "message": "read it: no"}}"#;
/// Rules about unknown values.
const ABOUT_THE_UNKNOWN: [&str; 3] = ["kernel-lacks", "driver-lacks", "privilege-lacks"];

fn ids(now: &Snapshot, before: Option<&Snapshot>) -> BTreeSet<&'static str> {
    examine(now, before).findings.iter().map(|finding| finding.id).collect()
}

#[test]
fn a_healthy_host_has_no_finding() {
    let report = examine(&snapshot(&healthy()), Some(&snapshot(&before())));
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!((report.interval_ns, report.not_applied.len()), (Some(2_000_000_000), 0));
}

#[test]
fn rules_that_compare_are_reported_as_skipped_with_one_snapshot() {
    let report = examine(&snapshot(&healthy()), None);
    let comparing: Vec<&str> = rules().filter(|rule| rule.needs_two).map(|rule| rule.id).collect();
    assert_eq!(report.not_applied, comparing);
}

#[test]
fn snapshots_of_different_boots_are_not_compared() {
    let mut earlier = before();
    set(&mut earlier, "/taken/boot-id", json!("00000000-0000-0000-0000-000000000000"));
    assert_eq!(examine(&snapshot(&healthy()), Some(&snapshot(&earlier))).interval_ns, None);
}

#[test]
fn each_edit_causes_its_finding() {
    for Edit { rule, severity, now, then } in snapshots::edits() {
        let (mut later, mut earlier) = (healthy(), before());
        now.into_iter().for_each(|(place, value)| set(&mut later, place, value));
        then.into_iter().for_each(|(place, value)| set(&mut earlier, place, value));
        let report = examine(&snapshot(&later), Some(&snapshot(&earlier)));
        let found = report.findings.iter().find(|finding| finding.id == rule);
        let found = found.unwrap_or_else(|| panic!("{rule} is not found: {:#?}", report.findings));
        assert_eq!(found.severity, severity, "{rule}: {found:#?}");
        assert!(!found.observed.is_empty() && !found.nodes.is_empty(), "{found:#?}");
    }
}

#[test]
fn devices_of_another_namespace_are_named_with_it_and_those_that_lack_the_same_are_one_finding() {
    let mut host = healthy();
    let mut namespace = host["namespaces"][0].clone();
    for (key, value) in [("inode", json!(7)), ("names", json!(["pod"])), ("is-current", json!(false))] {
        namespace[key] = value;
    }
    set(&mut host, "/namespaces/-", namespace);
    let unsupported = json!({"unknown": {"reason": "unsupported-by-driver", "message": "flow rules: no"}});
    set(&mut host, "/devices/0/flow-rules", unsupported);
    let mut device = host["devices"][0].clone();
    device["namespace"] = json!(7);
    set(&mut host, "/devices/-", device);
    let report = examine(&snapshot(&host), None);
    let lacking: Vec<_> = report.findings.iter().filter(|finding| finding.id == "driver-lacks").collect();
    let [one] = lacking[..] else { panic!("{lacking:?}") };
    let name = host["devices"][0]["name"].as_str().unwrap();
    let named: Vec<String> = one.nodes.iter().map(ToString::to_string).collect();
    assert_eq!(named, [name.to_owned(), format!("{name} (netns pod)")]);
}

#[test]
fn processes_of_quell_have_no_findings_of_their_own() {
    let is_of_process =
        |finding: &Finding| finding.nodes.iter().any(|node| matches!(node, Node::Process { .. } | Node::Epoll { .. }));
    let mut left_out = 0;
    for Edit { now, then, .. } in snapshots::edits() {
        let (mut later, mut earlier) = (healthy(), before());
        now.into_iter().for_each(|(place, value)| set(&mut later, place, value));
        then.into_iter().for_each(|(place, value)| set(&mut earlier, place, value));
        later["services"] = json!([]);
        later["processes"].as_array_mut().unwrap().iter_mut().for_each(|process| process["name"] = json!("quell"));
        let now = snapshot(&later);
        let mut report = examine(&now, Some(&snapshot(&earlier)));
        let found = report.findings.iter().filter(|finding| is_of_process(finding)).count();
        report.leave_out_own(&now);
        let kept: Vec<&Finding> =
            report.findings.iter().filter(|one| is_of_process(one) && !one.id.starts_with("xdp-")).collect();
        assert!(kept.is_empty(), "{kept:#?}");
        left_out += found;
    }
    assert!(left_out > 0);
}

#[test]
fn sampled_polls_decide_about_suspension_and_stalls() {
    let (now, earlier) = (snapshot(&healthy()), snapshot(&before()));
    let napi = now.devices[0].napis.known().unwrap()[0].id;
    let found = |suspended: u64, stalled_polls: u64| {
        let sample = QueueSample {
            polls: PollsByPoller { program: 500, ..PollsByPoller::default() },
            packets: 10_000,
            program_found_suspended: Some(suspended),
            wait: WaitBounds { stalled_polls, ..WaitBounds::default() },
            ..QueueSample::default()
        };
        let report = examine_sampled(&now, Some(&earlier), &BTreeMap::from([(napi, sample)]));
        report.findings.iter().map(|finding| (finding.id, finding.severity)).collect::<Vec<_>>()
    };
    assert_eq!(found(490, 0), []);
    assert_eq!(found(0, 0), [("suspension-without-effect", Severity::Warning)]);
    assert_eq!(found(490, 1), [("stalled-queue", Severity::CannotTell)]);
    assert_eq!(found(490, 2), [("stalled-queue", Severity::Serious)]);
}

#[test]
fn suspension_is_not_judged_by_packets_that_the_program_did_not_run_for() {
    let (mut later, earlier) = (healthy(), snapshot(&before()));
    for thread in [1, 2] {
        set(&mut later, &format!("/processes/0/threads/{thread}/run-ns"), json!(9_000_400_000_u64));
    }
    let now = snapshot(&later);
    let napi = now.devices[0].napis.known().unwrap()[0].id;
    let sample = QueueSample { packets: 10_000, program_found_suspended: Some(0), ..QueueSample::default() };
    let report = examine_sampled(&now, Some(&earlier), &BTreeMap::from([(napi, sample)]));
    let found = report.findings.iter().find(|finding| finding.id == "suspension-without-effect").unwrap();
    assert_eq!(found.severity, Severity::CannotTell, "{found:?}");
    assert!(found.observed.contains("0.8 ms of CPU time for 10,000 packets"), "{found:?}");
}

#[test]
fn cpu_times_of_a_hostile_snapshot_do_not_overflow() {
    let (mut later, mut earlier) = (healthy(), before());
    for thread in [1, 2] {
        set(&mut later, &format!("/processes/0/threads/{thread}/run-ns"), json!(u64::MAX));
        set(&mut earlier, &format!("/processes/0/threads/{thread}/run-ns"), json!(0));
    }
    set(&mut later, "/irqs/0/counts", json!([[0, u64::MAX], [1, u64::MAX]]));
    let mut other = later["processes"][0].clone();
    other["pid"] = json!(5_000);
    set(&mut later, "/processes/-", other.clone());
    other["threads"][1]["run-ns"] = json!(0);
    set(&mut earlier, "/processes/-", other);
    let now = snapshot(&later);
    let napi = now.devices[0].napis.known().unwrap()[0].id;
    let sample = QueueSample { packets: 10_000, ..QueueSample::default() };
    let _ = examine_sampled(&now, Some(&snapshot(&earlier)), &BTreeMap::from([(napi, sample)]));
}

#[test]
fn a_queue_that_nobody_polls_is_judged_by_the_counters_of_its_device() {
    let (mut later, earlier) = (healthy(), snapshot(&before()));
    set(&mut later, "/namespaces/0/ip-rx-packets", json!(1_000_000));
    let now = snapshot(&later);
    let napi = now.devices[0].napis.known().unwrap()[0].id;
    let found = |packets: u64| {
        let polls = PollsByPoller { timer: packets, ..PollsByPoller::default() };
        let sample = QueueSample { polls, packets, ..QueueSample::default() };
        let report = examine_sampled(&now, Some(&earlier), &BTreeMap::from([(napi, sample)]));
        report.findings.iter().find(|finding| finding.id == "stalled-queue").map(|finding| finding.severity)
    };
    assert_eq!(found(0), Some(Severity::Serious));
    assert_eq!(found(1), None, "samples decide about a queue whose packets were polled");
}

/// Commands of the finding of a rule on the healthy host with these edits.
fn commands(rule: &str, edits: &[(&str, Value)]) -> Vec<String> {
    let mut host = healthy();
    let of_rule = snapshots::edits().into_iter().find(|edit| edit.rule == rule && edit.severity <= Severity::Warning);
    of_rule.unwrap().now.into_iter().for_each(|(place, value)| set(&mut host, place, value));
    edits.iter().for_each(|(place, value)| set(&mut host, place, value.clone()));
    let report = examine(&snapshot(&host), Some(&snapshot(&before())));
    let found = report.findings.into_iter().find(|finding| finding.id == rule);
    let fix = found.unwrap_or_else(|| panic!("{rule} is not found")).fix;
    fix.into_iter()
        .filter_map(|fix| if let FixText::Command(command) = fix.text() { Some(command) } else { None })
        .collect()
}

#[test]
fn a_command_that_changes_a_timeout_moves_it_in_the_direction_of_the_fix() {
    let flush = |ns: u64| ("/devices/0/napis/0/gro-flush-timeout-ns", json!(ns));
    let suspend = |ns: u64| ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(ns));
    let with = |rule: &str, edits: &[(&str, Value)], text: &str| {
        commands(rule, edits).iter().filter(|command| command.contains(text)).count()
    };

    let rule = "suspension-without-effect";
    assert_eq!(with(rule, &[suspend(5_000_000)], r#""irq-suspend-timeout": 20000000"#), 1);
    assert_eq!(with(rule, &[suspend(30_000_000)], r#""irq-suspend-timeout": 60000000"#), 1);

    let rule = "too-many-empty-polls";
    let on_cpu_2 = ("/irqs/0/effective-affinity", json!("2"));
    assert_eq!(with(rule, &[on_cpu_2.clone(), flush(20_000)], r#""id": 8193, "gro-flush-timeout": 200000"#), 1);
    assert_eq!(with(rule, &[on_cpu_2, flush(500_000)], r#""id": 8193"#), 0);
}

#[test]
fn suspension_of_a_queue_that_its_program_does_not_poll_is_not_prolonged() {
    let (now, earlier) = (snapshot(&healthy()), snapshot(&before()));
    let napi = now.devices[0].napis.known().unwrap()[0].id;
    let sample = QueueSample { packets: 10_000, program_found_suspended: Some(0), ..QueueSample::default() };
    let report = examine_sampled(&now, Some(&earlier), &BTreeMap::from([(napi, sample)]));
    let found = report.findings.iter().find(|finding| finding.id == "suspension-without-effect").unwrap();
    assert!(found.severity == Severity::Warning && found.fix.is_empty(), "the cause is unknown: {found:?}");

    let mut mixed = healthy();
    set(&mut mixed, "/sockets/1/napi", json!(8_194));
    let report = examine_sampled(&snapshot(&mixed), Some(&earlier), &BTreeMap::from([(napi, sample)]));
    let found = report.findings.iter().find(|finding| finding.id == "suspension-without-effect").unwrap();
    assert!(
        found.observed.contains("has sockets on 2 queues") && matches!(found.fix[..], [Fix::OrCompare { .. }]),
        "{found:?}"
    );
}

#[test]
fn advice_about_connections_of_missing_queues_counts_the_queues_that_delivered_them() {
    let mut down = healthy();
    set(&mut down, "/sockets/1/napi", json!(8194));
    let fix = |host: &Value| {
        let findings = examine(&snapshot(host), None).findings;
        findings.into_iter().find(|finding| finding.id == "epoll-mixes-napis").unwrap().fix[0].to_string()
    };
    assert!(fix(&down).contains("`-t 2 -N 2`"), "{}", fix(&down));
    set(&mut down, "/sockets/2/napi", json!(8193));
    ["napis", "rx-queues"].iter().for_each(|list| set(&mut down, &format!("/devices/0/{list}"), json!([])));
    assert!(fix(&down).contains("`-t 2 -N 2`"), "{}", fix(&down));
}

#[test]
fn harmless_edits_do_not_cause_the_finding() {
    for HarmlessEdit { rule, reason, now } in snapshots::harmless_edits() {
        let mut edited = healthy();
        now.into_iter().for_each(|(place, value)| set(&mut edited, place, value));
        let report = examine(&snapshot(&edited), Some(&snapshot(&before())));
        let found = report.findings.iter().find(|finding| finding.id == rule);
        assert!(found.is_none(), "{rule}, although {reason}: {found:#?}");
    }
}

#[test]
fn softirqs_that_spend_their_time_on_packets_are_no_finding() {
    let (mut later, earlier) = (healthy(), before());
    set(&mut later, "/cpus/each/2/counters/softnet-time-squeeze", json!(250));
    set(&mut later, "/cpus/each/2/counters/softnet-processed", json!(1_000_000));
    assert!(!ids(&snapshot(&later), Some(&snapshot(&earlier))).contains("too-many-empty-polls"));
}

#[test]
fn every_rule_has_an_edit_that_causes_it() {
    let tried: BTreeSet<&str> = snapshots::edits().iter().map(|edit| edit.rule).collect();
    let untried: Vec<&str> = rules().map(|rule| rule.id).filter(|id| !tried.contains(id)).collect();
    assert_eq!(untried, [OTHERS, PARTIAL, BLOCKS], "only an observation shows these");
}

const READY: &str = "ready-object-holds-suspension";
const OTHERS: &str = "other-events-hold-suspension";
const PARTIAL: &str = "partial-reads-hold-suspension";
const BLOCKS: &str = "blocks-on-polled-queue";
const ZERO: &str = "waits-with-timeout-zero";

/// Severities that an observation of the healthy program gives the rules about stalls. Its epoll 5 has sockets on a
/// suspending queue. With `nested`, epoll 3 watches it. No thread sleeps in it when the snapshot is taken.
fn severities(nested: bool, ready: Option<ReadyGroup>, waits: Option<EpollWaits>) -> Vec<(&'static str, Severity)> {
    let mut now = healthy();
    set(&mut now, "/processes/0/threads/1/epoll-wait", json!(null));
    if nested {
        let inner = json!({"fd": 5, "events": 1, "file": {"other": {"kind": "epoll", "ready": false}}});
        set(&mut now, "/processes/0/files/epolls/0/targets/-", inner);
    }
    let now = snapshot(&now);
    let pid = now.processes[0].pid;
    let mut behavior = Behavior { programs: [pid].into(), waits_observed: OBSERVED, ..Behavior::default() };
    behavior.ready.extend(ready.map(|group| ((pid, 5), vec![group])));
    behavior.waits.extend(waits.map(|waits| ((pid, 5), waits)));
    behavior.waits.insert((pid, 8), EpollWaits { sleeping: 50, ..EpollWaits::default() });
    let found = examine_observed(&now, None, &BTreeMap::new(), Some(&behavior)).findings;
    let of_stalls = found.iter().filter(|finding| [READY, ZERO].contains(&finding.id));
    of_stalls.map(|finding| (finding.id, finding.severity)).collect()
}

#[test]
fn an_observation_decides_whether_an_object_holds_the_suspension() {
    let slept_in = Some(EpollWaits { sleeping: 50, threads: 1, ..EpollWaits::default() });
    let ready = |unconfirmed| Some(ReadyGroup { cause: ReadyCause::Writable, fd: 121, count: 2, unconfirmed });
    assert_eq!(severities(false, ready(None), slept_in), [(READY, Severity::Serious)]);
    assert_eq!(severities(false, ready(Some("not asked")), slept_in), [(READY, Severity::Warning)]);
    assert_eq!(severities(false, None, slept_in), []);
    // A stopped program, or one that is busy for all of the time.
    assert_eq!(severities(false, ready(None), None), [(READY, Severity::Warning), (ZERO, Severity::Warning)]);
}

#[test]
fn partial_reads_hold_the_suspension_of_connections_that_each_wait_reports() {
    let partial =
        EpollWaits { sleeping: 1_300, after_partial_read: 900, partial_reading: OBSERVED, ..EpollWaits::default() };
    let is_found = |place: &str, value: Value| {
        let mut now = healthy();
        set(&mut now, place, value);
        let now = snapshot(&now);
        let pid = now.processes[0].pid;
        let mut behavior = Behavior { programs: [pid].into(), waits_observed: OBSERVED, ..Behavior::default() };
        behavior.waits.insert((pid, 5), partial);
        let findings = examine_observed(&now, None, &BTreeMap::new(), Some(&behavior)).findings;
        findings.iter().any(|finding| finding.id == PARTIAL)
    };
    let listener = json!({"fd": 26, "events": 1, "file": {"socket": {"inode": 100}}});
    assert!(!is_found("/processes/0/files/epolls/1/targets/-", listener), "connections with EPOLLET");
    assert!(is_found("/processes/0/files/epolls/1/targets/1/events", json!(1)));
}

#[test]
fn an_observation_decides_whether_waits_end_the_suspension() {
    let waits = |zero, zero_empty, sleeping| {
        Some(EpollWaits { zero, zero_empty, sleeping, busy: OBSERVED, ..EpollWaits::default() })
    };
    let spins = |zero_empty, slept| {
        let calls = EpollWaits { zero: zero_empty, zero_empty, sleeping: slept, slept, ..EpollWaits::default() };
        Some(EpollWaits { busy: OBSERVED, is_slept_in: true, threads: 1, ..calls })
    };
    let frames = |zero, busy| Some(EpollWaits { zero, busy, threads: 1, ..EpollWaits::default() });
    let elsewhere = Some(EpollWaits { zero: 500, sleeping_elsewhere: 1, threads: 1, ..EpollWaits::default() });
    for (nested, waits, expected) in [
        (true, waits(500, 0, 0), Some(Severity::Serious)),
        (true, waits(500, 0, 400).map(|waits| EpollWaits { slept: 400, ..waits }), None),
        (true, waits(2, 0, 0), Some(Severity::Warning)),
        (false, waits(500, 490, 0), Some(Severity::Serious)),
        (false, waits(500, 490, 5), Some(Severity::Serious)),
        (false, waits(500, 490, 6), None),
        // Spins of 83 ms and 0.5 ms before each wait, and one that reads what it finds.
        (false, spins(490, 6), Some(Severity::Serious)),
        (false, spins(20_000, 1_000), Some(Severity::Warning)),
        (false, spins(19_000, 1_000), None),
        // `quell run fullbusy`: each wait polls, and hardly one sleeps.
        (false, spins(7_000, 7_000).map(|waits| EpollWaits { slept: 100, ..waits }), None),
        // A saturated program that would sleep if it had no events.
        (false, waits(500, 10, 0), Some(Severity::Warning)),
        (false, elsewhere, Some(Severity::Serious)),
        (false, Some(EpollWaits { zero: 500, zero_empty: 490, is_slept_in: true, ..EpollWaits::default() }), None),
        (false, waits(3, 3, 0), Some(Severity::Warning)),
        // Frames of 17 ms, and of 50 ms. The suspension ends after 20 ms.
        (false, frames(30, OBSERVED / 3), Some(Severity::Serious)),
        (false, frames(10, OBSERVED / 3), Some(Severity::Note)),
        (true, frames(10, OBSERVED / 3), Some(Severity::Serious)),
        (false, None, Some(Severity::Warning)),
        (false, waits(0, 0, 1), None),
    ] {
        let expected: Vec<_> = expected.map(|severity| (ZERO, severity)).into_iter().collect();
        assert_eq!(severities(nested, None, waits), expected, "{nested} {waits:?}");
    }
}

#[test]
fn an_observation_decides_whether_calls_that_never_sleep_are_made_only_for_events() {
    let waits = EpollWaits { sleeping: 500, threads: 1, ..EpollWaits::default() };
    for (nested, waits, expected) in [
        (true, EpollWaits { slept: 5, ..waits }, Some(Severity::Serious)),
        (true, EpollWaits { slept: 6, ..waits }, None),
        (true, EpollWaits { sleeping: 3, ..waits }, None),
        (false, EpollWaits { polled: 400, ..waits }, Some(Severity::Serious)),
        (false, EpollWaits { polled: 400, slept: 400, ..waits }, None),
        (false, EpollWaits { sleeping_elsewhere: 1, ..waits }, Some(Severity::Warning)),
        // A saturated program.
        (false, waits, None),
    ] {
        let expected: Vec<_> = expected.map(|severity| (ZERO, severity)).into_iter().collect();
        assert_eq!(severities(nested, None, Some(waits)), expected, "{nested} {waits:?}");
    }
}

#[test]
fn an_observation_decides_whether_a_thread_sleeps_for_the_queue_that_it_suspended() {
    let napi = |id| NapiId::from_kernel(id).unwrap();
    let of_edited = |edits: &[(&str, Value)], blocked: &[(u32, u64)]| {
        let mut now = healthy();
        edits.iter().for_each(|(place, value)| set(&mut now, place, value.clone()));
        let now = snapshot(&now);
        let pid = now.processes[0].pid;
        let blocked = blocked.iter().map(|&(id, calls)| (napi(id), calls)).collect();
        let mut behavior = Behavior { programs: [pid].into(), ..Behavior::default() };
        behavior.blocked.insert((pid, 5), blocked);
        let found = examine_observed(&now, None, &BTreeMap::new(), Some(&behavior)).findings;
        found.iter().find(|finding| finding.id == BLOCKS).map(|finding| finding.severity)
    };
    let of = |blocked: &[(u32, u64)]| of_edited(&[], blocked);
    assert_eq!(of(&[(8_193, 4)]), Some(Severity::Serious));
    assert_eq!(of(&[(8_193, 3)]), None, "calls also sleep for other reasons");
    assert_eq!(of(&[(8_194, 400)]), None, "a queue that this epoll does not suspend");
    assert_eq!(of(&[(1, 400)]), None, "a socket without a queue");
    let unsuspended = ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0));
    let flushed = |ns: u64| ("/devices/0/napis/0/gro-flush-timeout-ns", json!(ns));
    let with = |edits: &[(&str, Value)]| of_edited(edits, &[(8_193, 4)]);
    assert_eq!(with(&[unsuspended.clone(), flushed(5_000_000)]), Some(Severity::Serious), "fullbusy");
    assert_eq!(with(&[unsuspended.clone(), flushed(200_000)]), Some(Severity::Warning), "napibusy");
    let not_polled = json!({"busy_poll_usecs": 0, "busy_poll_budget": 0, "prefer_busy_poll": false});
    let params = ("/processes/0/files/epolls/1/params", not_polled);
    assert_eq!(with(&[unsuspended, flushed(5_000_000), params]), None, "deferral without polling");
}

#[test]
fn no_finding_exceeds_the_severity_of_its_rule() {
    for edit in snapshots::edits() {
        let rule = quell_host::findings::rule(edit.rule).unwrap();
        assert!(edit.severity <= rule.severity, "{}", edit.rule);
    }
}

/// Pointers to values of a snapshot that may be unknown.
fn readings(of: &Value) -> Vec<String> {
    let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
    let mut readings = Vec::new();
    for place in places(of, "") {
        let mut edited = of.clone();
        *edited.pointer_mut(&place).unwrap() = unknown.clone();
        if Snapshot::parse(edited.to_string().as_bytes()).is_ok() {
            readings.push(place);
        }
    }
    readings
}

fn places(of: &Value, at: &str) -> Vec<String> {
    let children: Vec<(String, &Value)> = match of {
        Value::Array(values) => values.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        Value::Object(values) => values.iter().map(|(name, value)| (name.clone(), value)).collect(),
        _ => return Vec::new(),
    };
    let below = |(name, value): (String, &Value)| {
        let place = format!("{at}/{name}");
        std::iter::once(place.clone()).chain(places(value, &place)).collect::<Vec<_>>()
    };
    children.into_iter().flat_map(below).collect()
}

#[test]
fn unknown_values_cause_no_finding() {
    let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
    let (now, then) = (healthy(), before());
    let (now_snapshot, then_snapshot) = (snapshot(&now), snapshot(&then));
    let of_now = readings(&now);
    assert!(of_now.len() > 100, "{of_now:?}");
    for place in &of_now {
        let mut edited = now.clone();
        set(&mut edited, place, unknown.clone());
        let mut found = ids(&snapshot(&edited), Some(&then_snapshot));
        found.extend(ids(&snapshot(&edited), None));
        let report = examine(&snapshot(&edited), Some(&then_snapshot));
        let bad = report.findings.iter().any(|finding| finding.severity > Severity::CannotTell);
        assert!(!bad, "{place} makes {found:?}");
    }
    for place in readings(&then) {
        let mut edited = then.clone();
        set(&mut edited, &place, unknown.clone());
        let report = examine(&now_snapshot, Some(&snapshot(&edited)));
        let bad: Vec<_> = report.findings.iter().filter(|finding| finding.severity > Severity::CannotTell).collect();
        assert!(bad.is_empty(), "{place} makes {bad:?}");
    }
}

#[test]
fn a_snapshot_without_known_values_has_no_finding() {
    let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
    // Checks the recorded snapshot, and two variants with additional objects.
    let more = ["reuseport-group-mixes-devices", "batch-delays-others"];
    let none = Edit { rule: "healthy", severity: Severity::Note, now: Vec::new(), then: Vec::new() };
    let edits = snapshots::edits().into_iter().filter(|edit| more.contains(&edit.rule));
    for edit in edits.chain([none]) {
        let mut nothing = healthy();
        edit.now.into_iter().for_each(|(place, value)| set(&mut nothing, place, value));
        // Deepest value first, so that every pointer remains valid.
        for place in readings(&nothing).into_iter().rev() {
            if let Some(value) = nothing.pointer_mut(&place) {
                *value = unknown.clone();
            }
        }
        assert!(ids(&snapshot(&nothing), Some(&snapshot(&nothing))).is_empty(), "{}", edit.rule);
    }
}

/// A different value that may still be parsed.
fn other_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!(0)),
        Just(json!(u64::MAX)),
        any::<u32>().prop_map(|number| json!(number)),
        any::<bool>().prop_map(|yes| json!(yes)),
        Just(json!([])),
        Just(json!("")),
        Just(json!("0-3")),
        Just(serde_json::from_str(UNKNOWN).unwrap()),
    ]
}

/// The healthy snapshot with up to 20 values changed, if it can still be parsed.
fn damaged(of: Value) -> impl Strategy<Value = Snapshot> {
    let all = places(&of, "");
    let change = (proptest::sample::select(all), other_value());
    proptest::collection::vec(change, 0..20).prop_map(move |changes| {
        let mut now = of.clone();
        for (place, value) in changes {
            let mut edited = now.clone();
            let Some(found) = edited.pointer_mut(&place) else { continue };
            *found = value;
            if Snapshot::parse(edited.to_string().as_bytes()).is_ok() {
                now = edited;
            }
        }
        snapshot(&now)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_snapshot_makes_a_rule_panic(now in damaged(healthy()), then in damaged(before())) {
        let _ = examine(&now, Some(&then));
        let _ = examine(&then, Some(&now));
        let _ = examine(&now, None);
    }
}

#[test]
fn unknown_values_are_attributed_to_kernel_driver_or_permission() {
    let mut of = healthy();
    let unknown = |why: Value| json!({"unknown": {"reason": why, "message": "read it: no"}});
    set(&mut of, "/devices/0/napis/0/irq-suspend-timeout-ns", unknown(json!("unsupported-by-kernel")));
    set(&mut of, "/devices/0/flow-rules", unknown(json!("unsupported-by-driver")));
    set(&mut of, "/processes/0/files", unknown(json!({"denied": {"needs": "CAP_SYS_PTRACE"}})));
    let report = examine(&snapshot(&of), None);
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.id).collect();
    assert_eq!(found, ABOUT_THE_UNKNOWN);
    let texts: Vec<&str> = report.findings.iter().map(|finding| finding.observed.as_str()).collect();
    assert_eq!(
        texts,
        ["Linux 6.18.4-amd64 has no irq-suspend-timeout", "no flow rules", "epolls and sockets cannot be read"]
    );
}

#[test]
fn the_published_document_matches_the_rules() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md");
    let text = quell_host::findings::markdown();
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(written, text, "QUELL_WRITE_DOCS=1 cargo test -p quell-host --test all findings:: writes it");
}
