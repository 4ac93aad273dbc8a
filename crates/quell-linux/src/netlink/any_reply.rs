//! Generates replies for property tests: arbitrary bytes, and valid attributes (also nested) of arbitrary types and
//! lengths. Valid attributes pass a decoder's first check.

#![cfg(test)]

use proptest::collection::vec;
use proptest::prelude::*;

use super::push;

/// Generates a reply with a family header of `header_bytes` bytes.
pub(crate) fn any_reply(header_bytes: usize) -> impl Strategy<Value = Vec<u8>> {
    let attributed = (vec(any::<u8>(), header_bytes), any_attributes()).prop_map(|(mut bytes, attributes)| {
        bytes.extend(attributes);
        bytes
    });
    prop_oneof![vec(any::<u8>(), 0..200), attributed]
}

fn any_attributes() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop_oneof![
        vec(any::<u8>(), 0..20),
        vec(any::<u8>(), 4),
        vec(any::<u8>(), 8),
        "[a-z]{1,16}".prop_map(|text| [text.as_bytes(), b"\0"].concat()),
    ];
    plain.boxed().prop_recursive(4, 64, 8, |inner| vec((0_u16..40, inner), 0..8).prop_map(join))
}

fn join(attributes: Vec<(u16, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, payload) in attributes {
        push(&mut bytes, kind, &payload);
    }
    bytes
}
