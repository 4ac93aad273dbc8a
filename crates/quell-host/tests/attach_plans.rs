//! Plans attachments from recorded snapshots, without a kernel, for hosts that no test machine matches.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod snapshots;

use std::collections::BTreeSet;

use quell_host::attach::affected_processes::{LongestWait, Until};
use quell_host::attach::consequences::consequences;
use quell_host::attach::plan::Limitation;
use quell_host::attach::unassigned_epolls::QuietWith;
use quell_host::attach::{AttachPlan, AttachRequest, AttachStep, EpollsSetBy, plan};
use quell_linux::Pid;
use serde_json::{Value, json};
use snapshots::{before, healthy, set, snapshot};

const MEMCACHED: i32 = 4242;

fn request(mode: &str) -> AttachRequest {
    AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment }
}

fn targets() -> BTreeSet<Pid> {
    Pid::new(MEMCACHED).into_iter().collect()
}

fn plan_of(now: &Value, mode: &str) -> AttachPlan {
    plan(&snapshot(now), None, &targets(), &request(mode))
}

/// The healthy host with default settings of queues and epolls.
fn untouched() -> Value {
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
    json!({"unknown": {"why": why, "said": "read it: the kernel's words"}})
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
    let quiet: Vec<(i32, QuietWith)> = plan.quiet.iter().map(|epoll| (epoll.fd, epoll.has)).collect();
    assert_eq!(quiet, [(3, QuietWith::ListeningSockets)]);
}

#[test]
fn an_epoll_without_network_sockets_is_left_alone() {
    let mut host = untouched();
    let other = json!([{"fd": 9, "events": 1, "file": {"other": {"kind": "event-fd", "ready": false}}}]);
    set(&mut host, "/processes/0/files/epolls/2/targets", other);
    let plan = plan_of(&host, "suspend20");
    assert!(plan.quiet.iter().any(|epoll| (epoll.fd, epoll.has) == (8, QuietWith::NoSockets)), "{:?}", plan.quiet);
    assert!(plan.epolls().all(|step| step.fd != 8));
}

#[test]
fn a_kernel_without_suspension_is_reported_unless_the_mode_is_base() {
    let mut host = untouched();
    for setting in ["defer-hard-irqs", "gro-flush-timeout-ns", "irq-suspend-timeout-ns"] {
        set(&mut host, &format!("/devices/0/napis/0/{setting}"), unknown(json!("unsupported-by-kernel")));
    }
    let refused = plan_of(&host, "suspend20").impossible;
    assert!(matches!(&refused[..], [one] if one.what.contains("8193") && one.why.contains("the kernel's words")));
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
    assert!(matches!(&refused[..], [one] if one.why.contains("initial user namespace")), "{refused:?}");
    set(&mut host, "/privileges/capabilities", json!(["CAP_SYS_PTRACE"]));
    assert!(plan_of(&host, "suspend20").impossible[0].why.contains("CAP_NET_ADMIN"));
}

#[test]
fn modes_that_need_a_launch_are_refused_and_missing_wait_limits_are_reported() {
    assert!(!plan_of(&untouched(), "eventspin50").impossible.is_empty());
    let fullbusy = plan_of(&untouched(), "fullbusy");
    assert!(fullbusy.impossible.is_empty());
    assert!(fullbusy.partly.contains(&Limitation::WaitsAsWritten { at_most_ms: 1 }), "{:?}", fullbusy.partly);
}

#[test]
fn other_receive_interfaces_are_reported() {
    let mut host = untouched();
    set(&mut host, "/processes/0/files/io-urings/-", json!(30));
    let partly = plan_of(&host, "suspend20").partly;
    assert!(partly.iter().any(|partly| matches!(partly, Limitation::OtherWays { io_urings: 1, xdp_sockets: 0, .. })));
}

#[test]
fn a_queue_of_no_visible_device_is_reported_and_gets_no_values() {
    let mut host = untouched();
    set(&mut host, "/sockets/3/napi", json!(9_999));
    set(&mut host, "/sockets/4/napi", json!(9_999));
    let plan = plan_of(&host, "suspend20");
    assert_eq!(plan.queues().count(), 1);
    assert!(
        plan.partly.iter().any(|partly| matches!(partly, Limitation::UnknownQueue { napi } if napi.get() == 9_999))
    );
}

fn longest_wait(now: &Value, then: Option<&Value>, mode: &str) -> Option<LongestWait> {
    let then = then.map(snapshot);
    let plan = plan(&snapshot(now), then.as_ref(), &targets(), &request(mode));
    let [affected] = &plan.affected_processes[..] else { panic!("{:?}", plan.affected_processes) };
    assert_eq!((affected.pid.get(), affected.sockets), (5_000, 1));
    affected.longest_wait
}

#[test]
fn another_process_waits_for_the_timer_the_batch_or_the_suspension() {
    let host = with_neighbour(healthy());
    assert_eq!(longest_wait(&host, None, "base"), None);
    assert_eq!(longest_wait(&host, None, "defer20"), Some(LongestWait { ns: 20_000, until: Until::Timer }));
    let unknown_work = LongestWait { ns: 20_000_000, until: Until::SuspensionIsOver };
    assert_eq!(longest_wait(&host, None, "suspend20"), Some(unknown_work));
    let batch = longest_wait(&host, Some(&before()), "suspend20").unwrap();
    let Until::BatchIsDone { max_events: 32, each_ns } = batch.until else { panic!("{batch:?}") };
    assert_eq!(batch.ns, 32 * each_ns);
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
    let plan = plan(&host, None, &targets(), &request("suspend20"));
    assert!(consequences(&host, None, &plan).iter().all(|finding| finding.id != "epoll-mixes-napis"));
}
