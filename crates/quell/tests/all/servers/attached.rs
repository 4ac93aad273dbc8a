//! `quell attach` and `quell detach` on servers under load. Checks the settings under load, who polls the queue, that
//! no request is lost, and that everything is as before afterwards.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quell_linux::epoll_params::EpollParams;
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};
use quell_test_support::{Lacks, skip, wait_until};

use super::lab::{Launch, Server, ServersLab};
use super::program::Program;
use super::programs;
use super::seen::{MODE, SUSPENDING, UNDER_LOAD, is_suspending, parameters, share_of_busy_polls};

/// Number of attempts of a check that other work on the machine can disturb.
const LOOKS: u32 = 8;

/// Attaches and returns the output.
fn attach(lab: &ServersLab, server: &Server) -> String {
    lab.quell(&["attach", MODE, &server.pid().to_string(), "--yes"]).succeeded().unwrap().stdout
}

/// Whether the output has a verdict, or too few packets for one. The server's own polls show the effect at any load.
fn says_whether_it_is_in_effect(said: &str) -> bool {
    said.contains(": in effect: ") || said.contains("packets in")
}

fn detach(lab: &ServersLab, server: &Server) {
    lab.quell(&["detach", &server.pid().to_string()]).succeeded().unwrap();
}

#[test]
fn every_server_polls_its_queue_while_attached_and_is_restored() {
    let Some(lab) = ServersLab::raise(1) else { return };
    for program in programs() {
        let before = lab.queues();
        let server = lab.serve(program, 1, Launch::Plain).unwrap();
        assert_eq!(share_of_busy_polls(&lab, program, &server).unwrap_or(0.0), 0.0, "{}", program.name());

        let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
        lab.wait_until_connected(&server);
        let said = attach(&lab, &server);
        assert!(lab.queues().iter().all(is_suspending), "{}: {:?}", program.name(), lab.queues());
        assert!(says_whether_it_is_in_effect(&said), "{}: {said}", program.name());
        let found = client.end().unwrap();
        assert_eq!(found.failed, 0, "{}: {found:?}", program.name());

        if let Some(share) = share_of_busy_polls(&lab, program, &server) {
            assert!(share > 0.0, "{} never polled its queue", program.name());
        }

        let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
        lab.wait_until_connected(&server);
        let values = parameters(&server.epolls());
        assert!(values.iter().all(|value| *value == SUSPENDING), "{}: {values:?}", program.name());
        detach(&lab, &server);
        assert_eq!(lab.queues(), before, "{}", program.name());
        let values = parameters(&server.epolls());
        assert!(values.iter().all(|value| *value == EpollParams::default()), "{}: {values:?}", program.name());
        let found = client.end().unwrap();
        assert_eq!(found.failed, 0, "{}: {found:?}", program.name());
        assert!(lab.journals().is_empty(), "{:?}", lab.journals());
        server.stop();
    }
}

/// Bytes from `peer` that the server has received and not read.
fn unread(sockets: &mut SockDiag, server: &Server, peer: SocketAddr) -> u32 {
    let mut bytes = 0;
    let count = |socket: InetSocket| {
        if socket.local == server.address && socket.remote == Some(peer) {
            bytes = socket.receive_queue;
        }
    };
    sockets.for_each(InetProtocol::Tcp, InetFamily::V4, count).unwrap();
    bytes
}

fn ask(mut connection: &TcpStream, request: &[u8]) {
    connection.write_all(request).unwrap();
}

fn answer(mut connection: &TcpStream) -> Option<String> {
    let mut buffer = [0; 256];
    match connection.read(&mut buffer) {
        Ok(bytes) => Some(String::from_utf8_lossy(&buffer[..bytes]).into_owned()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

fn wait_for_answer(connection: &TcpStream) -> String {
    wait_until(|| answer(connection).ok_or_else(|| "no answer".to_owned()))
}

/// Keeps Redis busy with a request for 10 ms and sends another one. Returns whether the second was observed in the
/// server's socket. If not, it waited in the queue, which nobody polled.
fn a_request_to_a_held_redis_reaches_its_socket(lab: &ServersLab, server: &Server) -> bool {
    let address = server.address;
    let talk = || {
        let connect = || {
            let connection = TcpStream::connect(address).unwrap();
            connection.set_nonblocking(true).unwrap();
            connection
        };
        let (holding, asking) = (connect(), connect());
        for connection in [&holding, &asking] {
            ask(connection, b"PING\r\n");
            assert_eq!(wait_for_answer(connection), "+PONG\r\n");
        }
        (holding, asking)
    };
    let (holding, asking) = lab.veth.client.namespace.run(talk).unwrap();
    let peer = asking.local_addr().unwrap();
    let mut sockets = SockDiag::open_in(&lab.veth.server.namespace).unwrap();
    ask(&holding, b"DEBUG SLEEP 0.01\r\n");
    std::thread::sleep(Duration::from_millis(2));
    ask(&asking, b"PING\r\n");
    let mut reached = false;
    while answer(&holding).is_none() {
        reached |= unread(&mut sockets, server, peer) > 0;
    }
    // The answer follows the next epoll_wait in both cases.
    assert_eq!(wait_for_answer(&asking), "+PONG\r\n");
    reached
}

#[test]
fn a_packet_for_a_busy_attached_server_waits_in_the_queue() {
    let Some(lab) = ServersLab::raise(1) else { return };
    if let Some(why) = Program::Redis.missing() {
        skip(Lacks::Server("redis"), &why);
        return;
    }
    let server = lab.serve(Program::Redis, 1, Launch::Plain).unwrap();
    let reaches = || (0..LOOKS).map(|_| a_request_to_a_held_redis_reaches_its_socket(&lab, &server));
    // Other work on the machine can disturb single attempts, but not all of them.
    assert!(reaches().any(|reached| reached), "with interrupts the packet reaches the socket at once");
    let client = lab.start_client(Program::Redis.client(), server.address, UNDER_LOAD);
    lab.wait_until_connected(&server);
    attach(&lab, &server);
    client.end().unwrap();
    assert!(reaches().any(|reached| !reached), "during suspension the packet waits in the queue");
    detach(&lab, &server);
    assert!(reaches().any(|reached| reached), "after detaching, the packet reaches the socket at once");
    server.stop();
}
