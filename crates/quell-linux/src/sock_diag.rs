//! Lists TCP and UDP sockets of a network namespace with addresses, states and inodes, via netlink
//! (`NETLINK_SOCK_DIAG`, `net/ipv4/inet_diag.c`). The inode identifies a socket among the files of a process.
//! `socket_options` reads what netlink does not report (`SO_INCOMING_NAPI_ID`) from the socket itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_bindings::inet_diag::{Msg, ReqV2, Request};

use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, NetlinkSocket, Target};
use crate::netns::Namespace;

/// Closed connections in TIME_WAIT (`include/net/tcp_states.h`) are not listed. Handshakes without a socket are
/// listed with `SYN_RECV` (`inet_diag_dump_icsk`), as state 3 and without an inode.
const NOT_LISTED: u32 = 1 << TIME_WAIT;
const TIME_WAIT: u8 = 6;

/// Transport protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Address family of a socket. An IPv6 socket may also serve IPv4, with addresses such as `::ffff:192.0.2.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetFamily {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// A TCP or UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InetSocket {
    /// Inode in sockfs. 0 if no process holds it: closed, waiting to be accepted, or in a handshake.
    pub inode: u32,
    /// State, a number of `include/net/tcp_states.h`. A connected UDP socket is 1, an unconnected one 7.
    pub state: u8,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port; `None` if it is not connected.
    pub remote: Option<SocketAddr>,
    /// Interface to which it is bound.
    pub bound_to: Option<Ifindex>,
    /// Bytes received and not yet read; for a listening socket, connections not yet accepted.
    pub receive_queue: u32,
    /// Bytes sent and not yet acknowledged; for a listening socket, the maximum backlog.
    pub send_queue: u32,
    /// User id of its creator.
    pub uid: u32,
}

/// Handle to the sockets of one network namespace. Reading needs no privilege.
#[derive(Debug)]
pub struct SockDiag {
    socket: NetlinkSocket,
}

impl SockDiag {
    /// Opens the namespace of the calling thread. The handle stays in it if the thread enters another namespace.
    ///
    /// # Errors
    /// [`NetlinkError`] when no socket can be opened.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_sock_diag()? })
    }

    /// Opens another namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// [`NetlinkError`], `Denied` without `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, NetlinkSocket::open_sock_diag)? })
    }

    /// Passes every socket of a protocol and family to `take`, in the kernel's order. If sockets change during the
    /// call, one can be listed twice or not at all.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Absent` if the kernel lacks the module of the protocol (`CONFIG_INET_DIAG`,
    /// `CONFIG_INET_UDP_DIAG`).
    pub fn for_each(
        &mut self,
        protocol: InetProtocol,
        family: InetFamily,
        mut take: impl FnMut(InetSocket),
    ) -> Result<(), NetlinkError> {
        let mut header = ReqV2::new();
        header.family = match family {
            InetFamily::V4 => libc::AF_INET as u8,
            InetFamily::V6 => libc::AF_INET6 as u8,
        };
        header.protocol = match protocol {
            InetProtocol::Tcp => libc::IPPROTO_TCP as u8,
            InetProtocol::Udp => libc::IPPROTO_UDP as u8,
        };
        header.states = !NOT_LISTED;
        // The header selects the protocol; the two requests of the bindings are otherwise identical.
        let request = Request::new().op_tcp_diag_dump(&header);
        let decode = |reply: &[u8]| decode_socket(reply).map(&mut take);
        self.socket.collect("list sockets of", &Target::Namespace, &request, decode).map(drop)
    }
}

pub(crate) fn decode_socket(reply: &[u8]) -> Result<InetSocket, Malformed> {
    // Attributes may follow.
    let message = reply.get(..Msg::len()).and_then(Msg::new_from_slice);
    let message = message.ok_or(Malformed("a socket message is truncated"))?;
    let address = |bytes: [u8; 16], port_be: u16| match i32::from(message.family) {
        libc::AF_INET => Ok(SocketAddr::new(v4(bytes), u16::from_be(port_be))),
        libc::AF_INET6 => Ok(SocketAddr::new(Ipv6Addr::from(bytes).into(), u16::from_be(port_be))),
        _ => Err(Malformed("a socket that is neither IPv4 nor IPv6")),
    };
    let remote = address(message.sockid.dst, message.sockid._dport_be)?;
    Ok(InetSocket {
        inode: message.inode,
        state: message.state,
        local: address(message.sockid.src, message.sockid._sport_be)?,
        remote: (remote.port() != 0).then_some(remote),
        bound_to: Ifindex::new(message.sockid.r#if),
        receive_queue: message.rqueue,
        send_queue: message.wqueue,
        uid: message.uid,
    })
}

/// An IPv4 address, in the first four of sixteen bytes.
fn v4([a, b, c, d, ..]: [u8; 16]) -> IpAddr {
    Ipv4Addr::new(a, b, c, d).into()
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    const LISTEN: u8 = 10;
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;

    fn inode(socket: impl AsFd) -> u32 {
        let file = std::fs::File::from(socket.as_fd().try_clone_to_owned().unwrap());
        u32::try_from(file.metadata().unwrap().ino()).unwrap()
    }

    fn find(protocol: InetProtocol, family: InetFamily, inode: u32) -> InetSocket {
        let mut found = None;
        let mut take = |socket: InetSocket| found = found.or((socket.inode == inode).then_some(socket));
        SockDiag::open().unwrap().for_each(protocol, family, &mut take).unwrap();
        found.unwrap()
    }

    #[test]
    fn both_ends_of_a_connection_and_its_listener_are_found_by_inode() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let seen = find(InetProtocol::Tcp, InetFamily::V4, inode(&listener));
        assert_eq!((seen.state, seen.local, seen.remote), (LISTEN, listener.local_addr().unwrap(), None));
        assert_eq!(seen.receive_queue, 1, "one connection waits to be accepted");
        let seen = find(InetProtocol::Tcp, InetFamily::V4, inode(&client));
        assert_eq!((seen.state, seen.local), (ESTABLISHED, client.local_addr().unwrap()));
        assert_eq!(seen.remote, Some(client.peer_addr().unwrap()));
    }

    #[test]
    fn an_ipv6_socket_and_its_waiting_connections_are_listed() {
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return skip(Lacks::Machine, "no IPv6 here") };
        socket.send_to(b"four", socket.local_addr().unwrap()).unwrap();
        let seen = find(InetProtocol::Udp, InetFamily::V6, inode(&socket));
        assert_eq!((seen.state, seen.local, seen.remote), (CLOSE, socket.local_addr().unwrap(), None));
        assert!(seen.receive_queue >= 4, "{seen:?}");
    }

    /// Recorded reply of Linux 6.18 for the server's end of a connection from 192.0.2.2 to 192.0.2.1, port 11211.
    const RECORDED: &[u8] = include_bytes!("../tests/recordings/netlink/inet_diag_tcp4");

    #[test]
    fn a_recorded_connection_is_decoded() {
        let socket = decode_socket(RECORDED).unwrap();
        assert_eq!((socket.state, socket.uid), (ESTABLISHED, 0));
        assert_eq!(socket.local, "192.0.2.1:11211".parse().unwrap());
        assert_eq!(socket.remote.unwrap().ip(), "192.0.2.2".parse::<IpAddr>().unwrap());
        assert_ne!(socket.inode, 0);
    }

    #[test]
    fn a_truncated_message_is_refused() {
        assert!(decode_socket(&RECORDED[..Msg::len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(Msg::len())) {
            let _ = decode_socket(&bytes);
        }
    }
}
