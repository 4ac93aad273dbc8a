//! One of the generator's connections: its socket, outstanding requests, unsent bytes, and a partly received answer.
//! `drive` decides when to send and how to record an answer.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::NapiId;
use quell_linux::epoll_params::NAPI_POLL_WEIGHT;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::socket_options::{
    SocketOptionError, incoming_napi_id, set_busy_poll_budget, set_busy_poll_us, set_prefer_busy_poll,
};
use quell_linux::tcp::TcpConnection;
use quell_linux::udp::UdpSocket;

use crate::requests::Request;
use crate::response::ResponseReader;
use crate::spec::Transport;

pub(crate) enum Socket {
    Tcp(TcpConnection),
    Udp(UdpSocket),
}

impl Socket {
    pub(crate) fn connect(transport: Transport, address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        match transport {
            Transport::Tcp => TcpConnection::connect(address, timeout).map(Self::Tcp),
            Transport::Udp => UdpSocket::connect(address).map(Self::Udp),
        }
    }

    pub(crate) fn start(transport: Transport, address: SocketAddr) -> io::Result<Self> {
        match transport {
            Transport::Tcp => TcpConnection::start(address).map(Self::Tcp),
            Transport::Udp => UdpSocket::connect(address).map(Self::Udp),
        }
    }

    pub(crate) fn is_established(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(socket) => socket.is_established(),
            Self::Udp(_) => Ok(true),
        }
    }

    /// Registers the socket with `epoll` under `token`. TCP is edge-triggered: once a socket has been read until it is
    /// empty, the next arrival is reported. UDP is level-triggered, because several datagrams may arrive as one edge.
    pub(crate) fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => epoll.add(socket, token, Trigger::Edge),
            Self::Udp(socket) => epoll.add(socket, token, Trigger::Level),
        }
    }

    /// NAPI ID on which the socket's packets arrive, if the kernel reports it.
    pub(crate) fn napi_id(&self) -> Option<NapiId> {
        match self {
            Self::Tcp(socket) => incoming_napi_id(socket),
            Self::Udp(socket) => incoming_napi_id(socket),
        }
        .ok()
        .flatten()
    }

    /// Enables busy polling: a receive that finds nothing polls the device once, for up to [`NAPI_POLL_WEIGHT`] packets. Other pollers of
    /// the NAPI then yield.
    pub(crate) fn busy_poll(&self) -> Result<(), SocketOptionError> {
        const ANY_TIME_US: u32 = 1;
        match self {
            Self::Tcp(socket) => {
                set_busy_poll_us(socket, ANY_TIME_US)?;
                set_prefer_busy_poll(socket, true)?;
                set_busy_poll_budget(socket, NAPI_POLL_WEIGHT)
            }
            Self::Udp(socket) => {
                set_busy_poll_us(socket, ANY_TIME_US)?;
                set_prefer_busy_poll(socket, true)?;
                set_busy_poll_budget(socket, NAPI_POLL_WEIGHT)
            }
        }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    #[inline]
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.receive(buffer),
            Self::Udp(socket) => socket.receive(buffer),
        }
    }

    #[inline]
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.send(bytes),
            Self::Udp(socket) => socket.send(bytes),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
}

/// State of a connection. A lost connection is retried every [`Connection::RETRY_NS`] until the end of the run, and at once
/// the first time if the server closed it between two answers.
pub(crate) enum State {
    Up(Socket),
    Connecting { socket: Socket, give_up_ns: u64 },
    Down { retry_ns: u64 },
}

pub(crate) struct Connection {
    pub(crate) address: SocketAddr,
    pub(crate) state: State,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) reader: ResponseReader,
    /// Number of sockets that this connection has had. It identifies request slots that belong to an earlier socket.
    pub(crate) incarnation: u32,
    /// Whether its present socket has had an answer.
    pub(crate) has_answered: bool,
    pub(crate) queued: bool,
    unsent: Vec<u8>,
}

impl Connection {
    /// Time that a lost connection stays down before a retry, ns.
    pub(crate) const RETRY_NS: u64 = 100_000_000;

    pub(crate) fn new(address: SocketAddr, socket: Socket, depth: usize) -> Self {
        Self {
            address,
            state: State::Up(socket),
            pending: VecDeque::with_capacity(depth),
            reader: ResponseReader::default(),
            incarnation: 0,
            has_answered: false,
            queued: false,
            unsent: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn socket(&self) -> Option<&Socket> {
        match &self.state {
            State::Up(socket) => Some(socket),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return self.send_rest();
        }
        let State::Up(socket) = &self.state else { return Err(io::ErrorKind::NotConnected.into()) };
        let taken = taken(socket.send(bytes))?;
        if taken < bytes.len() {
            self.unsent.extend_from_slice(&bytes[taken..]);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn has_rest(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn send_rest(&mut self) -> io::Result<()> {
        let State::Up(socket) = &self.state else { return Ok(()) };
        let taken = taken(socket.send(&self.unsent))?;
        self.unsent.drain(..taken);
        Ok(())
    }

    /// Closes the socket and clears its state. Returns the number of outstanding requests.
    pub(crate) fn drop_socket(&mut self, retry_ns: u64) -> u64 {
        let under_way = self.pending.len() as u64;
        self.state = State::Down { retry_ns };
        self.incarnation = self.incarnation.wrapping_add(1);
        self.has_answered = false;
        self.pending.clear();
        self.reader.clear();
        self.unsent.clear();
        under_way
    }
}

/// Number of bytes sent: 0 if the socket's buffer is full.
fn taken(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}
