//! Table of flow rules of an interface. Rules are listed, added and deleted by ioctl (`ETHTOOL_GRXCLSRLALL` and related
//! commands), because netlink does not support them. `flow_rule` defines a rule.

use std::mem::offset_of;

use super::flow_rule::{FlowSpecLayout, encode_rule, parse_rule};
use super::ioctl::{put, u32_at, u64_at};
use super::{Ethtool, FlowRule, InstalledFlowRule};
use crate::interface::Ifindex;
use crate::netlink::{Cause, Malformed, NetlinkError, RequestTarget};

pub(super) const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
pub(super) const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
pub(super) const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
pub(super) const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
pub(super) const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// Flag with two meanings. In the reply to a count, the driver selects locations. In a location, the lower bits select
/// a kind of location.
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;
const RX_CLS_LOC_ANY: u32 = u32::MAX;
/// Maximum number of rules. A larger count is treated as invalid, because no device has so many rules.
const RULES_MAX: u32 = 1 << 20;

/// Layout of `struct ethtool_rxnfc`, used for its size and field offsets only.
#[repr(C)]
struct RxnfcLayout {
    cmd: u32,
    flow_type: u32,
    data: u64,
    spec: FlowSpecLayout,
    /// Number of rules, or the RSS context of a rule (a union in the kernel).
    rule_cnt: u32,
    rule_locs: [u32; 0],
}

const SPEC: usize = offset_of!(RxnfcLayout, spec);
const LOCATION: usize = SPEC + offset_of!(FlowSpecLayout, location);
pub(super) const RULE_COUNT: usize = offset_of!(RxnfcLayout, rule_cnt);
/// Size of the struct without the array of rule locations that follows it.
pub(super) const RXNFC_BYTES: usize = size_of::<RxnfcLayout>();
const RULE_LOCATIONS: usize = offset_of!(RxnfcLayout, rule_locs);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowRules {
    /// Rules in ascending order of location.
    pub rules: Vec<InstalledFlowRule>,
    /// Number of locations in the table; `None` if the driver does not report it.
    pub places: Option<u32>,
    /// Whether the driver selects the location of a new rule.
    pub chooses_places: bool,
}

impl FlowRules {
    /// Location for a new rule: one that the driver selects, or else the last free one. The last one is used because
    /// rules at lower locations have precedence. Returns `None` if the table is full or its size is unknown.
    fn free_place(&self) -> Option<u32> {
        if self.chooses_places {
            return Some(RX_CLS_LOC_ANY);
        }
        let taken = |place: &u32| self.rules.iter().any(|rule| rule.location == *place);
        (0..self.places?).rev().find(|place| !taken(place))
    }
}

impl Ethtool {
    /// Reads the flow rules of an interface. Errors: `Unsupported` if the driver has no flow rules (veth, virtio-net).
    /// `Busy` if the rules change during the call.
    pub fn flow_rules(&mut self, index: Ifindex) -> Result<FlowRules, NetlinkError> {
        const ACTION: &str = "list the flow rules of";
        let failed = |cause: Cause| NetlinkError::new(ACTION, RequestTarget::Index(index), cause);
        let mut buffer = command(ETHTOOL_GRXCLSRLCNT, 0);
        self.ioctl(ACTION, index, "ETHTOOL_GRXCLSRLCNT", &mut buffer)?;
        let count = parse_count(&buffer).map_err(|malformed| failed(malformed.into()))?;
        let mut buffer = command(ETHTOOL_GRXCLSRLALL, count.rules);
        put(&mut buffer, RULE_COUNT, &count.rules.to_ne_bytes());
        self.ioctl(ACTION, index, "ETHTOOL_GRXCLSRLALL", &mut buffer)?;
        let locations = parse_locations(&buffer).map_err(|malformed| failed(malformed.into()))?;
        let mut rules = locations.into_iter().map(|at| self.flow_rule(index, at)).collect::<Result<Vec<_>, _>>()?;
        rules.sort_unstable_by_key(|rule| rule.location);
        Ok(FlowRules { rules, places: count.places, chooses_places: count.chooses_places })
    }

    fn flow_rule(&mut self, index: Ifindex, location: u32) -> Result<InstalledFlowRule, NetlinkError> {
        const ACTION: &str = "read a flow rule of";
        let mut buffer = command(ETHTOOL_GRXCLSRULE, 0);
        put(&mut buffer, LOCATION, &location.to_ne_bytes());
        self.ioctl(ACTION, index, "ETHTOOL_GRXCLSRULE", &mut buffer)?;
        let rule = parse_rule(&buffer[SPEC..], u32_at(&buffer, RULE_COUNT).unwrap_or(0));
        rule.map_err(|malformed| NetlinkError::new(ACTION, RequestTarget::Index(index), malformed.into()))
    }

    /// Adds a rule at a location that the driver selects, or else at the last free one. Returns the location. The
    /// feature `rx-ntuple-filter` must be on. Not tested on hardware. Errors: those of [`Ethtool::flow_rules`],
    /// and `Denied` and `Exists`. `Invalid` if the queue or RSS context does not exist, or if the device does not
    /// support the combination of conditions.
    pub fn add_flow_rule(&mut self, index: Ifindex, rule: &FlowRule) -> Result<u32, NetlinkError> {
        const ACTION: &str = "add a flow rule to";
        let full = Cause::Inexpressible("the flow rule table is full");
        let failed = |cause| NetlinkError::new(ACTION, RequestTarget::Index(index), cause);
        let place = self.flow_rules(index)?.free_place().ok_or_else(|| failed(full))?;
        let mut buffer = insertion(rule, place);
        self.ioctl(ACTION, index, "ETHTOOL_SRXCLSRLINS", &mut buffer)?;
        u32_at(&buffer, LOCATION).ok_or_else(|| failed(Malformed("a flow rule without a location").into()))
    }

