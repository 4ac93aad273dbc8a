//! Faults: one clear sentence each, and nothing stays attached. Frames of others reach the stack.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use quell_linux::af_xdp::{self, XdpSocketError, XdpSocketSpec};
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_sampler::{VethSide, XdpEcho, XdpRedirectError};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, entry, skip, wait_until};
use quell_xdp::{CopyMode, PollWay, XdpError, XdpResponder, XdpSchedule, XdpSpec};

use crate::lab::{CLOSED, OPEN, PORT, V4, V6, XdpLab, assert_complete, has_program, load, responder, veth_in};
use crate::process::start_responder;

const ADDRESS: SocketAddr = SocketAddr::new(V4, PORT);

fn program_error(error: XdpError) -> XdpRedirectError {
    match error {
        XdpError::Program { source, .. } => source,
        other => panic!("{other}"),
    }
}

fn socket_error(error: XdpError) -> XdpSocketError {
    match error {
        XdpError::Socket { source, .. } => source,
        other => panic!("{other}"),
    }
}

/// The error of a responder with this socket.
fn refusal(lab: &XdpLab, socket: XdpSpec) -> XdpError {
    let spec = quell_xdp::XdpResponderSpec { socket, ..responder(V4, PollWay::Interrupts) };
    lab.try_respond(&spec).map(drop).unwrap_err()
}

#[test]
fn frames_of_others_reach_the_stack() {
    let Some(lab) = XdpLab::raise("xdp-others") else { return };
    for ip in [V4, V6] {
        let answering = lab.respond(&responder(ip, PollWay::Interrupts));
        let other = lab.lab.server.run(|| UdpSocket::bind((ip, PORT + 1)).unwrap()).unwrap();
        let listener = lab.lab.server.run(|| TcpListener::bind((ip, PORT)).unwrap()).unwrap();
        other.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        lab.lab
            .client
            .run(|| {
                let sender = UdpSocket::bind(any).unwrap();
                sender.send_to(b"to another port", (ip, PORT + 1)).unwrap();
                TcpStream::connect_timeout(&SocketAddr::new(ip, PORT), ARRIVES_WITHIN).unwrap();
            })
            .unwrap();
        assert_eq!(other.recv(&mut [0; 100]).unwrap(), 15, "another port");
        listener.accept().unwrap();
        let (stats, failure) = answering.stop();
        assert!(failure.is_none() && stats.answered + stats.invalid == 0, "another protocol: {stats:?}");
    }
    // The other family at the same port: the program of the last responder is that of IPv6.
    let _answering = lab.respond(&responder(V6, PollWay::Interrupts));
    let v4 = lab.lab.server.run(|| UdpSocket::bind((V4, PORT)).unwrap()).unwrap();
    v4.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    lab.lab.client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"v4", ADDRESS).unwrap()).unwrap();
    assert_eq!(v4.recv(&mut [0; 100]).unwrap(), 2);
}

#[test]
fn an_ordinary_client_is_answered_over_a_device_that_completes_checksums() {
    let Some(lab) = XdpLab::raise("xdp-client") else { return };
    for ip in [V4, V6] {
        let answering = lab.respond(&responder(ip, PollWay::Interrupts));
        let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        lab.lab
            .client
            .run(|| {
                let client = UdpSocket::bind(any).unwrap();
                client.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
                client.send_to(b"odd", (ip, PORT)).unwrap();
                let mut answer = [0; 10];
                let (length, from) = client.recv_from(&mut answer).unwrap();
                assert_eq!((&answer[..length], from), (&b"odd"[..], SocketAddr::new(ip, PORT)));
            })
            .unwrap();
        assert_eq!(answering.stop().0.answered, 1);
    }
}

