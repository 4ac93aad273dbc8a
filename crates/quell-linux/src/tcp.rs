//! TCP sockets for load: made, connected and used one system call at a time, with the errors of the
//! kernel untouched, because a generator has to count them by kind. What is sent and what an answer
//! means is decided above.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, accept_with, bind, connect,
    getpeername, getsockname, ipproto, listen, recv, send, shutdown, socket_with, sockopt,
};

/// Whether the calls on a socket wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// A call waits until it can do its work.
    Yes,
    /// A call that cannot do its work now says `WouldBlock`.
    No,
}

/// One end of a TCP connection, with `TCP_NODELAY` set: a request leaves when it is sent.
#[derive(Debug)]
pub struct TcpConnection(OwnedFd);

impl TcpConnection {
    /// Begins to connect and does not wait; [`TcpConnection::is_established`] says when it is done.
    ///
    /// # Errors
    /// What `socket(2)` or `connect(2)` said, other than that it is under way.
    pub fn start(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address, Blocking::No)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Connects and waits for at most `timeout`; the connection is a non-blocking one.
    ///
    /// # Errors
    /// What the kernel said; `TimedOut` when nobody answered in time.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let connection = Self::start(address)?;
        let give_up = Instant::now() + timeout;
        while !connection.is_established()? {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            wait_writable(&connection, left)?;
        }
        Ok(connection)
    }

    /// Whether the handshake is over.
    ///
    /// # Errors
    /// Why it failed: `ConnectionRefused`, an unreachable network, and so on.
    pub fn is_established(&self) -> io::Result<bool> {
        sockopt::socket_error(&self.0)??;
        match getpeername(&self.0) {
            Ok(_) => Ok(true),
            Err(Errno::NOTCONN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives what is there, up to the size of `buffer`; 0 means that the peer has closed.
    ///
    /// # Errors
    /// What `recv(2)` said; `WouldBlock` when nothing is there and the socket does not wait.
    #[inline]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (length, _) = recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(length)
    }

    /// Sends as much of `bytes` as the socket takes, never raising `SIGPIPE`.
    ///
    /// # Errors
    /// What `send(2)` said; `WouldBlock` when the socket's buffer is full and it does not wait.
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Ends both directions; a thread that waits in [`TcpConnection::receive`] reads the end.
    ///
    /// # Errors
    /// What `shutdown(2)` said, for example that the connection is gone already.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Both)?)
    }
}

impl AsFd for TcpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A TCP socket that waits for connections.
#[derive(Debug)]
pub struct TcpListener(OwnedFd);

impl TcpListener {
    /// How many finished handshakes may wait to be accepted; the kernel lowers it to
    /// `net.core.somaxconn`.
    const BACKLOG: i32 = 4096;

    /// Listens at `address` with `SO_REUSEADDR`; port 0 lets the kernel choose. With `share_port`
    /// (`SO_REUSEPORT`) several listeners of one user may have the same address, and the kernel
    /// spreads connections over them.
    ///
    /// # Errors
    /// What `bind(2)` or `listen(2)` said.
    pub fn bind(address: SocketAddr, share_port: bool, blocking: Blocking) -> io::Result<Self> {
        let socket = new_socket(address, blocking)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, share_port)?;
        bind(&socket, &address)?;
        listen(&socket, Self::BACKLOG)?;
        Ok(Self(socket))
    }

    /// Where it listens, with the port that the kernel chose.
    ///
    /// # Errors
    /// What `getsockname(2)` said.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        local_address(&self.0)
    }

    /// Takes one connection.
    ///
    /// # Errors
    /// What `accept4(2)` said; `WouldBlock` when none waits and the listener does not;
    /// `InvalidInput` after [`TcpListener::shut_down`].
    pub fn accept(&self, blocking: Blocking) -> io::Result<TcpConnection> {
        let connection = accept_with(&self.0, flags(blocking))?;
        // A connection that ended already is no reason to stop listening.
        sockopt::set_tcp_nodelay(&connection, true).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        Ok(TcpConnection(connection))
    }

    /// Stops listening; a thread that waits in [`TcpListener::accept`] gets an error.
    ///
    /// # Errors
    /// What `shutdown(2)` said.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Both)?)
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What an error of [`TcpListener::accept`] means for a server that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptFailure {
    /// No connection waits.
    NoneWaits,
    /// One connection is lost; the next may be accepted at once.
    ConnectionLost,
    /// File descriptors or memory are used up: the connections wait until something is freed.
    Exhausted,
    /// The listener takes no connections any more.
    Final,
}

impl AcceptFailure {
    /// As `accept(2)` has it.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => Self::NoneWaits,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Self::Exhausted,
            Some(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NOPROTOOPT)
            | Some(Errno::NETDOWN | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::HOSTUNREACH | Errno::NONET)
            | None => Self::ConnectionLost,
            Some(_) => Self::Final,
        }
    }
}

pub(crate) fn flags(blocking: Blocking) -> SocketFlags {
    match blocking {
        Blocking::Yes => SocketFlags::CLOEXEC,
        Blocking::No => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    }
}

pub(crate) fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

pub(crate) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let any: SocketAddrAny = getsockname(socket)?;
    Ok(any.try_into()?)
}

fn new_socket(address: SocketAddr, blocking: Blocking) -> io::Result<OwnedFd> {
    Ok(socket_with(family(address), SocketType::STREAM, flags(blocking), Some(ipproto::TCP))?)
}

fn wait_writable(socket: impl AsFd, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn listener() -> TcpListener {
        TcpListener::bind(LOOPBACK, false, Blocking::Yes).unwrap()
    }

    #[test]
    fn bytes_sent_at_one_end_arrive_at_the_other() {
        let listener = listener();
        let client = TcpConnection::connect(listener.local_address().unwrap(), PATIENCE).unwrap();
        let server = listener.accept(Blocking::Yes).unwrap();
        assert_eq!(client.send(b"ping").unwrap(), 4);
        let mut buffer = [0; 16];
        assert_eq!(server.receive(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"ping");
    }

    #[test]
    fn a_client_with_nothing_to_read_does_not_wait() {
        let listener = listener();
        let client = TcpConnection::connect(listener.local_address().unwrap(), PATIENCE).unwrap();
        let error = client.receive(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_port_where_nobody_listens_refuses() {
        let address = listener().local_address().unwrap();
        let error = TcpConnection::connect(address, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn shutting_a_listener_down_wakes_its_accept() {
        let listener = listener();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept(Blocking::Yes));
            listener.shut_down().unwrap();
            assert!(waiting.join().unwrap().is_err());
        });
    }

    #[test]
    fn listeners_share_a_port_only_when_asked_to() {
        let first = TcpListener::bind(LOOPBACK, true, Blocking::No).unwrap();
        let address = first.local_address().unwrap();
        TcpListener::bind(address, true, Blocking::No).unwrap();
        let error = TcpListener::bind(address, false, Blocking::No).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
