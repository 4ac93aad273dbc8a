//! The way in for the fuzz targets to decoders that are not public otherwise. It exists in instrumented builds only.

use crate::{address, bit_mask, ethtool, link, netdev, netlink, sock_diag};

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
    let _ = sock_diag::decode_socket(bytes);
    let _ = ethtool::decode_rings(bytes);
    let _ = ethtool::decode_rss(bytes);
    let coalescing = ethtool::decode_coalescing(bytes);
    let _ = coalescing.map(|device| ethtool::parse_words(bytes, &device));
}

/// Reads any bytes as the answers of the ioctl of ethtool.
pub fn ethtool_ioctl(bytes: &[u8]) {
    let _ = ethtool::parse_driver_info(bytes);
    let _ = ethtool::parse_rule(bytes, 0);
    let _ = ethtool::parse_locations(bytes);
}

/// Reads any bytes as a mask; one that is accepted is written and read back as the same.
pub fn bit_mask(bytes: &[u8]) {
    if let Some(numbers) = bit_mask::parse(bytes) {
        assert_eq!(bit_mask::parse(bit_mask::format(numbers.clone()).as_bytes()), Some(numbers));
    }
}
