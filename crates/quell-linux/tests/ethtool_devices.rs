//! Rings, coalescing, RSS, flow rules and drivers on the devices that any kernel can make: what a
//! driver has is read and set, what it does not have is told apart from what is not there and from
//! what this caller may not do.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::process::Command;

use common::{LabNamespace, LabPair, can_make_namespaces, drop_all_capabilities};
use quell_linux::ethtool::{
    CoalesceParameter, Coalescing, Ethtool, FlowAction, FlowAddresses, FlowMatch, FlowRule, RingRequest, RssContextId,
    RssRequest, Transport,
};
use quell_linux::link::Links;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::{Ifindex, InterfaceName};
use quell_test_support::{Lacks, skip};

/// An index that no interface of a fresh namespace has.
fn no_interface() -> Ifindex {
    Ifindex::new(4_000_000).unwrap()
}

fn failure<T: std::fmt::Debug>(result: Result<T, NetlinkError>) -> Failure {
    result.unwrap_err().failure()
}

fn rx_max_frames(value: u32) -> Coalescing {
    [(CoalesceParameter::RxMaxFrames, value)].into_iter().collect()
}

fn rule() -> FlowRule {
    let matches = FlowMatch {
        transport: Transport::Tcp,
        addresses: FlowAddresses::V4 { source: None, destination: None },
        source_port: None,
        destination_port: Some(11_211),
    };
    FlowRule { matches, action: FlowAction::Queue(0) }
}

/// A namespace with a TAP device, the one virtual device that has coalescing.
fn tap() -> Option<(LabNamespace, Ifindex)> {
    if !can_make_namespaces() {
        return None;
    }
    let lab = LabNamespace::create("tap");
    let made =
        lab.namespace.run(|| Command::new("ip").args(["tuntap", "add", "tap0", "mode", "tap"]).status()).unwrap();
    if !made.as_ref().is_ok_and(std::process::ExitStatus::success) {
        skip(Lacks::Tool("ip"), format_args!("ip tuntap add: {made:?}"));
        return None;
    }
    let index = Links::open_in(&lab.namespace).unwrap().by_name(&InterfaceName::new("tap0").unwrap()).unwrap().index;
    Some((lab, index))
}

#[test]
fn a_driver_is_named_also_where_sysfs_names_none() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    let info = ethtool.driver_info(lab.server_index).unwrap();
    assert_eq!(info.driver.as_deref(), Some("veth"));
    assert_eq!(info.firmware_version, None);
    assert_eq!(failure(ethtool.driver_info(no_interface())), Failure::Absent);
}

#[test]
fn what_veth_does_not_have_is_unsupported_and_what_is_not_there_is_absent() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    for (index, expected) in [(lab.server_index, Failure::Unsupported), (no_interface(), Failure::Absent)] {
        assert_eq!(failure(ethtool.rings(index)), expected);
        assert_eq!(failure(ethtool.set_rings(index, RingRequest { rx: Some(256), tx: None })), expected);
        assert_eq!(failure(ethtool.coalescing(index)), expected);
        assert_eq!(failure(ethtool.set_coalescing(index, &rx_max_frames(1))), expected);
        assert_eq!(failure(ethtool.queue_coalescing(index, 0, &rx_max_frames(0))), expected);
        assert_eq!(failure(ethtool.set_queue_coalescing(index, 0, &rx_max_frames(1))), expected);
        assert_eq!(failure(ethtool.rss(index, RssContextId::MAIN)), expected);
        assert_eq!(failure(ethtool.rss_contexts(index)), expected);
        assert_eq!(failure(ethtool.create_rss_context(index, &RssRequest::default())), expected);
        assert_eq!(failure(ethtool.delete_rss_context(index, RssContextId::new(1).unwrap())), expected);
        assert_eq!(failure(ethtool.flow_rules(index)), expected);
        assert_eq!(failure(ethtool.add_flow_rule(index, &rule())), expected);
        assert_eq!(failure(ethtool.delete_flow_rule(index, 0)), expected);
    }
}

#[test]
fn coalescing_that_is_set_is_read_back_and_what_the_driver_lacks_is_not_there() {
    let Some((lab, index)) = tap() else { return };
    let mut ethtool = Ethtool::open_in(&lab.namespace).unwrap();
    ethtool.set_coalescing(index, &rx_max_frames(16)).unwrap();
    assert_eq!(ethtool.coalescing(index).unwrap(), rx_max_frames(16));
    let adaptive = [(CoalesceParameter::UseAdaptiveRx, 1)].into_iter().collect();
    let refused = ethtool.set_coalescing(index, &adaptive).unwrap_err();
    assert_eq!(refused.failure(), Failure::Invalid, "{refused}");
    assert_eq!(refused.attribute(), Some("use-adaptive-rx"), "{refused}");
    assert_eq!(failure(ethtool.queue_coalescing(index, 0, &rx_max_frames(0))), Failure::Unsupported);
    assert_eq!(failure(ethtool.queue_coalescing(index, 4096, &rx_max_frames(0))), Failure::Invalid);
}

#[test]
fn without_privileges_everything_is_read_and_nothing_is_set() {
    let Some((lab, index)) = tap() else { return };
    let mut ethtool = Ethtool::open_in(&lab.namespace).unwrap();
    let unprivileged = std::thread::spawn(move || {
        drop_all_capabilities();
        assert_eq!(ethtool.driver_info(index).unwrap().driver.as_deref(), Some("tun"));
        ethtool.coalescing(index).unwrap();
        assert_eq!(failure(ethtool.set_coalescing(index, &rx_max_frames(1))), Failure::Denied);
        assert_eq!(failure(ethtool.delete_flow_rule(index, 0)), Failure::Denied);
        assert_eq!(failure(ethtool.rings(index)), Failure::Unsupported);
    });
    unprivileged.join().unwrap();
}
