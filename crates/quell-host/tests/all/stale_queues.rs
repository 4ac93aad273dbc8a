//! Servers whose connections, or whose device, are not what they were: a device that went down and up, was removed or is one
//! of several, and a server with few connections.

use quell_host::attach::no_queue::NoQueueCause;
use quell_host::findings::{Fix, QueuePerEpoll, examine, will_mix};
use quell_host::servers::NextStep;
use serde_json::{Value, json};

use crate::attach_plans::{plan_of, untouched};
use crate::servers::{Facts, attached, only, pid};
use crate::snapshots::{set, snapshot};

/// The NAPI IDs that the four connections have recorded.
fn recorded(napis: [Option<u32>; 4]) -> Value {
    let mut host = untouched();
    for (number, napi) in napis.into_iter().enumerate() {
        set(&mut host, &format!("/sockets/{}/napi", number + 1), json!(napi));
    }
    host
}

fn is_found(host: &Value, id: &str) -> bool {
    examine(&snapshot(host), None).findings.iter().any(|finding| finding.id == id)
}

#[test]
fn a_connection_without_traffic_since_its_device_was_recreated_does_not_mix_queues() {
    let mixing = recorded([Some(8_193), Some(8_194), Some(8_194), Some(8_194)]);
    assert!(is_found(&mixing, "epoll-mixes-napis"));
    let recreated = recorded([Some(7_726), Some(8_193), Some(8_194), Some(8_194)]);
    assert!(!is_found(&recreated, "epoll-mixes-napis"), "the next packet comes by the queue that is there");
    let server = only(&recreated, &Facts::default());
    assert_eq!((server.next, server.queue_per_epoll), (NextStep::Measure { steered: false }, None));
    let mut gone = recorded([Some(7_726), Some(7_727), Some(8_194), Some(8_194)]);
    assert!(!is_found(&gone, "epoll-mixes-napis"), "no queue of this epoll is there");
    let mut macvlan = gone["devices"][0].clone();
    (macvlan["name"], macvlan["ifindex"], macvlan["kind"]) = (json!("macvlan0"), json!(3), json!("macvlan"));
    (macvlan["napis"], macvlan["rx-queues"]) = (json!([]), json!([]));
    set(&mut gone, "/devices/-", macvlan);
    assert!(is_found(&gone, "epoll-mixes-napis"), "they may be those of a device elsewhere");
}

#[test]
fn a_device_that_is_down_beside_another_one_is_named_and_one_that_was_removed_is_not_blamed_on_the_link() {
    let gone = || recorded([Some(7_726); 4]);
    assert_eq!(plan_of(&gone(), "suspend200").without_queue, Some(NoQueueCause::DeviceGone));
    let mut down = gone();
    let mut other = down["devices"][0].clone();
    (other["name"], other["ifindex"], other["is-up"], other["napis"]) =
        (json!("eth1"), json!(3), json!(false), json!([]));
    set(&mut down, "/devices/-", other);
    let cause = plan_of(&down, "suspend200").without_queue;
    assert!(matches!(&cause, Some(NoQueueCause::LinkDown { device, .. }) if device == "eth1"), "{cause:?}");
    set(&mut down, "/devices/1/counters/rx-packets", json!(0));
    let unused = plan_of(&down, "suspend200").without_queue;
    assert_eq!(unused, Some(NoQueueCause::DeviceGone), "it has never received");
    let alive = plan_of(&recorded([Some(7_726), None, None, None]), "suspend200").without_queue;
    assert!(matches!(alive, Some(NoQueueCause::Bypass { connections: 3, .. })), "{alive:?}");
}

