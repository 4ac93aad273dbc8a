//! One connection of the generator: its socket, the requests under way on it, bytes that did not fit
//! into the socket yet, and the answer that has begun to arrive. When to send and what an answer
//! means for the figures is decided in `drive`.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::NapiId;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::socket_options::{
    SocketOptionError, incoming_napi_id, set_busy_poll_budget, set_busy_poll_us, set_prefer_busy_poll,
};
use quell_linux::tcp::TcpConnection;
use quell_linux::udp::UdpSocket;

use crate::requests::Request;
use crate::response::ResponseReader;
use crate::spec::Transport;

/// A socket of either transport.
pub(crate) enum Socket {
    Tcp(TcpConnection),
    Udp(UdpSocket),
}

impl Socket {
    /// A connected socket.
    pub(crate) fn connect(transport: Transport, address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        match transport {
            Transport::Tcp => TcpConnection::connect(address, timeout).map(Self::Tcp),
            Transport::Udp => UdpSocket::connect(address).map(Self::Udp),
        }
    }

    /// A socket that is being connected.
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

    /// Has `epoll` report it as `token`. A TCP socket that was read empty reports the next arrival;
    /// several datagrams may arrive as one edge, so that UDP is watched by level.
    pub(crate) fn watch(&self, epoll: &Epoll, token: u64) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => epoll.add(socket, token, Trigger::Edge),
            Self::Udp(socket) => epoll.add(socket, token, Trigger::Level),
        }
    }

    /// The NAPI that its packets come by, where the kernel tells.
    pub(crate) fn napi_id(&self) -> Option<NapiId> {
        match self {
            Self::Tcp(socket) => incoming_napi_id(socket),
            Self::Udp(socket) => incoming_napi_id(socket),
        }
        .ok()
        .flatten()
    }

    /// Has receives that find nothing poll the device once, for up to 64 packets, and the NAPI's
    /// other owners let go of it.
    pub(crate) fn busy_poll(&self) -> Result<(), SocketOptionError> {
        const ANY_TIME_US: u32 = 1;
        const PACKETS: u16 = 64;
        match self {
            Self::Tcp(socket) => {
                set_busy_poll_us(socket, ANY_TIME_US)?;
                set_prefer_busy_poll(socket, true)?;
                set_busy_poll_budget(socket, PACKETS)
            }
            Self::Udp(socket) => {
                set_busy_poll_us(socket, ANY_TIME_US)?;
                set_prefer_busy_poll(socket, true)?;
                set_busy_poll_budget(socket, PACKETS)
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

/// A request under way.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
}

/// Where a connection is in its life. A server that goes away is tried again every
/// [`Connection::RETRY_NS`] until the end of the run.
pub(crate) enum State {
    Up(Socket),
    Connecting { socket: Socket, give_up_ns: u64 },
    Down { retry_ns: u64 },
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) address: SocketAddr,
    pub(crate) state: State,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) reader: ResponseReader,
    /// Counts the sockets this connection has had, so that a free slot of an earlier one is told.
    pub(crate) incarnation: u32,
    /// Whether it stands in the queue of those to be asked for an answer.
    pub(crate) queued: bool,
    unsent: Vec<u8>,
}

impl Connection {
    /// How long a lost connection stays down before it is tried again.
    pub(crate) const RETRY_NS: u64 = 100_000_000;

    pub(crate) fn new(address: SocketAddr, socket: Socket, depth: usize) -> Self {
        Self {
            address,
            state: State::Up(socket),
            pending: VecDeque::with_capacity(depth),
            reader: ResponseReader::default(),
            incarnation: 0,
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

    /// Sends `bytes`, keeping what the socket does not take for [`Connection::send_rest`].
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

    /// Tries again to send what did not fit.
    pub(crate) fn send_rest(&mut self) -> io::Result<()> {
        let State::Up(socket) = &self.state else { return Ok(()) };
        let taken = taken(socket.send(&self.unsent))?;
        self.unsent.drain(..taken);
        Ok(())
    }

    /// Closes the socket and forgets everything about it. How many requests were under way.
    pub(crate) fn drop_socket(&mut self, retry_ns: u64) -> u64 {
        let under_way = self.pending.len() as u64;
        self.state = State::Down { retry_ns };
        self.incarnation = self.incarnation.wrapping_add(1);
        self.pending.clear();
        self.reader.clear();
        self.unsent.clear();
        under_way
    }
}

/// How much was sent; a full socket took nothing.
fn taken(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}
