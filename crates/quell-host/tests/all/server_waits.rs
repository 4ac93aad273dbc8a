//! How the servers of recorded snapshots wait without an epoll, as `quell` and the refusal of `attach` name it, and servers
//! for which no measurement is the next step.

use quell_change::journal::{Purpose, StallRecord, TargetProgram};
use quell_host::attach::own_work::OwnWork;
use quell_host::servers::{NextStep, ServerWait};
use quell_mode::DeliveryMode;
use serde_json::{Value, json};

use crate::attach_plans::{plan_between, plan_of};
use crate::servers::{Facts, attached, only, pid, plain, without_epolls};
use crate::snapshots::{before, healthy, set};

#[test]
fn a_program_without_epoll_is_measured_with_the_modes_that_need_none() {
    let mut host = plain();
    (1..3).for_each(|epoll| set(&mut host, &format!("/processes/0/files/epolls/{epoll}/targets"), json!([])));
    for thread in [1, 2] {
        set(&mut host, &format!("/processes/0/threads/{thread}/epoll-wait"), json!(null));
        host["processes"][0]["threads"][thread]["file-wait"] = json!("poll");
    }
    let server = only(&host, &Facts::default());
    assert_eq!((server.waits, server.workers), (ServerWait::Poll, 2));
    assert_eq!((server.next, server.modes), (NextStep::Measure { steered: false }, without_epolls()));
}

/// No epoll watches the connections, and two threads wait in these calls.
fn waiting_in(calls: [Value; 2]) -> Value {
    let mut host = plain();
    (1..3).for_each(|epoll| set(&mut host, &format!("/processes/0/files/epolls/{epoll}/targets"), json!([])));
    for (thread, call) in [1, 2].into_iter().zip(calls) {
        set(&mut host, &format!("/processes/0/threads/{thread}/epoll-wait"), json!(null));
        host["processes"][0]["threads"][thread]["file-wait"] = call;
    }
    host
}

fn fd_of(socket: usize) -> Value {
    healthy()["processes"][0]["files"]["sockets"][socket]["fd"].clone()
}

#[test]
fn threads_that_wait_for_data_of_clients_decide_how_a_program_waits() {
    let receive = || json!({"receive": {"fd": fd_of(1)}});
    let accept = || json!({"accept": {"fd": fd_of(4)}});
    for (calls, waits, reason) in [
        ([json!("poll"), receive()], ServerWait::Receive, "it waits in recv(2)"),
        ([accept(), receive()], ServerWait::Receive, "it waits in recv(2)"),
        ([json!(null), accept()], ServerWait::Receive, "it waits in accept(2)"),
        ([json!("poll"), accept()], ServerWait::Poll, "it waits in poll(2)"),
    ] {
        let host = waiting_in(calls);
        let server = only(&host, &Facts::default());
        assert_eq!((server.waits, &server.modes), (waits, &without_epolls()));
        let refused = plan_of(&host, "suspend200").impossible[0].reason.clone();
        assert!(refused.starts_with(reason), "{refused}");
        assert_eq!(refused.contains("sockpoll50, which polls in recv(2)"), waits == ServerWait::Receive, "{refused}");
        let modes: Vec<String> = server.modes[1..].iter().map(ToString::to_string).collect();
        assert!(refused.contains(&format!("({}) work", modes.join(", "))), "{refused}: the modes of `quell`");
    }
}

#[test]
fn a_thread_that_receives_from_another_server_does_not_decide_how_a_program_waits() {
    let mut host = waiting_in([json!("poll"), json!({"receive": {"fd": fd_of(1)}})]);
    let inode = host["processes"][0]["files"]["sockets"][1]["inode"].clone();
    let sockets = host["sockets"].as_array_mut().unwrap();
    sockets.iter_mut().find(|socket| socket["inode"] == inode).unwrap()["local"] = json!("192.0.2.1:40000");
    assert_eq!(only(&host, &Facts::default()).waits, ServerWait::Poll);
}

/// All connections have this number of unread bytes.
fn unread(mut host: Value, bytes: u32) -> Value {
    for socket in host["sockets"].as_array_mut().unwrap() {
        if socket["state"] != "listen" {
            socket["receive-queue"] = json!(bytes);
        }
    }
    host
}

