//! NAPI instances: reads them (`napi-get`) and changes their settings (`napi-set`).

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::find_attr;
use quell_mode::{NapiThreading, PartialNapiSettings};

use super::Netdev;
use crate::interface::Ifindex;
use crate::napi_id::NapiId;
use crate::netlink::{Malformed, NetlinkError, RequestTarget, push_uint, uint};
use crate::pid::Pid;

/// `NETDEV_A_NAPI_*` of `include/uapi/linux/netdev.h`: the two attributes of type `uint`. The bindings would truncate
/// them to 32 bits, which is 4.29 s.
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Napi {
    pub id: NapiId,
    pub ifindex: Ifindex,
    /// IRQ number; `None` on veth and virtio-net.
    pub irq: Option<u32>,
    /// PID of the instance's kernel thread, in the initial PID namespace. `None` if the instance is not threaded.
    pub pid: Option<Pid>,
    pub settings: PartialNapiSettings,
}

impl Netdev {
    /// Reads a NAPI instance. Errors: `Absent` if this namespace has no instance with the id, `Unsupported` before
    /// Linux 6.8.
    pub fn napi(&mut self, id: NapiId) -> Result<Napi, NetlinkError> {
        let mut request = bindings::Request::new().op_napi_get_do();
        request.encode().push_id(id.get());
        self.socket.get("read the settings of", &RequestTarget::Napi(id), &request, decode_napi)
    }

    /// Lists the NAPI instances of an interface, in ascending order of id. An interface that is down, or a veth
    /// without GRO, has no instances.
    pub fn napis(&mut self, ifindex: Ifindex) -> Result<Vec<Napi>, NetlinkError> {
        let mut request = bindings::Request::new().op_napi_get_dump();
        request.encode().push_ifindex(ifindex.get());
        let target = RequestTarget::Index(ifindex);
        let mut napis = self.socket.collect("list the NAPIs of", &target, &request, decode_napi)?;
        napis.sort_unstable_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// Changes the settings that are present in `change`. If a value is out of range or unknown to the kernel, nothing
    /// is changed. Errors: `Denied` without `CAP_NET_ADMIN` in the initial user namespace, `Absent` if the instance
    /// does not exist, `Invalid` for an invalid value, `Unsupported` before Linux 6.13.
    pub fn set_napi(&mut self, id: NapiId, change: &PartialNapiSettings) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_napi_set_do();
        let mut attributes = request.encode().push_id(id.get());
        if let Some(count) = change.defer_hard_irqs {
            attributes = attributes.push_defer_hard_irqs(count);
        }
        if let Some(threading) = change.threaded {
            attributes = attributes.push_threaded(threading.as_kernel());
        }
        let timeouts = [
            (NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, change.gro_flush_timeout_ns),
            (NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT, change.irq_suspend_timeout_ns),
        ];
        for (kind, timeout_ns) in timeouts {
            if let Some(timeout_ns) = timeout_ns {
                push_uint(attributes.as_vec_mut(), kind, timeout_ns);
            }
        }
        drop(attributes);
        self.socket.act("change the settings of", &RequestTarget::Napi(id), &request)
    }
}

pub(crate) fn decode_napi(reply: &[u8]) -> Result<Napi, Malformed> {
    let attributes = bindings::OpNapiGetDo::decode_reply(reply);
    let id = attributes.get_id().ok().and_then(NapiId::from_kernel);
    let ifindex = attributes.get_ifindex().ok().and_then(Ifindex::new);
    let timeout = |kind| find_attr(attributes.get_buf(), kind).map(uint).transpose();
    Ok(Napi {
        id: id.ok_or(Malformed("a NAPI without an id"))?,
        ifindex: ifindex.ok_or(Malformed("a NAPI without an interface"))?,
        irq: attributes.get_irq().ok(),
        pid: attributes.get_pid().ok().and_then(Pid::from_kernel),
        settings: PartialNapiSettings {
            defer_hard_irqs: attributes.get_defer_hard_irqs().ok(),
            gro_flush_timeout_ns: timeout(NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT)?,
            irq_suspend_timeout_ns: timeout(NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT)?,
            threaded: attributes.get_threaded().ok().map(NapiThreading::from_kernel),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use proptest::prelude::*;

    fn reply(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![11, 1, 0, 0];
        for (kind, payload) in attributes {
            push(&mut bytes, *kind, payload);
        }
        bytes
    }

    #[test]
    fn an_unreported_attribute_is_absent_and_not_zero() {
        let bytes = reply(&[(1, &4_u32.to_ne_bytes()), (2, &8193_u32.to_ne_bytes())]);
        let napi = decode_napi(&bytes).unwrap();
        assert_eq!((napi.id.get(), napi.ifindex.get()), (8193, 4));
        assert_eq!((napi.irq, napi.pid, napi.settings), (None, None, PartialNapiSettings::NONE));
    }

    #[test]
    fn a_timeout_above_four_seconds_is_not_truncated() {
        let ids = [(1, &4_u32.to_ne_bytes()[..]), (2, &8193_u32.to_ne_bytes()[..])];
        let long = u64::MAX.to_ne_bytes();
        let short = 20_000_000_u32.to_ne_bytes();
        let bytes = reply(&[ids[0], ids[1], (6, &short[..]), (7, &long[..])]);
        let napi = decode_napi(&bytes).unwrap();
        assert_eq!(napi.settings.gro_flush_timeout_ns, Some(20_000_000));
        assert_eq!(napi.settings.irq_suspend_timeout_ns, Some(u64::MAX));
    }

    #[test]
    fn a_napi_without_an_id_is_refused() {
        assert!(decode_napi(&reply(&[(1, &4_u32.to_ne_bytes()), (2, &[0; 4])])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_napi(&bytes);
        }
    }
}
