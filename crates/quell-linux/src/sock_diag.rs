//! Lists TCP and UDP sockets of a network namespace with their addresses, states and inodes, via netlink
//! (`NETLINK_SOCK_DIAG`, `net/ipv4/inet_diag.c`). The inode identifies a socket among the files of a process.
//! `socket_options` reads values that netlink does not report, such as `SO_INCOMING_NAPI_ID`, from the socket itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_bindings::inet_diag::{Msg, ReqV2, Request};

use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, NetlinkSocket, RequestTarget};
use crate::netns::Namespace;

/// State bits of sockets that are not listed: closed connections in TIME_WAIT (`include/net/tcp_states.h`). Handshakes
/// without a socket are included in the state `SYN_RECV` (`inet_diag_dump_icsk`). They have state 3 and no inode.
const NOT_LISTED: u32 = 1 << TIME_WAIT;
const TIME_WAIT: u8 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetProtocol {
    Tcp,
    Udp,
}

/// Address family of a socket. An IPv6 socket may also serve IPv4. Its addresses then look like `::ffff:192.0.2.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetFamily {
    V4,
    V6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InetSocket {
    /// Inode number in sockfs. It is 0 if no process holds the socket. Such a socket is closed, waits to be accepted,
    /// or is in a handshake.
    pub inode: u32,
    /// State, numbered as in `include/net/tcp_states.h`. A connected UDP socket has state 1, an unconnected one 7.
    pub state: u8,
    pub local: SocketAddr,
    /// Remote address and port; `None` if the socket is not connected.
    pub remote: Option<SocketAddr>,
    pub bound_to: Option<Ifindex>,
    /// Number of bytes received but not yet read. For a listening socket, the number of connections not yet accepted.
    pub receive_queue: u32,
    /// Number of bytes sent but not yet acknowledged. For a listening socket, the maximum backlog.
    pub send_queue: u32,
    pub uid: u32,
}

/// Handle to the sockets of one network namespace. Reading needs no privilege.
#[derive(Debug)]
pub struct SockDiag {
    pub(crate) socket: NetlinkSocket,
}

impl SockDiag {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_sock_diag()? })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, NetlinkSocket::open_sock_diag)? })
    }

    /// Passes every socket of a protocol and family to `take`, in the kernel's order. If sockets change during the
    /// call, a socket can be listed twice or not at all. Errors: `Absent` if the kernel lacks the module of the
    /// protocol (`CONFIG_INET_DIAG`, `CONFIG_INET_UDP_DIAG`).
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
        // The two requests in the bindings are identical, and the header selects the protocol.
        let request = Request::new().op_tcp_diag_dump(&header);
        let decode = |reply: &[u8]| decode_socket(reply).map(&mut take);
        self.socket.collect("list the sockets of", &RequestTarget::Namespace, &request, decode).map(drop)
    }
}

pub(crate) fn decode_socket(reply: &[u8]) -> Result<InetSocket, Malformed> {
    // Attributes may follow the message.
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
        assert_eq!(seen.receive_queue, 1, "one connection is not yet accepted");
        let seen = find(InetProtocol::Tcp, InetFamily::V4, inode(&client));
        assert_eq!((seen.state, seen.local), (ESTABLISHED, client.local_addr().unwrap()));
        assert_eq!(seen.remote, Some(client.peer_addr().unwrap()));
    }

    #[test]
    fn an_ipv6_socket_and_its_waiting_connections_are_listed() {
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return skip(Lacks::Machine, "no IPv6 on this machine") };
        socket.send_to(b"four", socket.local_addr().unwrap()).unwrap();
        let seen = find(InetProtocol::Udp, InetFamily::V6, inode(&socket));
        assert_eq!((seen.state, seen.local, seen.remote), (CLOSE, socket.local_addr().unwrap(), None));
        assert!(seen.receive_queue >= 4, "{seen:?}");
    }

    /// Reply for the server's end of a connection from 192.0.2.2 to 192.0.2.1, port 11211, recorded on Linux 6.18.
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
