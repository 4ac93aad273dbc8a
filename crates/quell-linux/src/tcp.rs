//! TCP sockets for load generation, with one system call per operation. Errors of the kernel are returned unchanged,
//! because a load generator counts them by kind.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, accept_with, bind, connect, getpeername, getsockname,
    listen, recv, send, shutdown, sockopt,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    Yes,
    /// A call that cannot complete returns `WouldBlock`.
    No,
}

/// One end of a TCP connection with `TCP_NODELAY`: the kernel transmits each request at once.
#[derive(Debug)]
pub struct TcpConnection(OwnedFd);

impl TcpConnection {
    /// Starts to connect without waiting; [`TcpConnection::is_established`] reports completion. Errors: those of
    /// `socket(2)` or `connect(2)`. `EINPROGRESS` is not an error.
    pub fn start(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address, Blocking::No)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self(socket)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Connects and waits up to `timeout`. The connection is non-blocking. Errors: `TimedOut` if no reply arrived in
    /// time.
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

    /// Whether the handshake is complete. If it failed, returns the reason, for example `ConnectionRefused` or an
    /// unreachable network.
    pub fn is_established(&self) -> io::Result<bool> {
        sockopt::socket_error(&self.0)??;
        match getpeername(&self.0) {
            Ok(_) => Ok(true),
            Err(Errno::NOTCONN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives available bytes, up to the size of `buffer`. A result of 0 means that the peer closed the connection.
    /// Errors: those of `recv(2)`; `WouldBlock` if nothing is available on a non-blocking socket.
    #[inline]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (length, _) = recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(length)
    }

    /// Sends as much of `bytes` as fits the socket buffer, without `SIGPIPE`. Errors: those of `send(2)`; `WouldBlock`
    /// if the buffer of a non-blocking socket is full.
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Shuts down both directions. A thread that waits in [`TcpConnection::receive`] then reads the end of the stream.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Both)?)
    }
}

impl AsFd for TcpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug)]
pub struct TcpListener(OwnedFd);

impl TcpListener {
    /// Maximum number of connections that wait to be accepted. The kernel limits it to `net.core.somaxconn`.
    const BACKLOG: i32 = 4096;

    /// Listens at `address` with `SO_REUSEADDR`. For port 0 the kernel selects the port. With `share_port`
    /// (`SO_REUSEPORT`), several listeners of a user may share the address, and the kernel distributes connections over
    /// them.
    pub fn bind(address: SocketAddr, share_port: bool, blocking: Blocking) -> io::Result<Self> {
        let socket = new_socket(address, blocking)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, share_port)?;
        bind(&socket, &address)?;
        listen(&socket, Self::BACKLOG)?;
        Ok(Self(socket))
    }

    /// Local address, with the port that the kernel selected.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        local_address(&self.0)
    }

    /// Accepts one connection. Errors: those of `accept4(2)`; `WouldBlock` if no connection waits on a non-blocking
    /// listener; `InvalidInput` after [`TcpListener::shut_down`].
    pub fn accept(&self, blocking: Blocking) -> io::Result<TcpConnection> {
        let connection = accept_with(&self.0, flags(blocking))?;
        // A connection that has already ended is an error of this connection only, not of the listener.
        sockopt::set_tcp_nodelay(&connection, true).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        Ok(TcpConnection(connection))
    }

    /// Stops listening. A thread that waits in [`TcpListener::accept`] gets an error.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Both)?)
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Meaning of an error from [`TcpListener::accept`] for a server that continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptFailure {
    NoneWaits,
    /// One connection is lost. The server can accept the next one at once.
    ConnectionLost,
    /// File descriptors or memory are exhausted. Connections wait until some are freed.
    Exhausted,
    Final,
}

impl AcceptFailure {
    /// Classifies an error as `accept(2)` documents it.
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

/// Creates a socket with the C library's function, which a preload library can intercept.
pub(crate) fn socket(address: SocketAddr, kind: i32, blocking: Blocking) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // `socket(2)` accepts these flags as bits of the type.
    let kind = kind | flags(blocking).bits().cast_signed();
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this file descriptor, so this value is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let any: SocketAddrAny = getsockname(socket)?;
    Ok(any.try_into()?)
}

fn new_socket(address: SocketAddr, blocking: Blocking) -> io::Result<OwnedFd> {
    socket(address, libc::SOCK_STREAM, blocking)
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
    fn a_client_without_data_to_read_does_not_block() {
        let listener = listener();
        let client = TcpConnection::connect(listener.local_address().unwrap(), PATIENCE).unwrap();
        let error = client.receive(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_port_without_listener_refuses() {
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
    fn listeners_share_a_port_only_on_request() {
        let first = TcpListener::bind(LOOPBACK, true, Blocking::No).unwrap();
        let address = first.local_address().unwrap();
        TcpListener::bind(address, true, Blocking::No).unwrap();
        let error = TcpListener::bind(address, false, Blocking::No).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
