//! Network interfaces via rtnetlink: lists, finds, moves and deletes them, creates veth pairs across two namespaces,
//! and sets the state and MTU.

use netlink_bindings::rt_link::{self, Ifinfomsg, IterableLinkAttrs, PushLinkAttrs};
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd};

use crate::interface::{Ifindex, InterfaceName, MacAddress};
use crate::netlink::{Malformed, NetlinkError, NetlinkSocket, RequestTarget, begin_nested, end_nested};
use crate::netns::Namespace;

/// `IFLA_INFO_DATA` of `include/uapi/linux/if_link.h`.
const IFLA_INFO_DATA: u16 = 2;
/// `VETH_INFO_PEER` of `include/uapi/linux/veth.h`: an `ifinfomsg` and the attributes of the peer. Quell encodes it by
/// hand, because the kernel's rt-link specification lacks veth.
const VETH_INFO_PEER: u16 = 1;
/// `XDP_ATTACHED_NONE` of `include/uapi/linux/if_link.h`.
const XDP_ATTACHED_NONE: u8 = 0;
/// `RTEXT_FILTER_SKIP_STATS`: omits the counters. Quell does not use them, and they take up most of a reply.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    pub index: Ifindex,
    /// Name of the interface. Bytes that are not UTF-8 become U+FFFD.
    pub name: String,
    /// Kind of a virtual interface (`veth`, `bridge`, …); `None` for hardware and `lo`.
    pub kind: Option<String>,
    /// MAC address; `None` if the interface has another type of address.
    pub mac: Option<MacAddress>,
    pub mtu: Option<u32>,
    /// Whether the administrator set the interface up (`IFF_UP`).
    pub is_up: bool,
    /// Operational state, as the driver reports it (RFC 2863).
    pub operational_state: OperationalState,
    /// Number of allocated receive queues. The `ethtool` channels give the number in use.
    pub rx_queues: Option<u32>,
    pub tx_queues: Option<u32>,
    /// Peer of a pair, or the lower interface of a stacked one.
    pub peer: Option<Peer>,
    /// Bond, bridge, team or VRF of which this interface is a port, in the same namespace.
    pub master: Option<Ifindex>,
    /// Whether an XDP program is attached; `None` if the kernel does not report it.
    pub has_xdp: Option<bool>,
}

/// The interface to which another one is linked (`IFLA_LINK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Index of the peer in its own namespace.
    pub index: Ifindex,
    /// Id that this namespace assigned to the peer's namespace (`IFLA_LINK_NETNSID`). `None` if both are in the same
    /// namespace.
    pub namespace_id: Option<i32>,
}

/// Operational state of an interface (`IF_OPER_*` in `include/uapi/linux/if.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OperationalState {
    /// The state is not reported, or is newer than this list.
    Unknown,
    /// A component such as the hardware is absent.
    NotPresent,
    /// The interface has no carrier.
    Down,
    /// The lower interface is down.
    LowerLayerDown,
    /// The interface is in test mode.
    Testing,
    /// The interface waits for an external event, such as authentication.
    Dormant,
    /// The interface can pass packets.
    Up,
}

impl OperationalState {
    fn from_kernel(value: u8) -> Self {
        match value {
            1 => Self::NotPresent,
            2 => Self::Down,
            3 => Self::LowerLayerDown,
            4 => Self::Testing,
            5 => Self::Dormant,
            6 => Self::Up,
            _ => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone)]
pub struct VethEnd<'a> {
    pub namespace: &'a Namespace,
    pub name: InterfaceName,
    /// MAC address. With `None`, the kernel generates one.
    pub mac: Option<MacAddress>,
    /// Number of receive queues, and of transmit queues; 1 to 4,096 (`rtnl_create_link`).
    pub queues: u32,
}

/// Interface indices of a new veth pair. Each index belongs to the namespace of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VethPair {
    pub left: Ifindex,
    pub right: Ifindex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceDrops {
    pub(crate) index: Ifindex,
    pub(crate) veth_peer: Option<Peer>,
    /// Packets that found no free buffer: the largest of `rx_missed_errors`, `rx_over_errors` and `rx_fifo_errors`, of
    /// which many drivers report several for the same packets.
    pub(crate) rx_overruns: u64,
    /// Packets that were dropped on transmit. For veth, those that did not fit the ring of the peer.
    pub(crate) tx_dropped: u64,
}

#[derive(Debug)]
pub struct Links {
    socket: NetlinkSocket,
}

