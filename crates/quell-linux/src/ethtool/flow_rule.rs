//! Flow rules (ntuple filters, `struct ethtool_rx_flow_spec`). They direct TCP or UDP packets to a queue or an RSS
//! context by address and port. This module contains only the types and their binary format.

use std::fmt;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RssContextId;
use super::ioctl::{put, u32_at, u64_at};
use crate::netlink::Malformed;

const TCP_V4_FLOW: u32 = 0x01;
const UDP_V4_FLOW: u32 = 0x02;
const TCP_V6_FLOW: u32 = 0x05;
const UDP_V6_FLOW: u32 = 0x06;
const FLOW_RSS: u32 = 0x2000_0000;
const RX_CLS_FLOW_DISC: u64 = u64::MAX;

/// Layout of `struct ethtool_rx_flow_spec`, used for field offsets only.
#[repr(C)]
pub(super) struct FlowSpecLayout {
    flow_type: u32,
    value: [u32; 13],
    value_extension: [u32; 5],
    mask: [u32; 13],
    mask_extension: [u32; 5],
    ring_cookie: u64,
    pub(super) location: u32,
}

const VALUE: usize = offset_of!(FlowSpecLayout, value);
const MASK: usize = offset_of!(FlowSpecLayout, mask);
const MATCH_BYTES: usize = 52;

/// Transport protocol that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlowTransport {
    Tcp,
    Udp,
}

/// A set of addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String", bound = "A: Address")]
#[schemars(with = "String")]
pub struct Prefix<A> {
    address: A,
    bits: u8,
}

pub trait Address: Copy + Into<IpAddr> + fmt::Display + FromStr {
    const BITS: u8;
    /// The address as a number of [`Self::BITS`] bits.
    fn to_number(self) -> u128;
    /// Creates an address from a number; bits above [`Self::BITS`] are discarded.
    fn from_number(number: u128) -> Self;
}

impl Address for Ipv4Addr {
    const BITS: u8 = 32;

    fn to_number(self) -> u128 {
        self.to_bits().into()
    }

    fn from_number(number: u128) -> Self {
        Self::from_bits(number as u32)
    }
}

impl Address for Ipv6Addr {
    const BITS: u8 = 128;

    fn to_number(self) -> u128 {
        self.to_bits()
    }

    fn from_number(number: u128) -> Self {
        Self::from_bits(number)
    }
}

impl<A: Address> Prefix<A> {
    #[must_use]
    pub fn host(address: A) -> Self {
        Self { address, bits: A::BITS }
    }

    /// Creates the prefix of all addresses that share the first `bits` bits of `address`. `None` if `bits` is 0 or
    /// exceeds the address length, or if `address` has bits set after the prefix. A rule for any address has no prefix.
    #[must_use]
    pub fn new(address: A, bits: u8) -> Option<Self> {
        let fits = (1..=A::BITS).contains(&bits) && address.to_number() & !mask::<A>(bits) == 0;
        fits.then_some(Self { address, bits })
    }

    #[must_use]
    pub fn address(self) -> A {
        self.address
    }

    #[must_use]
    pub fn bits(self) -> u8 {
        self.bits
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid prefix `{0}`: expected ADDRESS/LENGTH without bits set after the prefix")]
pub struct InvalidPrefix(String);

impl<A: Address> TryFrom<String> for Prefix<A> {
    type Error = InvalidPrefix;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parts = text.split_once('/');
        let prefix = parts.and_then(|(address, bits)| Self::new(address.parse().ok()?, bits.parse().ok()?));
        prefix.ok_or(InvalidPrefix(text))
    }
}

impl<A: Address> From<Prefix<A>> for String {
    fn from(prefix: Prefix<A>) -> Self {
        prefix.to_string()
    }
}

/// Mask of the first `bits` bits of an address; `bits` is at least 1.
fn mask<A: Address>(bits: u8) -> u128 {
    let all = u128::MAX >> (128 - u32::from(A::BITS));
    all & !(all.checked_shr(bits.into()).unwrap_or(0))
}

/// Source and destination prefixes of a rule, both in one address family. `None` matches any address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlowAddresses {
    V4 { source: Option<Prefix<Ipv4Addr>>, destination: Option<Prefix<Ipv4Addr>> },
    V6 { source: Option<Prefix<Ipv6Addr>>, destination: Option<Prefix<Ipv6Addr>> },
}

