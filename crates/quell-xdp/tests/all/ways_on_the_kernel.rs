//! Every way to poll that a veth has, over IPv4 and IPv6, with the proof of who polled.

use std::ops::ControlFlow;

use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::netns::Namespace;
use quell_sampler::XdpHook;
use quell_test_support::{Lacks, skip};
use quell_xdp::{CopyMode, PollWay, XdpError, XdpLoadSpec, XdpMoment, XdpSpec};

use crate::lab::{CLOSED, OPEN, V4, V6, XdpLab, assert_complete, load, responder};

fn set_client_queue(lab: &XdpLab, change: &PartialNapiSettings) {
    set_queue(&lab.lab.client, lab, change);
}

fn set_queue(namespace: &Namespace, lab: &XdpLab, change: &PartialNapiSettings) {
    let mut netdev = Netdev::open_in(namespace).unwrap();
    let napi = netdev.napis(lab.client_index).unwrap()[0].id;
    netdev.set_napi(napi, change).unwrap();
}

fn threaded(threading: NapiThreading) -> PartialNapiSettings {
    PartialNapiSettings { threaded: Some(threading), ..PartialNapiSettings::NONE }
}

/// The queue has no interrupts, and a timer every 20 ms.
const DEFERRING: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(1_000_000),
    gro_flush_timeout_ns: Some(20_000_000),
    irq_suspend_timeout_ns: None,
    threaded: None,
};

#[test]
fn requests_are_answered_over_both_protocols_in_both_loops_and_modes_of_waiting() {
    let Some(lab) = XdpLab::raise("xdp-loops") else { return };
    for ip in [V4, V6] {
        let answering = lab.respond(&responder(ip, PollWay::Interrupts));
        for (schedule, spin) in [(CLOSED, false), (OPEN, false), (CLOSED, true), (OPEN, true)] {
            let mut spec = load(ip, PollWay::Interrupts, schedule);
            spec.socket.spin = spin;
            let report = lab.load(&spec);
            assert_complete(&report);
            assert_eq!((report.queue.hook, report.queue.zero_copy), (XdpHook::Native, false));
            // A thread that watches the ring makes none, except if no frame arrives for long.
            let per_request = report.system_calls as f64 / report.answered as f64;
            assert!(if spin { per_request < 0.5 } else { report.system_calls > 0 }, "{per_request}");
            assert_eq!(report.lateness.count(), if schedule == OPEN { report.sent } else { 0 });
            let cpu: Vec<&str> = report.cpu.iter().map(|cpu| cpu.thread.as_str()).collect();
            assert_eq!(cpu, if schedule == OPEN { vec!["receiver", "sender"] } else { vec!["receiver"] });
        }
        let (stats, failure) = answering.stop();
        assert!(failure.is_none() && stats.answered > 0 && stats.invalid == 0, "{stats:?} {failure:?}");
    }
}

#[test]
fn the_rings_work_at_their_smallest_without_need_wakeup_and_with_long_requests() {
    let Some(lab) = XdpLab::raise("xdp-rings") else { return };
    let small =
        XdpSpec { ring_entries: 64, batch: 1, need_wakeup: false, copy_mode: CopyMode::Copy, ..XdpSpec::default() };
    let mut answering = responder(V6, PollWay::Interrupts);
    answering.socket = small.clone();
    let _answering = lab.respond(&answering);
    for bytes in [16, 17, XdpLoadSpec::BYTES_MAX] {
        let mut spec = load(V6, PollWay::Interrupts, CLOSED);
        (spec.socket, spec.bytes) = (small.clone(), bytes);
        assert_complete(&lab.load(&spec));
    }
}

#[test]
fn the_napi_thread_polls_if_the_queue_is_threaded_and_is_refused_otherwise() {
    let Some(lab) = XdpLab::raise("xdp-thread") else { return };
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    let spec = load(V4, PollWay::NapiThread, CLOSED);
    assert!(matches!(lab.try_load(&spec), Err(XdpError::NoNapiThread { queue: 0, .. })));
    assert!(matches!(
        lab.try_load(&load(V4, PollWay::ThreadedBusyPoll, CLOSED)),
        Err(XdpError::NoThreadedBusyPoll { queue: 0, .. })
    ));
    // veth has its NAPI instance once a program is attached, and GRO has one before.
    set_client_queue(&lab, &threaded(NapiThreading::Enabled));
    let report = lab.load(&spec);
    assert_complete(&report);
    let Some(polls) = report.polls else { return skip(Lacks::Root, report.polls_missing.unwrap()) };
    assert!(polls.thread > 0 && polls.interrupt + polls.program == 0, "{polls:?}");
}