#[test]
fn no_mode_helps_a_program_that_does_not_read_its_connections() {
    let mut accepts = waiting_in([json!(null), json!(null)]);
    for thread in [1, 2] {
        set(&mut accepts, &format!("/processes/0/threads/{thread}/file-wait"), json!(null));
    }
    let working = accepts.clone();
    for thread in accepts["processes"][0]["threads"].as_array_mut().unwrap() {
        thread["run-ns"] = json!(7);
    }
    let mut idle = before();
    for thread in idle["processes"][0]["threads"].as_array_mut().unwrap() {
        thread["run-ns"] = json!(7);
    }
    let between = |before: &Value, host: &Value, then: u32, now: u32| {
        only(&unread(host.clone(), now), &Facts { before: Some(unread(before.clone(), then)), ..Facts::default() })
    };
    let of = |then: u32, now: u32| between(&idle, &accepts, then, now);
    for (then, now) in [(5, 5), (5, 9)] {
        let server = of(then, now);
        assert_eq!((server.waits, server.next), (ServerWait::Nothing, NextStep::NoModeHelps));
        let refused = plan_between(&unread(idle.clone(), then), &unread(accepts.clone(), now), "suspend200");
        assert_eq!(
            refused.impossible[0].reason,
            "it does not read the connections that it accepts; no mode has an effect on what is not read"
        );
    }
    let next_requests = between(&before(), &working, 5, 5);
    assert_eq!(next_requests.waits, ServerWait::Unknown, "a program that works reads, and the next requests are there");
    for (then, now) in [(0, 5), (9, 5), (5, 0)] {
        let server = of(then, now);
        assert_eq!((server.waits, server.next), (ServerWait::Unknown, NextStep::Measure { steered: false }));
    }
}

#[test]
fn nothing_is_to_gain_by_a_server_that_works_for_milliseconds_per_packet_and_has_no_serious_problem() {
    let next = |host: &Value, packets_per_s, worked_ms| {
        let facts = Facts { packets_per_s: Some(packets_per_s), worked_ms: Some(worked_ms), ..Facts::default() };
        only(host, &facts).next
    };
    let work = NextStep::NothingToGain(OwnWork { cpu_ns_per_packet: 25_000_000 });
    assert_eq!(next(&plain(), 40, 1_000), work);
    let without_epoll = waiting_in([json!("poll"), json!("poll")]);
    assert_eq!(next(&without_epoll, 40, 1_000), work);
    let measure = NextStep::Measure { steered: false };
    assert_eq!(next(&plain(), 1_000, 1_000), measure);
    let saturated = |unread_bytes| {
        let mut host = unread(plain(), unread_bytes);
        host["processes"][0]["threads"][1]["run-ns"] = json!(2_000_000_000_000_u64);
        next(&host, 40, 0)
    };
    assert!(matches!(saturated(5), NextStep::NothingToGain(_)), "requests wait while its threads do not sleep");
    assert_eq!(saturated(0), measure, "threads that do not sleep may spin");
    let measured = Facts { packets_per_s: Some(40), worked_ms: Some(1_000), ..Facts::default() };
    let has_mode = Facts { attached: vec![(4242, attached("suspend200", false))], ..measured };
    let server = only(&plain(), &has_mode);
    assert_eq!(server.next, NextStep::Check);
}

/// The record of a mode that was reverted because of stalls.
fn stalled(start_time_ticks: u64) -> StallRecord {
    let program = TargetProgram { pid: pid(4242), start_time_ticks, name: "memcached".to_owned() };
    StallRecord {
        journal_name: String::new(),
        boot_id: "boot".to_owned(),
        purpose: Purpose::Attachment { mode: suspend200() },
        programs: vec![program],
        stalls: 3,
        last_boot_ns: 1,
        cause: Some("ready-object-holds-suspension".to_owned()),
        reverted: true,
    }
}

fn suspend200() -> DeliveryMode {
    "suspend200".parse().unwrap()
}

#[test]
fn after_stalls_the_next_step_is_their_cause_unless_the_program_is_another_one_or_has_a_mode() {
    let started = healthy()["processes"][0]["start-time-ticks"].as_u64().unwrap();
    let next = |record: StallRecord, attached: Vec<_>| {
        only(&plain(), &Facts { stalls: vec![record], attached, ..Facts::default() }).next
    };
    let cause = stalled(started).cause;
    assert_eq!(next(stalled(started), Vec::new()), NextStep::FindStall { mode: suspend200(), cause });
    let measure = NextStep::Measure { steered: false };
    assert_eq!(next(stalled(started + 1), Vec::new()), measure, "the program was started again");
    assert_eq!(next(StallRecord { reverted: false, ..stalled(started) }, Vec::new()), measure);
    let has_mode = vec![(4242, attached("defer20", false))];
    assert!(!matches!(next(stalled(started), has_mode), NextStep::FindStall { .. }));
}

#[test]
fn a_server_has_few_packets_if_their_delivery_takes_next_to_no_cpu_time() {
    let few = |packets_per_s| only(&plain(), &Facts { packets_per_s, ..Facts::default() }).few_packets_per_s;
    assert_eq!((few(Some(498)), few(Some(500))), (Some(498), None));
    assert_eq!(few(None), None, "they were not counted");
}