/// Conditions that a packet must meet. `None` matches any port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FlowMatch {
    pub transport: FlowTransport,
    /// Address family and prefixes.
    pub addresses: FlowAddresses,
    pub source_port: Option<u16>,
    pub destination_port: Option<u16>,
}

/// What the device does with matching packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlowAction {
    /// Delivers packets to this receive queue.
    Queue(u32),
    /// Delivers packets to a queue of this RSS context.
    Context(RssContextId),
    Discard,
}

/// A flow rule that Quell can read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FlowRule {
    /// Conditions that a packet must meet.
    pub matches: FlowMatch,
    /// What the device does with matching packets.
    pub action: FlowAction,
}

/// A flow rule in a device's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstalledFlowRule {
    /// Index of the rule in the table. If several rules match a packet, the rule with the lowest index applies.
    pub location: u32,
    /// The rule. `None` if Quell cannot express it, because it matches a VLAN, a MAC address, a partial mask or another
    /// protocol, or selects a virtual function. Quell does not change such a rule.
    pub rule: Option<FlowRule>,
}

/// Offset of the ports, which follow the addresses in `ethtool_tcpip4_spec` and `ethtool_tcpip6_spec`.
const fn ports_at(address_bits: u8) -> usize {
    address_bits as usize / 8 * 2
}

pub(crate) fn parse_rule(spec: &[u8], context: u32) -> Result<InstalledFlowRule, Malformed> {
    let cut_short = Malformed("a flow rule is truncated");
    if spec.len() < size_of::<FlowSpecLayout>() {
        return Err(cut_short);
    }
    let flow_type = u32_at(spec, offset_of!(FlowSpecLayout, flow_type)).ok_or(cut_short)?;
    let cookie = u64_at(spec, offset_of!(FlowSpecLayout, ring_cookie)).ok_or(cut_short)?;
    let location = u32_at(spec, offset_of!(FlowSpecLayout, location)).ok_or(cut_short)?;
    let matches = parse_match(flow_type & !FLOW_RSS, &spec[VALUE..][..MATCH_BYTES], &spec[MASK..][..MATCH_BYTES]);
    let action = parse_action(flow_type & FLOW_RSS != 0, cookie, context);
    let rule = matches.zip(action).map(|(matches, action)| FlowRule { matches, action });
    Ok(InstalledFlowRule { location, rule })
}

/// Converts a ring cookie to an action. Returns `None` for a virtual function, a wake-up rule, or an RSS context with a
/// queue offset.
fn parse_action(by_context: bool, cookie: u64, context: u32) -> Option<FlowAction> {
    match (by_context, cookie) {
        (false, RX_CLS_FLOW_DISC) => Some(FlowAction::Discard),
        (false, queue) => u32::try_from(queue).ok().map(FlowAction::Queue),
        (true, 0) => RssContextId::new(context).map(FlowAction::Context),
        (true, _) => None,
    }
}

/// Parses the value and mask of a rule. Returns `None` if [`FlowMatch`] cannot express them.
fn parse_match(flow_type: u32, value: &[u8], mask: &[u8]) -> Option<FlowMatch> {
    let (transport, is_v4) = match flow_type {
        TCP_V4_FLOW => (FlowTransport::Tcp, true),
        UDP_V4_FLOW => (FlowTransport::Udp, true),
        TCP_V6_FLOW => (FlowTransport::Tcp, false),
        UDP_V6_FLOW => (FlowTransport::Udp, false),
        _ => return None,
    };
    let bits = if is_v4 { Ipv4Addr::BITS as u8 } else { Ipv6Addr::BITS as u8 };
    let ports = ports_at(bits);
    if mask[ports + 4..].iter().any(|&byte| byte != 0) {
        return None;
    }
    let addresses = if is_v4 {
        FlowAddresses::V4 { source: prefix(value, mask, 0)?, destination: prefix(value, mask, 1)? }
    } else {
        FlowAddresses::V6 { source: prefix(value, mask, 0)?, destination: prefix(value, mask, 1)? }
    };
    let source_port = port(value, mask, ports)?;
    let destination_port = port(value, mask, ports + 2)?;
    Some(FlowMatch { transport, addresses, source_port, destination_port })
}

