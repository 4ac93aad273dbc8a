//! Plans attachments from recorded snapshots, without a kernel, for hosts that no test machine matches.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshots::{self, before, healthy, set, snapshot};
use quell_host::attach::affected_processes::PacketDelay;
use quell_host::attach::consequences::{consequences, consequences_beside};
use quell_host::attach::plan::{EpollStep, Limitation};
use quell_host::attach::poller::with_safe_timer;
use quell_host::attach::unassigned_epolls::UnassignedFiles;
use quell_host::attach::{AttachPlan, AttachRequest, AttachStep, EpollsSetBy, plan};
use quell_host::findings::{Finding, Severity, examine, examine_sampled};
use quell_linux::{NapiId, Pid};
use quell_sampler::{QueueSample, WaitBounds};
use serde_json::{Value, json};

pub(crate) const MEMCACHED: i32 = 4242;

pub(crate) fn request(mode: &str) -> AttachRequest {
    AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment }
}

fn targets() -> BTreeSet<Pid> {
    Pid::new(MEMCACHED).into_iter().collect()
}

pub(crate) fn plan_of(now: &Value, mode: &str) -> AttachPlan {
    plan(&snapshot(now), None, &targets(), &request(mode))
}

pub(crate) fn plan_between(before: &Value, now: &Value, mode: &str) -> AttachPlan {
    plan(&snapshot(now), Some(&snapshot(before)), &targets(), &request(mode))
}

#[test]
fn connections_without_a_queue_have_one_severity_in_doctor_and_in_attach() {
    let mut now = untouched();
    ["/sockets/1/napi", "/sockets/2/napi"].iter().for_each(|napi| set(&mut now, napi, json!(null)));
    let severities = |findings: Vec<Finding>| {
        let its = findings.into_iter().filter(|finding| finding.id == "connections-without-napi");
        its.map(|finding| finding.severity).collect::<Vec<_>>()
    };
    let host = snapshot(&now);
    let by_attach = severities(consequences(&host, None, &plan_of(&now, "suspend200")));
    assert_eq!(by_attach, severities(examine(&host, None).findings));
    assert!(!by_attach.is_empty());
}

/// The healthy host with default settings of queues and epolls.
pub(crate) fn untouched() -> Value {
    let mut host = healthy();
    for napi in 0..2 {
        for setting in ["defer-hard-irqs", "gro-flush-timeout-ns", "irq-suspend-timeout-ns"] {
            set(&mut host, &format!("/devices/0/napis/{napi}/{setting}"), json!(0));
        }
    }
    let params = json!({"busy_poll_usecs": 0, "busy_poll_budget": 0, "prefer_busy_poll": false});
    for epoll in 0..3 {
        set(&mut host, &format!("/processes/0/files/epolls/{epoll}/params"), params.clone());
    }
    host
}

/// Another program with a connection on the first queue.
fn with_neighbour(mut host: Value) -> Value {
    let mut affected = host["processes"][0].clone();
    affected["pid"] = json!(5_000);
    affected["name"] = json!("other");
    affected["threads"] = json!([]);
    affected["files"] = json!({"epolls": [], "sockets": [{"fd": 4, "inode": 102}], "xdp-sockets": [], "io-urings": []});
    set(&mut host, "/processes/-", affected);
    host
}

fn unknown(why: Value) -> Value {
    json!({"unknown": {"reason": why, "message": "read it: the kernel's words"}})
}

#[test]
fn queues_are_set_before_their_epolls() {
    let plan = plan_of(&untouched(), "suspend20");
    let kinds: Vec<bool> = plan.steps.iter().map(|step| matches!(step, AttachStep::Queue(_))).collect();
    assert_eq!(kinds, [true, true, false, false, false]);
    assert!(plan.steps.iter().all(|step| !step.is_there()));
    assert!(plan.impossible.is_empty() && plan.affected_processes.is_empty(), "{plan:?}");
}

