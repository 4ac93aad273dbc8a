//! NAPI instances: reading them (`napi-get`) and changing their settings (`napi-set`).

use netlink_bindings::netdev as bindings;
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::find_attr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Netdev;
use crate::interface::Ifindex;
use crate::napi_id::NapiId;
use crate::netlink::{Malformed, NetlinkError, Target, push_uint, uint};
use crate::pid::Pid;

/// `NETDEV_A_NAPI_*` of `include/uapi/linux/netdev.h`: the two that are of type `uint`, which the
/// bindings would cut to 32 bits (4.29 s).
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// How a NAPI instance is polled (`threaded`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NapiThreading {
    /// 0: in softirq context.
    Disabled,
    /// 1: by a kernel thread of its own.
    Enabled,
    /// 2: by a kernel thread that never stops polling (Linux 6.19).
    BusyPoll,
    /// A value that this program does not know.
    Other(u32),
}

impl NapiThreading {
    /// The kernel's number for it.
    #[must_use]
    pub const fn as_kernel(self) -> u32 {
        match self {
            Self::Disabled => 0,
            Self::Enabled => 1,
            Self::BusyPoll => 2,
            Self::Other(value) => value,
        }
    }

    /// What the kernel's number means.
    #[must_use]
    pub const fn from_kernel(value: u32) -> Self {
        match value {
            0 => Self::Disabled,
            1 => Self::Enabled,
            2 => Self::BusyPoll,
            other => Self::Other(other),
        }
    }
}

/// One NAPI instance. What the kernel does not report is `None`: it is older than the attribute,
/// or there is no such thing (veth has no interrupt).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Napi {
    /// Its id.
    pub id: NapiId,
    /// The interface that it belongs to.
    pub ifindex: Ifindex,
    /// Its interrupt; `None` on veth and virtio-net.
    pub irq: Option<u32>,
    /// The id of its kernel thread, in the initial pid namespace; `None` when it is not threaded.
    pub pid: Option<Pid>,
    /// How many empty polls keep the interrupt masked (Linux 6.13).
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds until the next poll while the interrupt is masked (Linux 6.13).
    pub gro_flush_timeout_ns: Option<u64>,
    /// Nanoseconds that the interrupt stays masked after an application got events (Linux 6.13).
    pub irq_suspend_timeout_ns: Option<u64>,
    /// How it is polled; `None` where the kernel has it only per device (before 6.17).
    pub threading: Option<NapiThreading>,
}

/// Settings to change; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// At most 2³¹−1, else `Invalid`.
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Nanoseconds.
    pub irq_suspend_timeout_ns: Option<u64>,
    /// `Invalid` when the kernel does not know the value.
    pub threading: Option<NapiThreading>,
}

impl Netdev {
    /// One NAPI instance.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Absent` when there is none of that id in this namespace, `Unsupported`
    /// before Linux 6.8.
    pub fn napi(&mut self, id: NapiId) -> Result<Napi, NetlinkError> {
        let mut request = bindings::Request::new().op_napi_get_do();
        request.encode().push_id(id.get());
        self.socket.get("read settings of", &Target::Napi(id), &request, decode_napi)
    }

    /// The NAPI instances of an interface, in ascending order of their ids. An interface that is
    /// down, or a veth without GRO, has none.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Absent` without the interface, `Unsupported` before Linux 6.8.
    pub fn napis(&mut self, ifindex: Ifindex) -> Result<Vec<Napi>, NetlinkError> {
        let mut request = bindings::Request::new().op_napi_get_dump();
        request.encode().push_ifindex(ifindex.get());
        let target = Target::Index(ifindex);
        let mut napis = self.socket.collect("list NAPIs of", &target, &request, decode_napi)?;
        napis.sort_unstable_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// Changes settings of one NAPI instance, all of them or, when one is refused as out of
    /// range, none.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Denied` without `CAP_NET_ADMIN` in the initial user namespace, `Absent`,
    /// `Invalid`, `Unsupported` before Linux 6.13.
    pub fn set_napi(&mut self, id: NapiId, change: &NapiChange) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_napi_set_do();
        let mut attributes = request.encode().push_id(id.get());
        if let Some(count) = change.defer_hard_irqs {
            attributes = attributes.push_defer_hard_irqs(count);
        }
        if let Some(threading) = change.threading {
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
        self.socket.act("change settings of", &Target::Napi(id), &request)
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
        defer_hard_irqs: attributes.get_defer_hard_irqs().ok(),
        gro_flush_timeout_ns: timeout(NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT)?,
        irq_suspend_timeout_ns: timeout(NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT)?,
        threading: attributes.get_threaded().ok().map(NapiThreading::from_kernel),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use proptest::prelude::*;

    /// What the kernel would send: the header of the generic family, then attributes.
    fn reply(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![11, 1, 0, 0];
        for (kind, payload) in attributes {
            push(&mut bytes, *kind, payload);
        }
        bytes
    }

    #[test]
    fn what_an_old_kernel_does_not_report_is_absent_and_not_zero() {
        let bytes = reply(&[(1, &4_u32.to_ne_bytes()), (2, &8193_u32.to_ne_bytes())]);
        let napi = decode_napi(&bytes).unwrap();
        assert_eq!((napi.id.get(), napi.ifindex.get()), (8193, 4));
        assert_eq!((napi.irq, napi.pid, napi.defer_hard_irqs), (None, None, None));
        assert_eq!((napi.gro_flush_timeout_ns, napi.irq_suspend_timeout_ns), (None, None));
        assert_eq!(napi.threading, None);
    }

    #[test]
    fn a_timeout_beyond_four_seconds_is_not_cut() {
        let ids = [(1, &4_u32.to_ne_bytes()[..]), (2, &8193_u32.to_ne_bytes()[..])];
        let long = u64::MAX.to_ne_bytes();
        let short = 20_000_000_u32.to_ne_bytes();
        let bytes = reply(&[ids[0], ids[1], (6, &short[..]), (7, &long[..])]);
        let napi = decode_napi(&bytes).unwrap();
        assert_eq!(napi.gro_flush_timeout_ns, Some(20_000_000));
        assert_eq!(napi.irq_suspend_timeout_ns, Some(u64::MAX));
    }

    #[test]
    fn a_napi_without_an_id_is_refused() {
        assert!(decode_napi(&reply(&[(1, &4_u32.to_ne_bytes()), (2, &[0; 4])])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_answers_never_panic(bytes in any_reply(4)) {
            let _ = decode_napi(&bytes);
        }
    }
}
