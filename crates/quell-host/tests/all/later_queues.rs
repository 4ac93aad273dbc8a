//! From which queues the next connections of programs can come. Without a kernel.

use quell_host::attach::later_queues::later_queues;
use quell_linux::{NapiId, Pid};
use serde_json::{Value, json};

use crate::attach_plans::{MEMCACHED, untouched};
use crate::snapshots::{set, snapshot};

/// NAPI IDs of the later queues.
fn later(host: &Value) -> Vec<u32> {
    let napis = later_queues(&snapshot(host), &Pid::new(MEMCACHED).into_iter().collect());
    napis.into_iter().map(NapiId::get).collect()
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
    assert_eq!(later(&on_one_queue()), [8194]);
    assert!(later(&untouched()).is_empty(), "all are in use");
}

#[test]
fn a_queue_of_closed_connections_leaves_the_others_to_later_ones() {
    let mut host = untouched();
    (1..5).for_each(|socket| set(&mut host, &format!("/sockets/{socket}/napi"), json!(null)));
    let read = host["devices"][0]["napis"][1]["id"].clone();
    host["processes"][0]["files"]["read-queues"] = json!([read]);
    assert_eq!(later(&host), [8193]);
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
    assert!(later(&host).is_empty());
}

#[test]
fn queues_that_rss_does_not_select_or_that_have_other_settings_are_left_alone() {
    let mut selected = on_one_queue();
    let context = json!({"id": 0, "hash-function": null, "indirection": [0, 0], "key": null});
    set(&mut selected, "/devices/0/rss-contexts", json!([context]));
    assert!(later(&selected).is_empty());
    let mut other = on_one_queue();
    set(&mut other, "/devices/0/napis/1/gro-flush-timeout-ns", json!(7));
    assert!(later(&other).is_empty());
}

#[test]
fn an_idle_program_gets_no_queues() {
    let mut idle = untouched();
    (1..5).for_each(|socket| set(&mut idle, &format!("/sockets/{socket}/napi"), json!(null)));
    assert!(later(&idle).is_empty());
}
