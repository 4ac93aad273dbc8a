//! Queues of an interface and the NAPI instances that serve them (`queue-get`).

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Netdev;
use crate::interface::Ifindex;
use crate::napi_id::NapiId;
use crate::netlink::{Malformed, NetlinkError, RequestTarget, attributes};

// `include/uapi/linux/netdev.h`; `xsk` since Linux 6.15, leases since Linux 7.1.
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_XSK: u16 = 7;
const NETDEV_A_QUEUE_LEASE: u16 = 8;
const NETDEV_A_LEASE_IFINDEX: u16 = 1;
const NETDEV_A_LEASE_QUEUE: u16 = 2;
const NETDEV_A_LEASE_NETNS_ID: u16 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    Rx,
    Tx,
}

impl QueueKind {
    pub(super) fn from_kernel(value: u32) -> Result<Self, Malformed> {
        match value {
            0 => Ok(Self::Rx),
            1 => Ok(Self::Tx),
            _ => Err(Malformed("a queue that is neither rx nor tx")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    pub kind: QueueKind,
    /// Index of the queue among those of its direction, from 0.
    pub id: u32,
    /// NAPI instance that serves the queue; `None` if the driver does not report it (veth).
    pub napi_id: Option<NapiId>,
    /// Virtual device that leases the queue; `None` if it is not leased. Kernels before 7.1 cannot lease queues.
    pub lease: Option<QueueLease>,
    /// Whether an AF_XDP socket is reported to own the queue. Kernels before 6.15 never report it.
    pub xsk: bool,
}

/// A queue of a virtual device that leases a queue of a physical one (`lease` in
/// `Documentation/netlink/specs/netdev.yaml`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QueueLease {
    /// Interface index of the virtual device, in its own namespace.
    pub ifindex: Ifindex,
    /// Queue number on the virtual device.
    pub queue: u32,
    /// ID of the virtual device's network namespace (`ip netns list-id`); absent if both devices are in one namespace.
    pub netns_id: Option<i32>,
}

impl Netdev {
    /// Lists the queues of an interface, receive queues first. An interface that is down has no queues.
    /// Errors: `Unsupported` before Linux 6.8.
    pub fn queues(&mut self, ifindex: Ifindex) -> Result<Vec<Queue>, NetlinkError> {
        let mut request = bindings::Request::new().op_queue_get_dump();
        request.encode().push_ifindex(ifindex.get());
        let target = RequestTarget::Index(ifindex);
        let mut queues = self.socket.collect("list the queues of", &target, &request, decode_queue)?;
        queues.sort_unstable_by_key(|queue| (queue.kind, queue.id));
        Ok(queues)
    }
}

pub(crate) fn decode_queue(reply: &[u8]) -> Result<Queue, Malformed> {
    let reply = bindings::OpQueueGetDo::decode_reply(reply);
    let kind = reply.get_type().map_err(|_| Malformed("a queue without a type"))?;
    Ok(Queue {
        kind: QueueKind::from_kernel(kind)?,
        id: reply.get_id().map_err(|_| Malformed("a queue without a number"))?,
        napi_id: reply.get_napi_id().ok().and_then(NapiId::from_kernel),
        lease: match attribute(reply.get_buf(), NETDEV_A_QUEUE_LEASE) {
            Some(lease) => Some(decode_lease(lease)?),
            None => None,
        },
        xsk: attribute(reply.get_buf(), NETDEV_A_QUEUE_XSK).is_some(),
    })
}

fn decode_lease(lease: &[u8]) -> Result<QueueLease, Malformed> {
    let number = |of: &[u8], kind| attribute(of, kind)?.try_into().map(u32::from_ne_bytes).ok();
    let queue = attribute(lease, NETDEV_A_LEASE_QUEUE).ok_or(Malformed("a queue lease without a queue"))?;
    Ok(QueueLease {
        ifindex: number(lease, NETDEV_A_LEASE_IFINDEX)
            .and_then(Ifindex::new)
            .ok_or(Malformed("a queue lease without an interface"))?,
        queue: number(queue, NETDEV_A_QUEUE_ID).ok_or(Malformed("a queue lease without a queue number"))?,
        netns_id: number(lease, NETDEV_A_LEASE_NETNS_ID).map(u32::cast_signed),
    })
}

fn attribute(of: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(of).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use netlink_bindings::utils::NLA_F_NESTED;
    use proptest::prelude::*;

    /// The reply of a kernel for receive queue 15, which queue 1 of interface 8 in namespace 0 leases, as in the commit
    /// "net: Add lease info to queue-get response".
    fn leased(lease: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        for (kind, value) in [(1, 15_u32), (2, 4), (3, 0), (4, 8_227)] {
            push(&mut reply, kind, &value.to_ne_bytes());
        }
        push(&mut reply, NETDEV_A_QUEUE_LEASE | NLA_F_NESTED, lease);
        [&[0; 4], &reply[..]].concat()
    }

    #[test]
    fn a_leased_queue_names_the_queue_that_leases_it() {
        let (mut queue, mut lease) = (Vec::new(), Vec::new());
        push(&mut queue, NETDEV_A_QUEUE_ID, &1_u32.to_ne_bytes());
        push(&mut lease, NETDEV_A_LEASE_IFINDEX, &8_u32.to_ne_bytes());
        push(&mut lease, NETDEV_A_LEASE_QUEUE | NLA_F_NESTED, &queue);
        let here = decode_queue(&leased(&lease)).unwrap().lease.unwrap();
        assert_eq!((here.ifindex.get(), here.queue, here.netns_id), (8, 1, None));
        push(&mut lease, NETDEV_A_LEASE_NETNS_ID, &0_i32.to_ne_bytes());
        let elsewhere = decode_queue(&leased(&lease)).unwrap().lease.unwrap();
        assert_eq!(elsewhere.netns_id, Some(0));
        assert!(decode_queue(&leased(&[])).is_err(), "a lease without a queue");
    }

    /// The reply of Linux 6.18 for receive queue 1 of a veth device with an AF_XDP socket.
    #[test]
    fn a_queue_of_an_af_xdp_socket_is_recognized() {
        let mut reply = Vec::new();
        for (kind, value) in [(1, 1_u32), (3, 0), (2, 3)] {
            push(&mut reply, kind, &value.to_ne_bytes());
        }
        let without = decode_queue(&[&[0; 4], &reply[..]].concat()).unwrap();
        push(&mut reply, NETDEV_A_QUEUE_XSK | NLA_F_NESTED, &[]);
        let with = decode_queue(&[&[0; 4], &reply[..]].concat()).unwrap();
        assert_eq!((without.xsk, with.xsk), (false, true));
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_queue(&bytes);
        }
    }
}