impl Links {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_route()? })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        let socket = NetlinkSocket::open_in(namespace, NetlinkSocket::open_route)?;
        Ok(Self { socket })
    }

    pub fn list(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let mut request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
        request.encode().push_ext_mask(RTEXT_FILTER_SKIP_STATS);
        self.socket.collect("list the interfaces of", &RequestTarget::Namespace, &request, decode_link)
    }

    pub fn by_name(&mut self, name: &InterfaceName) -> Result<Link, NetlinkError> {
        let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::new());
        request.encode().push_ifname_bytes(name.as_str().as_bytes()).push_ext_mask(RTEXT_FILTER_SKIP_STATS);
        self.socket.get("read the state of", &RequestTarget::Name(name.clone()), &request, decode_link)
    }

    pub fn by_index(&mut self, index: Ifindex) -> Result<Link, NetlinkError> {
        let mut request = rt_link::Request::new().op_getlink_do(&header(index));
        request.encode().push_ext_mask(RTEXT_FILTER_SKIP_STATS);
        self.socket.get("read the state of", &RequestTarget::Index(index), &request, decode_link)
    }

    /// Reads the counters of lost packets. `namespace_id` is that of a [`Peer`], if the interface is in another
    /// namespace. Errors: `Absent` if it does not exist, `Denied` without `CAP_NET_ADMIN` in the other namespace.
    pub(crate) fn drops(&mut self, index: Ifindex, namespace_id: Option<i32>) -> Result<DeviceDrops, NetlinkError> {
        let mut request = rt_link::Request::new().op_getlink_do(&header(index));
        if let Some(id) = namespace_id {
            request.encode().push_target_netnsid(id);
        }
        self.socket.get("read the drops of", &RequestTarget::Index(index), &request, |reply| decode_drops(index, reply))
    }

    /// Creates a veth pair, with each end directly in its own namespace. Both ends are down. Errors: `Exists` if a name
    /// is in use, `Denied` without `CAP_NET_ADMIN`, `Unsupported` if the kernel lacks veth.
    pub fn create_veth(&mut self, left: &VethEnd<'_>, right: &VethEnd<'_>) -> Result<VethPair, NetlinkError> {
        let mut left_links = Self::open_in(left.namespace)?;
        let mut right_links = Self::open_in(right.namespace)?;
        let mut request = rt_link::Request::new().set_create().set_excl().op_newlink_do(&Ifinfomsg::new());
        let mut info = push_end(request.encode(), left).nested_linkinfo().push_kind(c"veth");
        let bytes = info.as_vec_mut();
        let data = begin_nested(bytes, IFLA_INFO_DATA);
        let peer = begin_nested(bytes, VETH_INFO_PEER);
        drop(push_end(rt_link::OpNewlinkDo::encode_request(bytes, &Ifinfomsg::new()), right));
        end_nested(bytes, peer);
        end_nested(bytes, data);
        drop(info);
        self.socket.act("create a veth pair with", &RequestTarget::Name(left.name.clone()), &request)?;
        Ok(VethPair { left: left_links.by_name(&left.name)?.index, right: right_links.by_name(&right.name)?.index })
    }

    pub fn set_up(&mut self, index: Ifindex) -> Result<(), NetlinkError> {
        self.set_flag_up(index, true)
    }

    /// Sets an interface down. Drivers that do not store NAPI settings persistently lose them.
    pub fn set_down(&mut self, index: Ifindex) -> Result<(), NetlinkError> {
        self.set_flag_up(index, false)
    }

    fn set_flag_up(&mut self, index: Ifindex, up: bool) -> Result<(), NetlinkError> {
        let iff_up = libc::IFF_UP.cast_unsigned();
        let mut header = header(index);
        header.ifi_flags = if up { iff_up } else { 0 };
        header.ifi_change = iff_up;
        let request = rt_link::Request::new().op_setlink_do(&header);
        let action = if up { "set up" } else { "set down" };
        self.socket.act(action, &RequestTarget::Index(index), &request)
    }

    /// Sets the MTU in bytes. Errors: `Invalid` with the kernel's message if the driver does not support the MTU.
    pub fn set_mtu(&mut self, index: Ifindex, mtu: u32) -> Result<(), NetlinkError> {
        let mut request = rt_link::Request::new().op_setlink_do(&header(index));
        request.encode().push_mtu(mtu);
        self.socket.act("set the MTU of", &RequestTarget::Index(index), &request)
    }

    /// Moves an interface that is down to another namespace and renames it to `name`. Errors: `Exists` if the name is
    /// in use there, `Invalid` if the interface cannot be moved, `Denied` without `CAP_NET_ADMIN`.
    pub fn move_to(&mut self, index: Ifindex, namespace: &Namespace, name: &InterfaceName) -> Result<(), NetlinkError> {
        let namespace_fd = namespace.as_fd().as_raw_fd().cast_unsigned();
        let mut request = rt_link::Request::new().op_setlink_do(&header(index));
        request.encode().push_ifname_bytes(name.as_str().as_bytes()).push_net_ns_fd(namespace_fd);
        self.socket.act("change the namespace of", &RequestTarget::Index(index), &request)
    }

    /// Deletes an interface. Deleting one end of a veth pair also deletes the other end. Errors: `Unsupported` for
    /// hardware.
    pub fn delete(&mut self, index: Ifindex) -> Result<(), NetlinkError> {
        let request = rt_link::Request::new().op_dellink_do(&header(index));
        self.socket.act("delete", &RequestTarget::Index(index), &request)
    }
}

