//! Interrupt coalescing of an interface: the delay in µs or the number of frames before the device raises an
//! interrupt. Set via netlink for all queues; `queue_coalescing` handles single queues.

use std::collections::BTreeMap;
use std::fmt;

use netlink_bindings::ethtool as bindings;
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ETHTOOL_MSG_COALESCE_GET, ETHTOOL_MSG_COALESCE_SET, Ethtool, address_to};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, Target, attributes, push};

/// Declares the parameters: number in `ETHTOOL_A_COALESCE_*`, name and meaning.
macro_rules! parameters {
    ($($(#[doc = $doc:literal])+ $name:ident = $attribute:literal, $spelling:literal;)+) => {
        /// A coalescing parameter (`include/uapi/linux/ethtool_netlink.h`), numbered as its netlink attribute. Times
        /// are in microseconds, switches are 0 or 1.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum CoalesceParameter {
            $($(#[doc = $doc])+ #[serde(rename = $spelling)] $name = $attribute,)+
        }

        impl CoalesceParameter {
            /// All parameters, in the kernel's order.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Name in the kernel's specification.
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
    /// Delay of a receive interrupt after a packet.
    RxUsecs = 2, "rx-usecs";
    /// Packets after which a receive interrupt is raised.
    RxMaxFrames = 3, "rx-max-frames";
    /// As `rx-usecs`, while an interrupt is serviced.
    RxUsecsIrq = 4, "rx-usecs-irq";
    /// As `rx-max-frames`, while an interrupt is serviced.
    RxMaxFramesIrq = 5, "rx-max-frames-irq";
    /// Delay of a transmit-completion interrupt.
    TxUsecs = 6, "tx-usecs";
    /// Packets after which a transmit-completion interrupt is raised.
    TxMaxFrames = 7, "tx-max-frames";
    /// As `tx-usecs`, while an interrupt is serviced.
    TxUsecsIrq = 8, "tx-usecs-irq";
    /// As `tx-max-frames`, while an interrupt is serviced.
    TxMaxFramesIrq = 9, "tx-max-frames-irq";
    /// Delay of statistics updates.
    StatsBlockUsecs = 10, "stats-block-usecs";
    /// Whether the receive delay follows the load.
    UseAdaptiveRx = 11, "use-adaptive-rx";
    /// Whether the transmit delay follows the load.
    UseAdaptiveTx = 12, "use-adaptive-tx";
    /// Packets per second below which the values `-low` apply.
    PktRateLow = 13, "pkt-rate-low";
    /// As `rx-usecs`, at a low packet rate.
    RxUsecsLow = 14, "rx-usecs-low";
    /// As `rx-max-frames`, at a low packet rate.
    RxMaxFramesLow = 15, "rx-max-frames-low";
    /// As `tx-usecs`, at a low packet rate.
    TxUsecsLow = 16, "tx-usecs-low";
    /// As `tx-max-frames`, at a low packet rate.
    TxMaxFramesLow = 17, "tx-max-frames-low";
    /// Packets per second above which the values `-high` apply.
    PktRateHigh = 18, "pkt-rate-high";
    /// As `rx-usecs`, at a high packet rate.
    RxUsecsHigh = 19, "rx-usecs-high";
    /// As `rx-max-frames`, at a high packet rate.
    RxMaxFramesHigh = 20, "rx-max-frames-high";
    /// As `tx-usecs`, at a high packet rate.
    TxUsecsHigh = 21, "tx-usecs-high";
    /// As `tx-max-frames`, at a high packet rate.
    TxMaxFramesHigh = 22, "tx-max-frames-high";
    /// Seconds between two samples of the packet rate.
    RateSampleInterval = 23, "rate-sample-interval";
    /// Whether each completion restarts the transmit delay (CQE mode); otherwise the first starts it (EQE mode).
    UseCqeModeTx = 24, "use-cqe-mode-tx";
    /// Whether each completion restarts the receive delay (CQE mode); otherwise the first starts it (EQE mode).
    UseCqeModeRx = 25, "use-cqe-mode-rx";
    /// Most bytes of packets that are aggregated for sending.
    TxAggrMaxBytes = 26, "tx-aggr-max-bytes";
    /// Most packets that are aggregated for sending.
    TxAggrMaxFrames = 27, "tx-aggr-max-frames";
    /// Longest wait for packets to aggregate.
    TxAggrTimeUsecs = 28, "tx-aggr-time-usecs";
}

impl CoalesceParameter {
    pub(super) const fn attribute(self) -> u16 {
        self as u16
    }

    /// Whether it is one byte in netlink, 0 or 1.
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

/// Values of coalescing parameters, without parameters that the driver lacks.
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

    /// Reported parameters with their values, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = (CoalesceParameter, u32)> + '_ {
        self.values.iter().map(|(parameter, value)| (*parameter, *value))
    }

    /// Whether it contains no parameter.
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
    /// Reads the coalescing parameters of an interface. The kernel omits parameters that are zero and that the
    /// driver does not declare.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Unsupported` if the driver has no coalescing (veth), `Absent`.
    pub fn coalescing(&mut self, index: Ifindex) -> Result<Coalescing, NetlinkError> {
        let mut request = bindings::Request::new().op_coalesce_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_COALESCE_GET;
        drop(address_to(request.encode().nested_header(), index));
        self.socket.get("read coalescing of", &Target::Index(index), &request, decode_coalescing)
    }

    /// Sets the parameters in `changes`; others are unchanged.
    ///
    /// # Errors
    /// [`NetlinkError`]: `Invalid` for a parameter that the driver lacks (the kernel names it) or a value that it
    /// rejects, `Unsupported` if the driver has no coalescing, `Denied`. Nothing is changed then.
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
        self.socket.act("set coalescing of", &Target::Index(index), &request)
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

    /// Recorded reply of virtio_net in Linux 6.18: adaptive-rx off, 1 frame, 0 µs.
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
