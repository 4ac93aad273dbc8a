//! The blocks of an experiment: which blocks count, and the values that their slices give for a pair of arms.

use std::collections::BTreeMap;

use quell_stats::LatencyHistogram;

use crate::analysis::WhyUndecided;
use crate::design::{CONTROL, MIN_BLOCKS, REFERENCE};
use crate::latency_counts::LatencyCounts;
use crate::observation::{SliceFlag, SliceObservation, SliceRecord};
use crate::permutation::{ContrastBlock, stratified_z};

/// Maximum share of blocks that may be dropped because other programs disturbed them.
const DROPPED_MAX: f64 = 0.25;

/// Minimum number of requests beyond a quantile. With fewer requests, the quantile has no value.
pub(crate) const BEYOND_MIN: f64 = 5.0;

/// Expected number of requests beyond a quantile in a typical slice. The excess over [`BEYOND_MIN`] allows for slices
/// with fewer requests.
const BEYOND_TYPICAL: f64 = 6.0;

/// The blocks that count in the analysis.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    /// Observations of each block, by arm.
    blocks: Vec<BTreeMap<usize, &'a SliceObservation>>,
    /// Numbers of the blocks that were dropped because they were disturbed.
    pub(crate) dropped: Vec<u32>,
}

/// The arms of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) treatment: usize,
    pub(crate) against: usize,
}

impl Pair {
    pub(crate) const CONTROL: Self = Self { treatment: CONTROL, against: REFERENCE };

    /// Arms that the treatment is compared with. For the reference, these are both of its arms.
    fn against(&self) -> &[usize] {
        match *self {
            Self::CONTROL => &[REFERENCE],
            Self { against: REFERENCE, .. } => &[REFERENCE, CONTROL],
            _ => std::slice::from_ref(&self.against),
        }
    }
}

