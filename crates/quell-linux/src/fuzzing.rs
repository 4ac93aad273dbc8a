//! The way in for the fuzz targets to decoders that are not public otherwise. It exists in instrumented builds only.

use crate::{address, ethtool, link, netdev, netlink};

/// Reads any bytes as a netlink datagram, and as the payload of every reply that is understood here.
pub fn netlink(bytes: &[u8]) {
    netlink::statuses(bytes);
    let _ = netdev::decode_napi(bytes);
    let _ = netdev::decode_queue(bytes);
    let _ = netdev::decode_stats(bytes);
    let _ = link::decode_link(bytes);
    let _ = address::decode_address(bytes);
    let _ = ethtool::decode_features(bytes);
    let _ = ethtool::decode_channels(bytes);
}
