//! Ring sizes of an interface: the number of descriptors in its receive and transmit queues.

use netlink_bindings::ethtool as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ETHTOOL_MSG_RINGS_GET, ETHTOOL_MSG_RINGS_SET, Ethtool, address_to};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

/// Ring sizes of an interface. A field is `None` if the driver does not report the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct Rings {
    /// Number of descriptors in each receive ring.
    pub rx: Option<u32>,
    /// Maximum number of descriptors in a receive ring.
    pub rx_max: Option<u32>,
    /// Number of descriptors in each transmit ring.
    pub tx: Option<u32>,
    /// Maximum number of descriptors in a transmit ring.
    pub tx_max: Option<u32>,
    /// Size of a receive buffer in bytes.
    pub rx_buf_len: Option<u32>,
    /// Whether the device places packet headers in separate buffers (`tcp-data-split`). `None` if the driver does not
    /// report it or does not know.
    pub tcp_data_split: Option<bool>,
}

/// Ring sizes to set. `None` leaves a size unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingRequest {
    pub rx: Option<u32>,
    pub tx: Option<u32>,
}

impl Ethtool {
    /// Reads the ring sizes of an interface. Errors: `Unsupported` if the driver does not report ring sizes (veth).
    pub fn rings(&mut self, index: Ifindex) -> Result<Rings, NetlinkError> {
        let mut request = bindings::Request::new().op_rings_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_RINGS_GET;
        drop(address_to(request.encode().nested_header(), index));
        self.socket.get("read the ring sizes of", &RequestTarget::Index(index), &request, decode_rings)
    }

    /// Sets ring sizes. Most drivers take the link down briefly and recreate their queues. Errors: `Invalid` with the
    /// kernel's message if a size exceeds the maximum. `Unsupported` if the driver has fixed ring sizes. `Denied`
    /// without `CAP_NET_ADMIN`.
    pub fn set_rings(&mut self, index: Ifindex, sizes: RingRequest) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_rings_set_do();
        request.header_mut().cmd = ETHTOOL_MSG_RINGS_SET;
        let mut attributes = address_to(request.encode().nested_header(), index);
        if let Some(rx) = sizes.rx {
            attributes = attributes.push_rx(rx);
        }
        if let Some(tx) = sizes.tx {
            attributes = attributes.push_tx(tx);
        }
        drop(attributes);
        self.socket.act("set the ring sizes of", &RequestTarget::Index(index), &request)
    }
}

pub(crate) fn decode_rings(reply: &[u8]) -> Result<Rings, Malformed> {
    let attributes = bindings::OpRingsGetDo::decode_reply(reply);
    let tcp_data_split = match attributes.get_tcp_data_split().ok() {
        Some(1) => Some(false),
        Some(2) => Some(true),
        _ => None,
    };
    Ok(Rings {
        rx: attributes.get_rx().ok(),
        rx_max: attributes.get_rx_max().ok(),
        tx: attributes.get_tx().ok(),
        tx_max: attributes.get_tx_max().ok(),
        rx_buf_len: attributes.get_rx_buf_len().ok(),
        tcp_data_split,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use proptest::prelude::*;

    #[test]
    fn unreported_buffer_settings_are_absent() {
        let mut bytes = vec![15, 1, 0, 0];
        for (kind, value) in [(2, 256_u32), (5, 256), (6, 128), (9, 64)] {
            push(&mut bytes, kind, &value.to_ne_bytes());
        }
        push(&mut bytes, 11, &[0]);
        let rings = decode_rings(&bytes).unwrap();
        assert_eq!((rings.rx, rings.rx_max, rings.tx, rings.tx_max), (Some(128), Some(256), Some(64), Some(256)));
        assert_eq!((rings.rx_buf_len, rings.tcp_data_split), (None, None));
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_rings(&bytes);
        }
    }
}
