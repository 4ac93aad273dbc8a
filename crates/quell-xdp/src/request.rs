//! Requests: their payload, and the frames that carry them.

use crate::frame::{UdpFrame, checksum_field, sum};

/// Size of the part of a payload that every request has.
pub(crate) const HEADER_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"qxdp";
const RUN_AT: usize = 4;
const SEQUENCE_AT: usize = 8;

/// Payload of a request: magic, number of the run, number of the request, and bytes without a meaning.
pub(crate) fn payload(bytes: usize, run: u32, sequence: u64) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    payload[..RUN_AT].copy_from_slice(&MAGIC);
    payload[RUN_AT..SEQUENCE_AT].copy_from_slice(&run.to_be_bytes());
    payload[SEQUENCE_AT..HEADER_BYTES].copy_from_slice(&sequence.to_be_bytes());
    payload
}

/// Number of the request whose payload this is, if it has this size and belongs to this run.
#[inline]
pub(crate) fn sequence_of(payload: &[u8], bytes: usize, run: u32) -> Option<u64> {
    let (header, _) = payload.split_first_chunk::<HEADER_BYTES>()?;
    let is_ours =
        payload.len() == bytes && header[..RUN_AT] == MAGIC && header[RUN_AT..SEQUENCE_AT] == run.to_be_bytes();
    let sequence = header[SEQUENCE_AT..].try_into().ok().map(u64::from_be_bytes);
    sequence.filter(|_| is_ours)
}

/// The frame of a request, without its number.
#[derive(Debug)]
pub(crate) struct RequestFrame {
    bytes: Vec<u8>,
    sequence_at: usize,
    checksum_at: usize,
    /// Sum over the datagram with number 0 and without a checksum.
    sum: u64,
}

impl RequestFrame {
    /// Takes the addresses of all layers from a response: the first request goes through the stack, which knows the route
    /// and the neighbour.
    pub(crate) fn answering(response: &[u8], parsed: &UdpFrame) -> Self {
        let mut bytes = response[..parsed.end()].to_vec();
        parsed.turn(&mut bytes);
        let sequence_at = parsed.payload().start + SEQUENCE_AT;
        bytes[sequence_at..sequence_at + 8].fill(0);
        parsed.complete_checksum(&mut bytes);
        let checksum_at = parsed.checksum_at();
        let complement = u16::from_be_bytes([bytes[checksum_at], bytes[checksum_at + 1]]);
        Self { bytes, sequence_at, checksum_at, sum: u64::from(!complement) }
    }

    /// Writes the frame of this request. Returns its length.
    #[inline]
    pub(crate) fn write(&self, sequence: u64, chunk: &mut [u8]) -> usize {
        let frame = &mut chunk[..self.bytes.len()];
        frame.copy_from_slice(&self.bytes);
        let number = sequence.to_be_bytes();
        frame[self.sequence_at..self.sequence_at + 8].copy_from_slice(&number);
        let checksum = checksum_field(self.sum + sum(&number));
        frame[self.checksum_at..self.checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
        frame.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{UdpChecksum, build};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_request_is_a_valid_frame_to_the_server_with_its_number(
            v6 in any::<bool>(),
            bytes in HEADER_BYTES..300,
            run in any::<u32>(),
            numbers in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let address = |last| if v6 { format!("[2001:db8::{last}]:7") } else { format!("192.0.2.{last}:7") };
            let (server, client) = (address(1).parse().unwrap(), address(2).parse().unwrap());
            let response = build::frame(server, client, &payload(bytes, run, u64::MAX));
            let request = RequestFrame::answering(&response, &UdpFrame::parse(&response).unwrap());
            for number in numbers {
                let mut chunk = [0; 2_048];
                let length = request.write(number, &mut chunk);
                let frame = &chunk[..length];
                let parsed = UdpFrame::parse(frame).unwrap();
                prop_assert_eq!((parsed.source, parsed.destination), (client, server));
                prop_assert_eq!(parsed.checksum, UdpChecksum::Valid);
                prop_assert_eq!(sequence_of(&frame[parsed.payload()], bytes, run), Some(number));
                prop_assert_eq!(sequence_of(&frame[parsed.payload()], bytes, run ^ 1), None);
                prop_assert_eq!(sequence_of(&frame[parsed.payload()], bytes + 1, run), None);
            }
        }
    }
}
