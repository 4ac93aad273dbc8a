//! Ethernet frames with UDP over IPv4 (RFC 791) or IPv6 (RFC 8200): checked, and turned into their answers in place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use thiserror::Error;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;

/// Why a frame is not a valid UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    #[error("a frame of {0} bytes is shorter than its headers")]
    TooShort(usize),
    #[error("not IPv4 or IPv6: EtherType {0:#06x}")]
    NotIp(u16),
    #[error("not UDP: protocol {0}")]
    NotUdp(u8),
    #[error("a fragment")]
    Fragment,
    #[error("a length in a header exceeds the frame, or contradicts another one")]
    WrongLength,
    #[error("a wrong checksum of the IPv4 header")]
    WrongIpChecksum,
    #[error("a wrong UDP checksum")]
    WrongUdpChecksum,
}

/// State of the UDP checksum of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpChecksum {
    Valid,
    /// Zero: the sender did not compute it. Allowed for IPv4 only (RFC 768, RFC 8200).
    Absent,
    /// The sum of the pseudo-header alone: the sender's kernel left the rest to its device (`CHECKSUM_PARTIAL`), and the
    /// frame has passed virtual devices only.
    Partial,
}

/// A checked UDP datagram in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpFrame {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub checksum: UdpChecksum,
    /// Start of the IP header; the Ethernet header ends there.
    ip: usize,
    /// Start of the UDP header.
    udp: usize,
    /// End of the datagram. Short frames have padding after it.
    end: usize,
}

impl UdpFrame {
    /// Checks a frame: lengths, protocols, checksums.
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let too_short = FrameError::TooShort(frame.len());
        let ip = ETHERNET_BYTES;
        let (source, destination, udp, end) = match word(frame, 12).ok_or(too_short)? {
            ETHERTYPE_IPV4 => ipv4(frame, ip)?,
            ETHERTYPE_IPV6 => ipv6(frame, ip)?,
            other => return Err(FrameError::NotIp(other)),
        };
        let datagram = frame.get(udp..end).ok_or(FrameError::WrongLength)?;
        let port = |at| word(datagram, at).ok_or(FrameError::WrongLength);
        let (from, to, bytes, checksum) = (port(0)?, port(2)?, port(4)?, port(6)?);
        if usize::from(bytes) != datagram.len() {
            return Err(FrameError::WrongLength);
        }
        let pseudo = pseudo_header(source, destination, bytes);
        let checksum = match checksum {
            0 if source.is_ipv4() => UdpChecksum::Absent,
            _ if fold(pseudo + sum(datagram)) == 0xffff && checksum != 0 => UdpChecksum::Valid,
            partial if partial == fold(pseudo) => UdpChecksum::Partial,
            _ => return Err(FrameError::WrongUdpChecksum),
        };
        let (source, destination) = (SocketAddr::new(source, from), SocketAddr::new(destination, to));
        Ok(Self { source, destination, checksum, ip, udp, end })
    }

    /// Bytes of the frame that are its payload.
    #[must_use]
    pub fn payload(&self) -> Range<usize> {
        self.udp + UDP_BYTES..self.end
    }

    /// Turns the frame, from which this was parsed, into its answer: the addresses of each layer are swapped. Checksums
    /// are sums of words, which do not depend on their order; only a partial one is completed.
    pub fn turn(&self, frame: &mut [u8]) {
        swap(frame, 0, 6, 6);
        match self.source.ip() {
            IpAddr::V4(_) => swap(frame, self.ip + 12, self.ip + 16, 4),
            IpAddr::V6(_) => swap(frame, self.ip + 8, self.ip + 24, 16),
        }
        swap(frame, self.udp, self.udp + 2, 2);
        if self.checksum == UdpChecksum::Partial {
            self.complete_checksum(frame);
        }
    }

    /// Computes the UDP checksum of a frame with this datagram's addresses in either order.
    pub fn complete_checksum(&self, frame: &mut [u8]) {
        let field = self.udp + 6..self.udp + 8;
        frame[field.clone()].fill(0);
        let bytes = (self.end - self.udp) as u16;
        let total = pseudo_header(self.source.ip(), self.destination.ip(), bytes) + sum(&frame[self.udp..self.end]);
        frame[field].copy_from_slice(&checksum_field(total).to_be_bytes());
    }

    /// End of the datagram in the frame.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Start of the UDP checksum in the frame.
    pub(crate) fn checksum_at(&self) -> usize {
        self.udp + 6
    }
}

type Located = (IpAddr, IpAddr, usize, usize);

