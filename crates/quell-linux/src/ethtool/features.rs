//! Offload features by their kernel names (`rx-gro`, `tx-tcp-segmentation` and others in `net/ethtool/common.c`):
//! reads, sets and verifies them.

use std::collections::BTreeMap;
use std::ffi::CStr;

use netlink_bindings::ethtool::{self as bindings, IterableBitset};
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ETHTOOL_MSG_FEATURES_GET, ETHTOOL_MSG_FEATURES_SET, Ethtool, address_to};
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

/// State of an offload feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EthtoolFeature {
    /// Whether the feature is in effect.
    pub active: bool,
    /// Whether the driver's default or a user requests the feature. Another feature can still keep it off.
    pub wanted: bool,
    /// Whether the driver allows switching the feature: it is in `hw` and not in `nochange`.
    pub changeable: bool,
}

/// All features that the kernel knows, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Features {
    by_name: BTreeMap<String, EthtoolFeature>,
}

impl FromIterator<(String, EthtoolFeature)> for Features {
    fn from_iter<I: IntoIterator<Item = (String, EthtoolFeature)>>(features: I) -> Self {
        Self { by_name: features.into_iter().collect() }
    }
}

impl Features {
    /// State of a feature; `None` if this kernel does not know the name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<EthtoolFeature> {
        self.by_name.get(name).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, EthtoolFeature)> {
        self.by_name.iter().map(|(name, feature)| (name.as_str(), *feature))
    }

    /// Selects the features that must be switched. Fails if a feature cannot be switched.
    fn plan<'a>(&self, index: Ifindex, changes: &[(&'a str, bool)]) -> Result<Vec<(&'a str, bool)>, FeatureError> {
        let mut todo = Vec::new();
        for &(name, on) in changes {
            let name_text = || name.to_owned();
            let feature = self.get(name).ok_or_else(|| FeatureError::Unknown { name: name_text(), index })?;
            // Another feature prevents this one from taking effect. Requesting it again has no effect.
            if feature.active == on && feature.wanted == on {
                continue;
            }
            if !feature.changeable {
                if feature.active == on {
                    continue;
                }
                return Err(FeatureError::NotChangeable { name: name_text(), index, active: !on });
            }
            todo.push((name, on));
        }
        Ok(todo)
    }

    fn unmet(&self, changes: &[(&str, bool)]) -> Vec<String> {
        let differs = |(name, on): &&(&str, bool)| self.get(name).map(|f| f.active) != Some(*on);
        changes.iter().filter(differs).map(|(name, _)| (*name).to_owned()).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("set feature {name} of interface {index}: this kernel has no such feature")]
    Unknown { name: String, index: Ifindex },
    #[error("set feature {name} of interface {index}: the driver keeps it {}", if *.active { "on" } else { "off" })]
    NotChangeable { name: String, index: Ifindex, active: bool },
    /// The kernel accepted the request, but other features prevent its effect.
    #[error("set the features of interface {index}: accepted, but not in effect for {}", names.join(", "))]
    NotInEffect { names: Vec<String>, index: Ifindex },
}

impl Ethtool {
    pub fn features(&mut self, index: Ifindex) -> Result<Features, NetlinkError> {
        let mut request = bindings::Request::new().op_features_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_FEATURES_GET;
        drop(address_to(request.encode().nested_header(), index));
        self.socket.get("read the features of", &RequestTarget::Index(index), &request, decode_features)
    }

    /// Switches features by name, and returns the resulting state of all features. If a feature cannot be switched, no
    /// feature is changed.
    pub fn set_features(&mut self, index: Ifindex, changes: &[(&str, bool)]) -> Result<Features, FeatureError> {
        let before = self.features(index)?;
        let todo = before.plan(index, changes)?;
        if todo.is_empty() {
            return Ok(before);
        }
        let mut request = bindings::Request::new().op_features_set_do();
        request.header_mut().cmd = ETHTOOL_MSG_FEATURES_SET;
        let mut bits = address_to(request.encode().nested_header(), index).nested_wanted().nested_bits();
        for (name, on) in todo {
            let bit = bits.nested_bit().push_name_bytes(name.as_bytes());
            bits = if on { bit.push_value(()) } else { bit }.end_nested();
        }
        drop(bits);
        self.socket.act("set the features of", &RequestTarget::Index(index), &request)?;
        let after = self.features(index)?;
        let names = after.unmet(changes);
        if names.is_empty() { Ok(after) } else { Err(FeatureError::NotInEffect { names, index }) }
    }
}