#[test]
fn a_host_in_the_mode_needs_only_a_change_of_its_listening_epoll() {
    let plan = plan_of(&healthy(), "suspend20");
    let missing: Vec<&AttachStep> = plan.steps.iter().filter(|step| !step.is_there()).collect();
    assert!(matches!(missing[..], [AttachStep::Epoll(step)] if step.fd == 3 && step.napis.is_empty()), "{missing:?}");
    assert_eq!(plan.unassigned_epolls, [], "it accepts for the others, which have the connections");
}

#[test]
fn an_epoll_of_a_worker_that_accepts_for_itself_waits_for_connections() {
    let mut host = healthy();
    let listener = host["processes"][0]["files"]["epolls"][0]["targets"][0].clone();
    set(&mut host, "/processes/0/files/epolls/1/targets/-", listener);
    let unassigned = plan_of(&host, "suspend20").unassigned_epolls;
    let unassigned: Vec<_> = unassigned.iter().map(|epoll| (epoll.fd, epoll.watches)).collect();
    assert_eq!(unassigned, [(3, UnassignedFiles::ListeningSockets)]);
}

#[test]
fn an_epoll_without_network_sockets_is_left_alone() {
    let mut host = untouched();
    let other = json!([{"fd": 9, "events": 1, "file": {"other": {"kind": "event-fd", "ready": false}}}]);
    set(&mut host, "/processes/0/files/epolls/2/targets", other);
    let plan = plan_of(&host, "suspend20");
    assert!(
        plan.unassigned_epolls.iter().any(|epoll| (epoll.fd, epoll.watches) == (8, UnassignedFiles::NoSockets)),
        "{:?}",
        plan.unassigned_epolls
    );
    assert!(plan.epolls().all(|step| step.fd != 8));
}

/// The program with a child, which has inherited the epolls by fork(2).
fn with_child() -> Value {
    let mut host = untouched();
    let mut child = host["processes"][0].clone();
    child["pid"] = json!(MEMCACHED + 1);
    child["threads"] = json!([]);
    for epoll in child["files"]["epolls"].as_array_mut().unwrap() {
        epoll["same-as"] = json!({"pid": MEMCACHED, "fd": epoll["fd"]});
    }
    set(&mut host, "/processes/-", child);
    host
}

#[test]
fn an_epoll_that_several_processes_share_is_set_once() {
    let (alone, host) = (plan_of(&untouched(), "suspend20"), snapshot(&with_child()));
    let (parent, child) = (MEMCACHED, MEMCACHED + 1);
    let of = |pids: &[i32]| {
        let targets = pids.iter().filter_map(|&pid| Pid::new(pid)).collect();
        plan(&host, None, &targets, &request("suspend20"))
    };
    let places = |plan: &AttachPlan| {
        let place = |step: &EpollStep| {
            let duplicates: Vec<(i32, i32)> = step.duplicates.iter().map(|place| (place.pid.get(), place.fd)).collect();
            (step.pid.get(), step.fd, duplicates)
        };
        plan.epolls().map(place).collect::<Vec<_>>()
    };
    let shared = |first, other| -> Vec<_> {
        places(&alone).into_iter().map(|(_, fd, _)| (first, fd, vec![(other, fd)])).collect()
    };
    let both = of(&[parent, child]);
    assert_eq!(places(&both), shared(parent, child));
    assert_eq!(
        (both.unassigned_epolls, both.limitations),
        (alone.unassigned_epolls.clone(), alone.limitations.clone())
    );
    assert_eq!(places(&of(&[child])), shared(child, parent), "through a descriptor of a target");
}

