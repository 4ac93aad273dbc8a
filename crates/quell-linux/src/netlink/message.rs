//! Framing of netlink: splits datagrams into messages, and parses the two messages that end an exchange (`NLMSG_ERROR`
//! and `NLMSG_DONE`) with their extended acknowledgement.

use netlink_bindings::builtin::{IterablePolicyTypeAttrs, NlmsgerrAttrs};
use netlink_bindings::utils;

use super::Malformed;

/// Size of `struct nlmsghdr` in bytes.
pub(super) const HEADER_BYTES: usize = 16;
/// Size of the error number in bytes. Both messages that end an exchange start with it.
const ERRNO_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// Error number; 0 for success.
    pub(super) errno: i32,
    pub(super) message: Option<String>,
    /// Offset of the offending attribute in the request, counted from the start of its `nlmsghdr`.
    pub(super) offset: Option<usize>,
    /// Type of a missing attribute, and the offset of the nested attribute that lacks it.
    pub(super) missing: Option<(u16, Option<usize>)>,
    /// Minimum and maximum value of the offending attribute.
    pub(super) range: Option<(u64, u64)>,
}

/// Splits off the next message of `rest`. Returns `None` at the end.
pub(super) fn next_message<'a>(rest: &mut &'a [u8]) -> Option<Result<Message<'a>, Malformed>> {
    if rest.is_empty() {
        return None;
    }
    let message = split_message(rest);
    if message.is_none() {
        *rest = &[];
    }
    Some(message.ok_or(Malformed("a message is truncated")))
}

fn split_message<'a>(rest: &mut &'a [u8]) -> Option<Message<'a>> {
    let bytes = *rest;
    let length = usize::try_from(utils::parse_u32(bytes.get(0..4)?)?).ok()?;
    let message = Message {
        kind: utils::parse_u16(bytes.get(4..6)?)?,
        flags: utils::parse_u16(bytes.get(6..8)?)?,
        sequence: utils::parse_u32(bytes.get(8..12)?)?,
        payload: bytes.get(HEADER_BYTES..length)?,
    };
    *rest = bytes.get(utils::nla_align_up(length)..).unwrap_or(&[]);
    Some(message)
}

impl Message<'_> {
    /// Result in a message that ends an exchange. `None` for a message with content.
    pub(super) fn status(&self) -> Option<Result<Status, Malformed>> {
        let is_error = match i32::from(self.kind) {
            libc::NLMSG_ERROR => true,
            libc::NLMSG_DONE => false,
            _ => return None,
        };
        Some(self.parse_status(is_error).ok_or(Malformed("an acknowledgement is truncated")))
    }

    fn parse_status(&self, is_error: bool) -> Option<Status> {
        let negative = utils::parse_i32(self.payload.get(..ERRNO_BYTES)?)?;
        let mut status = Status { errno: negative.checked_neg()?, ..Status::default() };
        if self.has_flag(libc::NLM_F_ACK_TLVS) {
            let after_request = if is_error { self.echoed_request_bytes()? } else { 0 };
            status.read_extended_ack(self.payload.get(ERRNO_BYTES + after_request..)?);
        }
        Some(status)
    }

    /// Length of the request that `NLMSG_ERROR` echoes. If the flag `NLM_F_CAPPED` is set, only the request's header is
    /// echoed.
    fn echoed_request_bytes(&self) -> Option<usize> {
        if self.has_flag(libc::NLM_F_CAPPED) {
            return Some(HEADER_BYTES);
        }
        let length = utils::parse_u32(self.payload.get(ERRNO_BYTES..ERRNO_BYTES + 4)?)?;
        Some(utils::nla_align_up(usize::try_from(length).ok()?))
    }

    pub(super) fn has_flag(&self, flag: i32) -> bool {
        i32::from(self.flags) & flag != 0
    }
}

impl Status {
    /// Parses an extended acknowledgement. Invalid parts are ignored, because it only explains an error.
    fn read_extended_ack(&mut self, bytes: &[u8]) {
        let attributes = NlmsgerrAttrs::new(bytes);
        let position = |offset: u32| usize::try_from(offset).ok();
        self.message = attributes.get_msg().ok().map(|text| text.to_string_lossy().into_owned());
        self.offset = attributes.get_offset().ok().and_then(position);
        let nest = attributes.get_missing_nest().ok().and_then(position);
        self.missing = attributes.get_missing_type().ok().map(|kind| (kind, nest));
        self.range = attributes.get_policy().ok().and_then(|policy| range(&policy));
    }
}

