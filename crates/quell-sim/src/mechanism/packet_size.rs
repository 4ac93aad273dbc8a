//! Sizes of packets on the wire. Adaptive interrupt moderation compares their sums before it compares anything else.
//! Sizes are drawn at the end of a window, so that modes without interrupts draw none.

use super::PacketKind;
use crate::engine::{Purpose, RandomStream};

/// Sizes of a workload's packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacketSizes {
    /// Size of a request without a value, in bytes.
    pub request_bytes: u32,
    /// Size of a response with an empty value, in bytes.
    pub response_bytes: u32,
    /// Size of an acknowledgement without data, and of the response to a request that writes a value, in bytes.
    pub ack_bytes: u32,
    /// Values in the packets. `None` if all packets of a kind have the same size.
    pub values: Option<StoredValues>,
}

/// Values that requests write and responses return. Their sizes follow a generalized Pareto distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredValues {
    /// Share of the requests that write a value.
    pub written_share: f64,
    /// Scale of the distribution, in bytes.
    pub scale_bytes: f64,
    /// Shape of the distribution: below 1 and not 0.
    pub shape: f64,
}

impl PacketSizes {
    /// One byte in each direction, with the headers of Ethernet, IPv4 and TCP with timestamps.
    pub const ONE_BYTE: Self = Self { request_bytes: 67, response_bytes: 67, ack_bytes: 66, values: None };

    fn request(&self, random: &mut RandomStream) -> u64 {
        u64::from(self.request_bytes)
            + self.values.filter(|values| random.unit() < values.written_share).map_or(0, |values| values.draw(random))
    }

    fn response(&self, random: &mut RandomStream) -> u64 {
        match self.values {
            Some(values) if random.unit() < values.written_share => self.ack_bytes.into(),
            Some(values) => u64::from(self.response_bytes) + values.draw(random),
            None => self.response_bytes.into(),
        }
    }
}

impl StoredValues {
    fn draw(self, random: &mut RandomStream) -> u64 {
        random.generalised_pareto(self.scale_bytes, self.shape) as u64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PacketCounts {
    pub(crate) requests: u64,
    pub(crate) acks: u64,
    pub(crate) responses: u64,
}

impl PacketCounts {
    pub(crate) fn received(kinds: impl Iterator<Item = PacketKind>) -> Self {
        kinds.fold(Self::default(), |counts, kind| match kind {
            PacketKind::Ack => Self { acks: counts.acks + 1, ..counts },
            _ => Self { requests: counts.requests + 1, ..counts },
        })
    }

    pub(crate) fn add(&mut self, others: Self) {
        self.requests += others.requests;
        self.acks += others.acks;
        self.responses += others.responses;
    }

    pub(crate) fn all(self) -> u64 {
        self.requests + self.acks + self.responses
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PacketSizer {
    sizes: PacketSizes,
    random: RandomStream,
}

impl PacketSizer {
    pub(crate) fn new(sizes: PacketSizes, seed: u64) -> Self {
        Self { sizes, random: RandomStream::new(seed, Purpose::Sizes) }
    }

    /// Draws the sum of the sizes of these packets, in bytes.
    pub(crate) fn draw(&mut self, packets: PacketCounts) -> u64 {
        let Self { sizes, random } = self;
        let requests: u64 = (0..packets.requests).map(|_| sizes.request(random)).sum();
        let responses: u64 = (0..packets.responses).map(|_| sizes.response(random)).sum();
        requests + responses + packets.acks * u64::from(sizes.ack_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_contain_values_and_a_few_requests_write_them() {
        const COUNT: u64 = 100_000;
        let values = StoredValues { written_share: 0.03, scale_bytes: 200.0, shape: 0.35 };
        let sizes = PacketSizes { request_bytes: 100, response_bytes: 130, ack_bytes: 66, values: Some(values) };
        let mut sizer = PacketSizer::new(sizes, 1);
        let mut mean = |counts| sizer.draw(counts) as f64 / COUNT as f64;
        let value = 200.0 / (1.0 - 0.35);
        let request = mean(PacketCounts { requests: COUNT, ..PacketCounts::default() });
        assert!((request / (100.0 + 0.03 * value) - 1.0).abs() < 0.05, "{request}");
        let response = mean(PacketCounts { responses: COUNT, ..PacketCounts::default() });
        assert!((response / (0.97 * (130.0 + value) + 0.03 * 66.0) - 1.0).abs() < 0.05, "{response}");
        assert_eq!(mean(PacketCounts { acks: COUNT, ..PacketCounts::default() }), 66.0);
    }
}
