//! Sockets by netlink (`NETLINK_SOCK_DIAG`, `net/ipv4/inet_diag.c`): the TCP and UDP sockets of a namespace with addresses,
//! states and inodes, in a few messages. By the inode they are found again among the files of a process. What of a
//! socket is not in it (`SO_INCOMING_NAPI_ID`) is asked of the socket itself, in `socket_options`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_bindings::inet_diag::{Msg, ReqV2, Request};

use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, NetlinkSocket, Target};
use crate::netns::Namespace;

/// What is left of closed connections (`include/net/tcp_states.h`) is not listed. Handshakes that have no socket yet come
/// with `SYN_RECV` (`inet_diag_dump_icsk`), as 3 and without an inode.
const NOT_LISTED: u32 = 1 << TIME_WAIT;
const TIME_WAIT: u8 = 6;

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The family of a socket's addresses. An IPv6 socket may serve IPv4 too, by addresses like `::ffff:192.0.2.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InetFamily {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// One socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InetSocket {
    /// Its inode in sockfs; 0 when no process holds it any more, or not yet: a connection that waits to be accepted, and a
    /// handshake that is under way.
    pub inode: u32,
    /// What it does: a number of `include/net/tcp_states.h`. A UDP socket is 1 when connected, else 7.
    pub state: u8,
    /// Its own address and port.
    pub local: SocketAddr,
    /// The other side's; `None` when it is connected to none.
    pub remote: Option<SocketAddr>,
    /// The interface that it is bound to.
    pub bound_to: Option<Ifindex>,
    /// Bytes received and not yet read; of a listening socket: connections not yet accepted.
    pub receive_queue: u32,
    /// Bytes sent and not yet acknowledged; of a listening socket: the most that may wait.
    pub send_queue: u32,
    /// The user that made it.
    pub uid: u32,
}

/// A handle on the sockets of one namespace. Reading needs no privilege.
#[derive(Debug)]
pub struct SockDiag {
    socket: NetlinkSocket,
}

impl SockDiag {
    /// For the namespace of the calling thread, also after the thread has moved on.
    ///
    /// # Errors
    /// [`NetlinkError`] when no socket can be had.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_sock_diag()? })
    }

    /// For another namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// [`NetlinkError`], `Denied` without `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, NetlinkSocket::open_sock_diag)? })
    }

    /// Hands every socket of a protocol and family to `take`, in the kernel's order. Sockets may come, go and change
    /// meanwhile; one can then be seen twice, or not at all.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Absent` when the kernel is built without the protocol's module (`CONFIG_INET_DIAG`,
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
        // The header says the protocol; the bindings' two requests differ in nothing else.
        let request = Request::new().op_tcp_diag_dump(&header);
        let decode = |reply: &[u8]| decode_socket(reply).map(&mut take);
        self.socket.collect("list sockets of", &Target::Namespace, &request, decode).map(drop)
    }
}

pub(crate) fn decode_socket(reply: &[u8]) -> Result<InetSocket, Malformed> {
    // Attributes may follow.
    let message = reply.get(..Msg::len()).and_then(Msg::new_from_slice);
    let message = message.ok_or(Malformed("a socket's message is cut short"))?;
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

/// An IPv4 address, which is in the first four of the sixteen bytes.
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
    fn the_two_ends_of_a_connection_and_its_listener_are_found_by_their_inodes() {
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
    fn an_ipv6_socket_and_what_waits_in_it_are_seen() {
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return skip(Lacks::Machine, "no IPv6 here") };
        socket.send_to(b"four", socket.local_addr().unwrap()).unwrap();
        let seen = find(InetProtocol::Udp, InetFamily::V6, inode(&socket));
        assert_eq!((seen.state, seen.local, seen.remote), (CLOSE, socket.local_addr().unwrap(), None));
        assert!(seen.receive_queue >= 4, "{seen:?}");
    }

    /// What Linux 6.18 said of the server's end of a connection from 192.0.2.2 to 192.0.2.1, port 11211.
    const RECORDED: &[u8] = include_bytes!("../tests/recordings/netlink/inet_diag_tcp4");

    #[test]
    fn a_recorded_connection_is_read() {
        let socket = decode_socket(RECORDED).unwrap();
        assert_eq!((socket.state, socket.uid), (ESTABLISHED, 0));
        assert_eq!(socket.local, "192.0.2.1:11211".parse().unwrap());
        assert_eq!(socket.remote.unwrap().ip(), "192.0.2.2".parse::<IpAddr>().unwrap());
        assert_ne!(socket.inode, 0);
    }

    #[test]
    fn a_message_that_is_cut_short_is_refused() {
        assert!(decode_socket(&RECORDED[..Msg::len() - 1]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_answers_never_panic(bytes in any_reply(Msg::len())) {
            let _ = decode_socket(&bytes);
        }
    }
}
