//! Reads and writes single netlink attributes whose types `netlink-bindings` does not support.

use netlink_bindings::utils::{self, IterableChunks};

use super::Malformed;

/// Iterates over the attributes in `bytes`, as type and payload, up to the first invalid length.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    IterableChunks::new(bytes).map(|(header, payload)| (header.r#type, payload))
}

/// Decodes the specification type `uint`, which has 4 or 8 bytes (`nla_get_uint` of `include/net/netlink.h`).
pub(crate) fn uint(payload: &[u8]) -> Result<u64, Malformed> {
    match payload.len() {
        4 => utils::parse_u32(payload).map(u64::from),
        8 => utils::parse_u64(payload),
        _ => None,
    }
    .ok_or(Malformed("a uint attribute is not 4 or 8 bytes long"))
}

pub(crate) fn push(buffer: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX - 4);
    debug_assert_eq!(usize::from(length), payload.len(), "attributes are shorter than 64 KiB");
    utils::push_header(buffer, kind, length);
    buffer.extend_from_slice(&payload[..usize::from(length)]);
    utils::align(buffer);
}

/// Appends a `uint` in its shortest form.
pub(crate) fn push_uint(buffer: &mut Vec<u8>, kind: u16, value: u64) {
    match u32::try_from(value) {
        Ok(short) => push(buffer, kind, &short.to_ne_bytes()),
        Err(_) => push(buffer, kind, &value.to_ne_bytes()),
    }
}

/// Opens a nested attribute. It contains everything that is appended before [`end_nested`].
pub(crate) fn begin_nested(buffer: &mut Vec<u8>, kind: u16) -> usize {
    utils::push_nested_header(buffer, kind)
}

/// Closes the nested attribute that `begin_nested` opened at `start`.
pub(crate) fn end_nested(buffer: &mut Vec<u8>, start: usize) {
    utils::finalize_nested_header(buffer, start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_encoded_uint_decodes_to_the_same_value(value: u64, kind in 1_u16..0x3fff) {
            let mut buffer = Vec::new();
            push_uint(&mut buffer, kind, value);
            let read: Vec<_> = attributes(&buffer).map(|(k, p)| (k, uint(p).unwrap())).collect();
            prop_assert_eq!(read, vec![(kind, value)]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            for (_, payload) in attributes(&bytes) {
                let _ = uint(payload);
            }
        }
    }
}