/// Addresses of an IPv4 packet, and the start and end of its content.
fn ipv4(frame: &[u8], ip: usize) -> Result<Located, FrameError> {
    let header: [u8; IPV4_BYTES] = array(frame, ip).ok_or(FrameError::TooShort(frame.len()))?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_bytes < IPV4_BYTES || total < header_bytes + UDP_BYTES {
        return Err(FrameError::WrongLength);
    }
    let whole = frame.get(ip..ip + header_bytes).ok_or(FrameError::TooShort(frame.len()))?;
    if fold(sum(whole)) != 0xffff {
        return Err(FrameError::WrongIpChecksum);
    }
    // The offset, and the flag that more fragments follow.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(FrameError::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(FrameError::NotUdp(header[9]));
    }
    let [from, to] = [12, 16].map(|at| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    Ok((from.into(), to.into(), ip + header_bytes, ip + total))
}

/// As [`ipv4`]. Extension headers are another protocol.
fn ipv6(frame: &[u8], ip: usize) -> Result<Located, FrameError> {
    let header: [u8; IPV6_BYTES] = array(frame, ip).ok_or(FrameError::TooShort(frame.len()))?;
    let bytes = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || bytes < UDP_BYTES {
        return Err(FrameError::WrongLength);
    }
    if header[6] != PROTOCOL_UDP {
        return Err(FrameError::NotUdp(header[6]));
    }
    let address = |at| array::<16>(&header, at).map(Ipv6Addr::from).ok_or(FrameError::WrongLength);
    let udp = ip + IPV6_BYTES;
    Ok((address(8)?.into(), address(24)?.into(), udp, udp + bytes))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

fn swap(bytes: &mut [u8], one: usize, other: usize, length: usize) {
    let (head, tail) = bytes.split_at_mut(other);
    head[one..one + length].swap_with_slice(&mut tail[..length]);
}

fn pseudo_header(source: IpAddr, destination: IpAddr, bytes: u16) -> u64 {
    let address = |ip| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    address(source) + address(destination) + u64::from(PROTOCOL_UDP) + u64::from(bytes)
}

/// Sum of the big-endian 16-bit words; an odd last byte is the high half of a word (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // Words of 32 bits have the same sum, because 2^16 is 1 modulo 2^16 - 1.
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_be_bytes(last))
}