fn field<A: Address>(bytes: &[u8], number: usize) -> u128 {
    let length = usize::from(A::BITS / 8);
    bytes[number * length..][..length].iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte))
}

/// Parses an address field. The outer `None` means that the mask is not a prefix. The inner `None` means any address.
fn prefix<A: Address>(value: &[u8], mask_bytes: &[u8], number: usize) -> Option<Option<Prefix<A>>> {
    let found = field::<A>(mask_bytes, number);
    let bits = found.count_ones() as u8;
    if bits == 0 {
        return Some(None);
    }
    let address = A::from_number(field::<A>(value, number) & found);
    (found == mask::<A>(bits)).then_some(Some(Prefix { address, bits }))
}

/// Parses a port field. The outer `None` means that the mask is neither all ones nor zero. The inner `None` means any
/// port.
fn port(value: &[u8], mask: &[u8], offset: usize) -> Option<Option<u16>> {
    match [mask[offset], mask[offset + 1]] {
        [0, 0] => Some(None),
        [0xff, 0xff] => Some(Some(u16::from_be_bytes([value[offset], value[offset + 1]]))),
        _ => None,
    }
}

/// Encodes a rule and its location as `struct ethtool_rx_flow_spec`. Also returns the RSS context, which belongs in
/// `struct ethtool_rxnfc`.
pub(super) fn encode_rule(rule: &FlowRule, location: u32) -> (Vec<u8>, u32) {
    let mut spec = vec![0; size_of::<FlowSpecLayout>()];
    let (cookie, context) = match rule.action {
        FlowAction::Queue(queue) => (queue.into(), None),
        FlowAction::Context(context) => (0, Some(context)),
        FlowAction::Discard => (RX_CLS_FLOW_DISC, None),
    };
    let flow_type = encode_match(&rule.matches, &mut spec) | context.map_or(0, |_| FLOW_RSS);
    put(&mut spec, offset_of!(FlowSpecLayout, flow_type), &flow_type.to_ne_bytes());
    put(&mut spec, offset_of!(FlowSpecLayout, ring_cookie), &cookie.to_ne_bytes());
    put(&mut spec, offset_of!(FlowSpecLayout, location), &location.to_ne_bytes());
    (spec, context.map_or(0, RssContextId::get))
}

fn encode_match(matches: &FlowMatch, spec: &mut [u8]) -> u32 {
    let (flow_type, ports) = match (matches.addresses, matches.transport) {
        (FlowAddresses::V4 { source, destination }, transport) => {
            put_prefix(spec, 0, source);
            put_prefix(spec, 1, destination);
            (if transport == FlowTransport::Tcp { TCP_V4_FLOW } else { UDP_V4_FLOW }, ports_at(32))
        }
        (FlowAddresses::V6 { source, destination }, transport) => {
            put_prefix(spec, 0, source);
            put_prefix(spec, 1, destination);
            (if transport == FlowTransport::Tcp { TCP_V6_FLOW } else { UDP_V6_FLOW }, ports_at(128))
        }
    };
    for (offset, port) in [(ports, matches.source_port), (ports + 2, matches.destination_port)] {
        if let Some(port) = port {
            put(spec, VALUE + offset, &port.to_be_bytes());
            put(spec, MASK + offset, &[0xff, 0xff]);
        }
    }
    flow_type
}

