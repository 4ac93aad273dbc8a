//! The permutation test of a randomized block design. The order within a block is random. Without a difference, every
//! assignment of the treatments to slices was therefore equally probable, regardless of the machine's noise. The test
//! compares the scores of the slices within their blocks with those of all assignments (Pitman, Biometrika 29, 1938).

use libm::erfc;

/// Values of one block: the value of the treatment's slice, and the values that it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContrastBlock {
    pub(crate) treatment: f64,
    pub(crate) against: Vec<f64>,
}

/// Maximum number of blocks for which assignments are counted exactly. With more blocks, the normal approximation is
/// used.
const EXACT_BLOCKS_MAX: usize = 20;

/// Maximum log ratio at the end of an interval, which is a ratio of 9 million.
const LOG_RATIO_MAX: f64 = 16.0;

/// Absolute precision of log ratios.
const TOLERANCE: f64 = 1e-6;

/// Standardized sum over all blocks of the treatment's score minus the block's mean score. It has about a standard
/// normal distribution if the treatment makes no difference. It is 0 if the scores within each block are equal.
pub(crate) fn stratified_z(blocks: impl IntoIterator<Item = ContrastBlock>) -> f64 {
    let (mut sum, mut variance) = (0.0, 0.0);
    for block in blocks {
        let slices = (1 + block.against.len()) as f64;
        let mean = (block.treatment + block.against.iter().sum::<f64>()) / slices;
        let square = |score: &f64| (score - mean) * (score - mean);
        sum += block.treatment - mean;
        variance += block.against.iter().chain([&block.treatment]).map(square).sum::<f64>() / slices;
    }
    if variance > 0.0 { sum / variance.sqrt() } else { 0.0 }
}

/// Exact version of [`stratified_z`] for ranks. It returns the z whose tail probability equals that of a rank sum as
/// extreme as the observed one. The distribution of the sum is convolved from block to block (Pagano and Tritchler,
/// Journal of the American Statistical Association 78, 1983).
fn exact_z(blocks: &[ContrastBlock]) -> f64 {
    let mut probabilities = vec![1.0];
    let mut observed = 0;
    for block in blocks {
        // Mean ranks of ties are multiples of one half, so doubled ranks are integers.
        let doubled = |rank: f64| (2.0 * rank).round() as usize;
        let ranks = || block.against.iter().chain([&block.treatment]).map(|rank| doubled(*rank));
        let (low, high) = ranks().fold((usize::MAX, 0), |(low, high), rank| (low.min(rank), high.max(rank)));
        let mut next = vec![0.0; probabilities.len() + high - low];
        for rank in ranks() {
            for (sum, probability) in next[rank - low..].iter_mut().zip(&probabilities) {
                *sum += probability / (1 + block.against.len()) as f64;
            }
        }
        probabilities = next;
        observed += doubled(block.treatment) - low;
    }
    let at_most: f64 = probabilities[..=observed].iter().sum();
    let at_least: f64 = probabilities[observed..].iter().sum();
    let z = upper_quantile(at_most.min(at_least).min(0.5));
    if at_most < at_least { -z } else { z }
}

/// P(Z > z) for a standard normal Z.
pub(crate) fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// The z for which P(Z > z) equals `probability`, which is at most ½.
#[must_use]
pub fn upper_quantile(probability: f64) -> f64 {
    bisect(0.0, 40.0, 1e-12, |z| upper_tail(z) > probability)
}

/// Logarithms of a metric, compared by aligned ranks (Hodges and Lehmann, Annals of Mathematical Statistics 33, 1962).
/// The mean of its block is subtracted from each value, and then all values are ranked together. Only the rank of an
/// outlier matters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogValues {
    blocks: Vec<ContrastBlock>,
    /// Whether all values of the treatment are 0.
    treatment_is_0: bool,
}

impl LogValues {
    /// Takes logarithms. A value of 0 counts as half of the smallest positive value. Returns `None` if there is no
    /// positive value.
    pub(crate) fn new(mut blocks: Vec<ContrastBlock>) -> Option<Self> {
        let values = blocks.iter().flat_map(|block| block.against.iter().chain([&block.treatment])).copied();
        let smallest = values.filter(|value| *value > 0.0).min_by(f64::total_cmp)?;
        let treatment_is_0 = blocks.iter().all(|block| block.treatment == 0.0);
        let log = |value: f64| if value > 0.0 { value.ln() } else { (smallest / 2.0).ln() };
        for block in &mut blocks {
            block.treatment = log(block.treatment);
            block.against.iter_mut().for_each(|value| *value = log(*value));
        }
        Some(Self { blocks, treatment_is_0 })
    }

