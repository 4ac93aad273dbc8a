//! How workers serve: level-triggered `epoll_wait` or blocking threads, over TCP or UDP.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_linux::event::{Epoll, Trigger};
use quell_linux::tcp::{AcceptFailure, Blocking, TcpConnection, TcpListener};
use quell_linux::udp::UdpSocket;

use super::{ROOM_RETRY, Shared};
use crate::key_table::pattern;

const UDP_PATIENCE: Duration = Duration::from_millis(20);

const BUFFER_BYTES: usize = 128 * 1024;

const EVENTS_MAX: usize = 512;

/// Number of datagrams answered before the next `epoll_wait`. Event loops limit this so that their other sockets are
/// served (memcached's `-R`). A loop that never returned to `epoll_wait` under load would never renew a suspension.
const DATAGRAMS_PER_WAIT: u32 = 8;

struct Answerer {
    /// Number of bytes received of an incomplete request.
    begun: usize,
    /// Number of response bytes that did not fit into the socket.
    unsent: usize,
}

impl Answerer {
    const fn new() -> Self {
        Self { begun: 0, unsent: 0 }
    }

    /// Processes `received` bytes and answers every completed request. `response` holds at least one response.
    fn answer(&mut self, shared: &Shared, socket: &TcpConnection, received: usize, response: &[u8]) -> io::Result<()> {
        let sizes = &shared.spec.sizes;
        let begun = self.begun + received;
        let requests = begun / sizes.request_bytes as usize;
        self.begun = begun % sizes.request_bytes as usize;
        if requests > 0 {
            shared.work(requests as u64);
            self.unsent += requests * sizes.response_bytes as usize;
        }
        self.send(socket, response, sizes.response_bytes as usize)
    }