#[test]
fn a_frame_with_a_wrong_checksum_is_not_answered() {
    let Some(lab) = XdpLab::raise("xdp-invalid") else { return };
    let answering = lab.respond(&responder(V4, PollWay::Interrupts));
    // UDP to the port with a wrong checksum, by a raw socket, whose payload starts at the UDP header.
    let script = format!(
        "import socket, struct\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)\n\
         s.sendto(struct.pack('!HHHH', 9, {PORT}, 12, 0x1234) + b'abcd', ('{V4}', 0))\n\
         s.sendto(struct.pack('!HHHH', 9, {PORT}, 99, 0) + b'abcd', ('{V4}', 0))"
    );
    let Ok(sent) = lab.lab.client.run(|| Command::new("python3").args(["-c", &script]).status()).unwrap() else {
        return skip(Lacks::Tool("python3"), "python3 is not installed");
    };
    assert!(sent.success());
    wait_until(|| match answering.stats() {
        stats if stats.invalid == 2 => Ok(()),
        stats => Err(format!("{stats:?}")),
    });
    assert_complete(&lab.load(&load(V4, PollWay::Interrupts, CLOSED)));
}

#[test]
fn a_program_of_somebody_else_is_never_replaced() {
    let Some(lab) = XdpLab::raise("xdp-occupied") else { return };
    let side = VethSide { namespace: &lab.lab.server, interface: lab.lab.server_index };
    let client = VethSide { namespace: &lab.lab.client, interface: lab.client_index };
    let echo = XdpEcho::attach(side, client, PORT).unwrap();
    let refused = refusal(&lab, XdpSpec::default());
    assert!(refused.to_string().contains("another XDP program is attached"), "{refused}");
    assert!(matches!(program_error(refused), XdpRedirectError::Occupied));
    assert!(has_program(&lab.lab.server, lab.lab.server_index), "still that of somebody else");
    drop(echo);
    wait_until(|| match has_program(&lab.lab.server, lab.lab.server_index) {
        false => Ok(()),
        true => Err("still attached".to_owned()),
    });
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
}

#[test]
fn a_queue_of_another_socket_is_refused() {
    let Some(lab) = XdpLab::raise("xdp-ebusy") else { return };
    let socket = XdpSocketSpec {
        interface: lab.lab.server_index,
        queue: 0,
        ring_entries: 64,
        batch: 1,
        copy_mode: CopyMode::Auto,
        need_wakeup: true,
    };
    // The socket that found out whether there is AF_XDP owns the queue for a moment.
    let _owner =
        lab.lab.server.run(|| wait_until(|| af_xdp::open(&socket).map_err(|error| error.to_string()))).unwrap();
    let refused = refusal(&lab, XdpSpec::default());
    assert!(refused.to_string().contains("queue 0 belongs to another AF_XDP socket"), "{refused}");
    assert!(!has_program(&lab.lab.server, lab.lab.server_index));
}

#[test]
fn what_a_device_cannot_do_is_refused_by_its_reason() {
    let Some(lab) = XdpLab::raise("xdp-cannot") else { return };
    let zero_copy = refusal(&lab, XdpSpec { copy_mode: CopyMode::ZeroCopy, ..XdpSpec::default() });
    assert!(matches!(socket_error(zero_copy), XdpSocketError::NoZeroCopy { queue: 0 }));
    let queue = refusal(&lab, XdpSpec { queue: 7, ..XdpSpec::default() });
    assert!(matches!(socket_error(queue), XdpSocketError::NoSuchQueue { queue: 7 }));
    let nowhere = lab.try_respond(&responder(Ipv4Addr::new(192, 0, 2, 77).into(), PollWay::Interrupts));
    assert!(matches!(nowhere.map(drop).unwrap_err(), XdpError::Reserve { .. }), "an address of no device");
    lab.lab.server.run(|| Links::open().unwrap().set_up(quell_linux::Ifindex::new(1).unwrap()).unwrap()).unwrap();
    let loopback = lab.try_respond(&responder(IpAddr::V4(Ipv4Addr::LOCALHOST), PollWay::Interrupts));
    assert!(matches!(loopback.map(drop).unwrap_err(), XdpError::NotEthernet { .. }));
    let (server, index) = (&lab.lab.server, lab.lab.server_index);
    for (namespace, device) in [(&lab.lab.client, lab.client_index), (server, index)] {
        Links::open_in(namespace).unwrap().set_mtu(device, 9_000).unwrap();
    }
    let frames = refusal(&lab, XdpSpec::default());
    assert!(frames.to_string().contains("the device cannot run XDP programs"), "{frames}");
    assert!(!has_program(server, index));
}

