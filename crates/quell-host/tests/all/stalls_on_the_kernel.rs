//! Predicts which programs suspension would stall, from an observation of them before anything is set. Each shape has a
//! neighbour that is harmless. Needs root and Linux 6.13.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use quell_host::attach::consequences::consequences_observed;
use quell_host::attach::{AttachRequest, EpollsSetBy, Selection, Targets, observe, plan};
use quell_host::behavior::{self, Behavior};
use quell_host::findings::{Finding, Severity};
use quell_linux::Pid;
use quell_linux::pidfd::Signal;
use quell_linux::process::{Output, Spawn};
use quell_test_support::lab::TestLab;
use quell_test_support::shapes::{
    Shape, answering, busy, connect, half_closed, requesting, reset, sending, sent, urgent, used,
};
use quell_test_support::{Lacks, skip};

const READY: &str = "ready-object-holds-suspension";
const BLOCKS: &str = "blocks-on-polled-queue";
const ZERO: &str = "waits-with-timeout-zero";
const OTHERS: &str = "other-events-hold-suspension";
const PARTIAL: &str = "partial-reads-hold-suspension";

/// Makes the connections of a program.
type Connections = fn() -> Vec<TcpStream>;

/// Findings of one of the five rules that `suspend20` would cause.
fn predicted(lab: &mut TestLab, shape: &'static str, connections: Connections) -> Option<(Vec<Finding>, Behavior)> {
    let program = Shape::start(lab, shape, connections)?;
    Some(observed(program.child.pid()))
}

fn observed(pid: Pid) -> (Vec<Finding>, Behavior) {
    let (mut findings, behavior) = caused(&[pid].into());
    findings.retain(|finding| [READY, ZERO, BLOCKS, OTHERS, PARTIAL].contains(&finding.id));
    (findings, behavior)
}