pub(crate) fn decode_features(reply: &[u8]) -> Result<Features, Malformed> {
    let attributes = bindings::OpFeaturesGetDo::decode_reply(reply);
    let missing = |_| Malformed("features without one of the four bit sets");
    let mut features = Features::default();
    // `hw` is the only bit set with a mask, so it lists every name that the kernel knows.
    for (name, set) in bits(&attributes.get_hw().map_err(missing)?)? {
        features.by_name.insert(text(name), EthtoolFeature { changeable: set, ..EthtoolFeature::default() });
    }
    let mut for_each_set = |bitset: IterableBitset<'_>, apply: fn(&mut EthtoolFeature)| {
        for (name, _) in bits(&bitset)? {
            apply(features.by_name.entry(text(name)).or_default());
        }
        Ok(())
    };
    for_each_set(attributes.get_wanted().map_err(missing)?, |f| f.wanted = true)?;
    for_each_set(attributes.get_active().map_err(missing)?, |f| f.active = true)?;
    for_each_set(attributes.get_nochange().map_err(missing)?, |f| f.changeable = false)?;
    Ok(features)
}

/// Names and values of a verbose bit set. A bit set without a mask lists only set bits and omits their value
/// (`ETHTOOL_A_BITSET_NOMASK`).
fn bits<'a>(bitset: &IterableBitset<'a>) -> Result<Vec<(&'a CStr, bool)>, Malformed> {
    let is_list = bitset.get_nomask().is_ok();
    let bits = bitset.get_bits().map_err(|_| Malformed("a bit set without its bits"))?;
    let named = |bit: bindings::IterableBitsetBit<'a>| {
        let name = bit.get_name().map_err(|_| Malformed("a bit without a name"))?;
        Ok((name, is_list || bit.get_value().is_ok()))
    };
    bits.get_bit().map(named).collect()
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::any_reply;
    use proptest::prelude::*;

    fn index() -> Ifindex {
        Ifindex::new(1).unwrap()
    }

    fn features(list: &[(&str, EthtoolFeature)]) -> Features {
        Features { by_name: list.iter().map(|(n, f)| ((*n).to_owned(), *f)).collect() }
    }

    #[test]
    fn a_fixed_feature_is_refused_before_any_change() {
        let fixed_off = EthtoolFeature::default();
        let free = EthtoolFeature { changeable: true, ..fixed_off };
        let all = features(&[("rx-gro", free), ("tx-lockless", fixed_off)]);
        let error = all.plan(index(), &[("rx-gro", true), ("tx-lockless", true)]).unwrap_err();
        assert!(matches!(error, FeatureError::NotChangeable { name, .. } if name == "tx-lockless"));
        assert_eq!(all.plan(index(), &[("tx-lockless", false)]), Ok(vec![]));
    }

    #[test]
    fn an_unknown_feature_is_refused() {
        let error = Features::default().plan(index(), &[("rx-gor", true)]).unwrap_err();
        assert!(matches!(error, FeatureError::Unknown { name, .. } if name == "rx-gor"));
    }

    #[test]
    fn an_active_feature_that_is_not_wanted_is_requested() {
        let held_off = EthtoolFeature { active: false, wanted: true, changeable: true };
        let all = features(&[("tx-gso-list", held_off)]);
        assert_eq!(all.plan(index(), &[("tx-gso-list", false)]), Ok(vec![("tx-gso-list", false)]));
        assert_eq!(all.unmet(&[("tx-gso-list", true)]), ["tx-gso-list"]);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_features(&bytes);
        }
    }
}
