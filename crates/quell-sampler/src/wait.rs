//! Upper bounds of the time that packets waited in the ring, as a histogram weighted by packets. The bucket layout
//! mirrors `bucket_of` in `bpf/sampler.bpf.c`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A queue has stalled if nobody polls it for this long while its interrupt is masked, and the next poll finds packets.
/// It is longer than the default suspension timeout, 20 ms. `bpf/sampler.bpf.c` has the same value.
pub const STALLED_NS: u64 = 50_000_000;

pub(crate) const BUCKETS: usize = 224;
const UNIT_BITS: usize = 7;
const SUB_BITS: usize = 3;
const SUBS: usize = 1 << SUB_BITS;

/// Time that packets waited in the ring, at most. A poll that ends below its budget leaves the ring empty. What the next
/// poll finds waited at most the time between the ends of the two, if the interrupt was masked between them.
///
/// Time in GRO, in a socket or for a thread is not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WaitBounds {
    /// Packets with a bound: the interrupt was masked while they could arrive.
    pub packets: u64,
    /// Packets without a bound, because the interrupt was enabled. Their wait is the interrupt's latency.
    pub interrupt_packets: u64,
    /// Mean of the bound in nanoseconds. If packets arrive evenly, their mean wait is half of it. Null without packets, and
    /// if more than a tenth of the polls that found some used their whole budget: then packets stay in the ring, and the
    /// bound grows without meaning.
    pub mean_ns: Option<u64>,
    /// Median of the bound in nanoseconds, rounded up by at most 12.5 %. Null as the mean.
    pub p50_ns: Option<u64>,
    /// 90th percentile of the bound, likewise.
    pub p90_ns: Option<u64>,
    /// 99th percentile of the bound, likewise.
    pub p99_ns: Option<u64>,
    /// Maximum of the bound, likewise.
    pub max_ns: Option<u64>,
    /// Polls that found packets after 50 ms or more without a poll, with the interrupt masked.
    pub stalled_polls: u64,
}

impl WaitBounds {
    /// Whether a poll found packets after [`STALLED_NS`] without a poll. The bound alone does not show this: it grows
    /// while polls use their whole budget.
    #[must_use]
    pub fn has_stalled(&self) -> bool {
        self.stalled_polls > 0
    }

    /// The same without the figures of the bound.
    pub(crate) fn without_bound(self) -> Self {
        Self { mean_ns: None, p50_ns: None, p90_ns: None, p99_ns: None, max_ns: None, ..self }
    }

    /// Summarizes a histogram whose packets waited `sum_ns` in total.
    pub(crate) fn of(buckets: &[u64; BUCKETS], sum_ns: u64, interrupt_packets: u64) -> Self {
        let packets: u64 = buckets.iter().sum();
        Self {
            packets,
            interrupt_packets,
            mean_ns: sum_ns.checked_div(packets),
            p50_ns: quantile(buckets, packets, 50),
            p90_ns: quantile(buckets, packets, 90),
            p99_ns: quantile(buckets, packets, 99),
            max_ns: quantile(buckets, packets, 100),
            stalled_polls: 0,
        }
    }
}

/// Upper edge of the bucket that contains the packet of this rank.
fn quantile(buckets: &[u64; BUCKETS], packets: u64, percent: u64) -> Option<u64> {
    let rank = (u128::from(packets) * u128::from(percent)).div_ceil(100);
    let mut seen = 0;
    let reaches = |&packets: &u64| {
        seen += u128::from(packets);
        seen >= rank
    };
    if packets == 0 { None } else { buckets.iter().position(reaches).map(upper_edge_ns) }
}

/// End of a bucket in nanoseconds: the start of the next one.
fn upper_edge_ns(bucket: usize) -> u64 {
    let next = bucket + 1;
    let units = match next / SUBS {
        0 => next as u64,
        octave => ((SUBS + next % SUBS) as u64) << (octave - 1),
    };
    units << UNIT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_edges_rise_by_at_most_an_eighth() {
        let edges: Vec<u64> = (0..BUCKETS).map(upper_edge_ns).collect();
        assert_eq!(edges[..9], [128, 256, 384, 512, 640, 768, 896, 1024, 1152]);
        assert_eq!(edges[15..18], [2048, 2304, 2560]);
        for pair in edges[SUBS..].windows(2) {
            assert!(pair[1] > pair[0] && pair[1] - pair[0] <= pair[0] / 8, "{pair:?}");
        }
        assert!(edges[BUCKETS - 1] > 100_000_000_000, "longer than any suspension: {}", edges[BUCKETS - 1]);
    }

    #[test]
    fn quantiles_are_weighted_by_packets() {
        let mut buckets = [0; BUCKETS];
        (buckets[0], buckets[8], buckets[100]) = (60, 39, 1);
        let wait = WaitBounds::of(&buckets, 100_000, 7);
        assert_eq!((wait.packets, wait.interrupt_packets, wait.mean_ns), (100, 7, Some(1000)));
        assert_eq!((wait.p50_ns, wait.p99_ns, wait.max_ns), (Some(128), Some(1152), Some(upper_edge_ns(100))));
    }

    #[test]
    fn a_long_bound_is_no_stall_if_polls_followed_each_other() {
        let saturated = WaitBounds { max_ns: Some(4 * STALLED_NS), ..WaitBounds::default() };
        assert!(!saturated.has_stalled());
        assert!(WaitBounds { stalled_polls: 1, ..saturated }.has_stalled());
    }

    #[test]
    fn without_packets_there_is_no_bound() {
        let wait = WaitBounds::of(&[0; BUCKETS], 0, 3);
        assert_eq!((wait.mean_ns, wait.p50_ns, wait.max_ns), (None, None, None));
    }
}