/// Later packets give an outer epoll no queue, and a thread that sleeps in it does not poll that of the inner one.
#[test]
fn an_epoll_that_watches_another_is_not_said_to_wait_for_packets() {
    let mut host = untouched();
    let inner = json!([{"fd": 3, "events": 1, "file": {"other": {"kind": "epoll", "ready": false}}}]);
    set(&mut host, "/processes/0/files/epolls/2/targets", inner);
    let plan = plan_of(&host, "suspend20");
    let unassigned: Vec<(i32, Option<i32>)> =
        plan.unassigned_epolls.iter().map(|epoll| (epoll.fd, epoll.watched_by)).collect();
    assert_eq!(unassigned, [(3, Some(8))]);
}

#[test]
fn a_kernel_without_suspension_is_reported_unless_the_mode_is_base() {
    let mut host = untouched();
    for setting in ["defer-hard-irqs", "gro-flush-timeout-ns", "irq-suspend-timeout-ns"] {
        set(&mut host, &format!("/devices/0/napis/0/{setting}"), unknown(json!("unsupported-by-kernel")));
    }
    let refused = plan_of(&host, "suspend20").impossible;
    assert!(matches!(&refused[..], [one] if one.what.contains("8193") && one.reason.contains("the kernel's words")));
    assert!(plan_of(&host, "base").impossible.is_empty());
}

#[test]
fn a_kernel_without_epoll_parameters_is_reported_unless_the_mode_is_base() {
    let mut host = untouched();
    set(&mut host, "/processes/0/files/epolls/1/params", unknown(json!("unsupported-by-kernel")));
    let refused = plan_of(&host, "suspend20").impossible;
    assert!(matches!(&refused[..], [one] if one.what.contains("epoll 5")), "{refused:?}");
    assert!(plan_of(&host, "base").impossible.is_empty());
    assert!(plan_of(&host, "threaded").epolls().next().is_none(), "threads poll, not epolls");
}

#[test]
fn root_in_a_container_is_refused_with_the_reason() {
    let mut host = untouched();
    set(&mut host, "/privileges/in-initial-user-namespace", json!(false));
    let refused = plan_of(&host, "suspend20").impossible;
    assert!(matches!(&refused[..], [one] if one.reason.contains("initial user namespace")), "{refused:?}");
    set(&mut host, "/privileges/capabilities", json!(["CAP_SYS_PTRACE"]));
    assert!(plan_of(&host, "suspend20").impossible[0].reason.contains("CAP_NET_ADMIN"));
}

#[test]
fn modes_that_need_a_launch_are_refused_and_missing_wait_limits_are_reported() {
    assert!(!plan_of(&untouched(), "eventspin50").impossible.is_empty());
    let fullbusy = plan_of(&untouched(), "fullbusy");
    assert!(fullbusy.impossible.is_empty());
    assert!(
        fullbusy.limitations.contains(&Limitation::EpollWaitUnlimited { at_most_ms: 1 }),
        "{:?}",
        fullbusy.limitations
    );
}

#[test]
fn a_kernel_thread_that_the_mode_does_not_use_is_reported() {
    let mut host = untouched();
    let stays = |host: &Value, mode: &str| {
        plan_of(host, mode).limitations.iter().any(|one| matches!(one, Limitation::NapiThreadRemains { .. }))
    };
    assert!(!stays(&host, "suspend20"));
    set(&mut host, "/devices/0/napis/0/threading", json!("enabled"));
    assert!(stays(&host, "suspend20") && !stays(&host, "threaded"));
}

/// The program has an io_uring; `sockets` tells whether it has requests for sockets.
pub(crate) fn with_ring(mut host: Value, sockets: Option<bool>) -> Value {
    set(&mut host, "/processes/0/files/io-urings/-", json!(30));
    if let Some(sockets) = sockets {
        let list = if sockets { "rings-with-sockets" } else { "rings-without-sockets" };
        host["processes"][0]["files"][list] = json!([30]);
    }
    host
}

