//! Sets busy polling of a program's sockets from outside. Accepted sockets inherit it, and a blocking receive then
//! polls its queue. Everything is restored except values changed by other programs. Needs root and Linux 6.13.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use quell_change::journal::{Journal, Purpose};
use quell_change::settings::values::{SocketPolling, SocketValues};
use quell_change::transaction::Transaction;
use quell_host::attach::SocketId;
use quell_linux::Pid;
use quell_linux::event::Trigger;
use quell_linux::io_uring::Ring;
use quell_linux::io_uring_polling::{RingPolling, RingPollingInfo};
use quell_linux::proc::ProcRoot;
use quell_linux::socket_options;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram, id, skipped};
use quell_test_support::{Lacks, skip};

const POLLING: SocketPolling =
    SocketPolling { values: SocketValues { busy_poll_us: 57, prefer_busy_poll: true }, budget: Some(64) };

fn values(socket: impl AsFd) -> SocketValues {
    SocketValues {
        busy_poll_us: socket_options::busy_poll_us(&socket).unwrap(),
        prefer_busy_poll: socket_options::prefer_busy_poll(&socket).unwrap(),
    }
}

fn numbered(socket: &impl AsFd) -> SocketId {
    SocketId { fd: socket.as_fd().as_raw_fd(), inode: None }
}

fn begin(dir: &tempfile::TempDir, test: &str) -> Transaction {
    Transaction::begin(&Journal::in_dir(dir.path()), &id(test), Purpose::Lab).unwrap()
}

fn accept(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

#[test]
fn connections_inherit_polling_from_their_listener_and_all_are_restored() {
    if skipped() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let untouched = values(&listener);
    let (early, early_client) = accept(&listener);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-inherit");
    let sockets = [numbered(&listener), numbered(&early)];
    assert_eq!(transaction.set_sockets(UdpProgram::process(), &sockets, POLLING).unwrap(), 2);
    assert_eq!(transaction.set_sockets(UdpProgram::process(), &sockets, POLLING).unwrap(), 0, "they already busy poll");
    assert_eq!([values(&listener), values(&early)], [POLLING.values; 2]);
    let (late, late_client) = accept(&listener);
    let (by_somebody_else, _client) = accept(&listener);
    assert_eq!([values(&late), values(&by_somebody_else)], [POLLING.values; 2], "inherited");
    socket_options::set_busy_poll_us(&by_somebody_else, 3).unwrap();

    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!([values(&listener), values(&early), values(&late)], [untouched; 3]);
    assert_eq!(values(&by_somebody_else).busy_poll_us, 3);
    assert_eq!([values(&early_client), values(&late_client)], [untouched; 2]);
}

#[test]
fn a_socket_that_another_program_changed_is_left_alone_and_reported() {
    if skipped() {
        return;
    }
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let untouched = values(&sockets[0]);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-others");
    let numbers = sockets.each_ref().map(numbered);
    assert_eq!(transaction.set_sockets(UdpProgram::process(), &numbers, POLLING).unwrap(), 2);
    socket_options::set_busy_poll_us(&sockets[1], 9).unwrap();
    let reverted = transaction.revert().unwrap();
    let [(_, why)] = &reverted.partial[..] else { panic!("{reverted:?}") };
    assert!(why.contains("changed 1 socket of process"), "{why}");
    assert_eq!((values(&sockets[0]), values(&sockets[1]).busy_poll_us), (untouched, 9));
}

#[test]
fn closed_sockets_need_no_undo() {
    if skipped() {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-closed");
    let sockets = [numbered(&socket), SocketId { fd: i32::MAX, inode: None }];
    assert_eq!(
        transaction.set_sockets(UdpProgram::process(), &sockets, POLLING).unwrap(),
        1,
        "one descriptor is not open"
    );
    drop(socket);
    assert_eq!(transaction.revert().unwrap().already_gone.len(), 1);
}

#[test]
fn a_descriptor_that_was_reused_is_left_alone() {
    if skipped() {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let untouched = values(&socket);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-number");
    let seen_before = SocketId { inode: Some(1), ..numbered(&socket) };
    assert_eq!(transaction.set_sockets(UdpProgram::process(), &[seen_before], POLLING).unwrap(), 0);
    assert_eq!(values(&socket), untouched);
}

/// Packets received by busy polling in the lab's server namespace.
fn polled(lab: &TestLab) -> u64 {
    let read = || ProcRoot::default().thread_self().netstat().unwrap().busy_poll_rx_packets().unwrap();
    lab.server.run(read).unwrap()
}

#[test]
fn a_blocking_receive_polls_its_queue_once_its_socket_busy_polls() {
    let Some(lab) = TestLab::raise("sp-polls", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let receive = || {
        program.send(1);
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
    };
    (0..100).for_each(|_| receive());
    assert_eq!(polled(&lab), 0);
    let long = SocketPolling { values: SocketValues { busy_poll_us: 200_000, prefer_busy_poll: true }, ..POLLING };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-polls-t");
    assert_eq!(transaction.set_sockets(UdpProgram::process(), &[numbered(&program.socket)], long).unwrap(), 1);
    let deferral = quell_linux::netdev::PartialNapiSettings {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(u64::try_from(Duration::from_secs(1).as_nanos()).unwrap()),
        ..Default::default()
    };
    lab.set_napi(&deferral);
    let socket = &program.socket;
    std::thread::scope(|scope| {
        for word in 0..100 {
            let received = scope.spawn(|| {
                let mut received = [0];
                socket.recv(&mut received).unwrap();
                received[0]
            });
            program.send(word);
            assert_eq!(received.join().unwrap(), word);
        }
    });
    assert!(polled(&lab) > 0, "polling took packets from the queue");
    assert_eq!(transaction.revert().unwrap().undone.len(), 1);
}

#[test]
fn an_io_uring_is_set_to_busy_poll_unless_it_already_does() {
    if skipped() {
        return;
    }
    let ring = match Ring::new() {
        Ok(ring) => ring,
        Err(error) => return skip(Lacks::KernelFeature, format_args!("io_uring is not available: {error}")),
    };
    let fd = ring.as_fd().as_raw_fd();
    let now = || ProcRoot::default().process(Pid::of_this_process()).ring_polling(fd).unwrap();
    if now() == RingPollingInfo::Unreported {
        return skip(Lacks::KernelFeature, "this kernel does not report the busy polling of a ring");
    }
    let polling = RingPolling { busy_poll_us: 64, prefer_busy_poll: true };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = begin(&dir, "sp-ring");
    assert_eq!(transaction.set_ring(UdpProgram::process(), fd, polling).unwrap(), None);
    assert_eq!(now(), RingPollingInfo::On(polling));
    let why = transaction.set_ring(UdpProgram::process(), fd, polling).unwrap();
    assert_eq!(why.as_deref(), Some("it already busy polls, for 64 µs"));
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!(now(), RingPollingInfo::Off);
}
