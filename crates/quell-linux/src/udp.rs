//! UDP sockets for load, connected ones for the generator and bound ones for the responder. Errors
//! are the kernel's, untouched; datagrams are not interpreted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvFlags, SendFlags, SocketAddrAny, SocketType, bind, connect, ipproto, recv, recvfrom, send, sendto, socket_with,
    sockopt,
};

use crate::tcp::{Blocking, family, flags, local_address};

/// A UDP socket.
#[derive(Debug)]
pub struct UdpSocket(OwnedFd);

impl UdpSocket {
    /// A non-blocking socket that sends to, and receives from, `address` alone.
    ///
    /// # Errors
    /// What `socket(2)` or `connect(2)` said.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address, Blocking::No)?;
        connect(&socket, &address)?;
        Ok(Self(socket))
    }

    /// A socket that receives from anybody; port 0 lets the kernel choose. With `share_port`
    /// (`SO_REUSEPORT`) several sockets of one user may have the same address, and the kernel
    /// spreads senders over them.
    ///
    /// # Errors
    /// What `bind(2)` said.
    pub fn bind(address: SocketAddr, share_port: bool, blocking: Blocking) -> io::Result<Self> {
        let socket = new_socket(address, blocking)?;
        sockopt::set_socket_reuseport(&socket, share_port)?;
        bind(&socket, &address)?;
        Ok(Self(socket))
    }

    /// Lets blocking receives give up with `WouldBlock` after `timeout`.
    ///
    /// # Errors
    /// What `setsockopt(2)` said; a zero timeout is invalid.
    pub fn set_receive_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(timeout))?)
    }

    /// Where it is bound, with the port that the kernel chose.
    ///
    /// # Errors
    /// What `getsockname(2)` said.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        local_address(&self.0)
    }

    /// Receives one datagram. The length is the datagram's, also when it exceeds the buffer's.
    ///
    /// # Errors
    /// What `recv(2)` said; `WouldBlock` when none is there and the socket does not wait;
    /// `ConnectionRefused` when the peer's host reported that nobody listens.
    #[inline]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (_, length) = recv(&self.0, buffer, RecvFlags::TRUNC)?;
        Ok(length)
    }

    /// Receives one datagram and tells its sender, `None` for a sender without an address.
    ///
    /// # Errors
    /// As [`UdpSocket::receive`].
    #[inline]
    pub fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
        let (_, length, sender) = recvfrom(&self.0, buffer, RecvFlags::TRUNC)?;
        Ok((length, sender.and_then(|address: SocketAddrAny| address.try_into().ok())))
    }

    /// Sends one datagram to the connected peer.
    ///
    /// # Errors
    /// What `send(2)` said; `WouldBlock` when the socket's buffer is full and it does not wait.
    #[inline]
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, datagram, SendFlags::NOSIGNAL)?)
    }

    /// Sends one datagram to `address`.
    ///
    /// # Errors
    /// As [`UdpSocket::send`].
    #[inline]
    pub fn send_to(&self, datagram: &[u8], address: SocketAddr) -> io::Result<usize> {
        Ok(sendto(&self.0, datagram, SendFlags::NOSIGNAL, &address)?)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new_socket(address: SocketAddr, blocking: Blocking) -> io::Result<OwnedFd> {
    Ok(socket_with(family(address), SocketType::DGRAM, flags(blocking), Some(ipproto::UDP))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn pair() -> (UdpSocket, UdpSocket) {
        let server = UdpSocket::bind(LOOPBACK, false, Blocking::Yes).unwrap();
        let client = UdpSocket::connect(server.local_address().unwrap()).unwrap();
        (server, client)
    }

    #[test]
    fn a_datagram_arrives_and_tells_who_sent_it() {
        let (server, client) = pair();
        client.send(b"ping").unwrap();
        let (length, sender) = server.receive_from(&mut [0; 16]).unwrap();
        assert_eq!((length, sender), (4, Some(client.local_address().unwrap())));
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_tells_its_whole_length() {
        let (server, client) = pair();
        client.send(b"a long one").unwrap();
        assert_eq!(server.receive(&mut [0; 2]).unwrap(), 10);
    }

    #[test]
    fn a_blocking_receive_gives_up_after_its_timeout() {
        let (server, _client) = pair();
        server.set_receive_timeout(Duration::from_millis(1)).unwrap();
        let error = server.receive(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
