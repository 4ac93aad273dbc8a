//! Roles that this test binary plays when it is started again in a lab. Each role is a program with one datagram socket
//! in an epoll that answers every datagram, and handles its queue well or badly.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_linux::process::{Output, Spawn};
use quell_linux::socket_options;
use quell_test_support::entry;

const ROLE: &str = "QUELL_TEST_ROLE";
const PORT: &str = "QUELL_TEST_PORT";
const EVENTS_MAX: usize = 64;
/// Time that the role `work` spends on a datagram.
const WORK: Duration = Duration::from_micros(200);

/// Command to start this test binary with a role on a port.
pub(crate) fn spawn(role: &str, port: u16) -> Spawn<'static> {
    Spawn::new(std::env::current_exe().unwrap())
        .args(entry(the_program_that_is_examined))
        .env(ROLE, role)
        .env(PORT, port.to_string())
        .stderr(Output::Tail(2_000))
}

/// Plays the role given in the environment until killed. Returns if the environment has no role.
#[test]
#[ignore = "the program of a process that other tests start"]
fn the_program_that_is_examined() {
    let (Ok(role), Ok(port)) = (std::env::var(ROLE), std::env::var(PORT)) else { return };
    let socket = UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 1), port.parse().unwrap())).unwrap();
    socket.set_nonblocking(true).unwrap();
    match role.as_str() {
        "plain" => serve(&socket, None, |_| {}),
        "spin" => serve(&socket, Some(Duration::ZERO), |_| {}),
        "work" => serve(&socket, None, |_| work()),
        "prefer-socket" => {
            socket_options::set_prefer_busy_poll(&socket, true).unwrap();
            serve(&socket, None, |_| {});
        }
        "ready-file" => with_ready_file(&socket),
        "nested" => nested(&socket),
        role => panic!("no role {role}"),
    }
}

fn watching(socket: &UdpSocket) -> Epoll {
    let epoll = Epoll::new(EVENTS_MAX).unwrap();
    epoll.add(socket, 0, Trigger::Level).unwrap();
    epoll
}

/// Answers the pending datagrams, and then acts as the role requires.
fn answer(socket: &UdpSocket, then: &impl Fn(&[u8])) {
    let mut word = [0; 8];
    while let Ok((length, sender)) = socket.recv_from(&mut word) {
        socket.send_to(&word[..length], sender).unwrap();
        then(&word[..length]);
    }
}

fn serve(socket: &UdpSocket, timeout: Option<Duration>, then: impl Fn(&[u8])) {
    let mut epoll = watching(socket);
    loop {
        epoll.wait(timeout).unwrap();
        answer(socket, &then);
    }
}

fn work() {
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// Adds an eventfd that is never read to the socket's epoll.
fn with_ready_file(socket: &UdpSocket) {
    let mut epoll = watching(socket);
    let event = WakeEvent::new().unwrap();
    event.raise().unwrap();
    epoll.add(&event, 1, Trigger::Level).unwrap();
    loop {
        epoll.wait(None).unwrap();
        answer(socket, &|_: &[u8]| {});
        // The role must not spin; another role does.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nested(socket: &UdpSocket) {
    let mut inner = watching(socket);
    let mut outer = Epoll::new(EVENTS_MAX).unwrap();
    outer.add(&inner, 0, Trigger::Level).unwrap();
    loop {
        outer.wait(None).unwrap();
        inner.wait(Some(Duration::ZERO)).unwrap();
        answer(socket, &|_: &[u8]| {});
    }
}
