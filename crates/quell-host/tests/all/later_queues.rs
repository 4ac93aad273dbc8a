//! From which queues the next connections of programs can come. Without a kernel.

use quell_linux::Pid;
use serde_json::{Value, json};

use crate::attach_plans::{MEMCACHED, plan_of, untouched};
use crate::snapshots::{set, snapshot};

/// Queues that a plan sets for connections that are still to come.
fn planned(host: &Value) -> Vec<u32> {
    let mut plan = plan_of(host, "suspend20");
    let targets = Pid::new(MEMCACHED).into_iter().collect();
    plan.add_later_queues(&snapshot(host), &targets, &"suspend20".parse().unwrap());
    plan.queues().flat_map(|step| step.queues.clone()).collect()
}

/// All connections come from the first queue.
fn on_one_queue() -> Value {
    let mut host = untouched();
    let first = host["devices"][0]["napis"][0]["id"].clone();
    (1..5).for_each(|socket| set(&mut host, &format!("/sockets/{socket}/napi"), first.clone()));
    host
}

#[test]
fn few_connections_leave_the_other_queues_of_their_device_to_later_ones() {
    assert_eq!(plan_of(&on_one_queue(), "suspend20").queues().count(), 1);
    assert_eq!(planned(&on_one_queue()), [0, 1]);
    assert_eq!(planned(&untouched()), [0, 1], "all are in use");
}

#[test]
fn many_connections_on_one_queue_are_directed_there() {
    let mut host = on_one_queue();
    for inode in 900..904 {
        let mut socket = host["sockets"][1].clone();
        socket["inode"] = json!(inode);
        set(&mut host, "/sockets/-", socket);
        set(&mut host, "/processes/0/files/sockets/-", json!({"fd": inode, "inode": inode}));
    }
    assert_eq!(planned(&host), [0]);
}

#[test]
fn queues_that_rss_does_not_select_or_that_have_other_settings_are_left_alone() {
    let mut selected = on_one_queue();
    let context = json!({"id": 0, "hash-function": null, "indirection": [0, 0], "key": null});
    set(&mut selected, "/devices/0/rss-contexts", json!([context]));
    assert_eq!(planned(&selected), [0]);
    let mut other = on_one_queue();
    set(&mut other, "/devices/0/napis/1/gro-flush-timeout-ns", json!(7));
    assert_eq!(planned(&other), [0]);
}

#[test]
fn an_idle_program_gets_no_queues() {
    let mut idle = untouched();
    (1..5).for_each(|socket| set(&mut idle, &format!("/sockets/{socket}/napi"), json!(null)));
    assert!(planned(&idle).is_empty());
}
