//! Rings, coalescing, RSS, flow rules and drivers on virtual devices of any kernel. Supported settings are read
//! and set. Unsupported settings, missing objects and missing privileges yield different errors.

use std::process::Command;

use crate::common::{LabNamespace, LabPair, can_make_namespaces, drop_all_capabilities};
use quell_linux::ethtool::{
    CoalesceParameter, Coalescing, Ethtool, FlowAction, FlowAddresses, FlowMatch, FlowRule, FlowTransport, RingRequest,
    RssContextId, RssRequest,
};
use quell_linux::link::Links;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::{Ifindex, InterfaceName};
use quell_test_support::{Lacks, skip};

/// An interface index that does not exist in a new namespace.
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
        transport: FlowTransport::Tcp,
        addresses: FlowAddresses::V4 { source: None, destination: None },
        source_port: None,
        destination_port: Some(11_211),
    };
    FlowRule { matches, action: FlowAction::Queue(0) }
}

/// Creates a namespace with a TAP device, the only virtual device that supports coalescing.
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
fn a_driver_is_reported_even_if_sysfs_lacks_it() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    let info = ethtool.driver_info(lab.server_index).unwrap();
    assert_eq!(info.driver.as_deref(), Some("veth"));
    assert_eq!(info.firmware_version, None);
    assert_eq!(failure(ethtool.driver_info(no_interface())), Failure::Absent);
}

#[test]
fn settings_that_veth_lacks_are_unsupported_and_missing_objects_are_absent() {
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
fn coalescing_reads_back_as_set_and_omits_parameters_that_the_driver_lacks() {
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
fn without_privileges_reading_works_and_setting_is_denied() {
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