impl<'a> Blocks<'a> {
    /// Drops the most disturbed blocks. In such a block, the CPU share of other programs differs between slices by more
    /// than `foreign_cpu_range_max`. At most a quarter of all blocks is dropped. The rule ignores which slice had which
    /// treatment, so it favors no treatment.
    pub(crate) fn new(slices: &'a [SliceRecord], blocks: u32, foreign_cpu_range_max: f64) -> Self {
        let mut by_block: BTreeMap<u32, BTreeMap<usize, &SliceObservation>> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice.block < blocks) {
            by_block.entry(slice.block).or_default().insert(slice.arm, &slice.observation);
        }
        let mut ranges: Vec<(f64, u32)> = by_block
            .iter()
            .map(|(at, block)| (foreign_cpu_range(block), *at))
            .filter(|(range, _)| *range > foreign_cpu_range_max)
            .collect();
        ranges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        ranges.truncate((by_block.len() as f64 * DROPPED_MAX) as usize);
        for (_, block) in &ranges {
            by_block.remove(block);
        }
        Self { blocks: by_block.into_values().collect(), dropped: ranges.into_iter().map(|(_, at)| at).collect() }
    }

    /// Values of a pair in each block that has the treatment and at least one slice to compare it with.
    fn of_pair(&self, pair: Pair, value: impl Fn(&SliceObservation) -> Option<f64>) -> Vec<ContrastBlock> {
        self.of_groups(1, pair, |slices| slices.first().and_then(|slice| value(slice)))
    }

    /// Values of a pair in each group of consecutive blocks. A value is computed from the slices of one arm. As in
    /// single blocks, each exchange of arms was equally probable, because the blocks were ordered independently.
    fn of_groups(
        &self,
        blocks: usize,
        pair: Pair,
        value: impl Fn(&[&'a SliceObservation]) -> Option<f64>,
    ) -> Vec<ContrastBlock> {
        let of_group = |group: &[BTreeMap<usize, &'a SliceObservation>]| {
            let of_arm = |arm: usize| {
                let slices: Vec<_> = group.iter().filter_map(|block| block.get(&arm).copied()).collect();
                value(&slices)
            };
            let against: Vec<f64> = pair.against().iter().filter_map(|arm| of_arm(*arm)).collect();
            Some(ContrastBlock { treatment: of_arm(pair.treatment)?, against })
        };
        self.blocks.chunks_exact(blocks).filter_map(of_group).filter(|block| !block.against.is_empty()).collect()
    }

    pub(crate) fn metric(&self, pair: Pair, name: &str) -> Vec<ContrastBlock> {
        self.of_pair(pair, |slice| slice.metric(name))
    }

    /// A latency quantile of each slice. If a slice has too few requests beyond the quantile, slices of consecutive
    /// blocks are combined, as few as possible.
    pub(crate) fn latency_quantile(&self, pair: Pair, quantile: f64) -> Result<Vec<ContrastBlock>, WhyUndecided> {
        let latencies = || self.blocks.iter().flat_map(BTreeMap::values).filter_map(|slice| slice.latency.as_ref());
        let requests: u64 = latencies().map(LatencyCounts::count).sum();
        let beyond_per_slice = requests as f64 * (1.0 - quantile) / latencies().count().max(1) as f64;
        let group = (BEYOND_TYPICAL / beyond_per_slice).ceil().max(1.0);
        if requests > 0 && self.blocks.len() as f64 / group < f64::from(MIN_BLOCKS) {
            let beyond = (beyond_per_slice * self.blocks.len() as f64) as u32;
            return Err(WhyUndecided::TooFewRequests { beyond, needed: BEYOND_TYPICAL as u32 * MIN_BLOCKS });
        }
        Ok(self.of_groups(group.min(self.blocks.len().max(1) as f64) as usize, pair, |slices| {
            let latencies = slices.iter().filter_map(|slice| slice.latency.as_ref());
            LatencyCounts::quantile_of(latencies, quantile, BEYOND_MIN).map(|ns| ns as f64)
        }))
    }

    /// Latencies of all slices of the given arms together.
    pub(crate) fn pooled_latency(&self, arms: &[usize]) -> LatencyHistogram {
        let mut pooled = LatencyHistogram::new();
        let slices = self.blocks.iter().flat_map(|block| arms.iter().filter_map(|arm| block.get(arm)));
        slices.filter_map(|slice| slice.latency.as_ref()).for_each(|latency| latency.add_to(&mut pooled));
        pooled
    }

    /// Latency slots of the given arms in each block.
    pub(crate) fn latencies_of<'b>(&'b self, arms: &'b [usize]) -> impl Iterator<Item = Vec<(u64, u32)>> + 'b {
        self.blocks.iter().map(move |block| {
            let slices = arms.iter().filter_map(|arm| block.get(arm)?.latency.as_ref());
            slices.flat_map(LatencyCounts::slots).copied().collect()
        })
    }

    /// Whether one of a pair has a flag more often than chance explains: the treatment, or the other one. These are
    /// one-sided tests at 5 % without correction for multiple tests, because a missed flag is worse than a false one.
    pub(crate) fn flagged_more_often(&self, pair: Pair, flag: SliceFlag) -> Option<FlaggedArm> {
        let indicator = |slice: &SliceObservation| Some(f64::from(u8::from(slice.flags.contains(&flag))));
        match stratified_z(self.of_pair(pair, indicator)) {
            z if z > 1.645 => Some(FlaggedArm::Treatment),
            z if z < -1.645 => Some(FlaggedArm::Against),
            _ => None,
        }
    }
}

/// The one of a pair that has a flag more often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlaggedArm {
    Treatment,
    Against,
}

