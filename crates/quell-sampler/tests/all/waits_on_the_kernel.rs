//! Counts the waits of this process on the live kernel: which timeouts, and what they returned.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_sampler::{SamplerError, WaitCounts, WaitKey, WaitPlace, WaitSampler};
use quell_test_support::{Lacks, skip};

/// Timeout of waits that must sleep. A thread that is preempted for this long before it sleeps does not.
const SHORT: Duration = Duration::from_millis(100);

fn sampler_of(pids: impl IntoIterator<Item = Pid>) -> Option<WaitSampler> {
    sampler_with(pids, [])
}

fn sampler_with(
    pids: impl IntoIterator<Item = Pid>,
    descriptors: impl IntoIterator<Item = (Pid, i32)>,
) -> Option<WaitSampler> {
    let (pids, descriptors) = (pids.into_iter().collect(), descriptors.into_iter().collect());
    match WaitSampler::attach(Path::new("/sys"), &pids, &descriptors) {
        Err(error @ (SamplerError::Denied { .. } | SamplerError::Unsupported(_) | SamplerError::Refused { .. })) => {
            skip(Lacks::Root, &error);
            None
        }
        sampler => Some(sampler.unwrap()),
    }
}

#[test]
fn calls_of_epoll_wait_are_counted_by_timeout_and_result() {
    let Some(sampler) = sampler_of([Pid::of_this_process()]) else { return };
    let event = WakeEvent::new().unwrap();
    let mut epoll = Epoll::new(7).unwrap();
    epoll.add(&event, 1, Trigger::Level).unwrap();
    (0..3).for_each(|_| epoll.wait(Some(Duration::ZERO)).unwrap());
    epoll.wait(Some(SHORT)).unwrap();
    event.raise().unwrap();
    epoll.wait(Some(Duration::ZERO)).unwrap();
    epoll.wait(None).unwrap();
    let place = WaitPlace::Epoll(epoll.as_fd().as_raw_fd());
    let counts = sampler.read().unwrap();
    let own: Vec<_> = counts.iter().filter(|((_, _, at), _)| *at == place).collect();
    let [((pid, tid, _), counts)] = own[..] else { panic!("{counts:?}") };
    assert_eq!((*pid, *tid), (Pid::of_this_process(), Pid::of_this_thread()));
    let expected = WaitCounts {
        calls: 6,
        zero: 4,
        zero_empty: 3,
        with_events: 2,
        max_events: 7,
        slept: 1,
        ..WaitCounts::default()
    };
    assert_eq!(*counts, expected);
    assert_eq!(counts.sleeping(), 2);
}

