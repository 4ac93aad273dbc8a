//! Counts polls on the live kernel. Only the receiving NAPI instance has polls.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use common::LabPair;
use quell_linux::NapiId;
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::bpf::{CounterError, NapiPollCounter, NapiPolls};
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::ethtool::Ethtool;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::proc::ProcRoot;
use quell_test_support::{Lacks, skip};

fn id(number: u32) -> NapiId {
    NapiId::from_kernel(number).unwrap()
}

/// Attaches the counter. Returns `None` and prints the reason to stderr if the kernel or missing capabilities prevent
/// it.
fn attach(watched: &[NapiId]) -> Option<NapiPollCounter> {
    match NapiPollCounter::attach(Path::new("/sys"), watched) {
        Err(error @ (CounterError::Denied { .. } | CounterError::Unsupported(_))) => {
            skip(Lacks::Root, &error);
            None
        }
        counter => Some(counter.unwrap()),
    }
}

#[test]
fn an_empty_list_of_napis_is_refused() {
    let error = NapiPollCounter::attach(Path::new("/sys"), &[]).unwrap_err();
    assert!(matches!(error, CounterError::NothingToWatch));
}

#[test]
fn a_kernel_without_btf_is_unsupported() {
    let empty = tempfile::tempdir().unwrap();
    let error = NapiPollCounter::attach(empty.path(), &[id(9000)]).unwrap_err();
    assert!(matches!(error, CounterError::Unsupported(_)), "{error:?}");
}

#[test]
fn a_missing_napi_has_no_polls() {
    let absent = id(u32::MAX);
    let Some(counter) = attach(&[absent]) else { return };
    let NapiPolls { polls, packets, by_busy_poll, .. } = counter.read().unwrap()[&absent];
    assert_eq!((polls, packets, by_busy_poll), (0, 0, 0));
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Time limit that is long enough for a machine that stalls.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// Features that are switched off, because segmented packets from a veth bypass the NAPI instance of its peer.
const TSO: [(&str, bool); 4] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("tx-tcp6-segmentation", false),
];

/// Creates a lab in which the server's only queue has a NAPI instance. Returns `None` if the lab cannot be created.
fn lab_with_napi() -> Option<(LabPair, NapiId)> {
    let lab = LabPair::create(1)?;
    for (end, index, address) in [(&lab.server, lab.server_index, SERVER), (&lab.client, lab.client_index, CLIENT)] {
        let address = InterfaceAddress::new(address.into(), 24).unwrap();
        Addresses::open_in(&end.namespace).unwrap().add(index, address).unwrap();
    }
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    ethtool.set_features(lab.server_index, &[("rx-gro", true)]).unwrap();
    let mut ethtool = Ethtool::open_in(&lab.client.namespace).unwrap();
    ethtool.set_features(lab.client_index, &TSO).unwrap();
    let mut netdev = Netdev::open_in(&lab.server.namespace).unwrap();
    let napi = netdev.napis(lab.server_index).unwrap()[0].id;
    Some((lab, napi))
}

/// Sends datagrams to the server one by one. Each datagram is sent after the server received the previous one.
fn send_and_receive(lab: &LabPair, datagrams: u32) {
    let bind = |address: Ipv4Addr| move || UdpSocket::bind((address, 0)).unwrap();
    let server = lab.server.namespace.run(bind(SERVER)).unwrap();
    let client = lab.client.namespace.run(bind(CLIENT)).unwrap();
    server.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    for _ in 0..datagrams {
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        server.recv(&mut [0; 8]).unwrap();
    }
}

#[test]
fn packets_are_counted_only_for_the_napi_that_polled_them() {
    let (Some((busy, busy_id)), Some((_idle, idle_id))) = (lab_with_napi(), lab_with_napi()) else {
        return;
    };
    let Some(counter) = attach(&[busy_id, idle_id]) else { return };
    let before = counter.read().unwrap();
    send_and_receive(&busy, 500);
    let after = counter.read().unwrap();

    let moved = after[&busy_id].since(&before[&busy_id]);
    // Address resolution may add a few packets to the datagrams.
    assert!((500..550).contains(&moved.packets), "{moved:?}");
    assert!(moved.polls - moved.empty <= moved.packets, "{moved:?}");
    assert_eq!((moved.by_thread, moved.by_busy_poll), (0, 0));
    let idle = after[&idle_id].since(&before[&idle_id]);
    assert!(idle.packets < 50, "{idle:?}");
}