/// All findings that `suspend20` would cause.
fn caused(pids: &BTreeSet<Pid>) -> (Vec<Finding>, Behavior) {
    let snapshot = observe().unwrap();
    let request = AttachRequest { mode: "suspend20".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let plan = plan(&snapshot, None, pids, &request);
    assert!(plan.queues().next().is_some(), "{plan:?}");
    let behavior = behavior::observe(&snapshot, pids, true);
    (consequences_observed(&snapshot, None, &plan, Some(&behavior)), behavior)
}

/// [`predicted`], if calls can be counted.
fn counted(lab: &mut TestLab, shape: &'static str, connections: Connections) -> Option<(Vec<Finding>, Behavior)> {
    let (findings, behavior) = predicted(lab, shape, connections)?;
    if behavior.not_counted.is_some() {
        skip(Lacks::KernelFeature, "calls cannot be counted");
        return None;
    }
    Some((findings, behavior))
}

/// Expects that each of these shapes is refused by this rule, with these words.
fn assert_refused(test: &str, id: &str, shapes: &[(&'static str, Connections, &str)]) {
    for &(shape, connections, words) in shapes {
        let Some(mut lab) = TestLab::raise_beside_others(test, 1) else { return };
        let Some((findings, behavior)) = predicted(&mut lab, shape, connections) else { return };
        if id != READY && behavior.not_counted.is_some() {
            return skip(Lacks::KernelFeature, "calls cannot be counted");
        }
        let [finding] = &findings[..] else { panic!("{shape}: {findings:#?} {behavior:#?}") };
        assert!(finding.id == id && finding.predicts_stall(), "{shape}: {finding:#?}");
        assert!(finding.observed.contains(words), "{shape}: {}", finding.observed);
    }
}

/// Expects that none of the rules has a finding.
fn assert_silent(test: &str, shapes: &[(&'static str, Connections)]) {
    for &(shape, connections) in shapes {
        let Some(mut lab) = TestLab::raise_beside_others(test, 1) else { return };
        let Some((findings, behavior)) = predicted(&mut lab, shape, connections) else { return };
        assert_eq!(findings, [], "{shape}: {behavior:#?}");
    }
}

fn none() -> Vec<TcpStream> {
    Vec::new()
}

#[test]
fn a_socket_that_stays_ready_is_refused() {
    assert_refused(
        "stall-ready",
        READY,
        &[
            ("writable", none, "is registered for EPOLLOUT and can be written"),
            ("connections-for-out", || (0..3).map(|_| used()).collect(), "and 2 more like it"),
            ("half-closed", || vec![half_closed()], "has closed, and the socket is still registered"),
            ("half-closed-rdhup", || vec![half_closed()], "has closed, and the socket is still registered"),
            ("reset", reset, "is closed or never existed"),
            ("listener", || vec![connect()], "has connections that the program does not accept"),
            ("unread", || vec![sent()], "has data or errors that the program does not read"),
            ("unread", || vec![sending()], "has data or errors that the program does not read"),
            ("error-queue", none, "has data or errors that the program does not read"),
            ("eventfd", none, "ready in each of"),
        ],
    );
}

#[test]
fn a_socket_that_stays_ready_is_no_predicted_stall_of_a_program_that_does_not_wait() {
    let Some(mut lab) = TestLab::raise_beside_others("fc-stopped", 1) else { return };
    let Some(program) = Shape::start(&mut lab, "writable", none) else { return };
    program.child.pidfd().signal(Signal::STOP).unwrap();
    let (findings, behavior) = observed(program.child.pid());
    program.child.pidfd().signal(Signal::CONT).unwrap();
    if behavior.not_counted.is_some() {
        return skip(Lacks::KernelFeature, "calls cannot be counted");
    }
    let ready = findings.iter().find(|finding| finding.id == READY).unwrap_or_else(|| panic!("{findings:#?}"));
    assert_eq!(ready.severity, Severity::Warning, "{ready:#?}");
    assert!(ready.observed.contains("no thread called epoll_wait"), "{ready:#?}");
    assert!(!findings.iter().any(Finding::predicts_stall), "{findings:#?}");
}

#[test]
fn a_socket_that_is_reported_once_or_is_read_is_not_a_finding() {
    assert_silent(
        "stall-not-ready",
        &[
            ("writable-edge", none),
            ("writable-oneshot", none),
            ("half-closed-edge", || vec![half_closed()]),
            ("eventfd-edge", none),
            ("plain", || busy(16)),
            ("plain", || vec![used()]),
        ],
    );
}

#[test]
fn a_file_of_any_kind_that_stays_ready_is_refused() {
    assert_refused(
        "stall-kinds",
        READY,
        &[
            ("signalfd", none, "a signalfd; ready in each of"),
            ("pidfd", none, "a pidfd; ready in each of"),
            ("number-reused", none, "a pipe; ready in each of"),
            ("left-to-child", || vec![half_closed()], "has closed, and the socket is still registered"),
            ("terminal", none, "is registered for EPOLLOUT and can be written"),
            ("message-queue", none, "is registered for EPOLLOUT and can be written"),
            ("unconnected", none, "is closed or never existed"),
        ],
    );
}

#[test]
fn a_stopped_program_that_reads_nothing_is_not_refused() {
    let Some(mut lab) = TestLab::raise_beside_others("stall-stopped", 1) else { return };
    let mut connection = None;
    let connections = || {
        connection = Some(used());
        Vec::new()
    };
    let Some(program) = Shape::start(&mut lab, "plain", connections) else { return };
    program.child.pidfd().signal(Signal::STOP).unwrap();
    connection.unwrap().shutdown(Shutdown::Write).unwrap();
    let (findings, behavior) = observed(program.child.pid());
    program.child.pidfd().signal(Signal::CONT).unwrap();
    if behavior.not_counted.is_some() {
        return skip(Lacks::KernelFeature, "calls cannot be counted");
    }
    assert!(!behavior.ready.is_empty(), "{behavior:#?}");
    assert!(!findings.iter().any(Finding::predicts_stall), "{findings:#?}");
    assert!(findings.iter().any(|finding| finding.observed.contains("stopped or busy")), "{findings:#?}");
}

#[test]
fn events_of_sockets_that_sock_diag_does_not_list_are_refused() {
    assert_refused(
        "stall-hidden",
        READY,
        &[
            ("notifications", none, "has data or errors that the program does not read"),
            ("urgent", || vec![urgent()], "is registered for EPOLLPRI and has urgent data"),
        ],
    );
}

#[test]
fn files_without_events_are_not_a_finding() {
    assert_silent(
        "stall-kinds-idle",
        &[
            ("signalfd-idle", none),
            ("pidfd-running", none),
            ("number-reused-idle", none),
            ("terminal-idle", none),
            ("message-queue-idle", none),
            ("plain", || vec![urgent()]),
        ],
    );
}

#[test]
fn an_epoll_with_several_descriptors_is_one_epoll() {
    for shape in ["duplicate", "inherited", "served-by-child"] {
        let Some(mut lab) = TestLab::raise_beside_others("stall-shared", 1) else { return };
        let Some(program) = Shape::start(&mut lab, shape, none) else { return };
        let pids = Targets::find(Selection::Processes(vec![program.child.pid()])).unwrap().pids();
        let (findings, behavior) = caused(&pids);
        let ids: Vec<&str> = findings.iter().map(|finding| finding.id).collect();
        assert!(
            ids.iter().all(|id| ![READY, ZERO, "napi-shared-by-workers"].contains(id)),
            "{shape}: {ids:?} {behavior:#?}"
        );
    }
}

#[test]
fn waits_with_timeout_zero_are_refused() {
    assert_refused(
        "stall-zero",
        ZERO,
        &[
            ("nested", none, "the program sleeps in epoll"),
            ("nested-no-limit", none, "slept; the program sleeps in epoll"),
            ("nested-in-poll", none, "the program sleeps in poll, which watches it"),
            ("in-poll-no-limit", none, "slept; the program sleeps in poll, which watches it"),
            ("in-turn", none, "2 threads call in turn"),
            ("spin", none, "the thread spins"),
            ("tick", none, "1 thread slept elsewhere for most of the time"),
        ],
    );
}

#[test]
fn a_spin_before_each_wait_is_found() {
    let Some(mut lab) = TestLab::raise_beside_others("stall-spin", 1) else { return };
    let Some((findings, behavior)) = counted(&mut lab, "spin-then-wait", none) else { return };
    let [finding] = &findings[..] else { panic!("{findings:#?} {behavior:#?}") };
    assert!(finding.id == ZERO && finding.observed.ends_with("before it waits"), "{finding:#?} {behavior:#?}");
}

/// Measured: 60 frames/s answer in 7.6 ms (median) under base and 13.8 ms under suspend20, 20 frames/s in 25 ms under both.
#[test]
fn frames_that_are_longer_than_the_suspension_are_not_refused() {
    let Some(mut lab) = TestLab::raise_beside_others("stall-frames", 1) else { return };
    let Some((findings, behavior)) = counted(&mut lab, "slow-tick", none) else { return };
    let [finding] = &findings[..] else { panic!("{findings:#?} {behavior:#?}") };
    assert_eq!((finding.id, finding.severity), (ZERO, Severity::Note), "{finding:#?} {behavior:#?}");
    assert!(finding.observed.ends_with("apart, and packets wait for up to 20 ms"), "{finding:#?}");
}

/// The socket has data in every sample.
#[test]
fn a_socket_that_is_read_at_regular_times_is_not_a_finding() {
    let Some(mut lab) = TestLab::raise_beside_others("stall-read", 1) else { return };
    let Some((findings, behavior)) = counted(&mut lab, "refilled", none) else { return };
    assert_eq!(behavior.ready, BTreeMap::new(), "{behavior:#?}");
    assert!(findings.iter().all(|finding| finding.id != READY), "{findings:#?}");
}

/// A suspension that lasts longer than the pause between two calls ends with its time.
#[test]
fn an_object_that_stays_ready_in_a_program_that_looks_rarely_is_a_note() {
    let Some(mut lab) = TestLab::raise_beside_others("stall-rare", 1) else { return };
    let Some((findings, _)) = counted(&mut lab, "slow-tick-writable", none) else { return };
    let ready = findings.iter().find(|finding| finding.id == READY).unwrap_or_else(|| panic!("{findings:#?}"));
    assert_eq!(ready.severity, Severity::Note, "{ready:#?}");
    assert!(ready.observed.ends_with("apart, and packets wait for up to 20 ms"), "{ready:#?}");
}

/// A short wait instead of timeout 0 ends the suspension only if it finds no events.
#[test]
fn a_shorter_wait_is_advised_only_if_the_program_also_calls_without_events() {
    for (shape, is_advised) in
        [("nested", false), ("nested-in-poll", false), ("nested-drains", true), ("tick", true), ("spin", false)]
    {
        let Some(mut lab) = TestLab::raise_beside_others("stall-advice", 1) else { return };
        let Some((findings, behavior)) = predicted(&mut lab, shape, none) else { return };
        if behavior.not_counted.is_some() {
            return skip(Lacks::KernelFeature, "calls cannot be counted");
        }
        let [finding] = &findings[..] else { panic!("{shape}: {findings:#?} {behavior:#?}") };
        let advice = finding.fix.iter().map(ToString::to_string).collect::<String>();
        assert_eq!(advice.contains("`quell run`"), is_advised, "{shape}: {finding:#?} {behavior:#?}");
    }
}

#[test]
fn a_program_that_sleeps_for_another_server_in_its_handler_is_refused() {
    assert_refused(
        "stall-asks",
        BLOCKS,
        &[
            ("asks", answering, "a thread slept for a socket"),
            ("asks-by-poll", answering, "a thread slept for a socket"),
        ],
    );
}

#[test]
fn full_busy_polling_delays_programs_that_sleep_outside_of_the_epoll_and_deferral_does_not() {
    for (shape, id) in [("asks", BLOCKS), ("nested", ZERO)] {
        let Some(mut lab) = TestLab::raise_beside_others("stall-modes", 1) else { return };
        let Some(program) = Shape::start(&mut lab, shape, answering) else { return };
        let pids = [program.child.pid()].into();
        let (_, behavior) = caused(&pids);
        if behavior.not_counted.is_some() {
            return skip(Lacks::KernelFeature, "calls cannot be counted");
        }
        for mode in ["suspend20", "fullbusy", "napibusy", "defer200", "base"] {
            let snapshot = observe().unwrap();
            let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
            let plan = plan(&snapshot, None, &pids, &request);
            let findings = consequences_observed(&snapshot, None, &plan, Some(&behavior));
            let refuses = findings.iter().any(|finding| finding.id == id && finding.predicts_stall());
            assert_eq!(refuses, ["suspend20", "fullbusy"].contains(&mode), "{shape}, {mode}: {findings:#?}");
        }
    }
}

#[test]
fn a_program_that_sleeps_for_another_queue_or_in_another_thread_is_not_refused() {
    assert_silent("stall-asks-not", &[("asks-loopback", none), ("asks-in-thread", answering)]);
}

#[test]
fn a_program_that_other_sources_keep_busy_is_refused() {
    let words = "reads of accepted connections without a queue";
    assert_refused("stall-others", OTHERS, &[("local-clients", none, words)]);
}

#[test]
fn answers_of_local_servers_and_clients_that_pause_are_not_a_finding() {
    assert_silent(
        "stall-others-not",
        &[("local-upstream", || busy(16)), ("local-upstream", none), ("pausing-local-clients", none)],
    );
}

#[test]
fn a_slow_program_that_reads_requests_in_parts_is_refused() {
    let words = "began after a read that left data in its connection";
    assert_refused("stall-partial", PARTIAL, &[("partial", || vec![requesting()], words)]);
    assert_silent("stall-partial-not", &[("partial-fast", || vec![requesting()]), ("plain", || vec![requesting()])]);
}

#[test]
fn waits_that_sleep_are_not_a_finding() {
    assert_silent("stall-waits", &[("nested-waits", none), ("one-ms", none), ("one-sleeps", none), ("plain", none)]);
}

#[test]
fn without_counts_the_sleeping_threads_are_sampled() {
    for (shape, expected) in [("nested", Some(Severity::Serious)), ("spin", Some(Severity::Warning)), ("plain", None)] {
        let Some(mut lab) = TestLab::raise_beside_others("stall-sampled", 1) else { return };
        let Some(program) = Shape::start(&mut lab, shape, none) else { return };
        let snapshot = observe().unwrap();
        let pids = [program.child.pid()].into();
        let behavior = behavior::observe(&snapshot, &pids, false);
        let request = AttachRequest { mode: "suspend20".parse().unwrap(), epolls: EpollsSetBy::Attachment };
        let plan = plan(&snapshot, None, &pids, &request);
        let findings = consequences_observed(&snapshot, None, &plan, Some(&behavior));
        let found = findings.iter().find(|finding| finding.id == ZERO);
        assert_eq!(found.map(|finding| finding.severity), expected, "{shape}: {findings:#?}");
    }
}

/// `busy-polling` makes HAProxy call epoll_wait with timeout 0 until it has events.
#[test]
fn haproxy_with_busy_polling_is_refused() {
    for (global, id) in [("busy-polling", Some(ZERO)), ("", None)] {
        let Some(mut lab) = TestLab::raise_beside_others("stall-haproxy", 1) else { return };
        if Command::new("haproxy").arg("-v").output().is_err() {
            return skip(Lacks::Server("haproxy"), "haproxy is not installed");
        }
        let mut config = tempfile::NamedTempFile::new().unwrap();
        let listens = "bind 192.0.2.1:7100\n  http-request return status 200\n";
        write!(
            config,
            "global\n  nbthread 1\n  {global}\ndefaults\n  mode http\n  timeout client 1h\n  timeout server 1h\n  \
             timeout connect 1h\nfrontend test\n  {listens}"
        )
        .unwrap();
        let arguments = ["-db", "-f", config.path().to_str().unwrap()].map(str::to_owned);
        let child = lab.start(Spawn::new("haproxy").args(arguments).stderr(Output::Tail(2_000)));
        let mut connection = lab.client.run(connect).unwrap();
        let mut ask = move || -> std::io::Result<()> {
            connection.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")?;
            connection.read(&mut [0; 1_024]).map(drop)
        };
        ask().unwrap();
        let client = std::thread::spawn(move || while ask().is_ok() {});
        let (findings, behavior) = observed(child.pid());
        if behavior.not_counted.is_some() {
            return skip(Lacks::KernelFeature, "calls cannot be counted");
        }
        assert_eq!(findings.first().map(|finding| finding.id), id, "{global}: {findings:#?} {behavior:#?}");
        assert!(findings.iter().all(Finding::predicts_stall), "{findings:#?}");
        child.pidfd().signal(Signal::KILL).unwrap();
        drop(client.join());
    }
}

/// The kernel shows `net.core.busy_poll` only in the initial namespace. While it is set, no socket is queried.
#[test]
fn system_wide_busy_polling_is_known_in_every_network_namespace() {
    let Some(lab) = TestLab::raise_beside_others("stall-sysctl", 1) else { return };
    let here = observe().unwrap().sysctls.busy_poll_us;
    assert_eq!(lab.server.run(|| observe().unwrap().sysctls.busy_poll_us).unwrap(), here);
}
