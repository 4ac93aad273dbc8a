//! ethtool settings that decide how packets reach NAPI and the CPU: offload features, channels, rings, coalescing, RSS,
//! flow rules and the driver. The module uses netlink if the ethtool family supports a command, otherwise the ioctl.

mod channels;
mod coalescing;
mod driver_info;
mod features;
mod flow_rule;
mod flow_rules;
mod ioctl;
mod queue_coalescing;
mod rings;
mod rss;
mod rss_ioctl;

#[cfg(any(fuzzing, test))]
pub(crate) use {
    channels::decode_channels, coalescing::decode_coalescing, driver_info::parse_driver_info,
    features::decode_features, flow_rule::parse_rule, flow_rules::parse_locations, queue_coalescing::parse_words,
    rings::decode_rings, rss::decode_rss,
};

use netlink_bindings::ethtool::PushHeader;
use netlink_bindings::traits::Pusher;

pub use channels::{ChannelRequest, Channels};
pub use coalescing::{CoalesceParameter, Coalescing};
pub use driver_info::DriverInfo;
pub use features::{EthtoolFeature, FeatureError, Features};
pub use flow_rule::{
    Address, FlowAction, FlowAddresses, FlowMatch, FlowRule, FlowTransport, InstalledFlowRule, InvalidPrefix, Prefix,
};
pub use flow_rules::FlowRules;
pub use rings::{RingRequest, Rings};
pub use rss::{HashFunction, RssContext, RssContextId, RssRequest};

use crate::interface::Ifindex;
use crate::netlink::{NetlinkError, NetlinkSocket, RequestTarget};
use crate::netns::Namespace;

/// `ETHTOOL_MSG_*` of `include/uapi/linux/ethtool_netlink.h`. This family numbers requests and replies separately, so
/// `netlink-bindings` 0.3.5 numbers its commands incorrectly. Each request uses one of these constants instead.
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_MSG_RINGS_SET: u8 = 16;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;
const ETHTOOL_MSG_COALESCE_GET: u8 = 19;
const ETHTOOL_MSG_COALESCE_SET: u8 = 20;
const ETHTOOL_MSG_RSS_GET: u8 = 38;
const ETHTOOL_MSG_RSS_SET: u8 = 48;
const ETHTOOL_MSG_RSS_CREATE_ACT: u8 = 49;
const ETHTOOL_MSG_RSS_DELETE_ACT: u8 = 50;

#[derive(Debug)]
pub struct Ethtool {
    socket: NetlinkSocket,
}

impl Ethtool {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: open_socket()? })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, open_socket)? })
    }

    fn ioctl(
        &mut self,
        action: &'static str,
        index: Ifindex,
        command: &'static str,
        buffer: &mut [u8],
    ) -> Result<(), NetlinkError> {
        ioctl::call(self.socket.as_fd(), index, command, buffer)
            .map_err(|cause| NetlinkError::new(action, RequestTarget::Index(index), cause))
    }
}

fn open_socket() -> Result<NetlinkSocket, NetlinkError> {
    NetlinkSocket::open_generic("ethtool")
}

/// Writes the interface index into the header that every request of the family has.
fn address_to<P: Pusher>(header: PushHeader<P>, index: Ifindex) -> P {
    header.push_dev_index(index.get()).end_nested()
}
