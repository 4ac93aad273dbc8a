//! Rule that maps the receive queues of interfaces to sockets of a reuseport group. The filter in the kernel computes
//! the same rule.

use thiserror::Error;

use crate::Ifindex;

/// Maximum number of sockets in a group, because the kernel counts them with 16 bits (`struct sock_reuseport`).
const SOCKETS_MAX: u32 = u16::MAX as u32;
/// Maximum number of queue positions. The product of positions and sockets fits 32 bits.
const PLACES_MAX: u32 = u16::MAX as u32;
/// Maximum number of interfaces. A filter has five instructions per interface, and at most 4,096 instructions
/// (`BPF_MAXINSNS`).
const INTERFACES_MAX: usize = 800;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenQueues {
    /// Interface of the packet (`skb->dev`). For a VLAN this is the VLAN interface, for a bond the bond.
    pub ifindex: Ifindex,
    /// Position of the interface's first queue among all queues. Interfaces that share their queues have the same
    /// position.
    pub first: u32,
    pub queues: u32,
}

/// Maps queues to sockets. If there are enough sockets, each queue has one or more sockets of its own. Otherwise the
/// queues are distributed evenly.
///
/// A filter reads `skb->queue_mapping` (`SKF_AD_QUEUE`). This is the queue number plus 1 if the driver records it
/// (`skb_record_rx_queue`), and the queue number on a veth. The filter takes the value modulo the interface's number of
/// queues. Each queue has a distinct position in both cases, although the order differs. If a driver records nothing
/// (0), all queues of an interface have the same position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSteering {
    interfaces: Vec<SeenQueues>,
    places: u32,
    sockets: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidSteering {
    #[error("a reuseport group has between 1 and {SOCKETS_MAX} sockets, not {sockets}")]
    Sockets { sockets: u32 },
    #[error("a filter supports 1 to {INTERFACES_MAX} interfaces, not {interfaces}")]
    Interfaces { interfaces: usize },
    #[error("interface {ifindex} has {queues} queues from position {first}; positions are 0 to {PLACES_MAX}")]
    Queues { ifindex: Ifindex, first: u32, queues: u32 },
    #[error("interface {ifindex} is listed twice")]
    Twice { ifindex: Ifindex },
}

impl QueueSteering {
    pub fn new(interfaces: Vec<SeenQueues>, sockets: u32) -> Result<Self, InvalidSteering> {
        if sockets == 0 || sockets > SOCKETS_MAX {
            return Err(InvalidSteering::Sockets { sockets });
        }
        if interfaces.is_empty() || interfaces.len() > INTERFACES_MAX {
            return Err(InvalidSteering::Interfaces { interfaces: interfaces.len() });
        }
        let mut places = 0;
        for (number, &SeenQueues { ifindex, first, queues }) in interfaces.iter().enumerate() {
            let end = first.checked_add(queues).filter(|&end| queues > 0 && end <= PLACES_MAX);
            places = places.max(end.ok_or(InvalidSteering::Queues { ifindex, first, queues })?);
            if interfaces[..number].iter().any(|other| other.ifindex == ifindex) {
                return Err(InvalidSteering::Twice { ifindex });
            }
        }
        Ok(Self { interfaces, places, sockets })
    }

    #[must_use]
    pub fn interfaces(&self) -> &[SeenQueues] {
        &self.interfaces
    }

    #[must_use]
    pub fn places(&self) -> u32 {
        self.places
    }

    #[must_use]
    pub fn sockets(&self) -> u32 {
        self.sockets
    }

    /// Indices of the sockets that receive from the queue at this position. There is exactly one if the group has no
    /// more sockets than positions.
    #[must_use]
    pub fn sockets_of(&self, place: u32) -> std::ops::Range<u32> {
        let start = place * self.sockets / self.places;
        match self.shares_queues() {
            true => start..(place + 1) * self.sockets / self.places,
            false => start..start + 1,
        }
    }