/// Adds the carries until 16 bits are left.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The field for a sum. A sum of zero is sent as all ones, because a field of zero means "no checksum" (RFC 768).
pub(crate) fn checksum_field(sum: u64) -> u16 {
    match !fold(sum) {
        0 => 0xffff,
        field => field,
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod build {
    //! Valid frames.

    use super::*;

    /// A frame with this payload, as the sender's kernel makes it.
    pub(crate) fn frame(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let udp_bytes = (UDP_BYTES + payload.len()) as u16;
        let mut frame = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend(ETHERTYPE_IPV4.to_be_bytes());
                let mut header = vec![0x45, 0];
                header.extend((IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
                header.extend([0, 1, 0x40, 0, 64, PROTOCOL_UDP, 0, 0]);
                header.extend([from.octets(), to.octets()].concat());
                let checksum = checksum_field(sum(&header));
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend(header);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend(ETHERTYPE_IPV6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                frame.extend(udp_bytes.to_be_bytes());
                frame.extend([PROTOCOL_UDP, 64]);
                frame.extend([from.octets(), to.octets()].concat());
            }
            _ => unreachable!("addresses of one family"),
        }
        let udp = frame.len();
        frame.extend([source.port(), destination.port(), udp_bytes, 0].map(u16::to_be_bytes).concat());
        frame.extend(payload);
        let total = pseudo_header(source.ip(), destination.ip(), udp_bytes) + sum(&frame[udp..]);
        frame[udp + 6..udp + 8].copy_from_slice(&checksum_field(total).to_be_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(from, to)| (IpAddr::from(from), IpAddr::from(to)));
        let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(from, to)| (IpAddr::from(from), IpAddr::from(to)));
        (prop_oneof![v4, v6], any::<(u16, u16)>())
            .prop_map(|((from, to), ports)| (SocketAddr::new(from, ports.0), SocketAddr::new(to, ports.1)))
    }

    proptest! {
        #[test]
        fn a_valid_frame_is_parsed_and_its_answer_is_valid(
            (source, destination) in addresses(),
            payload in prop::collection::vec(any::<u8>(), 0..200),
            padding in 0..20_usize,
        ) {
            let mut frame = build::frame(source, destination, &payload);
            frame.resize(frame.len() + padding, 0xaa);
            let parsed = UdpFrame::parse(&frame).unwrap();
            prop_assert_eq!((parsed.source, parsed.destination), (source, destination));
            prop_assert_eq!(parsed.checksum, UdpChecksum::Valid);
            prop_assert_eq!(&frame[parsed.payload()], &payload[..]);
            parsed.turn(&mut frame);
            let answer = UdpFrame::parse(&frame).unwrap();
            prop_assert_eq!((answer.source, answer.destination), (destination, source));
            prop_assert_eq!(&frame[..12], &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            prop_assert_eq!(&frame[answer.payload()], &payload[..]);
        }

        #[test]
        fn a_changed_bit_is_noticed_unless_a_checksum_does_not_cover_it(
            (source, destination) in addresses(),
            payload in prop::collection::vec(any::<u8>(), 1..100),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            let mut frame = build::frame(source, destination, &payload);
            let at = 14 + at.index(frame.len() - 14);
            frame[at] ^= 1 << bit;
            // IPv6 has no checksum of its header; UDP's covers the addresses, the length and the protocol only.
            let is_covered = source.is_ipv4() || at >= 22 || at == 20;
            if is_covered && let Ok(parsed) = UdpFrame::parse(&frame) {
                // The checksum field itself: zero, or the other states' value.
                prop_assert_ne!(parsed.checksum, UdpChecksum::Valid);
            }
        }

        #[test]
        fn a_frame_that_is_cut_off_is_refused(
            (source, destination) in addresses(),
            payload in prop::collection::vec(any::<u8>(), 0..100),
            length in any::<prop::sample::Index>(),
        ) {
            let frame = build::frame(source, destination, &payload);
            prop_assert!(UdpFrame::parse(&frame[..length.index(frame.len())]).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>()) {
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }.to_be_bytes());
            }
            if let Ok(parsed) = UdpFrame::parse(&bytes) {
                parsed.turn(&mut bytes);
            }
        }
    }

    const FROM: &str = "192.0.2.1:1000";
    const TO: &str = "192.0.2.2:2000";

    fn frame() -> Vec<u8> {
        build::frame(FROM.parse().unwrap(), TO.parse().unwrap(), b"request")
    }

    #[test]
    fn a_partial_checksum_is_accepted_and_completed_in_the_answer() {
        let mut frame = frame();
        let parsed = UdpFrame::parse(&frame).unwrap();
        let complete = frame[parsed.checksum_at()..parsed.checksum_at() + 2].to_vec();
        let pseudo = fold(pseudo_header(parsed.source.ip(), parsed.destination.ip(), 15));
        frame[parsed.checksum_at()..parsed.checksum_at() + 2].copy_from_slice(&pseudo.to_be_bytes());
        let parsed = UdpFrame::parse(&frame).unwrap();
        assert_eq!(parsed.checksum, UdpChecksum::Partial);
        parsed.turn(&mut frame);
        assert_eq!(UdpFrame::parse(&frame).unwrap().checksum, UdpChecksum::Valid);
        assert_eq!(frame[parsed.checksum_at()..parsed.checksum_at() + 2], complete);
    }

    #[test]
    fn an_absent_checksum_is_valid_for_ipv4_only() {
        let mut frame = frame();
        frame[40..42].fill(0);
        assert_eq!(UdpFrame::parse(&frame).unwrap().checksum, UdpChecksum::Absent);
        let mut v6 = build::frame("[2001:db8::1]:1".parse().unwrap(), "[2001:db8::2]:2".parse().unwrap(), b"request");
        v6[60..62].fill(0);
        assert_eq!(UdpFrame::parse(&v6), Err(FrameError::WrongUdpChecksum));
    }

    #[test]
    fn other_frames_are_refused_by_their_reason() {
        let changed = |at: usize, value: u8| {
            let mut frame = frame();
            frame[at] = value;
            // The checksum of the IP header agrees again.
            frame[24..26].fill(0);
            let checksum = checksum_field(sum(&frame[14..34]));
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            UdpFrame::parse(&frame).unwrap_err()
        };
        assert_eq!(changed(13, 0x06), FrameError::NotIp(0x0806));
        assert_eq!(changed(23, 6), FrameError::NotUdp(6));
        assert_eq!(changed(20, 0x20), FrameError::Fragment);
        assert_eq!(changed(17, 255), FrameError::WrongLength);
        assert_eq!(changed(14, 0x44), FrameError::WrongLength);
        assert_eq!(changed(39, 14), FrameError::WrongLength);
        let mut wrong = frame();
        wrong[24] ^= 1;
        assert_eq!(UdpFrame::parse(&wrong), Err(FrameError::WrongIpChecksum));
        assert_eq!(UdpFrame::parse(&wrong[..20]), Err(FrameError::TooShort(20)));
    }
}