/// Difference between the largest and the smallest CPU share of other programs in a block; 0 if the share is unknown.
fn foreign_cpu_range(block: &BTreeMap<usize, &SliceObservation>) -> f64 {
    let shares = || block.values().filter_map(|slice| slice.foreign_cpu);
    let low = shares().fold(f64::INFINITY, f64::min);
    let high = shares().fold(f64::NEG_INFINITY, f64::max);
    (high - low).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(block: u32, arm: usize, foreign_cpu: Option<f64>) -> SliceRecord {
        let observation = SliceObservation { foreign_cpu, ..SliceObservation::default() };
        SliceRecord { block, arm, observation: observation.with_metric("cpu", Some((arm + 1) as f64)) }
    }

    #[test]
    fn the_most_disturbed_blocks_are_dropped_whole_and_at_most_a_quarter() {
        let share = |block: u32, arm: usize| 0.4 + f64::from(block) * 0.05 * arm as f64;
        let slices: Vec<_> = (0..8).flat_map(|block| (0..3).map(move |arm| (block, arm))).collect();
        let slices: Vec<_> = slices.iter().map(|(block, arm)| slice(*block, *arm, Some(share(*block, *arm)))).collect();
        let blocks = Blocks::new(&slices, 8, 0.25);
        assert_eq!((blocks.blocks.len(), blocks.dropped.len()), (6, 2));
        assert_eq!(Blocks::new(&slices, 8, 1.0).dropped.len(), 0);
        assert_eq!(Blocks::new(&slices, 4, 0.25).dropped.len(), 1);
    }

    #[test]
    fn a_high_share_that_is_the_same_in_the_whole_block_drops_nothing() {
        let slices: Vec<_> = (0..12).map(|at| slice(at / 3, at as usize % 3, Some(0.9))).collect();
        assert_eq!(Blocks::new(&slices, 4, 0.1).dropped.len(), 0);
    }

    #[test]
    fn a_block_without_the_treatment_or_without_its_counterpart_does_not_count() {
        let slices = [(0, 2), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 1), (3, 2)]
            .map(|(block, arm)| slice(block, arm, None));
        let blocks = Blocks::new(&slices, 4, 0.1);
        let values = blocks.metric(Pair { treatment: 2, against: REFERENCE }, "cpu");
        let block = |against: &[f64]| ContrastBlock { treatment: 3.0, against: against.to_vec() };
        assert_eq!(values, [block(&[1.0]), block(&[1.0, 2.0])]);
        assert_eq!(blocks.metric(Pair { treatment: 2, against: REFERENCE }, "no such metric"), []);
    }

    /// Slices of three arms with `requests` latencies each. Later blocks are slower.
    fn with_latencies(blocks: u32, requests: u64) -> Vec<SliceRecord> {
        let of_slice = |at: u32| {
            let mut record = slice(at / 3, at as usize % 3, None);
            let mut histogram = LatencyHistogram::new();
            (0..requests).for_each(|request| histogram.record(1000 + request + u64::from(at)));
            record.observation.latency = Some(LatencyCounts::from(&histogram));
            record
        };
        (0..3 * blocks).map(of_slice).collect()
    }

    #[test]
    fn a_quantile_uses_single_slices_or_else_the_fewest_blocks_with_enough_requests() {
        let pair = Pair { treatment: 2, against: REFERENCE };
        let values = |quantile: f64| Blocks::new(&with_latencies(12, 400), 12, 0.1).latency_quantile(pair, quantile);
        let of_slices = values(0.5).unwrap();
        assert_eq!(of_slices.len(), 12);
        assert_eq!(of_slices[1], ContrastBlock { treatment: 1204.0, against: vec![1202.0, 1203.0] });
        assert_eq!(values(0.98).unwrap().len(), 12, "8 requests of a slice are slower");
        assert_eq!(values(0.99).unwrap().len(), 6, "8 requests of two slices are slower");
        assert_eq!(values(0.995), Err(WhyUndecided::TooFewRequests { beyond: 24, needed: 36 }));
    }

    #[test]
    fn a_flag_counts_when_one_of_a_pair_has_it_more_often() {
        let flagged = |arms: &[usize], share: u32| {
            let mut slices: Vec<_> = (0..90).map(|at| slice(at / 3, at as usize % 3, None)).collect();
            for slice in slices.iter_mut().filter(|slice| arms.contains(&slice.arm) && slice.block < share) {
                slice.observation.flags.insert(SliceFlag::Saturated);
            }
            Blocks::new(&slices, 30, 0.1)
                .flagged_more_often(Pair { treatment: 2, against: REFERENCE }, SliceFlag::Saturated)
        };
        assert_eq!([0, 1, 5].map(|share| flagged(&[2], share)), [None, None, Some(FlaggedArm::Treatment)]);
        assert_eq!(flagged(&[0, 1], 9), Some(FlaggedArm::Against));
        assert_eq!(flagged(&[0, 1, 2], 30), None);
    }
}
