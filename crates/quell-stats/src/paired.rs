//! Ratios of paired measurements. Both values of a pair come from the same repeat, so the ratio cancels
//! slow drift of the machine. `verdict` decides from these ratios.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spread::median_of_sorted;

/// Confidence that an interval reaches when there are enough pairs.
const CONFIDENCE: f64 = 0.95;

/// A value that cannot be compared by ratio.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("repeat {repeat} has the value {value}: only finite values from 0 upwards are compared by ratio")]
pub struct NotAMagnitude {
    /// Repeat, counted from 0.
    pub repeat: usize,
    /// Value in that repeat.
    pub value: f64,
}

/// Ratios `b / a` of pairs from the same repeat, as logarithms: 2 and ½ are equally far from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct PairedRatios {
    /// Natural logarithms, ascending.
    sorted_logs: Vec<f64>,
    absent: usize,
    zero: usize,
}

impl PairedRatios {
    /// Pairs the values of `a` and `b` repeat by repeat. Repeats in which a value is absent or 0 are
    /// omitted and counted.
    ///
    /// # Errors
    ///
    /// A value below 0, infinite or not a number.
    pub fn new(a: &[Option<f64>], b: &[Option<f64>]) -> Result<Self, NotAMagnitude> {
        let mut ratios = Self { sorted_logs: Vec::new(), absent: 0, zero: 0 };
        for repeat in 0..a.len().max(b.len()) {
            let a = magnitude(a, repeat)?;
            let b = magnitude(b, repeat)?;
            match a.zip(b) {
                None => ratios.absent += 1,
                Some((a, b)) if a == 0.0 || b == 0.0 => ratios.zero += 1,
                Some((a, b)) => ratios.sorted_logs.push(b.ln() - a.ln()),
            }
        }
        ratios.sorted_logs.sort_by(f64::total_cmp);
        Ok(ratios)
    }

    /// Number of pairs with a ratio.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.sorted_logs.len()
    }

    /// Number of repeats omitted because a value is absent.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.absent
    }

    /// Number of repeats omitted because a value is 0.
    #[must_use]
    pub fn zero(&self) -> usize {
        self.zero
    }

    /// Median ratio; `None` without pairs.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        self.median_log().map(f64::exp)
    }

    /// Confidence interval of the median ratio, without assumptions about the distribution: the
    /// innermost pair of order statistics that reaches 95 %. With fewer than six pairs, which cannot
    /// reach 95 %, it is the smallest and the largest ratio. `None` without pairs.
    ///
    /// The interval excludes 1 exactly when the two-sided sign test rejects that `a` and `b` are equal,
    /// at the level 1 − confidence.
    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        let n = self.pairs();
        let (left_out, confidence) = (0..n.div_ceil(2))
            .map(|left_out| (left_out, coverage(n, left_out)))
            .take_while(|(left_out, confidence)| *left_out == 0 || *confidence >= CONFIDENCE)
            .last()?;
        Some(Interval {
            low: self.sorted_logs.get(left_out)?.exp(),
            high: self.sorted_logs.get(n - 1 - left_out)?.exp(),
            confidence,
        })
    }

    pub(crate) fn median_log(&self) -> Option<f64> {
        median_of_sorted(&self.sorted_logs)
    }
}

fn magnitude(values: &[Option<f64>], repeat: usize) -> Result<Option<f64>, NotAMagnitude> {
    match values.get(repeat).copied().flatten() {
        Some(value) if !value.is_finite() || value < 0.0 => Err(NotAMagnitude { repeat, value }),
        value => Ok(value),
    }
}

/// Probability that the median lies between the order statistics of `n` independent values that omit
/// `left_out` values at either end: 1 − 2 P(Binomial(n, ½) ≤ left_out).
fn coverage(n: usize, left_out: usize) -> f64 {
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = log_term.exp();
    for k in 0..left_out {
        log_term += ((n - k) as f64 / (k + 1) as f64).ln();
        tail += log_term.exp();
    }
    1.0 - 2.0 * tail
}

/// A confidence interval of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that the interval covers the median ratio. It depends on the number of pairs only:
    /// 0.75 with three, 0.94 with five, at least 0.95 with six or more.
    pub confidence: f64,
}

/// Noise floor of this machine: the difference between runs of the same mode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resolution {
    /// Largest ratio between two identical runs, after outliers were omitted: 1.07 means that they
    /// differed by up to 7 %.
    pub ratio: f64,
    /// Number of pairs of identical runs.
    pub pairs: usize,
    /// Number of these pairs that were omitted, those with the largest ratios.
    pub left_out: usize,
}

impl Resolution {
    /// With this many compared pairs, their agreement almost decides the verdict alone.
    const PAIRS_TO_LEAVE_OUT: usize = 5;

    /// Computes the noise floor for a comparison of `compared_pairs`, from pairs of identical runs (A/A).
    /// `None` without identical pairs.
    ///
    /// With fewer than five compared pairs it is the largest ratio between two identical runs. From five
    /// on, the largest fifth of these ratios is omitted: otherwise occasional disturbances would make
    /// every additional repeat lower the sensitivity.
    #[must_use]
    pub fn of(identical: &PairedRatios, compared_pairs: usize) -> Option<Self> {
        let mut distances: Vec<f64> = identical.sorted_logs.iter().map(|log| log.abs()).collect();
        distances.sort_by(|a, b| b.total_cmp(a));
        let pairs = distances.len();
        let left_out = if compared_pairs < Self::PAIRS_TO_LEAVE_OUT { 0 } else { pairs / 5 };
        let ratio = distances.get(left_out)?.exp();
        Some(Self { ratio, pairs, left_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_agrees_with_tables_of_the_binomial_distribution() {
        assert!((coverage(3, 0) - 0.75).abs() < 1e-12);
        assert!((coverage(6, 0) - 0.968_75).abs() < 1e-12);
        assert!((coverage(9, 1) - 0.960_937_5).abs() < 1e-12);
        assert!((coverage(10, 1) - 0.978_515_625).abs() < 1e-12);
        assert!((coverage(10, 2) - 0.890_625).abs() < 1e-12);
    }

    #[test]
    fn with_nine_pairs_the_interval_omits_outliers() {
        let ratios = |n: usize| {
            let b: Vec<_> = (1..=n).map(|i| Some(i as f64)).collect();
            PairedRatios::new(&vec![Some(1.0); n], &b).unwrap().interval().unwrap()
        };
        assert!((ratios(8).low - 1.0).abs() < 1e-12 && (ratios(8).high - 8.0).abs() < 1e-12);
        assert!((ratios(9).low - 2.0).abs() < 1e-12 && (ratios(9).high - 8.0).abs() < 1e-12);
    }
}