    fn send(&mut self, socket: &TcpConnection, response: &[u8], response_bytes: usize) -> io::Result<()> {
        while self.unsent > 0 {
            let start = (response_bytes - self.unsent % response_bytes) % response_bytes;
            let length = self.unsent.min(response.len() - start);
            match socket.send(&response[start..start + length]) {
                Ok(sent) => self.unsent -= sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Several responses in a row, so that one system call answers pipelined requests.
fn responses(bytes: u32) -> Vec<u8> {
    let one = pattern(bytes as usize);
    one.repeat((BUFFER_BYTES / one.len()).max(1))
}

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

pub(super) fn serve_tcp_epoll(shared: &Shared, listener: &TcpListener) -> io::Result<()> {
    let mut epoll = Epoll::new(EVENTS_MAX)?;
    epoll.add(listener, LISTENER, Trigger::Level)?;
    epoll.add(&shared.stop_event, STOP, Trigger::Level)?;
    let mut connections = Connections::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    let response = responses(shared.spec.sizes.response_bytes);
    // Set while the listener is not registered. Connections cannot be accepted then, and every `epoll_wait` would
    // report it.
    let mut retry_at: Option<Instant> = None;
    while !shared.is_stopped() {
        epoll.wait(retry_at.map(|at| at.saturating_duration_since(Instant::now())))?;
        let mut accepts = false;
        for index in 0..epoll.len() {
            let Some(ready) = epoll.get(index) else { break };
            if ready.token == LISTENER {
                accepts = true;
            } else if let Some((connection, answerer)) = connections.open.get_mut(&ready.token)
                && serve_ready(shared, connection, answerer, &mut buffer, &response).is_err()
            {
                connections.open.remove(&ready.token);
                // It has freed a descriptor, so accepting can succeed before the time of the next attempt.
                accepts |= retry_at.is_some();
            }
        }
        if !accepts && retry_at.is_none_or(|at| Instant::now() < at) {
            continue;
        }
        let is_exhausted = !connections.accept_all(shared, listener, &epoll)?;
        // A level-triggered listener with waiting connections would wake every `epoll_wait` at once.
        if is_exhausted != retry_at.is_some() {
            epoll.rearm(listener, LISTENER, if is_exhausted { Trigger::Unrequested } else { Trigger::Level })?;
        }
        retry_at = is_exhausted.then(|| Instant::now() + ROOM_RETRY);
    }
    Ok(())
}

#[derive(Default)]
struct Connections {
    open: HashMap<u64, (TcpConnection, Answerer)>,
    next: u64,
}

impl Connections {
    /// Accepts all pending connections. Returns `false` if file descriptors or memory ran out first.
    fn accept_all(&mut self, shared: &Shared, listener: &TcpListener, epoll: &Epoll) -> io::Result<bool> {
        loop {
            let watched = |connection: TcpConnection| {
                epoll.add(&connection, self.next, Trigger::Edge)?;
                Ok(connection)
            };
            match listener.accept(Blocking::No).and_then(watched) {
                Ok(connection) => {
                    shared.accepted.fetch_add(1, Ordering::Relaxed);
                    self.open.insert(self.next, (connection, Answerer::new()));
                    self.next += 1;
                }
                Err(error) => match AcceptFailure::of(&error) {
                    AcceptFailure::NoneWaits => return Ok(true),
                    AcceptFailure::ConnectionLost => {}
                    AcceptFailure::Exhausted => {
                        shared.pause_accepting();
                        return Ok(false);
                    }
                    AcceptFailure::Final => return Err(error),
                },
            }
        }
    }
}

/// Reads a connection until it is empty. An error means that the connection is closed.
fn serve_ready(
    shared: &Shared,
    connection: &TcpConnection,
    answerer: &mut Answerer,
    buffer: &mut [u8],
    response: &[u8],
) -> io::Result<()> {
    loop {
        match connection.receive(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                answerer.answer(shared, connection, length, response)?;
                if length < buffer.len() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return answerer.send(connection, response, shared.spec.sizes.response_bytes as usize);
            }
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn serve_tcp_blocking(shared: &Arc<Shared>, listener: TcpListener) -> io::Result<()> {
    let listener = Arc::new(listener);
    shared.blocked().listeners.push(Arc::clone(&listener));
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut outcome = Ok(());
    while !shared.is_stopped() {
        threads.retain(|thread| !thread.is_finished());
        match listener.accept(Blocking::Yes).and_then(|connection| start_connection(shared, connection)) {
            Ok(thread) => threads.push(thread),
            Err(_) if shared.is_stopped() => break,
            Err(error) => match AcceptFailure::of(&error) {
                AcceptFailure::ConnectionLost => {}
                // Failure to start a thread is reported as EAGAIN.
                AcceptFailure::NoneWaits | AcceptFailure::Exhausted => {
                    shared.pause_accepting();
                    shared.wait_for_room();
                }
                AcceptFailure::Final => {
                    outcome = Err(error);
                    break;
                }
            },
        }
    }
    shared.shut_down_blocked();
    for thread in threads {
        let _ = thread.join();
    }
    outcome
}

/// Starts a connection's thread. Closes the connection if no thread can be started.
fn start_connection(shared: &Arc<Shared>, connection: TcpConnection) -> io::Result<JoinHandle<()>> {
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    let connection = Arc::new(connection);
    let number = {
        let mut blocked = shared.blocked();
        blocked.next += 1;
        let number = blocked.next;
        blocked.connections.insert(number, Arc::clone(&connection));
        number
    };
    let of_thread = Arc::clone(shared);
    let started = std::thread::Builder::new().spawn(move || {
        // Such a thread usually ends because the peer closes the connection.
        let _ = serve_blocking_connection(&of_thread, &connection);
        of_thread.blocked().connections.remove(&number);
        drop(connection);
        of_thread.room.notify_one();
    });
    if started.is_err() {
        shared.blocked().connections.remove(&number);
    }
    started
}

fn serve_blocking_connection(shared: &Shared, connection: &TcpConnection) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let response = responses(shared.spec.sizes.response_bytes);
    let mut answerer = Answerer::new();
    while !shared.is_stopped() {
        match connection.receive(&mut buffer)? {
            0 => return Ok(()),
            length => answerer.answer(shared, connection, length, &response)?,
        }
    }
    Ok(())
}

pub(super) fn serve_udp_epoll(shared: &Shared, socket: &UdpSocket) -> io::Result<()> {
    let mut epoll = Epoll::new(2)?;
    epoll.add(socket, LISTENER, Trigger::Level)?;
    epoll.add(&shared.stop_event, STOP, Trigger::Level)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let response = pattern(shared.spec.sizes.response_bytes as usize);
    while !shared.is_stopped() {
        epoll.wait(None)?;
        for _ in 0..DATAGRAMS_PER_WAIT {
            if shared.is_stopped() || !answer_datagram(shared, socket, &mut buffer, &response)? {
                break;
            }
        }
    }
    Ok(())
}

pub(super) fn serve_udp_blocking(shared: &Shared, socket: &UdpSocket) -> io::Result<()> {
    socket.set_receive_timeout(UDP_PATIENCE)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let response = pattern(shared.spec.sizes.response_bytes as usize);
    while !shared.is_stopped() {
        answer_datagram(shared, socket, &mut buffer, &response)?;
    }
    Ok(())
}

/// Answers one datagram if it has the size of a request. Returns `false` if there was none.
fn answer_datagram(shared: &Shared, socket: &UdpSocket, buffer: &mut [u8], response: &[u8]) -> io::Result<bool> {
    match socket.receive_from(buffer) {
        Ok((length, Some(sender))) if length == shared.spec.sizes.request_bytes as usize => {
            shared.work(1);
            // A response that does not fit into the send buffer is lost, as any datagram may be.
            let _ = socket.send_to(response, sender);
            Ok(true)
        }
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error),
    }
}