#[test]
fn connections_that_bypass_napi_have_the_fix_of_the_device_with_their_address() {
    let mut host = recorded([None; 4]);
    set(&mut host, "/devices/0/kind", json!("veth"));
    let mut other = host["devices"][0].clone();
    (other["name"], other["ifindex"]) = (json!("eth1"), json!(3));
    set(&mut host, "/devices/-", other);
    set(&mut host, "/devices/1/features/rx-gro/active", json!(false));
    let fixes = |host: &Value| {
        let found = examine(&snapshot(host), None).findings.into_iter();
        let fix: Vec<Fix> = found.filter(|it| it.id == "connections-without-napi").flat_map(|it| it.fix).collect();
        fix.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let of_both = fixes(&host);
    assert!(of_both.contains("eth0") && of_both.contains("ethtool -K eth1 gro on"), "{of_both}");
    (host["devices"][0]["addresses"], host["devices"][1]["addresses"]) =
        (json!(["198.51.100.1"]), json!(["192.0.2.1"]));
    let of_theirs = fixes(&host);
    assert!(of_theirs.contains("ethtool -K eth1 gro on") && !of_theirs.contains("eth0"), "{of_theirs}");
}

#[test]
fn connections_that_bypass_the_queue_are_why_an_attached_program_has_few_packets() {
    let next = |napis| {
        let attached = vec![(4242, attached("suspend20", false))];
        only(&recorded(napis), &Facts { attached, packets_per_s: Some(20), ..Facts::default() }).next
    };
    assert_eq!(next([Some(8_193), Some(8_193), Some(8_194), Some(8_194)]), NextStep::Check);
    let bypass = NextStep::Fix { finding: "connections-without-napi" };
    assert_eq!(next([Some(8_193), None, None, Some(8_194)]), bypass);
}

#[test]
fn a_server_with_few_connections_is_told_what_more_of_them_will_do() {
    let mut few = recorded([Some(8_193); 4]);
    set(&mut few, "/processes/0/name", json!("goweb"));
    let all = few["processes"][0]["files"]["epolls"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|epoll| epoll["targets"].as_array().unwrap().clone())
        .collect::<Vec<_>>();
    set(&mut few, "/processes/0/files/epolls/1/targets", json!(all));
    [0, 2].iter().for_each(|epoll| set(&mut few, &format!("/processes/0/files/epolls/{epoll}/targets"), json!([])));
    let server = only(&few, &Facts::default());
    assert_eq!(server.next, NextStep::Measure { steered: false });
    assert!(matches!(server.will_mix, Some(QueuePerEpoll::Impossible { .. })), "{server:?}");
    assert_eq!(will_mix(&snapshot(&few), &[pid(4242)].into(), true), server.will_mix, "attach warns, too");
    // Two queues would have shared as many.
    for number in 0..4 {
        let mut socket = few["sockets"][1].clone();
        socket["inode"] = json!(300 + number);
        set(&mut few, "/sockets/-", socket);
        set(&mut few, "/processes/0/files/sockets/-", json!({"fd": 300 + number, "inode": 300 + number}));
    }
    assert_eq!(only(&few, &Facts::default()).will_mix, None);
}

#[test]
fn a_server_that_listens_on_loopback_only_is_not_told_that_its_connections_will_mix_queues() {
    let mut host = recorded([None; 4]);
    set(&mut host, "/processes/0/name", json!("goweb"));
    assert!(will_mix(&snapshot(&host), &[pid(4242)].into(), true).is_some());
    set(&mut host, "/sockets/0/local", json!("127.0.0.1:11211"));
    assert_eq!(will_mix(&snapshot(&host), &[pid(4242)].into(), true), None);
}

#[test]
fn a_server_that_listens_at_the_address_of_a_device_with_one_queue_will_not_mix_queues() {
    let mut host = recorded([None; 4]);
    set(&mut host, "/processes/0/name", json!("goweb"));
    let mut other = host["devices"][0].clone();
    (other["name"], other["ifindex"], other["addresses"]) = (json!("eth1"), json!(3), json!(["192.0.2.1"]));
    other["rx-queues"].as_array_mut().unwrap().truncate(1);
    set(&mut host, "/devices/-", other);
    host["devices"][0]["addresses"] = json!(["198.51.100.1"]);
    let mixes = |host: &Value| will_mix(&snapshot(host), &[pid(4242)].into(), true).is_some();
    assert!(!mixes(&host));
    (host["devices"][0]["addresses"], host["devices"][1]["addresses"]) =
        (json!(["192.0.2.1"]), json!(["198.51.100.1"]));
    assert!(mixes(&host));
}