#[test]
fn an_io_uring_is_polled_and_reported_as_its_requests_say() {
    let plan = |mode: &str, sockets| plan_of(&with_ring(untouched(), sockets), mode);
    let other_ways =
        |limitation: &Limitation| matches!(limitation, Limitation::NotSuspended { io_urings: 1, xdp_sockets: 0, .. });
    let unknown = |limitation: &Limitation| matches!(limitation, Limitation::UnknownRings { io_urings: 1, .. });

    assert!(plan("suspend20", Some(true)).limitations.iter().any(other_ways));
    assert_eq!(plan("napibusy", Some(true)).rings().count(), 1);
    assert!(!plan("napibusy", Some(true)).limitations.iter().any(other_ways), "napibusy does not suspend");
    assert!(!plan("defer20", Some(true)).limitations.iter().any(other_ways), "defer20 does not suspend");

    assert!(plan("suspend20", None).limitations.iter().any(unknown));
    assert_eq!(plan("napibusy", None).rings().count(), 1);
    assert!(!plan("defer20", None).limitations.iter().any(unknown));

    for mode in ["suspend20", "napibusy", "defer20"] {
        let of_files = plan(mode, Some(false));
        assert_eq!(of_files.rings().count(), 0, "{mode}");
        assert!(!of_files.limitations.iter().any(|one| other_ways(one) || unknown(one)), "{mode}: {of_files:?}");
    }
}

/// The program receives through an AF_XDP socket alone, which is bound to this queue. Its epolls have received nothing.
fn with_xdp_socket(bound: &Value, napi: Option<u32>) -> Value {
    let mut host = untouched();
    for number in 0..5 {
        set(&mut host, &format!("/sockets/{number}/napi"), json!(null));
    }
    let files = &mut host["processes"][0]["files"];
    files["xdp-sockets"] = json!([40]);
    files["xdp-details"] = json!([{
        "fd": 40, "bound": bound, "zero-copy": napi.is_some(), "napi": napi, "prefer-busy-poll": false, "busy-poll-us": 0,
        "stats": {
            "rx-dropped": 0, "rx-ring-full": 0, "rx-fill-ring-empty": 0, "rx-invalid-descriptors": 0,
            "tx-invalid-descriptors": 0,
        },
    }]);
    host
}

fn bound_to(rx_queue: u32) -> Value {
    let device = &healthy()["devices"][0];
    json!({"namespace": device["namespace"], "ifindex": device["ifindex"], "rx-queue": rx_queue, "need-wakeup": null})
}

#[test]
fn the_queue_of_an_af_xdp_socket_is_set_if_it_is_known() {
    let set_napis = |plan: &AttachPlan| plan.queues().map(|step| step.napi.get()).collect::<Vec<_>>();
    let unknown_queues =
        |plan: &AttachPlan| plan.limitations.iter().any(|one| matches!(one, Limitation::UnknownXdpQueues { .. }));
    let plan = plan_of(&with_xdp_socket(&bound_to(1), None), "defer20");
    assert_eq!((set_napis(&plan), unknown_queues(&plan)), (vec![8_194], false));
    let plan = plan_of(&with_xdp_socket(&json!(null), None), "defer20");
    assert_eq!((set_napis(&plan), unknown_queues(&plan)), (vec![], false), "an unbound socket receives nothing");
    let denied = unknown(json!({"denied": {"needs": "CAP_BPF"}}));
    let plan = plan_of(&with_xdp_socket(&denied, None), "defer20");
    assert_eq!((set_napis(&plan), unknown_queues(&plan)), (vec![], true));
    assert!(!unknown_queues(&plan_of(&with_xdp_socket(&denied, None), "base")), "nothing would be set");
}

