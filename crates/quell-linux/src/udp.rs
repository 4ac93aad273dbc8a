//! UDP sockets for load generation: connected sockets for the generator and bound sockets for the responder. Errors of
//! the kernel are returned unchanged. Datagrams are not interpreted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, bind, connect, recv, recvfrom, send, sendto, sockopt};

use crate::tcp::{Blocking, local_address, socket};

#[derive(Debug)]
pub struct UdpSocket(OwnedFd);

impl UdpSocket {
    /// Creates a non-blocking socket that exchanges datagrams only with `address`.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(address, Blocking::No)?;
        connect(&socket, &address)?;
        Ok(Self(socket))
    }

    /// Creates a socket that receives from any sender. For port 0 the kernel selects the port. With `share_port`
    /// (`SO_REUSEPORT`), several sockets of a user may share the address, and the kernel distributes senders over them.
    pub fn bind(address: SocketAddr, share_port: bool, blocking: Blocking) -> io::Result<Self> {
        let socket = new_socket(address, blocking)?;
        sockopt::set_socket_reuseport(&socket, share_port)?;
        bind(&socket, &address)?;
        Ok(Self(socket))
    }

    /// Sets the timeout after which a blocking receive returns `WouldBlock`.
    pub fn set_receive_timeout(&self, timeout: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(timeout))?)
    }

    pub fn local_address(&self) -> io::Result<SocketAddr> {
        local_address(&self.0)
    }

    /// Receives one datagram. Returns its full length, even if that exceeds the buffer. Errors: those of `recv(2)`;
    /// `WouldBlock` if nothing is available on a non-blocking socket; `ConnectionRefused` if the peer's host reported a
    /// closed port.
    #[inline]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (_, length) = recv(&self.0, buffer, RecvFlags::TRUNC)?;
        Ok(length)
    }

    /// Receives one datagram and the address of its sender. The address is `None` if the sender has none.
    #[inline]
    pub fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
        let (_, length, sender) = recvfrom(&self.0, buffer, RecvFlags::TRUNC)?;
        Ok((length, sender.and_then(|address: SocketAddrAny| address.try_into().ok())))
    }

    #[inline]
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, datagram, SendFlags::NOSIGNAL)?)
    }

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
    socket(address, libc::SOCK_DGRAM, blocking)
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
    fn a_datagram_arrives_with_its_sender() {
        let (server, client) = pair();
        client.send(b"ping").unwrap();
        let (length, sender) = server.receive_from(&mut [0; 16]).unwrap();
        assert_eq!((length, sender), (4, Some(client.local_address().unwrap())));
    }

    #[test]
    fn the_full_length_of_a_datagram_longer_than_the_buffer_is_returned() {
        let (server, client) = pair();
        client.send(b"a long one").unwrap();
        assert_eq!(server.receive(&mut [0; 2]).unwrap(), 10);
    }

    #[test]
    fn a_blocking_receive_ends_after_its_timeout() {
        let (server, _client) = pair();
        server.set_receive_timeout(Duration::from_millis(1)).unwrap();
        let error = server.receive(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
