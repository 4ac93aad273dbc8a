//! Queues of an interface and the NAPI instances that serve them (`queue-get`).

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::NetlinkRequest;

use super::Netdev;
use crate::interface::Ifindex;
use crate::napi_id::NapiId;
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

/// Direction of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    /// Receive queue.
    Rx,
    /// Transmit queue.
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

/// A queue of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    /// Direction of the queue.
    pub kind: QueueKind,
    /// Index of the queue among those of its direction, from 0.
    pub id: u32,
    /// NAPI instance that serves the queue; `None` if the driver does not report it (veth).
    pub napi_id: Option<NapiId>,
}

impl Netdev {
    /// Lists the queues of an interface, receive queues first. An interface that is down has no queues.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Absent` if the interface does not exist, `Unsupported` before Linux 6.8.
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
    let attributes = bindings::OpQueueGetDo::decode_reply(reply);
    let kind = attributes.get_type().map_err(|_| Malformed("a queue without a type"))?;
    Ok(Queue {
        kind: QueueKind::from_kernel(kind)?,
        id: attributes.get_id().map_err(|_| Malformed("a queue without a number"))?,
        napi_id: attributes.get_napi_id().ok().and_then(NapiId::from_kernel),
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
            let _ = decode_queue(&bytes);
        }
    }
}
