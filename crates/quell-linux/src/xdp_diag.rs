//! Lists the AF_XDP sockets of a network namespace with the queue of each, via netlink (`CONFIG_XDP_SOCKETS_DIAG`,
//! `net/xdp/xsk_diag.c`). `netlink-bindings` does not have this family of sock_diag.

use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_bindings::utils;

use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget, attributes};
use crate::sock_diag::SockDiag;

/// `SOCK_DIAG_BY_FAMILY` (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// `XDP_SHOW_INFO` and the attribute `XDP_DIAG_INFO` (`linux/xdp_diag.h`).
const SHOW_INFO: u32 = 1;
const INFO: u16 = 1;
/// Size of `struct xdp_diag_msg`: family, type and padding, inode, cookie.
pub(crate) const MESSAGE_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedXdpSocket {
    /// Inode number in sockfs.
    pub inode: u32,
    /// Device and queue; `None` if the socket is not bound.
    pub bound: Option<(Ifindex, u32)>,
}

/// `struct xdp_diag_req`: family, protocol and padding, inode, what to show, cookie.
struct ListRequest([u8; 20]);

impl ListRequest {
    fn new() -> Self {
        let mut bytes = [0; 20];
        bytes[0] = libc::AF_XDP as u8;
        bytes[8..12].copy_from_slice(&SHOW_INFO.to_ne_bytes());
        Self(bytes)
    }
}

impl NetlinkRequest for ListRequest {
    fn protocol(&self) -> Protocol {
        Protocol::Raw { protonum: libc::NETLINK_SOCK_DIAG as u16, request_type: BY_FAMILY }
    }

    fn flags(&self) -> u16 {
        libc::NLM_F_DUMP as u16
    }

    fn payload(&self) -> &[u8] {
        &self.0
    }

    type ReplyType<'buf> = &'buf [u8];

    fn decode_reply(reply: &[u8]) -> &[u8] {
        reply
    }
}

impl SockDiag {
    /// AF_XDP sockets of the namespace; `None` if the kernel cannot list them.
    pub fn xdp_sockets(&mut self) -> Result<Option<Vec<ListedXdpSocket>>, NetlinkError> {
        let listed = self.socket.collect(
            "list the AF_XDP sockets of",
            &RequestTarget::Namespace,
            &ListRequest::new(),
            decode_xdp_socket,
        );
        match listed {
            Err(error) if error.failure() == crate::netlink::Failure::Absent => Ok(None),
            listed => listed.map(Some),
        }
    }
}

pub(crate) fn decode_xdp_socket(reply: &[u8]) -> Result<ListedXdpSocket, Malformed> {
    let (message, rest) =
        reply.split_at_checked(MESSAGE_BYTES).ok_or(Malformed("a message about an AF_XDP socket is truncated"))?;
    let inode = utils::parse_u32(&message[4..8]).ok_or(Malformed("an AF_XDP socket without an inode"))?;
    let info = attributes(rest).find_map(|(kind, info)| (kind == INFO).then_some(info));
    let info = info.ok_or(Malformed("an AF_XDP socket without XDP_DIAG_INFO"))?;
    let word = |at: usize| info.get(at..at + 4).and_then(utils::parse_u32);
    let (ifindex, queue) = word(0).zip(word(4)).ok_or(Malformed("XDP_DIAG_INFO is truncated"))?;
    Ok(ListedXdpSocket { inode, bound: Ifindex::new(ifindex).map(|ifindex| (ifindex, queue)) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::{any_reply, push};

    fn reply(inode: u32, info: &[u32]) -> Vec<u8> {
        let mut bytes = vec![libc::AF_XDP as u8, libc::SOCK_RAW as u8, 0, 0];
        bytes.extend(inode.to_ne_bytes());
        bytes.extend([0; 8]);
        let info: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
        push(&mut bytes, INFO, &info);
        bytes
    }

    #[test]
    fn a_bound_socket_has_its_queue_and_an_unbound_one_has_none() {
        let bound = Some((Ifindex::new(3).unwrap(), 7));
        assert_eq!(decode_xdp_socket(&reply(42, &[3, 7])), Ok(ListedXdpSocket { inode: 42, bound }));
        assert_eq!(decode_xdp_socket(&reply(43, &[0, 0])), Ok(ListedXdpSocket { inode: 43, bound: None }));
    }

    #[test]
    fn a_truncated_message_is_refused() {
        let whole = reply(42, &[3, 7]);
        assert!(decode_xdp_socket(&whole[..MESSAGE_BYTES - 1]).is_err());
        assert!(decode_xdp_socket(&whole[..MESSAGE_BYTES]).is_err());
        assert!(decode_xdp_socket(&reply(42, &[3])).is_err());
    }

    #[test]
    fn a_kernel_lists_them_or_is_known_not_to() {
        SockDiag::open().unwrap().xdp_sockets().unwrap();
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(MESSAGE_BYTES)) {
            let _ = decode_xdp_socket(&bytes);
        }
    }
}
