//! The recorded texts of all findings, with their fixes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::causes::server;
use crate::snapshots::{self, Edit, before, healthy, set, snapshot};
use quell_host::behavior::{Behavior, EpollWaits, ReadyCause, ReadyGroup};
use quell_host::findings::{Finding, examine, examine_observed, rule};
use quell_host::snapshot::WatchedKind;
use quell_linux::{NapiId, Pid};
use serde_json::json;

/// What an observation of epoll 5 finds, as [`finding_texts`] shows it. With `outer`, epoll 3 watches it.
fn observed(outer: bool, ready: Option<(ReadyCause, usize)>, waits: Option<EpollWaits>, counted: bool) -> String {
    observed_blocked(outer, ready, waits, (counted, 0))
}

fn observed_blocked(
    outer: bool,
    ready: Option<(ReadyCause, usize)>,
    waits: Option<EpollWaits>,
    (counted, blocked): (bool, u64),
) -> String {
    let mut now = server();
    set(&mut now, "/processes/0/threads/1/epoll-wait", json!(null));
    if outer {
        let inner = json!({"fd": 5, "events": 1, "file": {"other": {"kind": "epoll", "ready": false}}});
        set(&mut now, "/processes/0/files/epolls/0/targets/-", inner);
    }
    // Its rule is about connections without EPOLLET.
    if waits.is_some_and(|waits| waits.after_partial_read > 0) {
        set(&mut now, "/processes/0/files/epolls/1/targets/1/events", json!(1));
    }
    let pid = Pid::from_kernel(4_242).unwrap();
    let slept_in = EpollWaits { sleeping: 50, is_slept_in: true, ..EpollWaits::default() };
    let group = |(cause, count)| ReadyGroup { cause, fd: 9, count, unconfirmed: (count == 0).then_some("not asked") };
    let behavior = Behavior {
        received: BTreeMap::new(),
        programs: [pid].into(),
        observed: Duration::from_millis(500),
        waits_observed: Duration::from_millis(500),
        samples: 50,
        ready: ready.map(|ready| ((pid, 5), vec![group(ready)])).into_iter().collect(),
        blocked: [((pid, 5), [(NapiId::from_kernel(8_193).unwrap(), blocked)].into())].into(),
        waits: [((pid, 5), waits.unwrap_or(slept_in)), ((pid, 3), slept_in), ((pid, 8), slept_in)].into(),
        not_counted: (!counted).then(|| "needs CAP_BPF".to_owned()),
    };
    let findings = examine_observed(&snapshot(&now), None, &BTreeMap::new(), Some(&behavior)).findings;
    findings.iter().filter(|finding| rule(finding.id).is_some_and(|rule| !rule.needs_two)).map(in_words).collect()
}

fn in_words(finding: &Finding) -> String {
    let fix: String = finding.fix.iter().map(|fix| format!("  => {fix}\n")).collect();
    format!("{} {}: {}\n{fix}", finding.severity.word(), finding.id, finding.observed)
}