#[test]
fn a_mode_that_nobody_polls_in_is_refused_for_an_af_xdp_program() {
    let reasons = |napi, mode| -> Vec<String> {
        let plan = plan_of(&with_xdp_socket(&bound_to(0), napi), mode);
        assert_eq!(plan.impossible.is_empty(), plan.queues().next().is_some(), "{plan:?}");
        plan.impossible.into_iter().map(|obstacle| obstacle.reason).collect()
    };
    for napi in [None, Some(8_193)] {
        let suspended = reasons(napi, "suspend200");
        assert!(matches!(&suspended[..], [why] if why.contains("only epoll suspends") && why.contains("threaded")));
        for works in ["defer200", "userbusy", "threaded"] {
            assert_eq!(reasons(napi, works), [""; 0], "{works}");
        }
    }
    let unable = reasons(None, "napibusy");
    assert!(matches!(&unable[..], [why] if why.contains("cannot busy poll")), "{unable:?}");
    assert_eq!(reasons(Some(8_193), "napibusy"), [""; 0], "the socket polls");
}

#[test]
fn the_plan_says_how_long_frames_wait_for_the_timer_if_an_af_xdp_socket_does_not_poll() {
    let waits = |napi, mode: &str| {
        let plan = plan_of(&with_xdp_socket(&bound_to(0), napi), mode);
        plan.limitations.into_iter().find_map(|limitation| match limitation {
            Limitation::XdpFramesWait { up_to_ns, xdp_sockets: 1, .. } => Some(up_to_ns),
            _ => None,
        })
    };
    assert_eq!(waits(None, "defer200"), Some(200_000));
    assert_eq!(waits(Some(8_193), "napibusy"), None, "it polls");
    assert_eq!(waits(None, "userbusy"), None, "a thread of Quell polls");
    assert_eq!(waits(None, "threaded"), None, "nothing is deferred");
}

/// The program has epolls with connections, too, so that no mode is refused for it.
#[test]
fn busy_polling_is_not_set_on_an_af_xdp_socket_without_a_napi_id() {
    let planned = |napi, mode: &str| {
        let mut host = untouched();
        set(&mut host, "/processes/0/files", with_xdp_socket(&bound_to(0), napi)["processes"][0]["files"].take());
        let plan = plan_of(&host, mode);
        assert!(plan.impossible.is_empty(), "{mode}: {:?}", plan.impossible);
        let is_xdp = |step: &AttachStep| matches!(step, AttachStep::Sockets(step) if step.xdp);
        let is_unable = |one: &Limitation| matches!(one, Limitation::XdpCannotBusyPoll { xdp_sockets: 1, .. });
        (plan.steps.iter().any(is_xdp), plan.limitations.iter().any(is_unable))
    };
    for mode in ["napibusy", "fullbusy", "sockpoll50"] {
        assert_eq!((planned(Some(8_193), mode), planned(None, mode)), ((true, false), (false, true)), "{mode}");
    }
    for mode in ["defer20", "suspend20"] {
        assert_eq!((planned(Some(8_193), mode), planned(None, mode)), ((false, false), (false, false)), "{mode}");
    }
}

#[test]
fn a_program_with_an_af_xdp_socket_on_a_planned_queue_is_affected() {
    let mut host = with_neighbour(untouched());
    let mut other = with_xdp_socket(&bound_to(0), None)["processes"][0]["files"].take();
    other["sockets"] = json!([]);
    set(&mut host, "/processes/1/files", other);
    let affected = plan_of(&host, "suspend20").affected_processes;
    assert!(matches!(&affected[..], [one] if one.name == "other" && one.sockets == 1), "{affected:?}");
}

/// An unconnected UDP socket in each epoll with connections, instead of these.
fn with_udp(napis: [u32; 2]) -> Value {
    let mut host = untouched();
    let socket = |inode: u64, napi: u32| {
        let mut socket = snapshots::udp(inode);
        socket["napi"] = json!(napi);
        socket
    };
    let sockets = [(101, napis[0]), (102, napis[0]), (103, napis[1]), (104, napis[1])];
    for (number, (inode, napi)) in sockets.into_iter().enumerate() {
        set(&mut host, &format!("/sockets/{}", number + 1), socket(inode, napi));
    }
    host
}

fn napis_of(host: &Value, mode: &str) -> Vec<u32> {
    plan_of(host, mode).queues().map(|step| step.napi.get()).collect()
}

