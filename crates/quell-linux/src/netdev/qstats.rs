//! Statistics of an interface and of its queues (`qstats-get`). Every counter is optional, because drivers
//! differ in what they count. An absent counter is not zero.

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Netdev, QueueKind};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget, attributes, uint};

/// `NETDEV_QSTATS_SCOPE_QUEUE`: one reply per queue instead of one per interface.
const NETDEV_QSTATS_SCOPE_QUEUE: u64 = 1;
const NETDEV_A_QSTATS_IFINDEX: u16 = 1;
const NETDEV_A_QSTATS_QUEUE_TYPE: u16 = 2;
const NETDEV_A_QSTATS_QUEUE_ID: u16 = 3;
const NETDEV_A_QSTATS_SCOPE: u16 = 4;

/// Generates the struct of counters and its decoder, with the attribute numbers `NETDEV_A_QSTATS_*` of
/// `include/uapi/linux/netdev.h`. All attributes have the type `uint`, which the bindings would truncate to 32 bits.
macro_rules! counters {
    ($($kind:literal $field:ident $doc:literal;)+) => {
        /// Counters of a queue or an interface. A counter is `None` if the driver does not report it.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        #[non_exhaustive]
        pub struct QueueCounters {
            $(#[doc = $doc] #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<u64>,)+
        }

        impl QueueCounters {
            fn set(&mut self, kind: u16, value: u64) {
                match kind {
                    $($kind => self.$field = Some(value),)+
                    _ => {}
                }
            }
        }
    };
}

counters! {
    8 rx_packets "Packets that the device passed to the network stack.";
    9 rx_bytes "Bytes received.";
    10 tx_packets "Packets sent.";
    11 tx_bytes "Bytes sent.";
    12 rx_alloc_fail "Failed memory allocations on receive. A failure does not always drop a packet.";
    13 rx_hw_drops "Received packets that the hardware dropped for any reason.";
    14 rx_hw_drop_overruns "Received packets that the hardware dropped because it had no buffer.";
    15 rx_csum_complete "Received packets for which the hardware computed the full checksum.";
    16 rx_csum_unnecessary "Received packets whose checksum the hardware verified as correct.";
    17 rx_csum_none "Received packets whose checksum the hardware did not verify.";
    18 rx_csum_bad "Received packets with an incorrect checksum.";
    19 rx_hw_gro_packets "Coalesced packets that hardware GRO passed to the network stack.";
    20 rx_hw_gro_bytes "Bytes of the coalesced packets.";
    21 rx_hw_gro_wire_packets "Packets on the wire that hardware GRO coalesced.";
    22 rx_hw_gro_wire_bytes "Bytes of the packets that hardware GRO coalesced.";
    23 rx_hw_drop_ratelimits "Received packets that the hardware dropped because of a rate limit.";
    24 tx_hw_drops "Transmit packets that the hardware dropped.";
    25 tx_hw_drop_errors "Transmit packets that the hardware dropped because they were malformed.";
    26 tx_csum_none "Transmit packets that needed no checksum from the hardware.";
    27 tx_needs_csum "Transmit packets that needed a checksum from the hardware.";
    28 tx_hw_gso_packets "Packets that the stack passed to the hardware for segmentation.";
    29 tx_hw_gso_bytes "Bytes of the packets passed to the hardware for segmentation.";
    30 tx_hw_gso_wire_packets "Packets on the wire that resulted from hardware segmentation.";
    31 tx_hw_gso_wire_bytes "Bytes of the packets that resulted from hardware segmentation.";
    32 tx_hw_drop_ratelimits "Transmit packets that the hardware dropped because of a rate limit.";
    33 tx_stop "Number of times that the driver stopped the transmit queue because it was full.";
    34 tx_wake "Number of times that the driver restarted the transmit queue.";
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStats {
    pub ifindex: Ifindex,
    /// Sums over all queues, including removed queues.
    pub counters: QueueCounters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStats {
    pub kind: QueueKind,
    /// Index of the queue among those of its direction, from 0.
    pub id: u32,
    pub counters: QueueCounters,
}

impl Netdev {
    /// Reads the statistics of an interface. Errors: `Unsupported` if the driver reports no statistics (veth, as of
    /// Linux 6.18).
    pub fn device_stats(&mut self, ifindex: Ifindex) -> Result<DeviceStats, NetlinkError> {
        let request = request(ifindex, None);
        let target = RequestTarget::Index(ifindex);
        let (_, _, counters) = self.socket.get("read the statistics of", &target, &request, decode_stats)?;
        Ok(DeviceStats { ifindex, counters })
    }

    /// Reads the statistics of each queue of an interface, receive queues first.
    pub fn queue_stats(&mut self, ifindex: Ifindex) -> Result<Vec<QueueStats>, NetlinkError> {
        let request = request(ifindex, Some(NETDEV_QSTATS_SCOPE_QUEUE));
        let target = RequestTarget::Index(ifindex);
        let decode_queue = |reply: &[u8]| match decode_stats(reply)? {
            (Some(kind), Some(id), counters) => Ok(QueueStats { kind, id, counters }),
            _ => Err(Malformed("statistics of a queue without its type and number")),
        };
        let action = "read the queue statistics of";
        let mut stats = self.socket.collect(action, &target, &request, decode_queue)?;
        stats.sort_unstable_by_key(|queue| (queue.kind, queue.id));
        Ok(stats)
    }
}

fn request(ifindex: Ifindex, scope: Option<u64>) -> bindings::OpQstatsGetDump<'static> {
    let mut request = bindings::Request::new().op_qstats_get_dump();
    let attributes = request.encode().push_ifindex(ifindex.get());
    if let Some(scope) = scope {
        drop(attributes.push_scope(scope as u32));
    } else {
        drop(attributes);
    }
    request
}

type DecodedStats = (Option<QueueKind>, Option<u32>, QueueCounters);

pub(crate) fn decode_stats(reply: &[u8]) -> Result<DecodedStats, Malformed> {
    let mut kind = None;
    let mut id = None;
    let mut counters = QueueCounters::default();
    for (attribute, payload) in attributes(bindings::OpQstatsGetDump::decode_reply(reply).get_buf()) {
        let value = || uint(payload);
        let small = || u32::try_from(uint(payload)?).map_err(|_| Malformed("a number too large"));
        match attribute {
            NETDEV_A_QSTATS_IFINDEX | NETDEV_A_QSTATS_SCOPE => {}
            NETDEV_A_QSTATS_QUEUE_TYPE => kind = Some(QueueKind::from_kernel(small()?)?),
            NETDEV_A_QSTATS_QUEUE_ID => id = Some(small()?),
            counter => counters.set(counter, value()?),
        }
    }
    Ok((kind, id, counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push, push_uint};
    use proptest::prelude::*;

    #[test]
    fn a_counter_above_32_bits_is_not_truncated_and_a_missing_one_is_absent() {
        let mut reply = vec![12, 1, 0, 0];
        push(&mut reply, NETDEV_A_QSTATS_IFINDEX, &2_u32.to_ne_bytes());
        push_uint(&mut reply, NETDEV_A_QSTATS_QUEUE_TYPE, 1);
        push_uint(&mut reply, NETDEV_A_QSTATS_QUEUE_ID, 3);
        push_uint(&mut reply, 11, 1 << 40);
        push_uint(&mut reply, 10, 7);
        let (kind, id, counters) = decode_stats(&reply).unwrap();
        assert_eq!((kind, id), (Some(QueueKind::Tx), Some(3)));
        assert_eq!((counters.tx_bytes, counters.tx_packets), (Some(1 << 40), Some(7)));
        assert_eq!(counters.rx_packets, None);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_stats(&bytes);
        }
    }
}
