//! Channels of an interface: the current and maximum number of receive and transmit queues.

use netlink_bindings::ethtool as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ETHTOOL_MSG_CHANNELS_GET, ETHTOOL_MSG_CHANNELS_SET, Ethtool, address_to};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

/// Channel counts of an interface. A driver has separate receive and transmit channels (veth), combined channels (most
/// hardware), or both. A field is `None` if the driver does not have that kind of channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct Channels {
    /// Receive channels in use.
    pub rx_count: Option<u32>,
    /// Maximum number of receive channels.
    pub rx_max: Option<u32>,
    /// Transmit channels in use.
    pub tx_count: Option<u32>,
    /// Maximum number of transmit channels.
    pub tx_max: Option<u32>,
    /// Combined channels in use, each with a receive and a transmit queue.
    pub combined_count: Option<u32>,
    /// Maximum number of combined channels.
    pub combined_max: Option<u32>,
}

/// Channel counts to set. `None` leaves a count unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelRequest {
    pub rx: Option<u32>,
    pub tx: Option<u32>,
    pub combined: Option<u32>,
}

impl Ethtool {
    /// Reads the channels of an interface. Errors: `Unsupported` if the driver does not report channels.
    pub fn channels(&mut self, index: Ifindex) -> Result<Channels, NetlinkError> {
        let mut request = bindings::Request::new().op_channels_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_CHANNELS_GET;
        drop(address_to(request.encode().nested_header(), index));
        self.socket.get("read the channels of", &RequestTarget::Index(index), &request, decode_channels)
    }

    /// Sets the channel counts of an interface. Errors: `Invalid` with the kernel's message if a count exceeds the
    /// maximum.
    pub fn set_channels(&mut self, index: Ifindex, counts: ChannelRequest) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_channels_set_do();
        request.header_mut().cmd = ETHTOOL_MSG_CHANNELS_SET;
        let mut attributes = address_to(request.encode().nested_header(), index);
        if let Some(rx) = counts.rx {
            attributes = attributes.push_rx_count(rx);
        }
        if let Some(tx) = counts.tx {
            attributes = attributes.push_tx_count(tx);
        }
        if let Some(combined) = counts.combined {
            attributes = attributes.push_combined_count(combined);
        }
        drop(attributes);
        self.socket.act("set the channels of", &RequestTarget::Index(index), &request)
    }
}

pub(crate) fn decode_channels(reply: &[u8]) -> Result<Channels, Malformed> {
    let attributes = bindings::OpChannelsGetDo::decode_reply(reply);
    Ok(Channels {
        rx_count: attributes.get_rx_count().ok(),
        rx_max: attributes.get_rx_max().ok(),
        tx_count: attributes.get_tx_count().ok(),
        tx_max: attributes.get_tx_max().ok(),
        combined_count: attributes.get_combined_count().ok(),
        combined_max: attributes.get_combined_max().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_channels(&bytes);
        }
    }
}
