//! Plans for programs that no mode, or not every mode, can help: they wait in another call than the one in which the mode
//! polls, or no queue delivers their packets.

use quell_host::attach::no_queue::NoQueueCause;
use quell_host::attach::plan;
use quell_host::attach::plan::Limitation;
use quell_host::servers::NextStep;
use quell_linux::Pid;
use serde_json::{Value, json};

use crate::attach_plans::{MEMCACHED, plan_of, request, untouched, with_ring};
use crate::servers::{Facts, only};
use crate::snapshots::{healthy, set, snapshot};

/// The program watches no socket by epoll and waits in this call.
fn without_epoll(wait: Value) -> Value {
    let mut host = untouched();
    let other = json!([{"fd": 9, "events": 1, "file": {"other": {"kind": "event-fd", "ready": false}}}]);
    for epoll in 0..3 {
        set(&mut host, &format!("/processes/0/files/epolls/{epoll}/targets"), other.clone());
    }
    for thread in 0..3 {
        set(&mut host, &format!("/processes/0/threads/{thread}/epoll-wait"), json!(null));
    }
    host["processes"][0]["threads"][1]["file-wait"] = wait;
    host
}

#[test]
fn a_program_that_waits_without_epoll_is_refused_by_modes_that_poll() {
    let fd = healthy()["processes"][0]["files"]["sockets"][1]["fd"].clone();
    let waits = [
        (json!("poll"), "waits in poll(2): only epoll polls a queue"),
        (json!("select"), "waits in select(2): only epoll polls a queue"),
        (json!({"receive": {"fd": fd}}), "waits in recv(2): only epoll polls a queue"),
        (json!({"receive": {"fd": 9}}), "no epoll watches its sockets: only epoll polls a queue"),
        (json!(null), "no epoll watches its sockets: only epoll polls a queue"),
    ];
    for (wait, why) in waits {
        let host = without_epoll(wait);
        for mode in ["suspend20", "napibusy", "fullbusy"] {
            let plan = plan_of(&host, mode);
            assert!(plan.steps.is_empty(), "{mode}: {plan:?}");
            assert!(matches!(&plan.impossible[..], [one] if one.reason.contains(why)), "{mode}: {plan:?}");
        }
        for mode in ["defer20", "threaded"] {
            let plan = plan_of(&host, mode);
            assert!(plan.impossible.is_empty() && plan.queues().count() == 2, "{mode}: {plan:?}");
            assert!(!plan.limitations.iter().any(|one| matches!(one, Limitation::NoEpoll { .. })), "{mode}: {plan:?}");
        }
    }
}

/// No packet has come through a queue.
fn silent(mut host: Value) -> Value {
    (0..5).for_each(|number| set(&mut host, &format!("/sockets/{number}/napi"), json!(null)));
    host
}

#[test]
fn an_idle_program_without_any_epoll_is_refused_by_the_call_in_which_it_waits() {
    let fd = |socket: usize| healthy()["processes"][0]["files"]["sockets"][socket]["fd"].clone();
    let waits_in = |wait: Value, mode: &str| {
        let mut host = silent(without_epoll(wait));
        set(&mut host, "/processes/0/files/epolls", json!([]));
        let impossible = plan_of(&host, mode).impossible;
        impossible.first().map(|first| first.reason.split(':').next().unwrap_or_default().to_owned())
    };
    for (wait, call) in [
        (json!("poll"), "poll(2)"),
        (json!("select"), "select(2)"),
        (json!({"receive": {"fd": fd(1)}}), "recv(2)"),
        (json!({"accept": {"fd": fd(4)}}), "accept(2)"),
    ] {
        assert_eq!(waits_in(wait.clone(), "suspend200"), Some(format!("it waits in {call}")));
        assert_eq!(waits_in(wait, "defer200"), None);
    }
    assert_eq!(waits_in(json!(null), "suspend200"), None, "it may still start");
}