#[test]
fn calls_after_a_read_that_left_data_are_counted() {
    let Some(sampler) = sampler_of([Pid::of_this_process()]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut served = listener.accept().unwrap().0;
    let mut epoll = Epoll::new(1).unwrap();
    epoll.add(&served, 1, Trigger::Level).unwrap();
    client.write_all(b"in four").unwrap();
    // The first two leave data, the third reads twice until nothing is left.
    for sizes in [&[2][..], &[2], &[1, 2]] {
        epoll.wait(None).unwrap();
        sizes.iter().for_each(|&size| served.read_exact(&mut [0; 2][..size]).unwrap());
    }
    epoll.wait(Some(Duration::ZERO)).unwrap();
    let place = WaitPlace::Epoll(epoll.as_fd().as_raw_fd());
    let counts = sampler.read().unwrap()[&(Pid::of_this_process(), Pid::of_this_thread(), place)];
    assert_eq!((counts.calls, counts.after_partial_read), (4, 2), "{counts:?}");
    assert!(counts.partial_read_ns > 0, "{counts:?}");
}

/// A server and a client on loopback. The server answers each message after a pause, so that the client sleeps.
const BLOCKED: &str = r#"
import select, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = listener.accept()
    while connection.recv(1):
        time.sleep(0.2)
        connection.send(b"x")
threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection(listener.getsockname())
ours, theirs = socket.socketpair()
sys.stdin.readline()
for _ in range(3):
    client.send(b"x")
    client.recv(1)
poll, epoll = select.poll(), select.epoll()
poll.register(client, select.POLLIN)
epoll.register(client, select.EPOLLIN)
client.send(b"x")
poll.poll()
client.recv(1)
poll.register(epoll, select.POLLIN)
poll.unregister(client)
client.send(b"x")
poll.poll()
client.recv(1)
theirs.send(b"x")
ours.recv(1)
# Without sleep.
client.setblocking(False)
client.send(b"x" * 8)
print(epoll.fileno())
"#;

#[test]
fn calls_that_sleep_for_a_socket_or_an_epoll_are_counted() {
    let python = Command::new("python3").args(["-c", BLOCKED]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut python) = python else { return skip(Lacks::Tool("python3"), "python3 is not installed") };
    let pid = Pid::from_kernel(python.id()).unwrap();
    let Some(sampler) = sampler_of([pid]) else { return };
    python.stdin.take().unwrap().write_all(b"\n").unwrap();
    let printed = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
    let counts = sampler.read().unwrap();
    let of_thread = |is_it: &dyn Fn(WaitPlace) -> bool| {
        let own = counts.iter().filter(|&(&(_, tid, place), _)| tid == pid && is_it(place));
        own.map(|(_, counts)| counts.slept).sum::<u64>()
    };
    let polled = WaitPlace::Polled(printed.trim().parse().unwrap());
    // Loopback has no NAPI instance, and the ID of its sockets is that of a CPU. Of the other ten calls, one can sleep for
    // the lock of the socket, which the peer's CPU holds.
    let of_sockets = of_thread(&|place| matches!(place, WaitPlace::Socket(_)));
    assert!((4..7).contains(&of_sockets), "three of recv, one of poll: {counts:?}");
    assert_eq!(of_thread(&|place| place == polled), 1, "{counts:?}");
    assert_eq!(of_thread(&|place| place == WaitPlace::Poll), 2, "{counts:?}");
}

/// Waits of which the timeout is behind a pointer. Waits for a line, makes the calls, and prints the epoll and whether
/// io_uring is available.
const POINTED: &str = r#"
import ctypes, select, sys
call = ctypes.CDLL(None).syscall
epoll = select.epoll()
time = lambda *values: (ctypes.c_long * 2)(*values)
zero, short = time(0, 0), time(0, 100_000_000)
params = (ctypes.c_uint * 30)()
ring = call(425, 4, params)
sys.stdin.readline()
events = ctypes.create_string_buffer(48)
for timeout in [zero, zero, short]:
    call(441, epoll.fileno(), events, 4, timeout, None, 8)
if ring >= 0:
    GETEVENTS, EXT_ARG = 1, 8
    call(426, ring, 0, 0, GETEVENTS, None, 0)
    for timeout in [zero, short]:
        limits = (ctypes.c_ulong * 3)(0, 0, ctypes.addressof(timeout))
        call(426, ring, 0, 1, GETEVENTS | EXT_ARG, limits, 24)
print(epoll.fileno(), int(ring >= 0))
"#;

#[test]
fn a_timeout_of_zero_behind_a_pointer_is_zero() {
    let python = Command::new("python3").args(["-c", POINTED]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut python) = python else { return skip(Lacks::Tool("python3"), "python3 is not installed") };
    let Some(sampler) = sampler_of([Pid::from_kernel(python.id()).unwrap()]) else { return };
    python.stdin.take().unwrap().write_all(b"\n").unwrap();
    let printed = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
    let (epoll, has_ring) = printed.trim().split_once(' ').unwrap();
    let counts = sampler.read().unwrap();
    let at = |place| counts.iter().find(|((_, _, at), _)| *at == place).map(|(_, counts)| *counts);
    let of_epoll = WaitCounts {
        calls: 3,
        zero: 2,
        zero_empty: 2,
        with_events: 0,
        max_events: 4,
        slept: 1,
        ..WaitCounts::default()
    };
    assert_eq!(at(WaitPlace::Epoll(epoll.parse().unwrap())), Some(of_epoll));
    // A ring without completions returns 0 or ETIME.
    let of_ring = at(WaitPlace::IoUring).map(|counts| (counts.calls, counts.zero, counts.sleeping()));
    assert_eq!(of_ring, (has_ring == "1").then_some((3, 2, 1)));
}

#[test]
fn only_calls_that_read_or_accept_something_make_a_descriptor_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (silent, _sends) = UnixDatagram::pair().unwrap();
    silent.set_nonblocking(true).unwrap();
    let of = |file: &dyn AsRawFd| (Pid::of_this_process(), file.as_raw_fd());
    let selected = [of(&listener), of(&client), of(&silent)];
    let Some(sampler) = sampler_with([Pid::of_this_process()], selected) else { return };
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"sent").unwrap();
    server.read_exact(&mut [0; 4]).unwrap();
    assert!(silent.recv(&mut [0; 4]).is_err());
    assert_eq!(sampler.descriptors_read().unwrap(), [(of(&listener), 1)].into());
    server.write_all(b"back").unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(sampler.descriptors_read().unwrap(), [(of(&listener), 1), (of(&client), 1)].into());
}

#[test]
fn reads_of_watched_files_are_counted_by_queue_and_others_are_not() {
    let (mut watched, mut sends) = UnixStream::pair().unwrap();
    let (mut unwatched, mut sends_too) = UnixStream::pair().unwrap();
    let epoll = Epoll::new(1).unwrap();
    epoll.add(&watched, 1, Trigger::Level).unwrap();
    let Some(sampler) = sampler_of([Pid::of_this_process()]) else { return };
    for _ in 0..3 {
        sends.write_all(b"?").unwrap();
        watched.read_exact(&mut [0; 1]).unwrap();
    }
    sends_too.write_all(b"?").unwrap();
    unwatched.read_exact(&mut [0; 1]).unwrap();
    let this = Pid::of_this_thread();
    let read = |(&(_, tid, place), counts): (&WaitKey, &WaitCounts)| match place {
        WaitPlace::Read(queue) if tid == this => Some((queue, counts.calls)),
        _ => None,
    };
    let counts = sampler.read().unwrap();
    assert_eq!(counts.iter().filter_map(read).collect::<Vec<_>>(), [(None, 3)]);
}

#[test]
fn other_programs_are_not_counted() {
    let Some(sampler) = sampler_of([Pid::new(1).unwrap()]) else { return };
    Epoll::new(1).unwrap().wait(Some(Duration::ZERO)).unwrap();
    let counts = sampler.read().unwrap();
    assert!(counts.keys().all(|(pid, _, _)| *pid != Pid::of_this_process()), "{counts:?}");
}