#[test]
fn polls_by_the_napi_thread_are_distinguished() {
    let Some((lab, id)) = lab_with_napi() else { return };
    let mut netdev = Netdev::open_in(&lab.server.namespace).unwrap();
    let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
    if let Err(error) = netdev.set_napi(id, &threaded) {
        skip(Lacks::KernelFeature, &error);
        return;
    }
    let Some(counter) = attach(&[id]) else { return };
    send_and_receive(&lab, 100);
    let polls = counter.read().unwrap()[&id];
    assert!(polls.packets >= 100, "{polls:?}");
    assert_eq!(polls.by_thread, polls.polls, "{polls:?}");
}

/// Counters of a program that waits for datagrams with preferred busy polling. Each datagram arrives before the program
/// waits for it, and a final wait finds no datagram. Returns `None` if the kernel rejects the settings.
fn polls_of_a_waiting_program(budget: u16, defer_hard_irqs: u32, irq_suspend_timeout: Duration) -> Option<NapiPolls> {
    let (lab, id) = lab_with_napi()?;
    let change = PartialNapiSettings {
        defer_hard_irqs: Some(defer_hard_irqs),
        gro_flush_timeout_ns: Some(1_000_000),
        irq_suspend_timeout_ns: Some(irq_suspend_timeout.as_nanos() as u64),
        threaded: None,
    };
    if let Err(error) = Netdev::open_in(&lab.server.namespace).unwrap().set_napi(id, &change) {
        skip(Lacks::KernelFeature, &error);
        return None;
    }
    let bind = |address: Ipv4Addr| move || UdpSocket::bind((address, 0)).unwrap();
    let server = lab.server.namespace.run(bind(SERVER)).unwrap();
    let client = lab.client.namespace.run(bind(CLIENT)).unwrap();
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add(&server, 0, Trigger::Level).unwrap();
    let prefer = EpollParams { busy_poll_usecs: 0, busy_poll_budget: budget, prefer_busy_poll: true };
    epoll_params::set(&epoll, prefer).unwrap();
    let counter = attach(&[id])?;
    for _ in 0..50 {
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        epoll.wait(Some(ARRIVES_WITHIN)).unwrap();
        server.recv(&mut [0; 8]).unwrap();
        // The wait busy polls, because no event is ready.
        epoll.wait(Some(Duration::from_millis(1))).unwrap();
    }
    Some(counter.read().unwrap()[&id])
}

#[test]
fn the_final_poll_of_a_busy_poll_loop_is_distinguished_from_a_softirq_by_its_budget() {
    let Some(own_budget) = polls_of_a_waiting_program(32, 1_000, Duration::ZERO) else { return };
    if own_budget.last_of_busy_poll == 0 {
        return skip(Lacks::Machine, "this kernel ends busy-poll loops without a final poll (Linux 7.3)");
    }
    assert!(own_budget.last_of_busy_poll <= own_budget.by_softirq_or_last_of_busy_poll(), "{own_budget:?}");
    let Some(of_the_weight) = polls_of_a_waiting_program(64, 1_000, Duration::ZERO) else { return };
    assert_eq!(of_the_weight.last_of_busy_poll, 0, "{of_the_weight:?}");
}

#[test]
fn polls_with_suspended_irq_are_distinguished_from_those_with_deferred_irq() {
    let Some(suspended) = polls_of_a_waiting_program(64, 1_000, Duration::from_millis(500)) else { return };
    let found = suspended.found_suspended.unwrap();
    assert!(found > 0 && found <= suspended.by_busy_poll, "{suspended:?}");
    let Some(deferred) = polls_of_a_waiting_program(64, 1_000, Duration::ZERO) else { return };
    assert!(deferred.by_busy_poll > 0, "{deferred:?}");
    assert_eq!(deferred.found_suspended, Some(0), "{deferred:?}");
}

#[test]
fn an_irq_without_deferral_is_not_counted_as_suspended_although_the_timer_runs() {
    let Some(undeferred) = polls_of_a_waiting_program(64, 0, Duration::from_millis(500)) else { return };
    assert!(undeferred.by_busy_poll > 0, "{undeferred:?}");
    assert_eq!(undeferred.found_suspended, Some(0), "{undeferred:?}");
}

#[test]
fn the_busy_poll_counter_of_a_new_namespace_is_readable() {
    if !common::can_make_namespaces() {
        return;
    }
    let fresh = common::LabNamespace::create("netstat");
    let read = || ProcRoot::default().thread_self().netstat().unwrap().busy_poll_rx_packets();
    assert_eq!(fresh.namespace.run(read).unwrap(), Some(0));
}