#[test]
fn an_idle_program_whose_epolls_watch_all_sockets_is_refused_by_a_mode_of_sockets() {
    let why = |host: &Value| plan_of(host, "sockpoll50").impossible.first().map(|first| first.reason.clone());
    let waits = why(&silent(untouched())).unwrap();
    assert!(waits.starts_with("it waits in epoll_wait(2): sockets poll in blocking receives only"), "{waits}");
    // Of the poll that only accepts it is unknown how the connections will be received.
    let mut accepts = silent(without_epoll(json!("poll")));
    let listener = healthy()["processes"][0]["files"]["sockets"][4].clone();
    set(&mut accepts, "/processes/0/files/sockets", json!([listener]));
    assert_eq!(why(&accepts), None);
}

#[test]
fn a_mode_of_sockets_is_named_where_a_blocking_receive_is_the_obstacle() {
    let fd = healthy()["processes"][0]["files"]["sockets"][1]["fd"].clone();
    for (wait, is_named) in [(json!({"receive": {"fd": fd}}), true), (json!("poll"), false)] {
        let reason = plan_of(&without_epoll(wait), "suspend200").impossible[0].reason.clone();
        assert_eq!(reason.contains("sockpoll50, which polls in recv(2), and modes in which"), is_named, "{reason}");
    }
}

/// All sockets have this local address.
fn at(address: &str) -> Value {
    let mut host = silent(untouched());
    (0..5).for_each(|number| set(&mut host, &format!("/sockets/{number}/local"), json!(address)));
    host
}

#[test]
fn programs_whose_sockets_are_all_over_loopback_are_refused_in_every_mode() {
    for address in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        for mode in ["suspend200", "defer200", "userbusy", "threaded", "sockpoll50"] {
            let plan = plan_of(&at(address), mode);
            assert!(
                plan.steps.is_empty()
                    && matches!(&plan.impossible[..], [one] if one.reason.contains("not over loopback")),
                "{mode}: {plan:?}"
            );
        }
    }
    let host = at("127.0.0.1:80");
    assert!(plan_of(&host, "base").impossible.is_empty(), "it sets nothing");
    assert_eq!(plan_of(&host, "base").without_queue, Some(NoQueueCause::Loopback));
    let mut also_elsewhere = at("127.0.0.1:80");
    set(&mut also_elsewhere, "/sockets/0/local", json!("0.0.0.0:80"));
    assert!(plan_of(&also_elsewhere, "suspend200").impossible.is_empty());
    let mut redirected = at("127.0.0.1:80");
    set(&mut redirected, "/sockets/1/napi", json!(8_193));
    assert_eq!(plan_of(&redirected, "suspend200").queues().count(), 1, "a packet filter redirects packets to it");
}

/// A program without TCP and UDP sockets has these other ones.
fn with_other_sockets(kinds: Value) -> Value {
    let mut host = untouched();
    set(&mut host, "/processes/0/files/sockets", json!([]));
    set(&mut host, "/processes/0/files/epolls", json!([]));
    host["processes"][0]["files"]["other-sockets"] = kinds;
    host
}

#[test]
fn programs_that_listen_on_unix_or_vsock_sockets_only_are_refused_in_every_mode() {
    for kinds in [json!(["unix-listener"]), json!(["unix-listener", "unix", "netlink"]), json!(["vsock-listener"])] {
        for mode in ["suspend200", "defer200", "userbusy", "threaded", "sockpoll50"] {
            let plan = plan_of(&with_other_sockets(kinds.clone()), mode);
            assert!(
                plan.steps.is_empty()
                    && matches!(&plan.impossible[..], [one] if one.reason.contains("no mode has an effect")),
                "{mode}: {plan:?}"
            );
        }
    }
    let cause = |host: &Value| plan_of(host, "base").without_queue;
    assert_eq!(cause(&with_other_sockets(json!(["unix-listener"]))), Some(NoQueueCause::LocalListeners));
    let mut also_ring = with_other_sockets(json!(["unix-listener"]));
    set(&mut also_ring, "/processes/0/files/io-urings", json!([9]));
    assert_eq!(cause(&also_ring), Some(NoQueueCause::NoPacket), "a ring can have sockets without descriptors");
}

#[test]
fn programs_without_any_listening_or_network_socket_may_still_open_one() {
    for kinds in [json!([]), json!(["unix"]), json!(["netlink"]), json!(["unix-listener", "unknown"])] {
        let plan = plan_of(&with_other_sockets(kinds), "defer200");
        assert!(plan.impossible.is_empty(), "{plan:?}");
        assert_eq!(plan.without_queue, Some(NoQueueCause::NoNetworkSocket));
    }
}