    /// Standardized statistic for the hypothesis that the log ratio is `shift`. It does not increase with `shift`.
    pub(crate) fn z(&self, shift: f64) -> f64 {
        let ranks = self.aligned_ranks(shift);
        if ranks.len() <= EXACT_BLOCKS_MAX { exact_z(&ranks) } else { stratified_z(ranks) }
    }

    /// Ranks of the values, after the treatment's values are divided by the ratio of the hypothesis.
    fn aligned_ranks(&self, shift: f64) -> Vec<ContrastBlock> {
        let mut aligned: Vec<(f64, usize)> = Vec::with_capacity(self.blocks.len() * 3);
        for block in &self.blocks {
            let treatment = block.treatment - shift;
            let mean = (treatment + block.against.iter().sum::<f64>()) / (1 + block.against.len()) as f64;
            aligned.push((treatment - mean, aligned.len()));
            for value in &block.against {
                aligned.push((value - mean, aligned.len()));
            }
        }
        let mut ranks = ranks(aligned).into_iter();
        let mut next = || ranks.next().unwrap_or_default();
        let of_block = |block: &ContrastBlock| {
            let treatment = next();
            ContrastBlock { treatment, against: block.against.iter().map(|_| next()).collect() }
        };
        self.blocks.iter().map(of_block).collect()
    }

    /// Whether all values of the treatment are 0. The estimate is then only an upper bound of the ratio.
    pub(crate) fn treatment_is_0(&self) -> bool {
        self.treatment_is_0
    }

    /// Geometric mean of the values of the treatment, or of the other one, if that is smaller.
    pub(crate) fn smaller_level(&self) -> f64 {
        let mean = |sum: f64, count: usize| sum / count as f64;
        let treatment = mean(self.blocks.iter().map(|block| block.treatment).sum(), self.blocks.len());
        let against = || self.blocks.iter().flat_map(|block| &block.against);
        treatment.min(mean(against().sum(), against().count())).exp()
    }

    /// Log ratio at which the statistic is 0, which is the estimate of Hodges and Lehmann.
    pub(crate) fn estimate(&self) -> f64 {
        let differences = self
            .blocks
            .iter()
            .flat_map(|block| block.against.iter().map(|value| block.treatment - value))
            .collect::<Vec<_>>();
        let low = differences.iter().copied().fold(f64::INFINITY, f64::min);
        let high = differences.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if high - low < 1e-12 {
            return low;
        }
        // The statistic is a step function. If it is 0 on an interval, the estimate is the middle of that interval.
        let excess = |shift| stratified_z(self.aligned_ranks(shift));
        let from = bisect(low, high, TOLERANCE, |shift| excess(shift) > 0.0);
        let to = bisect(from, high, TOLERANCE, |shift| excess(shift) >= 0.0);
        f64::midpoint(from, to)
    }
}

/// Standardized permutation statistic of a value beside others that were observed under equal conditions, block by block.
/// It is positive if the first values tend to be larger. It has about a standard normal distribution if the order within
/// each block is random. Returns `None` without a positive value.
#[must_use]
pub fn blocked_z(blocks: impl IntoIterator<Item = (f64, Vec<f64>)>) -> Option<f64> {
    let block = |(treatment, against)| ContrastBlock { treatment, against };
    Some(LogValues::new(blocks.into_iter().map(block).collect())?.z(0.0))
}

/// Ranks by value, from 1. Equal values share the mean of their ranks. The result is in the order of the indices.
fn ranks(mut values: Vec<(f64, usize)>) -> Vec<f64> {
    values.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < values.len() {
        let tied = values[from..].iter().take_while(|(value, _)| value - values[from].0 < 1e-12).count();
        let rank = from as f64 + (tied as f64 + 1.0) / 2.0;
        values[from..from + tied].iter().for_each(|(_, index)| ranks[*index] = rank);
        from += tied;
    }
    ranks
}

/// Confidence interval of a log ratio: the hypotheses that the test does not reject at the critical value `critical`.
/// An end is `None` if no hypothesis in its direction is rejected.
pub(crate) fn invert(estimate: f64, critical: f64, z: impl Fn(f64) -> f64) -> (Option<f64>, Option<f64>) {
    let end = |direction: f64| {
        let rejected = |distance: f64| z(estimate + direction * distance) * -direction > critical;
        let mut distance = 1e-3;
        while !rejected(distance) {
            distance *= 2.0;
            if distance > LOG_RATIO_MAX {
                return None;
            }
        }
        Some(estimate + direction * bisect(0.0, distance, TOLERANCE, |distance| !rejected(distance)))
    };
    (end(-1.0), end(1.0))
}

