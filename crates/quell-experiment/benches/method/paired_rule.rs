//! The decision rule of `quell bench` before switchback experiments. It uses paired ratios of a few interleaved
//! repeats, with the difference between identical runs as the noise floor. It remains for comparison.

/// Minimum number of compared pairs, and of identical pairs, for a verdict.
const MIN_PAIRS: usize = 3;
/// Confidence level of an interval if there are enough pairs.
const CONFIDENCE: f64 = 0.95;
/// Number of compared pairs from which the largest fifth of the differences between identical runs is ignored.
const PAIRS_TO_LEAVE_OUT: usize = 5;

/// Logarithms of the ratios `b / a`, in ascending order.
pub(crate) fn log_ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect();
    logs.sort_by(f64::total_cmp);
    logs
}

/// The median of `logs`, if their signs agree and it is farther from 0 than the noise floor.
pub(crate) fn difference(logs: &[f64], identical: &[f64]) -> Option<f64> {
    if logs.len().min(identical.len()) < MIN_PAIRS {
        return None;
    }
    let (low, high) = interval(logs);
    let median = median(logs)?;
    (!(low <= 0.0 && high >= 0.0) && median.abs() > noise_floor(identical, logs.len())).then_some(median)
}

/// Median of values in ascending order.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let (lower, upper) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((lower + upper) / 2.0)
}

/// Innermost pair of order statistics that reaches the confidence level. If no pair reaches it, the outermost pair.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let n = sorted.len();
    let inner = (1..n.div_ceil(2)).take_while(|left_out| coverage(n, *left_out) >= CONFIDENCE).last().unwrap_or(0);
    (sorted[inner], sorted[n - 1 - inner])
}

/// Probability that the median lies between the order statistics of `n` independent values that remain after omitting
/// `left_out` values at each end: 1 − 2 P(Binomial(n, ½) ≤ left_out).
fn coverage(n: usize, left_out: usize) -> f64 {
    let mut term = 0.5_f64.powi(n as i32);
    let mut tail = term;
    for k in 0..left_out {
        term *= (n - k) as f64 / (k + 1) as f64;
        tail += term;
    }
    1.0 - 2.0 * tail
}

fn noise_floor(identical: &[f64], compared_pairs: usize) -> f64 {
    let mut distances: Vec<f64> = identical.iter().map(|log| log.abs()).collect();
    distances.sort_by(|a, b| b.total_cmp(a));
    distances[if compared_pairs < PAIRS_TO_LEAVE_OUT { 0 } else { distances.len() / 5 }]
}
