//! Interfaces, addresses, features and channels on the running kernel.

use crate::common::LabPair;
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::{ChannelRequest, Ethtool, FeatureError};
use quell_linux::link::{Links, OperationalState, VethEnd};
use quell_linux::netlink::Failure;
use quell_linux::{Ifindex, InterfaceName, MacAddress};
use quell_test_support::{Lacks, skip};

#[test]
fn each_end_of_a_pair_is_in_its_own_namespace() {
    let Some(lab) = LabPair::create(3) else { return };
    let mut links = Links::open_in(&lab.server.namespace).unwrap();
    let server = links.by_name(&InterfaceName::new("srv0").unwrap()).unwrap();
    assert_eq!(server.index, lab.server_index);
    assert_eq!(server.kind.as_deref(), Some("veth"));
    assert_eq!((server.rx_queues, server.tx_queues), (Some(3), Some(3)));
    assert!(server.is_up);
    assert_eq!(server.operational_state, OperationalState::Up);
    let peer = server.peer.unwrap();
    assert_eq!(peer.index, lab.client_index);
    assert!(peer.namespace_id.is_some());
    let absent = links.by_name(&InterfaceName::new("cli0").unwrap()).unwrap_err();
    assert_eq!(absent.failure(), Failure::Absent);
    assert!(absent.to_string().contains("cli0"), "{absent}");
}

#[test]
fn a_pair_has_the_requested_addresses() {
    let Some(lab) = LabPair::create(1) else { return };
    let macs = [1, 2].map(|last| MacAddress::new([2, 0, 0, 0, 0, last]));
    let end = |namespace, name, mac| VethEnd { namespace, name: InterfaceName::new(name).unwrap(), mac, queues: 1 };
    let left = end(&lab.server.namespace, "fixed0", macs[0]);
    let right = end(&lab.client.namespace, "fixed1", macs[1]);
    let mut outside = Links::open().unwrap();
    let pair = outside.create_veth(&left, &right).unwrap();
    let mut server = Links::open_in(&lab.server.namespace).unwrap();
    let mut client = Links::open_in(&lab.client.namespace).unwrap();
    assert_eq!(server.by_index(pair.left).unwrap().mac, macs[0]);
    assert_eq!(client.by_index(pair.right).unwrap().mac, macs[1]);
    assert_eq!(outside.create_veth(&left, &right).unwrap_err().failure(), Failure::Exists);
    server.delete(pair.left).unwrap();
    assert_eq!(client.by_index(pair.right).unwrap_err().failure(), Failure::Absent);
    assert_eq!(server.delete(pair.left).unwrap_err().failure(), Failure::Absent);
}

#[test]
fn the_mtu_is_set_and_one_beyond_the_limit_is_refused_with_the_kernels_message() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut links = Links::open_in(&lab.server.namespace).unwrap();
    links.set_mtu(lab.server_index, 9000).unwrap();
    assert_eq!(links.by_index(lab.server_index).unwrap().mtu, Some(9000));
    let refused = links.set_mtu(lab.server_index, 10_000_000).unwrap_err();
    assert_eq!(refused.failure(), Failure::Invalid);
    assert!(refused.kernel_message().unwrap().contains("mtu"), "{refused}");
    assert_eq!(links.by_index(lab.server_index).unwrap().mtu, Some(9000));
}

#[test]
fn an_interface_that_is_set_down_is_down() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut links = Links::open_in(&lab.server.namespace).unwrap();
    links.set_down(lab.server_index).unwrap();
    let link = links.by_index(lab.server_index).unwrap();
    assert!(!link.is_up);
    assert_eq!(link.operational_state, OperationalState::Down);
}

#[test]
fn addresses_of_both_families_are_usable_at_once() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut addresses = Addresses::open_in(&lab.server.namespace).unwrap();
    let wanted = [("10.99.0.1", 24), ("fd99::1", 64)]
        .map(|(ip, bits)| InterfaceAddress::new(ip.parse().unwrap(), bits).unwrap());
    for address in wanted {
        addresses.add(lab.server_index, address).unwrap();
    }
    let listed = addresses.list().unwrap();
    assert!(wanted.iter().all(|address| listed.contains(&(lab.server_index, *address))), "{listed:?}");
    for address in wanted {
        let bound = lab.server.namespace.run(|| std::net::UdpSocket::bind((address.ip(), 0)).map(drop)).unwrap();
        assert!(bound.is_ok(), "{address}: {bound:?}");
    }
    assert_eq!(addresses.add(lab.server_index, wanted[0]).unwrap_err().failure(), Failure::Exists);
    let nowhere = Ifindex::new(999_999).unwrap();
    assert_eq!(addresses.add(nowhere, wanted[0]).unwrap_err().failure(), Failure::Absent);
}

