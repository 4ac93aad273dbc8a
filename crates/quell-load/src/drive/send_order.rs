//! Tests the order of reads and sends in a closed loop. Other tests of this module use the same connections.

#![cfg(test)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use quell_linux::clock::monotonic_ns;
use quell_test_support::wait_until;

use super::{Drive, Finder, Pace, Plan, ThreadState};
use crate::connection::{Connection, Socket, State};
use crate::requests::{Content, Source};
use crate::spec::{LoadSpec, RequestResponse, Transport, Workload};

pub(super) const CONNECTIONS: u32 = 3;
const SIZES: RequestResponse = RequestResponse { request_bytes: 8, response_bytes: 8, check_content: false };
/// Time after which a request that must arrive counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn connected() -> (ThreadState, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let finder = Finder::epoll(CONNECTIONS as usize).unwrap();
    let (mut connections, mut peers) = (Vec::new(), Vec::new());
    for id in 0..CONNECTIONS {
        let socket = Socket::connect(Transport::Tcp, address, PATIENCE).unwrap();
        finder.add(id, &socket).unwrap();
        connections.push(Connection::new(address, socket, 1));
        peers.push(listener.accept().unwrap().0);
    }
    let spec = LoadSpec::new(address, Transport::Tcp, Workload::RequestResponse(SIZES));
    let state = ThreadState {
        connections,
        finder,
        content: Arc::new(Content::new(&spec)),
        depth: 1,
        connect_timeout_ns: 0,
        response_timeout_ns: 0,
        buffer: vec![0; 4096].into_boxed_slice(),
        out: Vec::new(),
        transport: Transport::Tcp,
        cancel: Arc::default(),
        answered: Arc::default(),
    };
    (state, peers)
}

fn plan(pace: Pace) -> Plan {
    Plan { pace, source: Source::Fixed, start_ns: 0, window_ns: 0..u64::MAX, port: None, stop_at_error: false }
}

fn receive_request(peer: &mut TcpStream) {
    peer.set_nonblocking(false).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.read_exact(&mut [0; SIZES.request_bytes as usize]).unwrap();
}

fn has_nothing(peer: &TcpStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    peer.peek(&mut [0]).is_err()
}

/// Sends the first requests, due at `due_ns`, and answers all of them. Then every connection has a response to read.
fn answered(drive: &mut Drive<'_>, peers: &mut [TcpStream], due_ns: u64) {
    (0..CONNECTIONS).for_each(|id| drive.open_slots(id, due_ns));
    drive.use_room();
    answer_all(drive, peers);
}

/// Answers the outstanding request of every connection and waits until the responses have arrived.
pub(super) fn answer_all(drive: &Drive<'_>, peers: &mut [TcpStream]) {
    for (connection, peer) in drive.thread.connections.iter().zip(peers) {
        receive_request(peer);
        peer.write_all(&[0; SIZES.response_bytes as usize]).unwrap();
        let Some(Socket::Tcp(socket)) = connection.socket() else { panic!("{} is down", connection.address) };
        let same_socket = TcpStream::from(socket.as_fd().try_clone_to_owned().unwrap());
        wait_until(|| same_socket.peek(&mut [0]).map_err(|error| error.to_string()));
    }
}

#[test]
fn a_closed_loop_sends_the_next_request_before_it_reads_another_connection() {
    let (mut state, mut peers) = connected();
    let mut drive = Drive::new(&mut state, plan(Pace::Closed));
    answered(&mut drive, &mut peers, 0);
    drive.take_answers(1);
    receive_request(&mut peers[1]);
    assert!(has_nothing(&peers[0]) && has_nothing(&peers[2]));
    assert_eq!((drive.answered, drive.under_way), (1, u64::from(CONNECTIONS)));
}

#[test]
fn a_batched_closed_loop_reads_all_responses_before_it_sends() {
    let (mut state, mut peers) = connected();
    let mut drive = Drive::new(&mut state, plan(Pace::ClosedBatched));
    answered(&mut drive, &mut peers, 0);
    assert!((0..CONNECTIONS).all(|id| drive.take_answers(id)));
    assert!(peers.iter().all(has_nothing));
    assert_eq!((drive.answered, drive.under_way), (u64::from(CONNECTIONS), 0));
    drive.use_room();
    peers.iter_mut().for_each(receive_request);
}

#[test]
fn a_request_of_a_closed_loop_is_due_when_the_response_before_it_arrived() {
    let (mut state, mut peers) = connected();
    let mut drive = Drive::new(&mut state, plan(Pace::Closed));
    let first_due_ns = monotonic_ns();
    answered(&mut drive, &mut peers, first_due_ns);
    drive.take_answers(1);
    let pending = drive.thread.connections[1].pending.front().unwrap();
    let latency_ns = drive.tally.latency.max().unwrap().as_nanos() as u64;
    assert_eq!(pending.due_ns, pending.sent_ns);
    let since_ns = pending.due_ns - first_due_ns;
    // Histograms round.
    assert!(since_ns.abs_diff(latency_ns) <= since_ns / 50 + 1, "{since_ns} {latency_ns}");
}

#[test]
fn a_thread_without_connections_does_not_spin() {
    let (mut state, _peers) = connected();
    let mut drive = Drive::new(&mut state, plan(Pace::Closed));
    let now_ns = monotonic_ns();
    drive.lose(0, now_ns);
    drive.keep_house(now_ns);
    assert!(!drive.all_down, "two connections are left");
    (1..CONNECTIONS).for_each(|id| drive.lose(id, now_ns));
    drive.keep_house(now_ns);
    assert!(drive.all_down);
}

#[test]
fn a_lost_datagram_socket_is_replaced_later_and_one_without_an_answer_at_once() {
    let (mut state, _peers) = connected();
    for connection in &mut state.connections {
        connection.state = State::Up(Socket::connect(Transport::Udp, connection.address, PATIENCE).unwrap());
    }
    let mut drive = Drive::new(&mut state, plan(Pace::Closed));
    drive.lose(0, 7);
    drive.drop_connection(1, 7);
    assert_eq!((retry_ns(&drive, 0), retry_ns(&drive, 1)), (7 + Connection::RETRY_NS, 7));
}

fn retry_ns(drive: &Drive<'_>, id: usize) -> u64 {
    match drive.thread.connections[id].state {
        State::Down { retry_ns } => retry_ns,
        _ => 0,
    }
}

#[test]
fn a_connection_that_the_server_closes_after_an_answer_is_opened_again_at_once() {
    let (mut state, _peers) = connected();
    state.connections[0].has_answered = true;
    let mut drive = Drive::new(&mut state, plan(Pace::Closed));
    drive.lose(0, 7);
    assert_eq!(retry_ns(&drive, 0), 7);
    drive.lose(0, 8);
    assert_eq!(retry_ns(&drive, 0), 8 + Connection::RETRY_NS, "the new one had no answer");
}
