//! Interrupt coalescing of an interface: the delay in µs, or the number of frames, before the device raises an
//! interrupt. These settings apply to all queues and use netlink. `queue_coalescing` handles single queues.

use std::collections::BTreeMap;
use std::fmt;

use netlink_bindings::ethtool as bindings;
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ETHTOOL_MSG_COALESCE_GET, ETHTOOL_MSG_COALESCE_SET, Ethtool, address_to};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget, attributes, push};

/// Declares the parameters, each with its number in `ETHTOOL_A_COALESCE_*`, its name and its meaning.
macro_rules! parameters {
    ($($(#[doc = $doc:literal])+ $name:ident = $attribute:literal, $spelling:literal;)+) => {
        /// A coalescing parameter, numbered as its netlink attribute in `include/uapi/linux/ethtool_netlink.h`. Times
        /// are in microseconds. Switches are 0 or 1.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum CoalesceParameter {
            $($(#[doc = $doc])+ #[serde(rename = $spelling)] $name = $attribute,)+
        }

        impl CoalesceParameter {
            pub const ALL: &[Self] = &[$(Self::$name),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $spelling,)+
                }
            }
        }
    };
}

parameters! {
    /// Delay from the arrival of a packet to the receive interrupt, in µs.
    RxUsecs = 2, "rx-usecs";
    /// Number of packets after which the device raises a receive interrupt.
    RxMaxFrames = 3, "rx-max-frames";
    /// `rx-usecs` while the host services an interrupt.
    RxUsecsIrq = 4, "rx-usecs-irq";
    /// `rx-max-frames` while the host services an interrupt.
    RxMaxFramesIrq = 5, "rx-max-frames-irq";
    /// Delay from the transmission of a packet to the completion interrupt, in µs.
    TxUsecs = 6, "tx-usecs";
    /// Number of packets after which the device raises a transmit-completion interrupt.
    TxMaxFrames = 7, "tx-max-frames";
    /// `tx-usecs` while the host services an interrupt.
    TxUsecsIrq = 8, "tx-usecs-irq";
    /// `tx-max-frames` while the host services an interrupt.
    TxMaxFramesIrq = 9, "tx-max-frames-irq";
    /// Delay of statistics updates, in µs.
    StatsBlockUsecs = 10, "stats-block-usecs";
    /// Whether the driver adapts the receive delay to the load.
    UseAdaptiveRx = 11, "use-adaptive-rx";
    /// Whether the driver adapts the transmit delay to the load.
    UseAdaptiveTx = 12, "use-adaptive-tx";
    /// Packet rate per second below which the `-low` values apply.
    PktRateLow = 13, "pkt-rate-low";
    /// `rx-usecs` at a low packet rate.
    RxUsecsLow = 14, "rx-usecs-low";
    /// `rx-max-frames` at a low packet rate.
    RxMaxFramesLow = 15, "rx-max-frames-low";
    /// `tx-usecs` at a low packet rate.
    TxUsecsLow = 16, "tx-usecs-low";
    /// `tx-max-frames` at a low packet rate.
    TxMaxFramesLow = 17, "tx-max-frames-low";
    /// Packet rate per second above which the `-high` values apply.
    PktRateHigh = 18, "pkt-rate-high";
    /// `rx-usecs` at a high packet rate.
    RxUsecsHigh = 19, "rx-usecs-high";
    /// `rx-max-frames` at a high packet rate.
    RxMaxFramesHigh = 20, "rx-max-frames-high";
    /// `tx-usecs` at a high packet rate.
    TxUsecsHigh = 21, "tx-usecs-high";
    /// `tx-max-frames` at a high packet rate.
    TxMaxFramesHigh = 22, "tx-max-frames-high";
    /// Interval between two samples of the packet rate, in seconds.
    RateSampleInterval = 23, "rate-sample-interval";
    /// Whether every transmit completion restarts the delay (CQE mode). Otherwise the first completion starts it (EQE
    /// mode).
    UseCqeModeTx = 24, "use-cqe-mode-tx";
    /// Whether every receive completion restarts the delay (CQE mode). Otherwise the first completion starts it (EQE
    /// mode).
    UseCqeModeRx = 25, "use-cqe-mode-rx";
    /// Maximum size of an aggregate of transmit packets, in bytes.
    TxAggrMaxBytes = 26, "tx-aggr-max-bytes";
    /// Maximum number of packets in a transmit aggregate.
    TxAggrMaxFrames = 27, "tx-aggr-max-frames";
    /// Maximum time that a packet waits for others to aggregate with, in µs.
    TxAggrTimeUsecs = 28, "tx-aggr-time-usecs";
}

impl CoalesceParameter {
    pub(super) const fn attribute(self) -> u16 {
        self as u16
    }

    /// Whether netlink encodes the parameter as one byte with the value 0 or 1.
    #[must_use]
    pub const fn is_switch(self) -> bool {
        matches!(self, Self::UseAdaptiveRx | Self::UseAdaptiveTx | Self::UseCqeModeTx | Self::UseCqeModeRx)
    }

    fn from_attribute(kind: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|parameter| parameter.attribute() == kind)
    }
}