#[test]
fn features_read_back_as_set() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.client.namespace).unwrap();
    let changes = [
        ("rx-gro", true),
        ("tx-tcp-segmentation", false),
        ("tx-tcp6-segmentation", false),
        ("tx-generic-segmentation", false),
    ];
    let after = ethtool.set_features(lab.client_index, &changes).unwrap();
    for (name, on) in changes {
        assert_eq!(after.get(name).unwrap().active, on, "{name}");
    }
    assert_eq!(ethtool.features(lab.client_index).unwrap(), after);
    assert_eq!(ethtool.set_features(lab.client_index, &changes).unwrap(), after);
}

#[test]
fn a_fixed_feature_is_refused_and_nothing_is_changed() {
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.client.namespace).unwrap();
    let before = ethtool.features(lab.client_index).unwrap();
    let (fixed, state) = before.iter().find(|(_, feature)| !feature.changeable).unwrap();
    let gro = before.get("rx-gro").unwrap().active;
    let changes = [("rx-gro", !gro), (fixed, !state.active)];
    let error = ethtool.set_features(lab.client_index, &changes).unwrap_err();
    assert!(matches!(error, FeatureError::NotChangeable { ref name, .. } if name == fixed), "{error}");
    assert_eq!(ethtool.features(lab.client_index).unwrap(), before);
}

#[test]
fn features_agree_with_the_ethtool_program() {
    let Some(lab) = LabPair::create(1) else { return };
    let output =
        lab.client.namespace.run(|| std::process::Command::new("ethtool").args(["-k", "cli0"]).output()).unwrap();
    let Ok(output) = output else {
        skip(Lacks::Tool("ethtool"), "no ethtool");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let features = Ethtool::open_in(&lab.client.namespace).unwrap().features(lab.client_index).unwrap();
    let mut compared = 0;
    for line in text.lines() {
        let Some((name, state)) = line.trim().split_once(": ") else { continue };
        let Some(feature) = features.get(name) else { continue };
        assert_eq!(feature.active, state.starts_with("on"), "{line}");
        assert_eq!(!feature.changeable, state.contains("[fixed]"), "{line}");
        compared += 1;
    }
    assert!(compared > 20, "{text}");
}

#[test]
fn channels_are_set_and_one_beyond_the_maximum_is_refused() {
    let Some(lab) = LabPair::create(4) else { return };
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    let before = ethtool.channels(lab.server_index).unwrap();
    assert_eq!((before.rx_count, before.rx_max), (Some(4), Some(4)));
    assert_eq!((before.tx_count, before.tx_max), (Some(4), Some(4)));
    let two = ChannelRequest { rx: Some(2), tx: Some(2), combined: None };
    ethtool.set_channels(lab.server_index, two).unwrap();
    let after = ethtool.channels(lab.server_index).unwrap();
    assert_eq!((after.rx_count, after.tx_count), (Some(2), Some(2)));
    let five = ChannelRequest { rx: Some(5), ..two };
    let refused = ethtool.set_channels(lab.server_index, five).unwrap_err();
    assert_eq!(refused.failure(), Failure::Invalid);
    assert!(refused.kernel_message().is_some(), "{refused}");
}

#[test]
fn a_listing_of_many_datagrams_is_complete_while_interfaces_come_and_go() {
    const STABLE_PAIRS: usize = 30;
    let Some(lab) = LabPair::create(1) else { return };
    let namespace = &lab.server.namespace;
    let end = |name: String| VethEnd { namespace, name: InterfaceName::new(name).unwrap(), mac: None, queues: 1 };
    let mut links = Links::open_in(namespace).unwrap();
    for pair in 0..STABLE_PAIRS {
        links.create_veth(&end(format!("left{pair}")), &end(format!("right{pair}"))).unwrap();
    }
    let is_stable = |name: &str| name.starts_with("left") || name.starts_with("right");
    std::thread::scope(|scope| {
        let coming_and_going = scope.spawn(|| {
            let mut links = Links::open_in(namespace).unwrap();
            for _ in 0..20 {
                let pair = links.create_veth(&end("come".to_owned()), &end("go".to_owned())).unwrap();
                links.delete(pair.left).unwrap();
            }
        });
        while !coming_and_going.is_finished() {
            match links.list() {
                Ok(list) => {
                    let stable = list.iter().filter(|link| is_stable(&link.name)).count();
                    assert_eq!(stable, 2 * STABLE_PAIRS);
                }
                Err(error) => assert_eq!(error.failure(), Failure::Busy, "{error}"),
            }
        }
    });
    assert_eq!(links.list().unwrap().iter().filter(|link| is_stable(&link.name)).count(), 2 * STABLE_PAIRS);
}