/// Finds the point at which `holds` changes from true at `low` to false at `high`.
pub(crate) fn bisect(mut low: f64, mut high: f64, tolerance: f64, holds: impl Fn(f64) -> bool) -> f64 {
    while high - low > tolerance {
        let middle = f64::midpoint(low, high);
        if holds(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(treatment: f64, against: &[f64]) -> ContrastBlock {
        ContrastBlock { treatment, against: against.to_vec() }
    }

    #[test]
    fn ties_share_the_mean_of_their_ranks() {
        assert_eq!(ranks(vec![(2.0, 0), (1.0, 1), (2.0, 2), (9.0, 3)]), [2.5, 1.0, 2.5, 4.0]);
    }

    #[test]
    fn the_variance_is_that_of_all_assignments() {
        // The scores are 0, 0 and 3. Over the three assignments, the treatment's score has mean 1 and variance 2.
        let z = stratified_z([block(3.0, &[0.0, 0.0])]);
        assert!((z - 2.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(stratified_z([block(1.0, &[1.0])]), 0.0);
    }

    #[test]
    fn the_exact_statistic_counts_all_assignments() {
        let lowest = |blocks: usize| vec![block(1.0, &[2.0, 3.0]); blocks];
        assert!((upper_tail(-exact_z(&lowest(6))) - 3.0_f64.powi(-6)).abs() < 1e-9);
        assert!(exact_z(&[block(2.0, &[2.0, 2.0])]).abs() < 1e-9);
        let mirrored: Vec<_> = (0..6).map(|_| block(3.0, &[2.0, 1.0])).collect();
        assert!((exact_z(&mirrored) + exact_z(&lowest(6))).abs() < 1e-9);
    }

    #[test]
    fn with_more_blocks_the_approximation_is_close_to_the_exact_statistic() {
        for factor in [0.99, 1.0, 1.01] {
            let noise = |at: u32| 1.0 + f64::from(at * 7919 % 101) / 1000.0;
            let blocks = (0..21).map(|at| block(factor * noise(3 * at), &[noise(3 * at + 1), noise(3 * at + 2)]));
            let ranks = LogValues::new(blocks.collect()).unwrap().aligned_ranks(0.0);
            let (exact, approximate) = (exact_z(&ranks), stratified_z(ranks));
            assert!((exact - approximate).abs() < 0.1, "{exact} {approximate}");
        }
    }

    #[test]
    fn a_constant_ratio_is_found_exactly_regardless_of_block_effects() {
        let blocks = (1..=20).map(|at| block(f64::from(at) * 0.8, &[f64::from(at); 2])).collect();
        let values = LogValues::new(blocks).unwrap();
        assert!((values.estimate().exp() - 0.8).abs() < 1e-6);
        let (low, high) = invert(values.estimate(), 2.0, |shift| values.z(shift));
        assert!((low.unwrap().exp() - 0.8).abs() < 1e-4 && (high.unwrap().exp() - 0.8).abs() < 1e-4);
    }

    #[test]
    fn an_interval_from_too_few_blocks_has_no_ends() {
        let values = LogValues::new(vec![block(1.0, &[2.0, 3.0]), block(1.0, &[1.5, 4.0])]).unwrap();
        assert_eq!(invert(values.estimate(), 2.5, |shift| values.z(shift)), (None, None));
    }

    #[test]
    fn one_outlier_moves_the_estimate_no_further_than_another_value_of_its_rank() {
        let noise = |at: u32| 1.0 + f64::from(at * 7919 % 101) / 1000.0;
        let with = |outlier: f64| {
            let blocks = (0..40).map(|at| block(noise(3 * at), &[noise(3 * at + 1), noise(3 * at + 2)]));
            LogValues::new(blocks.chain([block(outlier, &[1.0, 1.0])]).collect()).unwrap().estimate()
        };
        assert!((with(100.0) - with(2.0)).abs() < 10.0 * TOLERANCE);
    }

    #[test]
    fn a_zero_counts_as_half_of_the_smallest_value() {
        let values = LogValues::new(vec![block(0.0, &[2.0, 0.5])]).unwrap();
        assert_eq!(values.blocks, [block(0.25_f64.ln(), &[2.0_f64.ln(), 0.5_f64.ln()])]);
        assert_eq!(LogValues::new(vec![block(0.0, &[0.0, 0.0])]), None);
    }
}
