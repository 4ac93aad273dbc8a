//! Latency over quantiles, with a band that shows how much it depends on the blocks that happened to be measured.

use std::collections::BTreeMap;

use quell_stats::LatencyHistogram;
use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::blocks::{BEYOND_MIN, Blocks};
use crate::switchback::ExperimentRecord;

/// Number of times that the blocks are drawn again.
const RESAMPLES: usize = 200;
/// Share of the resamples that are below the band, and above it.
const OUTSIDE: f64 = 0.025;
/// Points for each nine of the quantile.
const POINTS_PER_NINE: f64 = 8.0;

/// Latency at a quantile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyCurvePoint {
    /// Quantile, at least 0 and below 1.
    pub quantile: f64,
    /// Latency of all requests, in ns.
    pub ns: u64,
    /// Lower end of the latencies in 95 % of the resamples, in ns.
    pub low_ns: u64,
    /// Upper end, likewise.
    pub high_ns: u64,
}

/// Latencies of a treatment in the blocks that count, from the smallest to the last quantile that 5 requests
/// exceed. The band is the bootstrap of whole blocks, so that what disturbs a block widens it. Empty without latencies.
#[must_use]
pub fn latency_curve<S>(record: &ExperimentRecord<S>, treatment: &str) -> Vec<LatencyCurvePoint> {
    let blocks = BlockCounts::of(record, treatment);
    let mut all = vec![0; blocks.ns.len()];
    blocks.counts.iter().for_each(|block| add(block, &mut all));
    let requests: u64 = all.iter().sum();
    if requests == 0 {
        return Vec::new();
    }
    let last = (requests as f64 / BEYOND_MIN).log10().max(0.0);
    let quantiles: Vec<f64> = (0..=(last * POINTS_PER_NINE) as u32)
        .map(|step| 1.0 - 10f64.powf(-f64::from(step) / POINTS_PER_NINE))
        .collect();
    let mut random = Pcg64::new(u128::from(record.design.seed), 0);
    let mut resampled: Vec<Vec<u64>> = vec![Vec::with_capacity(RESAMPLES); quantiles.len()];
    for _ in 0..RESAMPLES {
        let mut counts = vec![0; blocks.ns.len()];
        for _ in 0..blocks.counts.len() {
            add(&blocks.counts[random.random_range(0..blocks.counts.len())], &mut counts);
        }
        let at = blocks.latencies(&counts, &quantiles);
        resampled.iter_mut().zip(at).for_each(|(of_quantile, ns)| of_quantile.push(ns));
    }
    let end = |of_quantile: &[u64], share: f64| of_quantile[((RESAMPLES - 1) as f64 * share).round() as usize];
    let points = quantiles.iter().zip(blocks.latencies(&all, &quantiles)).zip(resampled);
    points
        .map(|((quantile, ns), mut of_quantile)| {
            of_quantile.sort_unstable();
            let (low, high) = (end(&of_quantile, OUTSIDE), end(&of_quantile, 1.0 - OUTSIDE));
            LatencyCurvePoint { quantile: *quantile, ns, low_ns: low.min(ns), high_ns: high.max(ns) }
        })
        .collect()
}

/// All latencies of a treatment in the blocks that count, as [`latency_curve`] has them.
#[must_use]
pub fn pooled_latency<S>(record: &ExperimentRecord<S>, treatment: &str) -> LatencyHistogram {
    blocks_of(record).pooled_latency(&record.design.arms_of(treatment))
}

/// Numbers of the blocks that were dropped, because other programs disturbed their slices unequally.
#[must_use]
pub fn disturbed_blocks<S>(record: &ExperimentRecord<S>) -> Vec<u32> {
    blocks_of(record).dropped
}

fn blocks_of<S>(record: &ExperimentRecord<S>) -> Blocks<'_> {
    let complete = record.spent_ms_after_each_block().len() as u32;
    Blocks::new(&record.slices, complete, record.design.foreign_cpu_range_max)
}

/// Latencies of each block as counts of the slots that occur in any.
struct BlockCounts {
    /// Upper ends of the slots in ns, in ascending order.
    ns: Vec<u64>,
    /// For each block, indices of slots and their counts.
    counts: Vec<Vec<(usize, u64)>>,
}

