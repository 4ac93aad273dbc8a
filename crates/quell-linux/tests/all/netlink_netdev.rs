//! NAPI instances, queues and their statistics on the running kernel.

use crate::common::{LabPair, drop_all_capabilities};
use quell_linux::ethtool::Ethtool;
use quell_linux::netdev::{Napi, NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::netlink::Failure;
use quell_linux::{Ifindex, NapiId};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip};

/// Creates a lab in which the server's end has GRO enabled, and returns its NAPI instances. Returns `None` if the lab
/// cannot be created.
fn lab_with_napis(queues: u32) -> Option<(LabPair, Netdev, Vec<Napi>)> {
    let lab = LabPair::create(queues)?;
    set_gro(&lab, true);
    let mut netdev = match Netdev::open_in(&lab.server.namespace) {
        Ok(netdev) => netdev,
        Err(error) if error.failure() == Failure::Unsupported => {
            skip(Lacks::KernelFeature, &error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let napis = netdev.napis(lab.server_index).unwrap();
    Some((lab, netdev, napis))
}

fn set_gro(lab: &LabPair, on: bool) {
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    ethtool.set_features(lab.server_index, &[("rx-gro", on)]).unwrap();
}

/// Whether the kernel has per-NAPI settings (Linux 6.13). If not, prints a message to stderr.
fn has_settings(napi: &Napi) -> bool {
    let has = napi.settings.irq_suspend_timeout_ns.is_some();
    if !has {
        skip(Lacks::KernelFeature, "per-NAPI settings need Linux 6.13");
    }
    has
}

#[test]
fn a_veth_with_four_queues_and_gro_has_four_napis() {
    let Some((lab, _, napis)) = lab_with_napis(4) else { return };
    assert_eq!(napis.len(), 4);
    assert!(napis.iter().all(|napi| napi.ifindex == lab.server_index));
    assert!(napis.iter().all(|napi| napi.irq.is_none()), "veth has no interrupt");
}

#[test]
fn a_veth_without_gro_has_no_napi() {
    let Some((lab, mut netdev, _)) = lab_with_napis(4) else { return };
    set_gro(&lab, false);
    assert_eq!(netdev.napis(lab.server_index).unwrap(), []);
}

#[test]
fn settings_read_back_as_set() {
    let Some((_lab, mut netdev, napis)) = lab_with_napis(2) else { return };
    if !has_settings(&napis[0]) {
        return;
    }
    let change = PartialNapiSettings {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(u64::MAX),
        threaded: None,
    };
    netdev.set_napi(napis[0].id, &change).unwrap();
    let set = netdev.napi(napis[0].id).unwrap();
    assert_eq!(set.settings.defer_hard_irqs, Some(100));
    assert_eq!(set.settings.gro_flush_timeout_ns, Some(20_000));
    assert_eq!(set.settings.irq_suspend_timeout_ns, Some(u64::MAX));
    assert_eq!(netdev.napi(napis[1].id).unwrap(), napis[1], "the settings of the other instance are unchanged");

    let only_one = PartialNapiSettings { irq_suspend_timeout_ns: Some(20_000_000), ..PartialNapiSettings::default() };
    netdev.set_napi(napis[0].id, &only_one).unwrap();
    let set = netdev.napi(napis[0].id).unwrap();
    assert_eq!((set.settings.defer_hard_irqs, set.settings.irq_suspend_timeout_ns), (Some(100), Some(20_000_000)));
}

#[test]
fn a_deferral_above_int_max_is_out_of_range_and_changes_nothing() {
    let Some((_lab, mut netdev, napis)) = lab_with_napis(1) else { return };
    if !has_settings(&napis[0]) {
        return;
    }
    let change = PartialNapiSettings {
        defer_hard_irqs: Some(1 << 31),
        gro_flush_timeout_ns: Some(77),
        ..PartialNapiSettings::default()
    };
    let error = netdev.set_napi(napis[0].id, &change).unwrap_err();
    assert_eq!((error.failure(), error.errno()), (Failure::Invalid, Some(libc::ERANGE)));
    assert!(error.kernel_message().is_some(), "{error}");
    assert_eq!(error.attribute(), Some("defer-hard-irqs"));
    assert_eq!(error.allowed_range(), Some(0..=i32::MAX as u64), "{error}");
    assert_eq!(netdev.napi(napis[0].id).unwrap(), napis[0]);
}

#[test]
fn an_unknown_napi_is_absent_with_the_kernels_message() {
    let Some((_lab, mut netdev, _)) = lab_with_napis(1) else { return };
    let unknown = NapiId::from_kernel(u32::MAX).unwrap();
    for error in
        [netdev.napi(unknown).unwrap_err(), netdev.set_napi(unknown, &PartialNapiSettings::default()).unwrap_err()]
    {
        assert_eq!((error.failure(), error.errno()), (Failure::Absent, Some(libc::ENOENT)));
        assert!(error.to_string().contains(&u32::MAX.to_string()), "{error}");
        assert_eq!(error.attribute(), Some("id"), "{error}");
    }
}

#[test]
fn listing_an_unknown_interface_is_absent() {
    let Some((_lab, mut netdev, _)) = lab_with_napis(1) else { return };
    let nowhere = Ifindex::new(999_999).unwrap();
    assert_eq!(netdev.napis(nowhere).unwrap_err().failure(), Failure::Absent);
    assert_eq!(netdev.queues(nowhere).unwrap_err().failure(), Failure::Absent);
    assert!(netdev.device_stats(nowhere).is_err());
}

#[test]
fn a_threaded_napi_has_a_thread() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some((_lab, mut netdev, napis)) = lab_with_napis(1) else { return };
    let Some(before) = napis[0].settings.threaded else {
        skip(Lacks::KernelFeature, "this kernel does not support threaded NAPI per instance");
        return;
    };
    assert_eq!((before, napis[0].pid), (NapiThreading::Disabled, None));
    let set = |threading| PartialNapiSettings { threaded: Some(threading), ..PartialNapiSettings::default() };
    netdev.set_napi(napis[0].id, &set(NapiThreading::Enabled)).unwrap();
    let threaded = netdev.napi(napis[0].id).unwrap();
    assert_eq!(threaded.settings.threaded, Some(NapiThreading::Enabled));
    let name = std::fs::read_to_string(format!("/proc/{}/comm", threaded.pid.unwrap())).unwrap();
    assert!(name.starts_with("napi/"), "{name}");
    netdev.set_napi(napis[0].id, &set(NapiThreading::Disabled)).unwrap();
    assert_eq!(netdev.napi(napis[0].id).unwrap().settings.threaded, Some(NapiThreading::Disabled));
    let unknown = netdev.set_napi(napis[0].id, &set(NapiThreading::Other(99))).unwrap_err();
    assert_eq!(unknown.failure(), Failure::Invalid, "{unknown}");
}

#[test]
fn settings_are_denied_without_cap_net_admin_and_reading_is_not() {
    let Some((lab, _, napis)) = lab_with_napis(1) else { return };
    if !has_settings(&napis[0]) {
        return;
    }
    let id = napis[0].id;
    let (read, set) = lab
        .server
        .namespace
        .run(|| {
            drop_all_capabilities();
            let mut netdev = Netdev::open().unwrap();
            (netdev.napi(id), netdev.set_napi(id, &PartialNapiSettings::default()))
        })
        .unwrap();
    assert_eq!(read.unwrap(), napis[0]);
    let denied = set.unwrap_err();
    assert_eq!(denied.failure(), Failure::Denied);
    assert!(denied.to_string().contains("CAP_NET_ADMIN"), "{denied}");
}

#[test]
fn queues_of_a_veth_are_listed_without_a_napi() {
    let Some((lab, mut netdev, _)) = lab_with_napis(2) else { return };
    let queues = netdev.queues(lab.server_index).unwrap();
    assert_eq!(queues.len(), 4, "{queues:?}");
    assert!(queues.iter().all(|queue| queue.napi_id.is_none()), "veth does not report NAPI instances of queues");
}

#[test]
fn statistics_that_a_driver_lacks_are_unsupported() {
    let Some((lab, mut netdev, _)) = lab_with_napis(1) else { return };
    for error in [
        netdev.device_stats(lab.server_index).map(drop).unwrap_err(),
        netdev.queue_stats(lab.server_index).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.failure(), Failure::Unsupported, "{error}");
    }
}