#[test]
fn every_queue_that_can_deliver_to_an_unconnected_udp_socket_is_set() {
    assert_eq!(napis_of(&with_udp([8_193; 2]), "defer20"), [8_193, 8_194]);
    // After the link was down, the sockets keep an ID that no longer exists.
    let flapped = with_udp([7_000; 2]);
    assert_eq!(napis_of(&flapped, "defer20"), [8_193, 8_194]);
    assert!(!plan_of(&flapped, "defer20").limitations.iter().any(|one| matches!(one, Limitation::UnknownQueue { .. })));
    // Before the first datagram nothing is known.
    let mut silent = with_udp([8_193; 2]);
    (1..5).for_each(|number| set(&mut silent, &format!("/sockets/{number}/napi"), json!(null)));
    assert_eq!(napis_of(&silent, "defer20"), [0_u32; 0]);
    // Connected sockets have the queue of their last datagram.
    let mut connected = with_udp([8_193; 2]);
    (1..5).for_each(|number| set(&mut connected, &format!("/sockets/{number}/remote"), json!("192.0.2.9:4000")));
    assert_eq!(napis_of(&connected, "defer20"), [8_193]);
}

#[test]
fn only_devices_that_deliver_to_a_udp_socket_count() {
    let second = |mut host: Value, received: u64| {
        let mut device = host["devices"][0].clone();
        device["ifindex"] = json!(3);
        device["name"] = json!("eth1");
        device["counters"]["rx-packets"] = json!(received);
        device["napis"][0]["id"] = json!(9_001);
        device["napis"][1]["id"] = json!(9_002);
        device["rx-queues"][0]["napi"]["to"] = json!(9_001);
        device["rx-queues"][1]["napi"]["to"] = json!(9_002);
        set(&mut host, "/devices/-", device);
        host
    };
    let everywhere = |mut host: Value| {
        (1..5).for_each(|number| set(&mut host, &format!("/sockets/{number}/local"), json!("0.0.0.0:53")));
        host
    };
    let bound = |mut host: Value, ifindex: u32| {
        (1..5).for_each(|number| set(&mut host, &format!("/sockets/{number}/bound-to"), json!(ifindex)));
        host
    };
    let host = || with_udp([8_193; 2]);
    assert_eq!(napis_of(&second(host(), 9), "defer20"), [8_193, 8_194], "its address is on the first device");
    assert_eq!(napis_of(&everywhere(second(host(), 9)), "defer20"), [8_193, 8_194, 9_001, 9_002]);
    assert_eq!(napis_of(&everywhere(second(host(), 0)), "defer20"), [8_193, 8_194], "nothing arrives on the second");
    assert_eq!(napis_of(&bound(everywhere(second(host(), 9)), 3), "defer20"), [9_001, 9_002]);
    assert_eq!(napis_of(&bound(everywhere(second(host(), 0)), 3), "defer20"), [9_001, 9_002]);
}

#[test]
fn a_suspending_mode_on_a_udp_socket_with_several_queues_predicts_a_stall() {
    let stalls = |host: &Value, mode: &str| {
        let host = snapshot(host);
        let plan = plan(&host, None, &targets(), &request(mode));
        let findings = consequences(&host, None, &plan);
        findings.iter().filter(|finding| finding.predicts_stall()).map(|finding| finding.id).next()
    };
    let predicted = Some("udp-socket-on-several-queues");
    let udp = with_udp([8_193; 2]);
    assert_eq!(stalls(&udp, "suspend20"), predicted);
    assert_eq!(stalls(&udp, "fullbusy"), predicted);
    assert_eq!(stalls(&udp, "napibusy"), None, "the timer of 200 µs polls the other queues");
    assert_eq!(stalls(&udp, "defer20"), None);
    let mut steered = udp;
    (1..5).for_each(|number| steered["sockets"][number]["steered-queues"] = json!(1));
    assert_eq!(stalls(&steered, "suspend20"), None);
    assert_eq!(napis_of(&steered, "suspend20"), [8_193, 8_194], "both queues are set");
    (1..5).for_each(|number| steered["sockets"][number]["steered-queues"] = json!(2));
    assert_eq!(stalls(&steered, "suspend20"), predicted, "fewer workers than queues");
}