#[test]
fn an_io_uring_polls_a_queue_without_interrupts_in_the_receiving_thread_and_beside_it() {
    let Some(lab) = XdpLab::raise("xdp-uring") else { return };
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    for way in [PollWay::IoUring, PollWay::IoUringThread] {
        set_client_queue(&lab, &DEFERRING);
        let mut spec = load(V4, way, CLOSED);
        spec.socket.time_calls = way == PollWay::IoUring;
        let report = match lab.try_load(&spec) {
            Err(error @ XdpError::NapiPoll(_)) => return skip(Lacks::KernelFeature, &error),
            report => report.unwrap(),
        };
        assert_complete(&report);
        assert_eq!(report.queue.defers, Some(true));
        assert_eq!(report.receive_calls.as_ref().is_some_and(|calls| !calls.is_empty()), way == PollWay::IoUring);
        assert_eq!(report.cpu.iter().any(|cpu| cpu.thread == "poller"), way == PollWay::IoUringThread);
        let Some(polls) = report.polls else { return skip(Lacks::Root, report.polls_missing.unwrap()) };
        assert!(polls.program > 0 && polls.program + polls.program_last > polls.total() / 2, "{way:?}: {polls:?}");
    }
}

#[test]
fn a_udp_socket_of_the_queue_polls_it_in_the_receiving_thread_and_beside_it() {
    let Some(lab) = XdpLab::raise("xdp-udp") else { return };
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    for way in [PollWay::UdpBusyPoll, PollWay::UdpBusyPollThread] {
        set_client_queue(&lab, &DEFERRING);
        let mut spec = load(V4, way, CLOSED);
        spec.socket.time_calls = way == PollWay::UdpBusyPoll;
        let report = match lab.try_load(&spec) {
            Err(error @ XdpError::Option(_)) => return skip(Lacks::KernelFeature, &error),
            report => report.unwrap(),
        };
        assert_complete(&report);
        assert_eq!(report.receive_calls.as_ref().is_some_and(|calls| !calls.is_empty()), way.is_inline());
        assert_eq!(report.cpu.iter().any(|cpu| cpu.thread == "poller"), way.has_thread());
        assert!(report.system_calls > 0, "{way:?}");
        let Some(polls) = report.polls else { return skip(Lacks::Root, report.polls_missing.unwrap()) };
        assert!(polls.program > 0 && polls.program + polls.program_last > polls.total() / 2, "{way:?}: {polls:?}");
    }
    let refused = lab.try_respond(&responder(V6, PollWay::UdpBusyPoll)).err().unwrap();
    assert!(matches!(refused, XdpError::OnlyLoads { .. }), "{refused}");
}

#[test]
fn an_observer_is_called_at_both_ends_of_the_measured_window() {
    let Some(lab) = XdpLab::raise("xdp-moments") else { return };
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    let spec = load(V4, PollWay::Interrupts, OPEN);
    let moments = lab.lab.client.run(|| {
        let mut seen = Vec::new();
        quell_xdp::run(&spec, &mut |now| {
            seen.extend((now.moment != XdpMoment::Tick).then_some(now.moment));
            ControlFlow::Continue(())
        })
        .unwrap();
        seen
    });
    assert_eq!(moments.unwrap(), [XdpMoment::WindowBegan, XdpMoment::WindowEnded]);
}

#[test]
fn a_socket_without_a_napi_id_is_refused_busy_polling_on_both_sides() {
    let Some(lab) = XdpLab::raise("xdp-busy") else { return };
    let answering = lab.respond(&responder(V4, PollWay::BusyPoll));
    let refused = lab.try_load(&load(V4, PollWay::Interrupts, CLOSED));
    let (stats, failure) = answering.stop();
    if let Ok(report) = &refused
        && report.queue.socket_napi.is_some()
    {
        return skip(Lacks::KernelFeature, "this kernel gives AF_XDP sockets of a veth their NAPI ID");
    }
    assert!(matches!(failure, Some(XdpError::CannotBusyPoll { queue: 0, .. })), "{failure:?} {stats:?}");

    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    for way in [PollWay::BusyPoll, PollWay::BusyPollThread] {
        let refused = lab.try_load(&load(V4, way, CLOSED)).unwrap_err();
        assert!(refused.to_string().contains("this AF_XDP socket cannot busy poll on this kernel"), "{refused}");
    }
}