fn header(index: Ifindex) -> Ifinfomsg {
    let mut header = Ifinfomsg::new();
    header.ifi_index = index.as_i32();
    header
}

fn push_end<P: Pusher>(attributes: PushLinkAttrs<P>, end: &VethEnd<'_>) -> PushLinkAttrs<P> {
    let namespace_fd = end.namespace.as_fd().as_raw_fd().cast_unsigned();
    let attributes = attributes
        .push_ifname_bytes(end.name.as_str().as_bytes())
        .push_net_ns_fd(namespace_fd)
        .push_num_rx_queues(end.queues)
        .push_num_tx_queues(end.queues);
    match end.mac {
        Some(mac) => attributes.push_address(&mac.bytes()),
        None => attributes,
    }
}

pub(crate) fn decode_link(reply: &[u8]) -> Result<Link, Malformed> {
    let (header, attributes) = rt_link::OpGetlinkDo::decode_reply(reply);
    let index = u32::try_from(header.ifi_index).ok().and_then(Ifindex::new);
    let name = attributes.get_ifname().map_err(|_| Malformed("an interface without a name"))?;
    let info = attributes.get_linkinfo().ok();
    let kind = info.and_then(|info| info.get_kind().ok());
    let mac = attributes.get_address().ok();
    Ok(Link {
        index: index.ok_or(Malformed("an interface without an index"))?,
        name: name.to_string_lossy().into_owned(),
        kind: kind.map(|kind| kind.to_string_lossy().into_owned()),
        mac: mac.and_then(|mac| mac.try_into().ok()).and_then(MacAddress::new),
        mtu: attributes.get_mtu().ok(),
        is_up: header.ifi_flags & libc::IFF_UP.cast_unsigned() != 0,
        operational_state: attributes
            .get_operstate()
            .ok()
            .map_or(OperationalState::Unknown, OperationalState::from_kernel),
        rx_queues: attributes.get_num_rx_queues().ok(),
        tx_queues: attributes.get_num_tx_queues().ok(),
        peer: decode_peer(&attributes),
        master: attributes.get_master().ok().and_then(Ifindex::new),
        has_xdp: attributes.get_xdp().and_then(|xdp| xdp.get_attached()).ok().map(|mode| mode != XDP_ATTACHED_NONE),
    })
}

fn decode_drops(index: Ifindex, reply: &[u8]) -> Result<DeviceDrops, Malformed> {
    let (_, attributes) = rt_link::OpGetlinkDo::decode_reply(reply);
    let stats = attributes.get_stats64().map_err(|_| Malformed("an interface without counters"))?;
    let kind = attributes.get_linkinfo().ok().and_then(|info| info.get_kind().ok());
    Ok(DeviceDrops {
        index,
        veth_peer: decode_peer(&attributes).filter(|_| kind.is_some_and(|kind| kind == c"veth")),
        rx_overruns: stats.rx_missed_errors.max(stats.rx_over_errors).max(stats.rx_fifo_errors),
        tx_dropped: stats.tx_dropped,
    })
}

fn decode_peer(attributes: &IterableLinkAttrs<'_>) -> Option<Peer> {
    let index = Ifindex::new(attributes.get_link().ok()?)?;
    Some(Peer { index, namespace_id: attributes.get_link_netnsid().ok() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(16)) {
            let _ = decode_link(&bytes);
            let _ = decode_drops(Ifindex::new(1).unwrap(), &bytes);
        }
    }
}