#[test]
fn a_queue_of_no_visible_device_is_reported_and_gets_no_values() {
    let mut host = untouched();
    set(&mut host, "/sockets/3/napi", json!(9_999));
    set(&mut host, "/sockets/4/napi", json!(9_999));
    let plan = plan_of(&host, "suspend20");
    assert_eq!(plan.queues().count(), 1);
    assert!(plan.limitations.iter().any(|one| matches!(one, Limitation::UnknownQueue { napi } if napi.get() == 9_999)));
}

fn delay(now: &Value, mode: &str) -> Option<PacketDelay> {
    let plan = plan_of(now, mode);
    let [affected] = &plan.affected_processes[..] else { panic!("{:?}", plan.affected_processes) };
    assert_eq!((affected.pid.get(), affected.sockets), (5_000, 1));
    affected.delay
}

#[test]
fn another_process_waits_for_the_timer_or_the_suspension() {
    let host = with_neighbour(healthy());
    assert_eq!(delay(&host, "base"), None);
    let deferred = PacketDelay { gro_flush_timeout_ns: 20_000, irq_suspend_timeout_ns: None };
    assert_eq!(delay(&host, "defer20"), Some(deferred));
    let suspended = PacketDelay { irq_suspend_timeout_ns: Some(20_000_000), ..deferred };
    assert_eq!(delay(&host, "suspend20"), Some(suspended));
}

#[test]
fn the_other_end_of_a_connection_of_the_programs_is_their_own_client() {
    let is_client = |host: &Value| plan_of(host, "suspend20").affected_processes[0].is_client;
    let mut host = with_neighbour(healthy());
    assert!(!is_client(&host));
    let (local, remote) = (host["sockets"][1]["local"].clone(), host["sockets"][1]["remote"].clone());
    let its = host["sockets"].as_array_mut().unwrap().iter_mut().find(|socket| socket["inode"] == 102).unwrap();
    (its["local"], its["remote"]) = (remote, local);
    assert!(is_client(&host));
}

#[test]
fn a_neighbour_whose_packets_wait_long_is_a_warning_and_gets_a_shorter_suspension_only_if_that_is_rare() {
    let (now, then) = (snapshot(&with_neighbour(healthy())), snapshot(&before()));
    let found = |p99_ns, max_ns| {
        let wait = WaitBounds { p99_ns, max_ns, ..WaitBounds::default() };
        let polls =
            BTreeMap::from([(NapiId::from_kernel(8193).unwrap(), QueueSample { wait, ..QueueSample::default() })]);
        let report = examine_sampled(&now, Some(&then), &polls);
        report.findings.into_iter().find(|finding| finding.id == "batch-delays-others").unwrap()
    };
    let wait = "packets of 1 other process on this queue wait up to 20 µs while the program sleeps, up to 20 ms while it \
                handles the events of one epoll_wait";
    let short = found(Some(900_000), Some(9_000_000));
    assert_eq!((short.severity, short.observed.as_str(), short.fix.len()), (Severity::Note, wait, 1));
    let rare = found(Some(900_000), Some(20_000_000));
    assert_eq!((rare.severity, rare.observed), (Severity::Warning, format!("{wait}; one waited for 20 ms")));
    assert_eq!(rare.fix.len(), 2);
    let usual = found(Some(6_000_000), Some(20_000_000));
    assert_eq!(usual.observed, format!("{wait}; packets waited up to 6 ms (p99)"));
    assert_eq!((usual.severity, usual.fix.len()), (Severity::Warning, 1), "a suspension of 1 ms would be none");
}

