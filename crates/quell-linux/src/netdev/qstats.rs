//! Statistics of an interface and of its queues (`qstats-get`). Every counter is optional, because drivers
//! differ in what they count. An absent counter is not zero.

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Netdev, QueueKind};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, Target, attributes, uint};

/// `NETDEV_QSTATS_SCOPE_QUEUE`: one reply per queue instead of one per interface.
const NETDEV_QSTATS_SCOPE_QUEUE: u64 = 1;
const NETDEV_A_QSTATS_IFINDEX: u16 = 1;
const NETDEV_A_QSTATS_QUEUE_TYPE: u16 = 2;
const NETDEV_A_QSTATS_QUEUE_ID: u16 = 3;
const NETDEV_A_QSTATS_SCOPE: u16 = 4;

/// Generates the struct of counters and its decoder, with the attribute numbers `NETDEV_A_QSTATS_*` of
/// `include/uapi/linux/netdev.h`. All are `uint`, which the bindings would truncate to 32 bits.
macro_rules! counters {
    ($($kind:literal $field:ident $doc:literal;)+) => {
        /// Counters of a queue or an interface; `None`: not reported.
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
    8 rx_packets "Packets received, as they reached the stack.";
    9 rx_bytes "Bytes received.";
    10 tx_packets "Packets sent.";
    11 tx_bytes "Bytes sent.";
    12 rx_alloc_fail "Failed allocations on the receive side; packets may or may not be lost.";
    13 rx_hw_drops "Packets that the hardware dropped, for whatever reason.";
    14 rx_hw_drop_overruns "Packets that the hardware dropped for want of buffers.";
    15 rx_csum_complete "Packets with a checksum that the hardware computed in full.";
    16 rx_csum_unnecessary "Packets whose checksum the hardware found right.";
    17 rx_csum_none "Packets whose checksum the hardware did not look at.";
    18 rx_csum_bad "Packets with a bad checksum.";
    19 rx_hw_gro_packets "Packets that the hardware had coalesced, as they reached the stack.";
    20 rx_hw_gro_bytes "Bytes of those.";
    21 rx_hw_gro_wire_packets "Packets on the wire that the hardware coalesced.";
    22 rx_hw_gro_wire_bytes "Bytes of those.";
    23 rx_hw_drop_ratelimits "Packets that the hardware dropped at a rate limit.";
    24 tx_hw_drops "Packets to send that the hardware dropped.";
    25 tx_hw_drop_errors "Packets to send that the hardware dropped as malformed.";
    26 tx_csum_none "Packets sent that needed no checksum from the hardware.";
    27 tx_needs_csum "Packets sent that needed a checksum from the hardware.";
    28 tx_hw_gso_packets "Packets handed to the hardware for segmentation.";
    29 tx_hw_gso_bytes "Bytes of those.";
    30 tx_hw_gso_wire_packets "Packets on the wire that came from segmentation.";
    31 tx_hw_gso_wire_bytes "Bytes of those.";
    32 tx_hw_drop_ratelimits "Packets to send that the hardware dropped at a rate limit.";
    33 tx_stop "Times that the transmit queue was stopped, being full.";
    34 tx_wake "Times that it was woken again.";
}

/// Statistics of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStats {
    /// Interface.
    pub ifindex: Ifindex,
    /// Sums over all queues, including removed ones.
    pub counters: QueueCounters,
}

/// Statistics of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStats {
    /// Direction of the queue.
    pub kind: QueueKind,
    /// Index of the queue in its direction, from 0.
    pub id: u32,
    /// Counters of the queue.
    pub counters: QueueCounters,
}

impl Netdev {
    /// Reads the statistics of an interface.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Unsupported` if the driver reports none (veth, as of 6.18), `Absent`.
    pub fn device_stats(&mut self, ifindex: Ifindex) -> Result<DeviceStats, NetlinkError> {
        let request = request(ifindex, None);
        let target = Target::Index(ifindex);
        let (_, _, counters) = self.socket.get("read statistics of", &target, &request, decode_stats)?;
        Ok(DeviceStats { ifindex, counters })
    }

    /// Reads the statistics of each queue of an interface, receive queues first.
    ///
    /// # Errors
    /// As [`Netdev::device_stats`].
    pub fn queue_stats(&mut self, ifindex: Ifindex) -> Result<Vec<QueueStats>, NetlinkError> {
        let request = request(ifindex, Some(NETDEV_QSTATS_SCOPE_QUEUE));
        let target = Target::Index(ifindex);
        let decode_queue = |reply: &[u8]| match decode_stats(reply)? {
            (Some(kind), Some(id), counters) => Ok(QueueStats { kind, id, counters }),
            _ => Err(Malformed("statistics of a queue without its type and number")),
        };
        let action = "read queue statistics of";
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