#[test]
fn contradictions_are_refused_before_anything_is_opened() {
    let refused = |change: &dyn Fn(&mut quell_xdp::XdpLoadSpec)| {
        let mut spec = load(V4, PollWay::Interrupts, OPEN);
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    };
    assert_eq!(refused(&|spec| spec.bytes = 15), "--request-bytes: 15 is not from 16 to 1452");
    assert!(refused(&|spec| spec.socket.ring_entries = 100).starts_with("--ring: 100 is not a power of two"));
    assert!(refused(&|spec| spec.socket.poll_cpu = Some(1)).starts_with("--poll-cpu: applies to the ways"));
    assert!(refused(&|spec| (spec.socket.way, spec.socket.spin) = (PollWay::IoUring, true)).starts_with("--spin"));
    assert!(refused(&|spec| spec.schedule = XdpSchedule::Open { period_ns: 1.0 }).starts_with("--rate"));
    assert!(refused(&|spec| spec.schedule = XdpSchedule::Closed { depth: 0 }).starts_with("--depth"));
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let Some(lab) = XdpLab::raise("xdp-silent") else { return };
    let silent = lab.try_load(&load(V4, PollWay::Interrupts, CLOSED)).unwrap_err();
    assert!(silent.to_string().contains("run `quell respond --xdp 192.0.2.1:7000` there"), "{silent}");
    let mut is_first = true;
    let cancelled = lab.lab.client.run(|| {
        let spec = load(V4, PollWay::Interrupts, CLOSED);
        quell_xdp::run(&spec, &mut |_| {
            if std::mem::take(&mut is_first) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    });
    assert!(matches!(cancelled.unwrap(), Err(XdpError::Cancelled)));
    assert!(!has_program(&lab.lab.client, lab.client_index));
}

/// Runs a load, and `disturb` once some requests have been answered.
fn disturbed(
    lab: &XdpLab,
    schedule: XdpSchedule,
    disturb: impl FnOnce() + Send,
) -> Result<quell_xdp::XdpLoadReport, XdpError> {
    let mut spec = load(V4, PollWay::Interrupts, schedule);
    (spec.warm_up_ms, spec.measure_ms) = (0, 1_000);
    let mut disturb = Some(disturb);
    lab.lab
        .client
        .run(|| {
            quell_xdp::run(&spec, &mut |now| {
                if now.answered > 50
                    && let Some(disturb) = disturb.take()
                {
                    disturb();
                }
                ControlFlow::Continue(())
            })
        })
        .unwrap()
}

#[test]
fn requests_are_lost_after_the_responder_stops_and_are_counted() {
    let Some(lab) = XdpLab::raise("xdp-stops") else { return };
    for schedule in [OPEN, CLOSED] {
        let answering = lab.respond(&responder(V4, PollWay::Interrupts));
        let report = disturbed(&lab, schedule, move || drop(answering)).unwrap();
        assert!(report.lost > 0, "{report:?}");
        assert_complete(&report);
        assert!(!has_program(&lab.lab.server, lab.lab.server_index), "dropped with the responder");
    }
}

#[test]
fn a_device_that_is_down_loses_requests_and_comes_back() {
    let Some(lab) = XdpLab::raise("xdp-down") else { return };
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    let (client, index) = (&lab.lab.client, lab.client_index);
    let mut links = Links::open_in(client).unwrap();
    let report = disturbed(&lab, OPEN, move || {
        links.set_down(index).unwrap();
        links.set_up(index).unwrap();
    })
    .unwrap();
    assert!(report.answered > 0 && report.invalid == 0, "{report:?}");
    assert_complete(&lab.load(&load(V4, PollWay::Interrupts, CLOSED)));
}

#[test]
fn a_device_that_vanishes_ends_the_load_and_the_responder() {
    let Some(lab) = XdpLab::raise("xdp-gone") else { return };
    let answering = lab.respond(&responder(V4, PollWay::Interrupts));
    let mut links = Links::open_in(&lab.lab.client).unwrap();
    let index = lab.client_index;
    let ended = disturbed(&lab, OPEN, move || links.delete(index).unwrap()).unwrap_err();
    assert_eq!(ended.to_string(), "client0: the device is gone");
    wait_until(|| if answering.has_failed() { Ok(()) } else { Err("the responder goes on".to_owned()) });
    assert_eq!(answering.stop().1.unwrap().to_string(), "server0: the device is gone");
}

#[test]
fn a_killed_responder_leaves_nothing() {
    let Some(lab) = XdpLab::raise("xdp-killed") else { return };
    let mut process = start_responder(&lab.lab.server, &[], ADDRESS);
    assert!(has_program(&lab.lab.server, lab.lab.server_index));
    assert_complete(&lab.load(&load(V4, PollWay::Interrupts, CLOSED)));
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    wait_until(|| match has_program(&lab.lab.server, lab.lab.server_index) {
        false => Ok(()),
        true => Err("the program is still attached".to_owned()),
    });
    let _next = lab.respond(&responder(V4, PollWay::Interrupts));
    assert_complete(&lab.load(&load(V4, PollWay::Interrupts, CLOSED)));
}

#[test]
fn memory_beyond_the_limit_of_locked_memory_is_named() {
    let this = std::env::current_exe().unwrap();
    // The capability lifts the limit.
    let without = ["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "prlimit", "--memlock=65536"];
    let mut command = Command::new("setpriv");
    command.args(without).arg(this).args(entry(opens_a_socket_of_four_mebibytes));
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{said}");
            skip(Lacks::Root, said);
        }
        Err(error) => skip(Lacks::Tool("setpriv"), error),
    }
}

#[test]
#[ignore = "entry point of another process"]
fn opens_a_socket_of_four_mebibytes() {
    let spec = XdpSocketSpec {
        interface: quell_linux::Ifindex::new(1).unwrap(),
        queue: 0,
        ring_entries: 1_024,
        batch: 1,
        copy_mode: CopyMode::Auto,
        need_wakeup: true,
    };
    match af_xdp::open(&spec) {
        Err(XdpSocketError::MemoryLimit { kib: 4_096 } | XdpSocketError::Denied | XdpSocketError::Unsupported) => {}
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn requests_and_responses_on_a_queue_without_the_socket_are_named() {
    let Some(lab) = TestLab::raise("xdp-queues", 2) else { return };
    let index = veth_in(&lab.client);
    if Netdev::open_in(&lab.client).unwrap().napis(index).unwrap().len() != 2 {
        return skip(Lacks::KernelFeature, "a veth with two queues has one NAPI instance");
    }
    // A veth delivers to the queue on which the peer sends, which depends on the flow.
    let start = || XdpResponder::start(&responder(V4, PollWay::Interrupts));
    let answering = match lab.server.run(start).unwrap() {
        Err(error @ XdpError::Program { source: XdpRedirectError::Denied(_), .. }) => return skip(Lacks::Root, &error),
        started => started.unwrap(),
    };
    let send = || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", ADDRESS).unwrap();
    for _ in 0..40 {
        lab.client.run(send).unwrap();
    }
    let is_counted = wait_until(|| match (answering.stats().answered, answering.take_stray()) {
        (_, Some(XdpError::OtherQueue { what: "requests", queue: 0, .. })) => Ok(true),
        (40, None) => Ok(false),
        other => Err(format!("{other:?}")),
    });
    let mut is_named = false;
    for _ in 0..20 {
        let run = || {
            let began = std::time::Instant::now();
            quell_xdp::run(&load(V4, PollWay::Interrupts, CLOSED), &mut |_| {
                if began.elapsed() > Duration::from_secs(2) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        };
        if let Err(XdpError::OtherQueue { queue: 0, .. }) = lab.client.run(run).unwrap() {
            is_named = true;
            break;
        }
    }
    drop(answering);
    if !is_named || !is_counted {
        skip(Lacks::Machine, "all flows used queue 0");
    }
}