#[test]
fn a_device_whose_packets_bypass_napi_is_named_with_the_command() {
    let without_gro = |mut host: Value| {
        set(&mut host, "/devices/0/kind", json!("veth"));
        set(&mut host, "/devices/0/napis", json!([]));
        set(&mut host, "/devices/0/features/rx-gro/active", json!(false));
        host
    };
    let cause = |host: &Value| plan_of(host, "suspend200").without_queue.unwrap();
    let text = cause(&without_gro(silent(untouched()))).to_string();
    assert!(text.starts_with("GRO is off on eth0") && text.contains("`ethtool -K eth0 gro on`"), "{text}");
    let text = cause(&silent(untouched())).to_string();
    assert!(
        text.starts_with("the packets of 4 connections pass no NAPI instance") && text.contains("driver"),
        "{text}"
    );
    for mode in ["suspend200", "defer200"] {
        assert!(plan_of(&without_gro(silent(untouched())), mode).is_without_effect(), "{mode} sets epolls at most");
    }
    assert!(plan_of(&silent(untouched()), "suspend200").is_without_effect());
    let mut idle = silent(untouched());
    (0..5).for_each(|socket| set(&mut idle, &format!("/sockets/{socket}/state"), json!("listen")));
    assert!(!plan_of(&idle, "suspend200").is_without_effect(), "its epolls get a queue with packets");
    // A bridge with this port, or a second device that has NAPI instances, can deliver the packets.
    let mut port = without_gro(silent(untouched()));
    port["devices"][0]["master"] = json!(3);
    assert!(matches!(cause(&port), NoQueueCause::Bypass { connections: 4, .. }));
    let mut second = without_gro(silent(untouched()));
    set(&mut second, "/devices/-", healthy()["devices"][0].clone());
    set(&mut second, "/devices/1/ifindex", json!(3));
    let connected = cause(&second);
    assert!(matches!(connected, NoQueueCause::GroOff { .. }), "connections without a queue are evidence");
    set(&mut second, "/processes/0/files/sockets", json!([healthy()["processes"][0]["files"]["sockets"][4].clone()]));
    assert_eq!(cause(&second), NoQueueCause::NoPacket);
}

#[test]
fn a_mode_of_sockets_is_refused_for_programs_that_never_wait_in_a_blocking_receive() {
    let fd = healthy()["processes"][0]["files"]["sockets"][1]["fd"].clone();
    let receives = json!({"receive": {"fd": fd}});
    let refused = |host: &Value| plan_of(host, "sockpoll50").impossible.first().map(|first| first.reason.clone());
    let why = refused(&untouched()).unwrap();
    assert!(why.starts_with("it waits in epoll_wait(2): sockets poll in blocking receives only"), "{why}");
    let mut also_receives = untouched();
    also_receives["processes"][0]["threads"][1]["file-wait"] = receives.clone();
    assert_eq!(refused(&also_receives), None);
    let why = refused(&without_epoll(json!("poll"))).unwrap();
    assert!(why.starts_with("it waits in poll(2)"), "{why}");
    for wait in [receives, json!(null)] {
        assert_eq!(refused(&without_epoll(wait)), None);
    }
    let mut polls_sockets = without_epoll(json!("select"));
    set(&mut polls_sockets, "/sysctls/busy-poll-us", json!(50));
    assert_eq!(refused(&polls_sockets), None, "net.core.busy_poll lets select busy poll such sockets");
    let mut unprivileged = without_epoll(json!(null));
    set(&mut unprivileged, "/privileges/capabilities", json!(["CAP_SYS_PTRACE"]));
    assert_eq!(refused(&unprivileged).as_deref(), Some("CAP_NET_ADMIN is missing"));
}