/// Rules of the consequences of a mode. The host was observed for 2 s before.
fn ids(host: &Value, mode: &str) -> Vec<&'static str> {
    let (host, then) = (snapshot(host), snapshot(&before()));
    let plan = plan(&host, Some(&then), &targets(), &request(mode));
    consequences(&host, Some(&then), &plan).iter().map(|finding| finding.id).collect()
}

#[test]
fn a_planned_mode_is_not_judged_by_counters_of_the_mode_that_it_replaces() {
    let mut host = untouched();
    // Interrupts, softirqs and timers of a busy queue without deferral.
    set(&mut host, "/irqs/0/counts", json!([[0, 104_000]]));
    set(&mut host, "/cpus/each/0/counters/net-rx-softirqs", json!(450_000));
    set(&mut host, "/cpus/each/0/counters/timer-interrupts", json!(430_000));
    set(&mut host, "/cpus/each/2/counters/net-rx-softirqs", json!(200_000));
    set(&mut host, "/namespaces/0/ip-rx-packets", json!(1_000_000));
    for mode in ["defer20", "suspend20"] {
        let predicted = ids(&host, mode);
        for id in ["deferral-without-effect", "suspension-without-effect", "stalled-queue", "too-many-empty-polls"] {
            assert!(!predicted.contains(&id), "{mode}: {predicted:?}");
        }
    }
}

#[test]
fn consequences_of_a_plan_equal_later_findings() {
    assert!(!ids(&untouched(), "suspend20").contains(&"epoll-mixes-napis"));
    let mut mixed = untouched();
    set(&mut mixed, "/sockets/1/napi", json!(8_194));
    assert!(ids(&mixed, "suspend20").contains(&"epoll-mixes-napis"));
    let mut ready = untouched();
    set(&mut ready, "/processes/0/files/epolls/1/targets/0/file/other/ready", json!(true));
    assert!(ids(&ready, "suspend20").contains(&"ready-object-holds-suspension"));
    assert!(ids(&ready, "base").is_empty());
}

#[test]
fn existing_findings_are_not_attributed_to_the_plan() {
    let mut mixed = healthy();
    set(&mut mixed, "/sockets/1/napi", json!(8_194));
    let host = snapshot(&mixed);
    let plan = |mode: &str| plan(&host, None, &targets(), &request(mode));
    assert!(consequences(&host, None, &plan("suspend20")).iter().all(|finding| finding.id != "epoll-mixes-napis"));
    let beside = |other: &str| {
        let findings = consequences_beside(&host, &plan(other), &plan("suspend20"), None);
        findings.iter().any(|finding| finding.id == "epoll-mixes-napis")
    };
    assert!(beside("base"), "a comparison of modes does not depend on the one that is set");
    assert!(!beside("suspend20"));
}

/// The timer of `userbusy`. The host was observed for 2 s; its rings have 2,048 entries.
fn timer_under(packets: u64, mode: &str) -> u64 {
    let mut host = untouched();
    set(&mut host, "/devices/0/rx-queues/0/counters/rx-packets", json!(1_000_000 + packets));
    let plan = plan_of(&host, mode);
    with_safe_timer(mode.parse().unwrap(), &snapshot(&before()), &snapshot(&host), &plan).napi().gro_flush_timeout_ns
}

#[test]
fn the_timer_behind_a_poller_is_a_quarter_of_the_time_in_which_the_fastest_ring_fills_and_at_most_1_ms() {
    assert_eq!(timer_under(200_000, "userbusy"), 1_000_000, "the ring fills in 20 ms");
    assert_eq!(timer_under(2_000 * 2_048, "userbusy"), 250_000, "the ring fills in 1 ms");
    assert_eq!(timer_under(2_000 * 2_048, "userbusy,gro-flush-timeout=100us"), 100_000);
    assert_eq!(timer_under(2_000 * 2_048, "defer20"), 20_000, "a mode without a poller");
}