impl fmt::Display for CoalesceParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Values of coalescing parameters. Parameters that the driver lacks are not included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Coalescing {
    values: BTreeMap<CoalesceParameter, u32>,
}

impl Coalescing {
    /// Value of a parameter; `None` if the driver lacks it.
    #[must_use]
    pub fn get(&self, parameter: CoalesceParameter) -> Option<u32> {
        self.values.get(&parameter).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (CoalesceParameter, u32)> + '_ {
        self.values.iter().map(|(parameter, value)| (*parameter, *value))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl FromIterator<(CoalesceParameter, u32)> for Coalescing {
    fn from_iter<I: IntoIterator<Item = (CoalesceParameter, u32)>>(values: I) -> Self {
        Self { values: values.into_iter().collect() }
    }
}

impl Ethtool {
    /// Reads the coalescing parameters of an interface. The kernel omits a parameter if its value is zero and the
    /// driver does not declare it. Errors: `Unsupported` if the driver has no coalescing (veth).
    pub fn coalescing(&mut self, index: Ifindex) -> Result<Coalescing, NetlinkError> {
        let mut request = bindings::Request::new().op_coalesce_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_COALESCE_GET;
        drop(address_to(request.encode().nested_header(), index));
        self.socket.get("read the coalescing of", &RequestTarget::Index(index), &request, decode_coalescing)
    }

    /// Sets the parameters in `changes` and leaves the others unchanged. On an error, nothing is changed. Errors:
    /// `Invalid` if the driver lacks a parameter (the kernel names it) or rejects a value. `Unsupported` if the driver
    /// has no coalescing. `Denied` without `CAP_NET_ADMIN`.
    pub fn set_coalescing(&mut self, index: Ifindex, changes: &Coalescing) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_coalesce_set_do();
        request.header_mut().cmd = ETHTOOL_MSG_COALESCE_SET;
        let mut encoder = address_to(request.encode().nested_header(), index);
        for (parameter, value) in changes.iter() {
            let kind = parameter.attribute();
            if parameter.is_switch() {
                push(encoder.as_vec_mut(), kind, &[u8::from(value != 0)]);
            } else {
                push(encoder.as_vec_mut(), kind, &value.to_ne_bytes());
            }
        }
        drop(encoder);
        self.socket.act("set the coalescing of", &RequestTarget::Index(index), &request)
    }
}

pub(crate) fn decode_coalescing(reply: &[u8]) -> Result<Coalescing, Malformed> {
    let mut values = BTreeMap::new();
    for (kind, payload) in attributes(bindings::OpCoalesceGetDo::decode_reply(reply).get_buf()) {
        let Some(parameter) = CoalesceParameter::from_attribute(kind) else { continue };
        let value = match (parameter.is_switch(), payload) {
            (true, [byte]) => u32::from(*byte),
            (false, [a, b, c, d]) => u32::from_ne_bytes([*a, *b, *c, *d]),
            _ => return Err(Malformed("a coalescing parameter of an unexpected length")),
        };
        values.insert(parameter, value);
    }
    Ok(Coalescing { values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    /// Reply of virtio_net, recorded on Linux 6.18: adaptive-rx off, 1 frame, 0 µs.
    const VIRTIO_NET: &[u8] = &[
        20, 1, 0, 0, 24, 0, 1, 128, 8, 0, 1, 0, 4, 0, 0, 0, 9, 0, 2, 0, 101, 116, 104, 48, 0, 0, 0, 0, 8, 0, 2, 0, 0,
        0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0, 0, 8, 0, 7, 0, 1, 0, 0, 0, 5, 0, 11, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn an_unreported_parameter_is_absent_and_not_zero() {
        let coalescing = decode_coalescing(VIRTIO_NET).unwrap();
        assert_eq!(coalescing.get(CoalesceParameter::RxUsecs), Some(0));
        assert_eq!(coalescing.get(CoalesceParameter::RxMaxFrames), Some(1));
        assert_eq!(coalescing.get(CoalesceParameter::UseAdaptiveRx), Some(0));
        assert_eq!(coalescing.get(CoalesceParameter::UseAdaptiveTx), None);
        assert_eq!(coalescing.get(CoalesceParameter::RxUsecsIrq), None);
    }

    #[test]
    fn a_switch_of_four_bytes_is_refused() {
        let mut bytes = vec![20, 1, 0, 0];
        push(&mut bytes, CoalesceParameter::UseAdaptiveRx.attribute(), &1_u32.to_ne_bytes());
        assert!(decode_coalescing(&bytes).is_err());
    }

    #[test]
    fn every_parameter_has_the_number_and_name_of_the_kernels_specification() {
        let names = CoalesceParameter::ALL.iter().map(|p| p.as_str().replace('-', "").to_lowercase());
        let variants = CoalesceParameter::ALL.iter().map(|p| format!("{p:?}").to_lowercase());
        assert!(names.eq(variants));
        let numbers = CoalesceParameter::ALL.iter().map(|p| p.attribute());
        assert!(numbers.eq(2..=28));
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_coalescing(&bytes);
        }
    }
}