#[test]
fn processes_that_wait_in_the_same_way_are_one_obstacle() {
    let mut host = without_epoll(json!("poll"));
    let mut second = host["processes"][0].clone();
    second["pid"] = json!(5_000);
    set(&mut host, "/processes/-", second);
    let both = [MEMCACHED, 5_000].into_iter().filter_map(Pid::new).collect();
    let plan = plan(&snapshot(&host), None, &both, &request("suspend20"));
    let [one] = &plan.impossible[..] else { panic!("{:?}", plan.impossible) };
    assert!(one.what.ends_with(" and 1 more") && one.reason.starts_with("it waits in poll(2)"), "{one:?}");
}

#[test]
fn an_epoll_that_only_accepts_is_refused_if_its_connections_are_received_otherwise() {
    let mut host = untouched();
    let accepting = host["processes"][0]["files"]["epolls"][0].clone();
    set(&mut host, "/processes/0/files/epolls", json!([accepting]));
    let plan = plan_of(&host, "suspend20");
    assert!(matches!(&plan.impossible[..], [one] if one.reason.contains("only epoll polls a queue")), "{plan:?}");
    assert!(plan_of(&host, "defer20").impossible.is_empty());
    // The connections are those of a client: the server may still get some.
    for socket in 1..5 {
        set(&mut host, &format!("/sockets/{socket}/local"), json!("192.0.2.1:40000"));
    }
    assert!(plan_of(&host, "suspend20").impossible.is_empty());
}

#[test]
fn an_epoll_in_which_nobody_waits_is_refused_if_a_thread_waits_in_a_receive_of_its_sockets() {
    let mut host = untouched();
    let fd = host["processes"][0]["files"]["sockets"][1]["fd"].clone();
    host["processes"][0]["threads"][1]["file-wait"] = json!({"receive": {"fd": fd}});
    assert!(plan_of(&host, "suspend20").impossible.is_empty(), "threads wait in epolls");
    for thread in 0..3 {
        set(&mut host, &format!("/processes/0/threads/{thread}/epoll-wait"), json!(null));
    }
    let plan = plan_of(&host, "suspend20");
    assert!(matches!(&plan.impossible[..], [one] if one.reason.starts_with("it waits in recv(2)")), "{plan:?}");
    assert!(plan_of(&host, "defer20").impossible.is_empty() && plan_of(&host, "sockpoll50").impossible.is_empty());
}

#[test]
fn a_program_without_epoll_is_not_refused_if_it_may_be_polled_otherwise() {
    let poll = || without_epoll(json!("poll"));
    assert!(plan_of(&with_ring(poll(), Some(true)), "napibusy").impossible.is_empty());
    assert!(plan_of(&with_ring(poll(), None), "napibusy").impossible.is_empty());
    assert!(!plan_of(&with_ring(poll(), Some(false)), "napibusy").impossible.is_empty());
    // Its connections have not sent anything yet, and its epolls may get them: --follow waits for them.
    let waiting = plan_of(&silent(poll()), "suspend20");
    assert!(waiting.impossible.is_empty() && waiting.steps.iter().all(|step| step.is_there()), "{waiting:?}");
    // Another process of the service has an epoll with sockets.
    let mut worker = untouched()["processes"][0].clone();
    worker["pid"] = json!(5_000);
    let mut service = poll();
    set(&mut service, "/processes/-", worker);
    let both = [MEMCACHED, 5_000].into_iter().filter_map(Pid::new).collect();
    let plan = plan(&snapshot(&service), None, &both, &request("suspend20"));
    assert!(plan.impossible.is_empty() && plan.queues().count() == 2, "{plan:?}");
}

#[test]
fn a_udp_server_without_a_queue_may_have_had_a_first_datagram_past_napi() {
    let mut host = untouched();
    for socket in 0..5 {
        set(&mut host, &format!("/sockets/{socket}/napi"), json!(null));
        set(&mut host, &format!("/sockets/{socket}/remote"), json!(null));
        set(&mut host, &format!("/sockets/{socket}/protocol"), json!("udp"));
        set(&mut host, &format!("/sockets/{socket}/state"), json!("close"));
    }
    let cause = plan_of(&host, "suspend200").without_queue.unwrap();
    assert_eq!(cause, NoQueueCause::NoDatagram);
    assert!(cause.to_string().ends_with("then restart the program"), "{cause}");
    assert_eq!(only(&host, &Facts::default()).next, NextStep::AwaitDatagrams);
}