    /// Deletes the rule at a location. Not tested on hardware. Errors: `Absent` or `Invalid` if the location is free
    /// (drivers differ), `Denied`, `Unsupported`.
    pub fn delete_flow_rule(&mut self, index: Ifindex, location: u32) -> Result<(), NetlinkError> {
        let mut buffer = command(ETHTOOL_SRXCLSRLDEL, 0);
        put(&mut buffer, LOCATION, &location.to_ne_bytes());
        self.ioctl("delete a flow rule of", index, "ETHTOOL_SRXCLSRLDEL", &mut buffer)
    }
}

fn command(number: u32, rules: u32) -> Vec<u8> {
    let mut buffer = vec![0; RXNFC_BYTES + rules as usize * 4];
    put(&mut buffer, 0, &number.to_ne_bytes());
    buffer
}

fn insertion(rule: &FlowRule, place: u32) -> Vec<u8> {
    let (spec, context) = encode_rule(rule, place);
    let mut buffer = command(ETHTOOL_SRXCLSRLINS, 0);
    put(&mut buffer, SPEC, &spec);
    put(&mut buffer, RULE_COUNT, &context.to_ne_bytes());
    buffer
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    rules: u32,
    places: Option<u32>,
    chooses_places: bool,
}

fn parse_count(answer: &[u8]) -> Result<Count, Malformed> {
    let cut_short = Malformed("the count of flow rules is truncated");
    let rules = u32_at(answer, RULE_COUNT).ok_or(cut_short)?;
    if rules > RULES_MAX {
        return Err(Malformed("more flow rules than any device has"));
    }
    let data = u64_at(answer, offset_of!(RxnfcLayout, data)).ok_or(cut_short)? as u32;
    let places = data & !RX_CLS_LOC_SPECIAL;
    Ok(Count { rules, places: (places > 0).then_some(places), chooses_places: data & RX_CLS_LOC_SPECIAL != 0 })
}

/// Parses the locations in the reply to `ETHTOOL_GRXCLSRLALL`, which may be fewer than the previous count.
pub(crate) fn parse_locations(answer: &[u8]) -> Result<Vec<u32>, Malformed> {
    let cut_short = Malformed("the list of flow rules is truncated");
    let count = u32_at(answer, RULE_COUNT).ok_or(cut_short)? as usize;
    let (words, _) = answer.get(RULE_LOCATIONS..).ok_or(cut_short)?.as_chunks();
    Ok(words.get(..count).ok_or(cut_short)?.iter().copied().map(u32::from_ne_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::{FlowAction, FlowAddresses, FlowMatch, FlowTransport, RssContextId};
    use proptest::prelude::*;

    fn installed(location: u32) -> InstalledFlowRule {
        InstalledFlowRule { location, rule: None }
    }

    #[test]
    fn the_struct_has_the_layout_of_the_kernels() {
        assert_eq!((SPEC, LOCATION, RULE_COUNT, RULE_LOCATIONS), (16, 176, 184, 188));
        assert_eq!(size_of::<RxnfcLayout>(), 192);
    }

    #[test]
    fn a_new_rule_goes_to_the_drivers_location_or_to_the_last_free_one() {
        let mut table = FlowRules { rules: vec![installed(1), installed(3)], places: Some(4), chooses_places: false };
        assert_eq!(table.free_place(), Some(2));
        table.chooses_places = true;
        assert_eq!(table.free_place(), Some(RX_CLS_LOC_ANY));
        let full = FlowRules { rules: vec![installed(0)], places: Some(1), chooses_places: false };
        assert_eq!(full.free_place(), None);
        assert_eq!(FlowRules::default().free_place(), None);
    }

    #[test]
    fn a_count_contains_the_table_size_and_who_selects_locations() {
        let mut answer = command(ETHTOOL_GRXCLSRLCNT, 0);
        put(&mut answer, 8, &u64::from(RX_CLS_LOC_SPECIAL | 8192).to_ne_bytes());
        put(&mut answer, RULE_COUNT, &2_u32.to_ne_bytes());
        assert_eq!(parse_count(&answer), Ok(Count { rules: 2, places: Some(8192), chooses_places: true }));
    }

    #[test]
    fn the_context_of_a_rule_is_encoded_outside_of_it() {
        let matches = FlowMatch {
            transport: FlowTransport::Udp,
            addresses: FlowAddresses::V6 { source: None, destination: None },
            source_port: None,
            destination_port: Some(53),
        };
        let rule = FlowRule { matches, action: FlowAction::Context(RssContextId::new(2).unwrap()) };
        let buffer = insertion(&rule, 5);
        assert_eq!((u32_at(&buffer, RULE_COUNT), u32_at(&buffer, LOCATION)), (Some(2), Some(5)));
        assert_eq!(u32_at(&buffer, SPEC), Some(0x2000_0006));
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_count(&bytes);
            let _ = parse_locations(&bytes);
        }
    }
}
