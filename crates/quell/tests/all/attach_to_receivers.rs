//! Exit codes of `quell attach` for programs that an epoll cannot serve, and for their neighbours. Needs root, Linux 6.13
//! and Python.

use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quell_linux::process::Spawn;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip, wait_until};

const SERVER: &str = include_str!("../../../quell-host/tests/receivers/server.py");
/// Enough flows that each of two queues gets some.
const FLOWS: usize = 24;

/// Sends a datagram of each flow to a server of this kind, and checks the exit code and the text of each command.
fn attach(test: &str, queues: u32, kind: &'static str, expected: &[(&[&str], i32, &str)]) {
    if Command::new("python3").arg("-V").output().is_err() {
        return skip(Lacks::Tool("python3"), "python3 is not installed");
    }
    let Some(mut lab) = TestLab::raise_beside_others(test, queues) else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = lab.start(Spawn::new("python3").args(["-c", SERVER, kind]));
    let ask = || {
        let socket = UdpSocket::bind("192.0.2.2:0").unwrap();
        socket.connect("192.0.2.1:5300").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        wait_until(|| {
            socket.send(b"?").map_err(|error| error.to_string())?;
            socket.recv(&mut [0]).map_err(|error| error.to_string())
        });
    };
    lab.client.run(|| (0..FLOWS).for_each(|_| ask())).unwrap();
    for (options, code, words) in expected {
        wait_until(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
            command.arg("attach").args(*options).arg(server.pid().to_string()).arg("--dry-run");
            command.env("QUELL_JOURNAL_DIR", dir.path()).stdin(Stdio::null());
            let Output { status, stdout, stderr } = command.output().unwrap();
            let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
            assert_eq!(status.code(), Some(*code), "{options:?}\n{text}");
            // A thread that answers a datagram at the moment waits in no call.
            if text.contains(words) { Ok(()) } else { Err(format!("{options:?}: no {words:?} in\n{text}")) }
        });
    }
}

#[test]
fn a_udp_server_on_two_queues_is_refused_only_by_modes_that_stall_it() {
    attach(
        "cli-rcv-udp",
        2,
        "epoll",
        &[
            (&["suspend20"], 3, "udp-socket-on-several-queues"),
            (&["fullbusy"], 3, "udp-socket-on-several-queues"),
            (&["suspend20", "--accept-stalls"], 0, "server0 rx 0-1"),
            (&["napibusy"], 0, "warning: an unconnected UDP socket"),
            (&["defer20"], 0, "server0 rx 0-1"),
        ],
    );
}

#[test]
fn a_udp_server_on_one_queue_is_not_refused() {
    attach("cli-rcv-one", 1, "epoll", &[(&["suspend20"], 0, "server0 rx 0")]);
}

#[test]
fn two_steered_udp_workers_get_both_queues() {
    attach(
        "cli-rcv-group",
        2,
        "group",
        &[
            (&["suspend20"], 3, "`tune` --steer --steer-udp"),
            (&["suspend20", "--steer", "--steer-udp"], 0, "server0 rx 0-1"),
        ],
    );
}

#[test]
fn a_server_that_waits_in_poll_is_refused_by_modes_that_poll() {
    let why = "waits in poll(2): only epoll polls a queue";
    attach(
        "cli-rcv-poll",
        2,
        "poll",
        &[(&["suspend20"], 5, why), (&["napibusy"], 5, why), (&["fullbusy"], 5, why), (&["defer20"], 0, "server0 rx")],
    );
}

#[test]
fn a_server_that_waits_in_epoll_is_refused_by_a_mode_of_sockets_and_one_that_waits_in_recv_is_not() {
    attach(
        "cli-rcv-sockets",
        1,
        "epoll",
        &[(&["sockpoll50"], 5, "it waits in epoll_wait(2): sockets poll in blocking")],
    );
    attach("cli-rcv-blocks", 1, "recv", &[(&["sockpoll50"], 0, "busy-poll 50")]);
}