/// The texts of all findings: those of each edit, and those of observations.
fn finding_texts() -> String {
    let mut texts = BTreeSet::new();
    for Edit { rule, severity, now, then } in snapshots::edits() {
        let (mut later, mut earlier) = (healthy(), before());
        now.into_iter().for_each(|(place, value)| set(&mut later, place, value));
        then.into_iter().for_each(|(place, value)| set(&mut earlier, place, value));
        let findings = examine(&snapshot(&later), Some(&snapshot(&earlier))).findings;
        let found = findings.iter().filter(|finding| (finding.id, finding.severity) == (rule, severity));
        texts.extend(found.map(in_words));
    }
    let causes =
        [ReadyCause::Writable, ReadyCause::HalfClosed, ReadyCause::Closed, ReadyCause::Listener, ReadyCause::Unread];
    let kinds = [
        WatchedKind::EventFd,
        WatchedKind::TimerFd,
        WatchedKind::SignalFd,
        WatchedKind::Pipe,
        WatchedKind::Epoll,
        WatchedKind::OtherSocket,
        WatchedKind::Named("[userfaultfd]".to_owned()),
        WatchedKind::Unnamed,
    ];
    let ready = causes.into_iter().chain(kinds.map(ReadyCause::File)).map(|cause| (cause, 1));
    let ready = ready.chain([(ReadyCause::Writable, 0), (ReadyCause::Writable, 3)]);
    texts.extend(ready.map(|ready| observed(false, Some(ready), None, true)));
    let waits = |zero, zero_empty, sleeping, threads| {
        Some(EpollWaits { zero, zero_empty, sleeping, threads, ..EpollWaits::default() })
    };
    let frames = Some(EpollWaits { zero: 10, threads: 1, ..EpollWaits::default() });
    let elsewhere = Some(EpollWaits { zero: 500, sleeping_elsewhere: 1, threads: 1, ..EpollWaits::default() });
    for (outer, waits) in [
        (true, waits(500, 0, 0, 1)),
        (true, waits(500, 250, 0, 1)),
        (true, waits(0, 0, 500, 1)),
        (false, Some(EpollWaits { zero: 500, polled: 500, ..EpollWaits::default() })),
        (false, Some(EpollWaits { sleeping: 500, polled: 500, ..EpollWaits::default() })),
        (false, Some(EpollWaits { sleeping: 500, sleeping_elsewhere: 1, ..EpollWaits::default() })),
        (false, waits(500, 490, 0, 1)),
        (false, waits(500, 490, 5, 2)),
        (false, waits(500, 10, 0, 1)),
        (false, elsewhere),
        (false, frames),
        (
            false,
            Some(EpollWaits { sleeping: 400, read_of_others: 500, read_of_accepted: 500, ..EpollWaits::default() }),
        ),
        (false, Some(EpollWaits { sleeping: 400, read_of_others: 500, ..EpollWaits::default() })),
        (
            false,
            Some(EpollWaits {
                sleeping: 1_300,
                slept: 300,
                after_partial_read: 900,
                partial_reading: Duration::from_millis(330),
                ..EpollWaits::default()
            }),
        ),
        (false, waits(1, 1, 0, 1)),
        (
            false,
            Some(EpollWaits {
                sleeping: 60_300,
                slept: 300,
                returned: 60_200,
                busy: Duration::from_millis(240),
                read_of_queues: 300,
                is_slept_in: true,
                ..EpollWaits::default()
            }),
        ),
    ] {
        texts.insert(observed(outer, None, waits, true));
    }
    texts.insert(observed_blocked(false, None, None, (true, 4)));
    texts.extend([true, false].map(|outer| observed(outer, None, waits(0, 0, 0, 1), false)));
    assert_eq!(observed(true, None, None, true), "", "a program that sleeps in its epoll");
    texts.into_iter().collect()
}

/// Reviewed by eye: whether the cause and the advice are true, and numbers agree with their nouns.
#[test]
fn the_texts_of_findings_are_the_recorded_ones() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/finding-texts.txt");
    let texts = finding_texts();
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        std::fs::write(path, &texts).unwrap();
    }
    let recorded = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(texts, recorded, "QUELL_WRITE_DOCS=1 cargo test -p quell-host --test all finding_texts:: records them");
}

/// A new advice fails here until an edit or an observation causes it.
#[test]
fn every_advice_is_recorded() {
    let recorded = finding_texts();
    let tests = concat!(include_str!("causes.rs"), include_str!("finding_texts.rs"), include_str!("owned_settings.rs"));
    let mut missing = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/findings")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for call in code.split("Fix::advice(").skip(1).chain(code.split("first: ").skip(1)) {
            let call = call.trim_start().trim_start_matches("format!(").trim_start();
            let Some(literal) = call.strip_prefix('"').and_then(|call| call.split('"').next()) else { continue };
            let words = literal.split("\\\n").map(str::trim_start).collect::<String>();
            let longest = words.split(['{', '}']).step_by(2).max_by_key(|part| part.len()).unwrap().trim();
            if !recorded.contains(longest) && !tests.contains(longest) {
                missing.push(words.clone());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
