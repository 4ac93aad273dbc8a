//! Ratios of figures measured side by side: what remains when the machine's slow drift, which both
//! of a pair share, is divided out. Here are the ratios and what their order says; the decision is
//! `verdict`'s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spread::median_of_sorted;

/// The probability with which an interval is to cover the true median, where the number of pairs
/// allows it.
const CONFIDENCE: f64 = 0.95;

/// A figure that cannot be compared by ratio.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("repeat {repeat} has the value {value}: only finite values from 0 upwards are compared by ratio")]
pub struct NotAMagnitude {
    /// Which repeat, from 0.
    pub repeat: usize,
    /// Its value.
    pub value: f64,
}

/// The ratios `b / a` of pairs that were measured in the same repeat, kept as logarithms, so that
/// twice and half are equally far from equal.
#[derive(Debug, Clone, PartialEq)]
pub struct PairedRatios {
    /// Ascending natural logarithms.
    sorted_logs: Vec<f64>,
    absent: usize,
    zero: usize,
}

impl PairedRatios {
    /// Pairs the values of `a` and `b` repeat by repeat. A repeat in which either is absent (or
    /// which one of them does not have) is left out and counted; so is one in which either is 0,
    /// which has no ratio.
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

    /// How many pairs have a ratio.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.sorted_logs.len()
    }

    /// How many repeats were left out because a value is absent.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.absent
    }

    /// How many repeats were left out because a value is 0.
    #[must_use]
    pub fn zero(&self) -> usize {
        self.zero
    }

    /// The median ratio; absent without pairs.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        self.median_log().map(f64::exp)
    }

    /// The interval in which the true median ratio lies with the stated confidence, whatever the
    /// distribution: the innermost pair of order statistics that reaches 95 %, or with fewer than
    /// six pairs, which cannot reach it, the smallest and the largest. Absent without pairs.
    ///
    /// It leaves out the ratio 1 exactly when the two-sided sign test rejects that `a` and `b` are
    /// equal at 1 − confidence.
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

/// The probability that the true median of `n` independent values lies between the order
/// statistics that leave out `left_out` values at either end: 1 − 2 P(Binomial(n, ½) ≤ left_out).
fn coverage(n: usize, left_out: usize) -> f64 {
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = log_term.exp();
    for k in 0..left_out {
        log_term += ((n - k) as f64 / (k + 1) as f64).ln();
        tail += log_term.exp();
    }
    1.0 - 2.0 * tail
}

/// An interval of ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability that the interval covers the true median ratio, from the number of pairs
    /// alone: 0.75 with three pairs, 0.94 with five, at least 0.95 from six on.
    pub confidence: f64,
}

/// What this machine can tell apart today: how far runs of the same mode differ from each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resolution {
    /// The ratio between two identical runs, the larger over the smaller, that is not exceeded but
    /// by those left out: 1.07 means that they differed by up to 7 %.
    pub ratio: f64,
    /// How many pairs of identical runs that is from.
    pub pairs: usize,
    /// How many of them, the farthest apart, were left out.
    pub left_out: usize,
}

impl Resolution {
    /// From this many compared pairs on, their agreement carries the verdict almost alone.
    const PAIRS_TO_LEAVE_OUT: usize = 5;

    /// The resolution that pairs of identical runs (A/A) show, for a comparison of
    /// `compared_pairs`; absent without identical pairs.
    ///
    /// With fewer than five compared pairs it is the largest ratio between any two identical runs.
    /// From five on, one in five identical pairs, the farthest, is left out: else a machine that is
    /// disturbed now and then could tell the less, the more often it is asked.
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
    fn coverage_is_that_of_the_binomial_tables() {
        assert!((coverage(3, 0) - 0.75).abs() < 1e-12);
        assert!((coverage(6, 0) - 0.968_75).abs() < 1e-12);
        assert!((coverage(9, 1) - 0.960_937_5).abs() < 1e-12);
        assert!((coverage(10, 1) - 0.978_515_625).abs() < 1e-12);
        assert!((coverage(10, 2) - 0.890_625).abs() < 1e-12);
    }

    #[test]
    fn the_interval_leaves_outliers_out_once_it_can() {
        let ratios = |n: usize| {
            let b: Vec<_> = (1..=n).map(|i| Some(i as f64)).collect();
            PairedRatios::new(&vec![Some(1.0); n], &b).unwrap().interval().unwrap()
        };
        assert!((ratios(8).low - 1.0).abs() < 1e-12 && (ratios(8).high - 8.0).abs() < 1e-12);
        assert!((ratios(9).low - 2.0).abs() < 1e-12 && (ratios(9).high - 8.0).abs() < 1e-12);
    }
}
