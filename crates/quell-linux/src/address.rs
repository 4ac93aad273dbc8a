//! IP addresses of interfaces via rtnetlink: adding and listing. The kernel derives the connected routes from
//! the prefix.

use std::fmt;
use std::net::IpAddr;

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::traits::NetlinkRequest;

use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, NetlinkSocket, RequestTarget};
use crate::netns::Namespace;

/// `IFA_F_NODAD`: the address is usable at once, without duplicate address detection.
const IFA_F_NODAD: u8 = 0x02;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterfaceAddress {
    ip: IpAddr,
    prefix_bits: u8,
}

impl InterfaceAddress {
    /// `None` when the prefix is longer than the address (32 or 128 bits).
    #[must_use]
    pub const fn new(ip: IpAddr, prefix_bits: u8) -> Option<Self> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        if prefix_bits > bits {
            return None;
        }
        Some(Self { ip, prefix_bits })
    }

    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    /// Prefix length of the network, in bits: 0 to 32 (IPv4) or 128 (IPv6).
    #[must_use]
    pub const fn prefix_bits(self) -> u8 {
        self.prefix_bits
    }

    fn family(self) -> u8 {
        let family = if self.ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        family as u8
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_bits)
    }
}

#[derive(Debug)]
pub struct Addresses {
    socket: NetlinkSocket,
}

impl Addresses {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_route()? })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        let socket = NetlinkSocket::open_in(namespace, NetlinkSocket::open_route)?;
        Ok(Self { socket })
    }

    /// Adds an address to an interface. It is usable as soon as the interface is up. Duplicate address detection (DAD)
    /// of IPv6 is skipped, because it would take a second or more. Errors: `Exists` if the interface already has the
    /// address.
    pub fn add(&mut self, index: Ifindex, address: InterfaceAddress) -> Result<(), NetlinkError> {
        let header = Ifaddrmsg {
            ifa_family: address.family(),
            ifa_prefixlen: address.prefix_bits,
            ifa_flags: if address.ip.is_ipv6() { IFA_F_NODAD } else { 0 },
            ifa_index: index.get(),
            ..Ifaddrmsg::default()
        };
        let mut request = rt_addr::Request::new().set_create().set_excl().op_newaddr_do(&header);
        request.encode().push_local(address.ip).push_address(address.ip);
        self.socket.act("add an address to", &RequestTarget::Index(index), &request)
    }

    /// The addresses of all interfaces, each with the index of its interface.
    pub fn list(&mut self) -> Result<Vec<(Ifindex, InterfaceAddress)>, NetlinkError> {
        let request = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::default());
        let all = self.socket.collect("list the addresses of", &RequestTarget::Namespace, &request, decode_address)?;
        Ok(all.into_iter().filter_map(|(index, address)| Some((Ifindex::new(index)?, address))).collect())
    }
}

/// Decodes an address and the index of its interface. On a point-to-point link, `IFA_LOCAL` is the local address.
pub(crate) fn decode_address(reply: &[u8]) -> Result<(u32, InterfaceAddress), Malformed> {
    let (header, attributes) = rt_addr::OpGetaddrDump::decode_reply(reply);
    let ip = attributes.get_local().or_else(|_| attributes.get_address()).ok();
    let address = ip.and_then(|ip| InterfaceAddress::new(ip, header.ifa_prefixlen));
    let address = address.ok_or(Malformed("an address without an IP address and its prefix"))?;
    Ok((header.ifa_index, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    #[test]
    fn a_prefix_is_no_longer_than_its_address() {
        assert_eq!(InterfaceAddress::new("10.0.0.1".parse().unwrap(), 33), None);
        assert_eq!(InterfaceAddress::new("fd00::1".parse().unwrap(), 129), None);
        let address = InterfaceAddress::new("fd00::1".parse().unwrap(), 64).unwrap();
        assert_eq!(address.to_string(), "fd00::1/64");
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(8)) {
            let _ = decode_address(&bytes);
        }
    }
}