fn put_prefix<A: Address>(spec: &mut [u8], number: usize, prefix: Option<Prefix<A>>) {
    let Some(Prefix { address, bits }) = prefix else { return };
    let length = usize::from(A::BITS / 8);
    let offset = number * length;
    put(spec, VALUE + offset, &address.to_number().to_be_bytes()[16 - length..]);
    put(spec, MASK + offset, &mask::<A>(bits).to_be_bytes()[16 - length..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memcached() -> FlowRule {
        let matches = FlowMatch {
            transport: FlowTransport::Tcp,
            addresses: FlowAddresses::V4 { source: None, destination: Some(Prefix::host(Ipv4Addr::new(10, 0, 0, 1))) },
            source_port: None,
            destination_port: Some(11_211),
        };
        FlowRule { matches, action: FlowAction::Queue(3) }
    }

    #[test]
    fn a_rule_has_the_layout_of_the_kernels_struct() {
        let (spec, context) = encode_rule(&memcached(), 7);
        assert_eq!((spec.len(), context), (168, 0));
        assert_eq!(spec[..4], 1_u32.to_ne_bytes());
        assert_eq!(spec[8..12], [10, 0, 0, 1], "ip4dst follows ip4src");
        assert_eq!(spec[14..16], [0x2b, 0xcb], "pdst, in network byte order");
        assert_eq!(spec[76 + 4..76 + 8], [0xff; 4]);
        assert_eq!(spec[76 + 10..76 + 12], [0xff; 2]);
        assert_eq!(
            (spec[152..160].to_vec(), &spec[160..164]),
            (3_u64.to_ne_bytes().to_vec(), &7_u32.to_ne_bytes()[..])
        );
    }

    #[test]
    fn a_rule_that_cannot_be_expressed_is_installed_but_unknown() {
        let (mut spec, _) = encode_rule(&memcached(), 7);
        spec[76 + 12] = 0xff; // Mask of the type of service.
        assert_eq!(parse_rule(&spec, 0), Ok(InstalledFlowRule { location: 7, rule: None }));
        let (mut spec, _) = encode_rule(&memcached(), 7);
        spec[76 + 6] = 0; // Mask with a hole.
        assert_eq!(parse_rule(&spec, 0).unwrap().rule, None);
        let (mut spec, _) = encode_rule(&memcached(), 7);
        put(&mut spec, 152, &(1_u64 << 32).to_ne_bytes()); // Virtual function.
        assert_eq!(parse_rule(&spec, 0).unwrap().rule, None);
    }

    #[test]
    fn a_prefix_has_no_bits_after_its_length() {
        assert!(Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).is_some());
        assert_eq!(Prefix::new(Ipv4Addr::new(10, 0, 0, 1), 8), None);
        assert_eq!(Prefix::new(Ipv4Addr::UNSPECIFIED, 0), None);
        assert_eq!(Prefix::new(Ipv6Addr::LOCALHOST, 129), None);
        assert_eq!(Prefix::host(Ipv6Addr::LOCALHOST).to_string(), "::1/128");
    }

    fn any_prefix<A: Address + fmt::Debug>(
        numbers: impl Strategy<Value = u128>,
    ) -> impl Strategy<Value = Option<Prefix<A>>> {
        let prefix = (numbers, 1..=A::BITS)
            .prop_map(|(number, bits)| Prefix { address: A::from_number(number & mask::<A>(bits)), bits });
        prop::option::of(prefix)
    }

    fn any_rule() -> impl Strategy<Value = FlowRule> {
        let v4 = (any_prefix(any::<u128>()), any_prefix(any::<u128>()))
            .prop_map(|(source, destination)| FlowAddresses::V4 { source, destination });
        let v6 = (any_prefix(any::<u128>()), any_prefix(any::<u128>()))
            .prop_map(|(source, destination)| FlowAddresses::V6 { source, destination });
        let action = prop_oneof![
            any::<u32>().prop_map(FlowAction::Queue),
            (0..100_u32).prop_filter_map("no number", |n| RssContextId::new(n).map(FlowAction::Context)),
            Just(FlowAction::Discard),
        ];
        let transport = prop_oneof![Just(FlowTransport::Tcp), Just(FlowTransport::Udp)];
        (transport, prop_oneof![v4, v6], any::<[Option<u16>; 2]>(), action).prop_map(
            |(transport, addresses, [source_port, destination_port], action)| FlowRule {
                matches: FlowMatch { transport, addresses, source_port, destination_port },
                action,
            },
        )
    }

    proptest! {
        #[test]
        fn an_encoded_rule_parses_to_the_same_rule(rule in any_rule(), location: u32) {
            let (spec, context) = encode_rule(&rule, location);
            prop_assert_eq!(parse_rule(&spec, context), Ok(InstalledFlowRule { location, rule: Some(rule) }));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), context: u32) {
            let _ = parse_rule(&bytes, context);
        }
    }
}
