//! Identity of a NAPI instance. Netlink, sockets, epolls and the tracepoint use the same number, so Quell has one type
//! for it. `netdev` has the settings and the state of instances.

use std::fmt;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Id of a NAPI instance, as in the attribute `id` of the netdev family and in `SO_INCOMING_NAPI_ID`.
///
/// The kernel assigns ids from `MIN_NAPI_ID` = `NR_CPUS` + 1 on. One field of a packet first holds the sending CPU's
/// number and later an id (`include/net/busy_poll.h`). `NR_CPUS` is fixed at build time and not visible to user space,
/// so zero is the only number that is certainly invalid. The kernel filters other invalid numbers itself:
/// `SO_INCOMING_NAPI_ID` returns 0 for values below `MIN_NAPI_ID` (`net/core/sock.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32", into = "u32")]
#[schemars(with = "u32")]
pub struct NapiId(NonZeroU32);

impl NapiId {
    /// Creates an id from a value that the kernel reported. Returns `None` for zero, which means no instance.
    #[must_use]
    pub const fn from_kernel(value: u32) -> Option<Self> {
        match NonZeroU32::new(value) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("0 is not a NAPI ID")]
pub struct InvalidNapiId;

impl TryFrom<u32> for NapiId {
    type Error = InvalidNapiId;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        Self::from_kernel(value).ok_or(InvalidNapiId)
    }
}

impl From<NapiId> for u32 {
    fn from(id: NapiId) -> Self {
        id.get()
    }
}

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_napi_id_of_zero_is_absent() {
        assert_eq!(NapiId::from_kernel(0), None);
    }

    #[test]
    fn a_napi_id_is_printed_as_a_decimal_number() {
        let id = NapiId::from_kernel(8193).unwrap();
        assert_eq!((id.get(), id.to_string().as_str()), (8193, "8193"));
    }
}