    /// Index in the group for a packet with this interface, `queue_mapping` and flow hash, as the filter in the kernel
    /// computes it. Packets of other interfaces (including `lo`) are distributed by hash, as without a filter.
    #[must_use]
    pub fn index(&self, ifindex: u32, queue_mapping: u32, flow_hash: u32) -> u32 {
        let Some(seen) = self.interfaces.iter().find(|seen| seen.ifindex.get() == ifindex) else {
            return flow_hash % self.sockets;
        };
        let sockets = self.sockets_of(seen.first + queue_mapping % seen.queues);
        // Use the upper bits, because RSS selected the queue by the lower bits of the same hash.
        sockets.start + (flow_hash >> Self::HASH_BITS_OF_RSS) % (sockets.end - sockets.start)
    }

    /// Number of low bits of the flow hash that are assumed to select an RSS table entry. Real tables use fewer bits.
    pub(super) const HASH_BITS_OF_RSS: u32 = 16;

    /// Whether there are more sockets than queues, so that some queues have several sockets.
    pub(super) fn shares_queues(&self) -> bool {
        self.sockets > self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_devices(queues: u32, sockets: u32) -> QueueSteering {
        let device = |ifindex, first| SeenQueues { ifindex: Ifindex::new(ifindex).unwrap(), first, queues };
        QueueSteering::new(vec![device(2, 0), device(3, queues)], sockets).unwrap()
    }

    fn indices(steering: &QueueSteering, ifindex: u32, mappings: std::ops::Range<u32>) -> Vec<u32> {
        mappings.map(|mapping| steering.index(ifindex, mapping, 0)).collect()
    }

    #[test]
    fn queues_of_the_same_number_on_two_devices_have_different_sockets() {
        let steering = two_devices(2, 4);
        assert_eq!(indices(&steering, 2, 0..2), [0, 1]);
        assert_eq!(indices(&steering, 3, 0..2), [2, 3]);
    }

    #[test]
    fn a_driver_that_counts_from_one_uses_all_sockets_in_another_order() {
        let steering = two_devices(2, 4);
        assert_eq!(indices(&steering, 2, 1..3), [1, 0]);
        assert_eq!(indices(&steering, 3, 1..3), [3, 2]);
    }

    #[test]
    fn queues_are_distributed_evenly_over_fewer_sockets() {
        assert_eq!(indices(&two_devices(4, 4), 2, 0..4), [0, 0, 1, 1]);
        assert_eq!(indices(&two_devices(4, 4), 3, 0..4), [2, 2, 3, 3]);
    }

    #[test]
    fn more_sockets_than_queues_are_all_used_and_each_by_one_queue() {
        let steering = two_devices(2, 10);
        let used: Vec<_> = (0..4).map(|place| steering.sockets_of(place)).collect();
        assert_eq!(used, [0..2, 2..5, 5..7, 7..10]);
        let of_one_queue: std::collections::BTreeSet<_> =
            (0..1_000_u32).map(|flow| steering.index(2, 1, flow.wrapping_mul(0x9E37_79B9))).collect();
        assert_eq!(of_one_queue, [2, 3, 4].into());
    }

    #[test]
    fn an_invalid_steering_is_refused() {
        let seen = |ifindex, first, queues| SeenQueues { ifindex: Ifindex::new(ifindex).unwrap(), first, queues };
        let refused = |interfaces, sockets| QueueSteering::new(interfaces, sockets).unwrap_err();
        assert_eq!(refused(vec![seen(2, 0, 1)], 0), InvalidSteering::Sockets { sockets: 0 });
        assert_eq!(refused(vec![], 1), InvalidSteering::Interfaces { interfaces: 0 });
        assert!(matches!(refused(vec![seen(2, 0, 0)], 1), InvalidSteering::Queues { .. }));
        assert!(matches!(refused(vec![seen(2, u32::MAX, 1)], 1), InvalidSteering::Queues { .. }));
        assert!(matches!(refused(vec![seen(2, 0, 1), seen(2, 1, 1)], 1), InvalidSteering::Twice { .. }));
    }
}
