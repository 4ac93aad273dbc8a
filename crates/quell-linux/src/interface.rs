//! Identifiers of network interfaces: index, name and MAC address. The types hold only values that the kernel accepts.
//! `link` checks whether an interface exists.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Index of an interface in its network namespace, from 1 to 2³¹−1 (the kernel's `int ifindex`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32", into = "u32")]
#[schemars(with = "u32")]
pub struct Ifindex(NonZeroU32);

impl Ifindex {
    /// Creates an index. Returns `None` for zero, which means no interface, and for values above 2³¹−1.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value > i32::MAX as u32 {
            return None;
        }
        match NonZeroU32::new(value) {
            Some(index) => Some(Self(index)),
            None => None,
        }
    }

    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The index in the signed form of rtnetlink headers.
    pub(crate) const fn as_i32(self) -> i32 {
        self.0.get().cast_signed()
    }
}

impl fmt::Display for Ifindex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid interface index {0}: expected 1 to {max}", max = i32::MAX)]
pub struct InvalidIfindex(u32);

impl TryFrom<u32> for Ifindex {
    type Error = InvalidIfindex;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        Self::new(value).ok_or(InvalidIfindex(value))
    }
}

impl From<Ifindex> for u32 {
    fn from(index: Ifindex) -> Self {
        index.get()
    }
}

/// Name of an interface by the kernel's rule (`dev_valid_name` in `net/core/dev.c`): 1 to 15 bytes, without `/`, `:`
/// and white space, and not `.` or `..`.
///
/// `%` is also rejected, because the kernel treats it as a pattern and chooses another name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interface name {name:?}: {reason}")]
pub struct InvalidInterfaceName {
    name: String,
    reason: &'static str,
}

impl InterfaceName {
    /// Maximum length in bytes: `IFNAMSIZ` without the terminating zero.
    pub const MAX_BYTES: usize = libc::IFNAMSIZ - 1;

    pub fn new(name: impl Into<String>) -> Result<Self, InvalidInterfaceName> {
        let name = name.into();
        match Self::broken_rule(&name) {
            Some(reason) => Err(InvalidInterfaceName { name, reason }),
            None => Ok(Self(name)),
        }
    }

    fn broken_rule(name: &str) -> Option<&'static str> {
        let forbidden = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | ':' | '%' | '\0');
        if name.is_empty() {
            return Some("is empty");
        }
        if name.len() > Self::MAX_BYTES {
            return Some("is longer than 15 bytes");
        }
        if name == "." || name == ".." {
            return Some("is the name of a directory");
        }
        // The kernel's `isspace()` includes the vertical tab.
        if name.contains(|c| forbidden(c) || c == '\u{b}') {
            return Some("contains /, :, % or white space");
        }
        None
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidInterfaceName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

/// A unicast Ethernet address: neither a group address nor all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Creates an address. Returns `None` for a group address (lowest bit of the first byte) and for all zeros, like
    /// `is_valid_ether_addr` in `include/linux/etherdevice.h`.
    #[must_use]
    pub const fn new(bytes: [u8; 6]) -> Option<Self> {
        let all_zero = matches!(bytes, [0, 0, 0, 0, 0, 0]);
        if all_zero || bytes[0] & 1 == 1 {
            return None;
        }
        Some(Self(bytes))
    }

    /// Bytes of the address in transmission order.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Ethernet address `{0}`: expected a unicast address such as 02:00:00:00:00:fe")]
pub struct InvalidMacAddress(String);

impl TryFrom<String> for MacAddress {
    type Error = InvalidMacAddress;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Require two digits, because the number parser also accepts a sign.
        let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|letter| letter.is_ascii_hexdigit());
        let byte = |part: &str| is_byte(part).then(|| u8::from_str_radix(part, 16).ok()).flatten();
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let address = bytes.and_then(|bytes| bytes.try_into().ok()).and_then(Self::new);
        address.ok_or(InvalidMacAddress(text))
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_index_is_a_positive_int() {
        assert_eq!(Ifindex::new(0), None);
        assert_eq!(Ifindex::new(1 << 31), None);
        assert_eq!(Ifindex::new(i32::MAX as u32).map(Ifindex::as_i32), Some(i32::MAX));
    }

    #[test]
    fn names_that_the_kernel_refuses_or_reinterprets_are_refused() {
        for name in ["", ".", "..", "a/b", "a:b", "a b", "a\u{b}", "veth%d", "sixteen-bytes-xx"] {
            assert!(InterfaceName::new(name).is_err(), "{name:?}");
        }
        for name in ["lo", "eth0.100", "fifteen-bytes-x", "grün"] {
            assert_eq!(InterfaceName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_group_address_is_not_an_interface_address() {
        assert_eq!(MacAddress::new([0; 6]), None);
        assert_eq!(MacAddress::new([0x33, 0x33, 0, 0, 0, 1]), None);
        let mac = MacAddress::new([2, 0, 0, 0, 0, 0xfe]).unwrap();
        assert_eq!(mac.to_string(), "02:00:00:00:00:fe");
        assert_eq!(MacAddress::try_from(mac.to_string()), Ok(mac));
        assert!(MacAddress::try_from("02:00:00:00:00:+e".to_owned()).is_err());
    }
}