impl BlockCounts {
    fn of<S>(record: &ExperimentRecord<S>, treatment: &str) -> Self {
        let arms = record.design.arms_of(treatment);
        let blocks = blocks_of(record);
        let latencies: Vec<Vec<(u64, u32)>> = blocks.latencies_of(&arms).collect();
        let slots: BTreeMap<u64, ()> = latencies.iter().flatten().map(|(ns, _)| (*ns, ())).collect();
        let ns: Vec<u64> = slots.into_keys().collect();
        let index = |slot: u64| ns.partition_point(|other| *other < slot);
        let counts = latencies
            .iter()
            .filter(|block| !block.is_empty())
            .map(|block| block.iter().map(|(slot, count)| (index(*slot), u64::from(*count))).collect())
            .collect();
        Self { counts, ns }
    }

    /// Latency at each quantile, which ascend.
    fn latencies(&self, counts: &[u64], quantiles: &[f64]) -> Vec<u64> {
        let requests: u64 = counts.iter().sum();
        let (mut slot, mut up_to) = (0, counts[0]);
        let mut at = |quantile: f64| {
            let rank = ((requests as f64 * quantile).ceil() as u64).max(1);
            while up_to < rank && slot + 1 < counts.len() {
                slot += 1;
                up_to += counts[slot];
            }
            self.ns[slot]
        };
        quantiles.iter().map(|quantile| at(*quantile)).collect()
    }
}

fn add(block: &[(usize, u64)], counts: &mut [u64]) {
    block.iter().for_each(|(slot, count)| counts[*slot] += count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::{Criterion, ExperimentDesign, Treatment};
    use crate::latency_counts::LatencyCounts;
    use crate::observation::SliceObservation;
    use crate::switchback::Switchback;

    /// Latencies of 1,000 requests in each slice: 1 to 1,000 ns, in every `slow`th block 1,000 ns more.
    fn record(slow: u32) -> ExperimentRecord<()> {
        let treatment = |name: &str| Treatment { name: name.to_owned(), setting: () };
        let criteria = vec![Criterion::Latency { quantile: 0.5 }];
        let mut design = ExperimentDesign::new(treatment("base"), vec![treatment("other")], criteria, 1);
        design.budget_ms = 12 * design.block_ms();
        let mut switchback = Switchback::new(design).unwrap();
        while let Some(next) = switchback.next_slice() {
            let mut latency = LatencyHistogram::new();
            let later = if slow > 0 && next.block % slow == 0 { 1_000 } else { 0 };
            (1..=1_000).for_each(|ns| latency.record(ns + later));
            let latency = Some(LatencyCounts::from(&latency));
            switchback.record(SliceObservation { spent_ms: 210.0, latency, ..Default::default() }).unwrap();
        }
        switchback.finish().0
    }

    #[test]
    fn a_curve_ascends_to_the_last_quantile_that_enough_requests_exceed() {
        let record = record(0);
        let curve = latency_curve(&record, "other");
        let requests = pooled_latency(&record, "other").count();
        let last = curve.last().unwrap();
        assert!(requests as f64 * (1.0 - last.quantile) >= BEYOND_MIN, "{last:?} of {requests}");
        assert!(curve.windows(2).all(|pair| pair[0].quantile < pair[1].quantile && pair[0].ns <= pair[1].ns));
    }

    #[test]
    fn the_band_contains_the_curve_and_is_wide_where_blocks_differ() {
        let width = |curve: &[LatencyCurvePoint]| curve.iter().map(|point| point.high_ns - point.low_ns).max();
        let (alike, unlike) = (latency_curve(&record(0), "base"), latency_curve(&record(3), "base"));
        assert!(alike.iter().chain(&unlike).all(|point| (point.low_ns..=point.high_ns).contains(&point.ns)));
        assert!(width(&unlike) > width(&alike).map(|ns| ns + 500), "{:?} {:?}", width(&unlike), width(&alike));
    }

    #[test]
    fn a_treatment_without_latencies_has_no_curve() {
        assert_eq!(latency_curve(&record(2), "no such treatment"), []);
    }
}