fn range(policy: &IterablePolicyTypeAttrs<'_>) -> Option<(u64, u64)> {
    Some((policy.get_min_value_u().ok()?, policy.get_max_value_u().ok()?))
}

/// Parses every message of a datagram by its declared type.
#[cfg(any(fuzzing, test))]
pub(crate) fn statuses(mut datagram: &[u8]) {
    while let Some(message) = next_message(&mut datagram) {
        let _ = message.map(|message| message.status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push;
    use proptest::prelude::*;

    fn message(kind: i32, flags: i32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_BYTES + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(u16::try_from(kind).unwrap().to_ne_bytes());
        bytes.extend(u16::try_from(flags).unwrap().to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    fn status_of(bytes: &[u8]) -> Status {
        let mut rest = bytes;
        next_message(&mut rest).unwrap().unwrap().status().unwrap().unwrap()
    }

    fn with_words(mut payload: Vec<u8>) -> Vec<u8> {
        push(&mut payload, 1, b"no such thing\0"); // NLMSGERR_ATTR_MSG
        push(&mut payload, 2, &20_u32.to_ne_bytes()); // NLMSGERR_ATTR_OFFS
        payload
    }

    #[test]
    fn a_refusal_carries_the_message_of_the_kernel() {
        let mut payload = (-libc::ENOENT).to_ne_bytes().to_vec();
        payload.extend([0; HEADER_BYTES]);
        let flags = libc::NLM_F_CAPPED | libc::NLM_F_ACK_TLVS;
        let status = status_of(&message(libc::NLMSG_ERROR, flags, &with_words(payload)));
        assert_eq!(status.errno, libc::ENOENT);
        assert_eq!(status.message.as_deref(), Some("no such thing"));
        assert_eq!(status.offset, Some(20));
    }

    #[test]
    fn the_message_is_found_after_an_echoed_request_of_odd_length() {
        let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
        payload.extend(19_u32.to_ne_bytes());
        payload.extend([0; 16]);
        let bytes = message(libc::NLMSG_ERROR, libc::NLM_F_ACK_TLVS, &with_words(payload));
        assert_eq!(status_of(&bytes).message.as_deref(), Some("no such thing"));
    }

    #[test]
    fn a_refused_dump_ends_with_an_error_in_done() {
        let payload = with_words((-libc::ENODEV).to_ne_bytes().to_vec());
        let status = status_of(&message(libc::NLMSG_DONE, libc::NLM_F_ACK_TLVS, &payload));
        assert_eq!(status.errno, libc::ENODEV);
        assert_eq!(status.message.as_deref(), Some("no such thing"));
    }

    #[test]
    fn messages_are_split_at_their_aligned_lengths() {
        let mut bytes = message(20, 0, &[1, 2, 3]);
        bytes.push(0);
        bytes.extend(message(21, 0, &[]));
        let mut rest = bytes.as_slice();
        assert_eq!(next_message(&mut rest).unwrap().unwrap().payload, &[1, 2, 3]);
        assert_eq!(next_message(&mut rest).unwrap().unwrap().kind, 21);
        assert_eq!(next_message(&mut rest), None);
    }

    #[test]
    fn an_invalid_length_ends_the_parsing() {
        for length in [0_u32, 15, 17, u32::MAX] {
            let mut bytes = message(20, 0, &[]);
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            let mut rest = bytes.as_slice();
            assert!(next_message(&mut rest).unwrap().is_err(), "{length}");
            assert_eq!(next_message(&mut rest), None);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_always_end(bytes: Vec<u8>) {
            let mut rest = bytes.as_slice();
            let mut steps = 0;
            while let Some(message) = next_message(&mut rest) {
                if let Ok(message) = message {
                    let _ = message.status();
                }
                steps += 1;
                prop_assert!(steps <= bytes.len());
            }
        }

        #[test]
        fn arbitrary_acknowledgements_never_panic(payload: Vec<u8>, flags in 0..=0x3ff, kind in 2..=3) {
            let bytes = message(kind, flags, &payload);
            let _ = next_message(&mut bytes.as_slice()).unwrap().unwrap().status();
        }
    }
}
