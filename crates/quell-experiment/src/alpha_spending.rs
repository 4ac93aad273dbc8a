//! Critical values of a group sequential test. Method: alpha spending by Lan and DeMets (Biometrika 70, 1983) with a
//! spending function of the O'Brien-Fleming type. The crossing probability is integrated numerically from look to look
//! (Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A 132, 1969).

use crate::permutation::{bisect, upper_quantile, upper_tail};

/// Computes the critical value of each look. The standardized statistics of the looks follow a Brownian motion at the
/// times of the looks, given as shares of the budget.
#[derive(Debug, Clone)]
pub(crate) struct AlphaSpending {
    /// Two-sided probability of a crossing at any look.
    alpha: f64,
    /// Time of the last look; 0 before the first look.
    time: f64,
    /// Probability of a crossing at one of the previous looks.
    spent: f64,
    /// Density of the motion at the last look, for paths that never crossed. Before the first look, it is a point at 0.
    density: Option<Density>,
}

/// A symmetric density on equidistant points from `-limit` to `limit`.
#[derive(Debug, Clone)]
struct Density {
    limit: f64,
    values: Vec<f64>,
}

/// Number of intervals for the integration. Simpson's rule requires an even number.
const INTERVALS: usize = 200;

/// Largest critical value. Probabilities beyond it are below 10⁻¹⁵, which is too small to integrate.
const Z_MAX: f64 = 8.0;

impl AlphaSpending {
    pub(crate) fn new(alpha: f64) -> Self {
        Self { alpha, time: 0.0, spent: 0.0, density: None }
    }

    /// Critical value of the look at `time`, a share of the budget that must exceed that of the last look. At time 1,
    /// the rest of the error probability is spent.
    pub(crate) fn next(&mut self, time: f64) -> f64 {
        let time = time.clamp(self.time + 1e-6, 1.0_f64.max(self.time + 1e-6));
        let target = spending(self.alpha, time.min(1.0)) - self.spent;
        let deviation = (time - self.time).sqrt();
        let crossing = |z: f64| self.crossing(z * time.sqrt(), deviation);
        let z = bisect(0.0, Z_MAX, 1e-9, |z| crossing(z) > target);
        self.spent += crossing(z);
        self.density = Some(self.advance(z * time.sqrt(), deviation));
        self.time = time;
        z
    }

    /// Probability that the motion did not cross before and exceeds ±`limit` at this look.
    fn crossing(&self, limit: f64, deviation: f64) -> f64 {
        let beyond = |from: f64| upper_tail((limit - from) / deviation) + upper_tail((limit + from) / deviation);
        match &self.density {
            None => beyond(0.0),
            Some(density) => density.integrate(beyond),
        }
    }

    fn advance(&self, limit: f64, deviation: f64) -> Density {
        let arrives = |at: f64, from: f64| {
            let z = (at - from) / deviation;
            (-0.5 * z * z).exp() / (deviation * std::f64::consts::TAU.sqrt())
        };
        let value = |at: f64| match &self.density {
            None => arrives(at, 0.0),
            Some(density) => density.integrate(|from| arrives(at, from)),
        };
        Density { limit, values: points(limit).map(value).collect() }
    }
}

impl Density {
    /// Integral of the density times `function`, by Simpson's rule.
    fn integrate(&self, function: impl Fn(f64) -> f64) -> f64 {
        let weight = |at: usize| match at {
            0 | INTERVALS => 1.0,
            _ if at % 2 == 1 => 4.0,
            _ => 2.0,
        };
        let terms = points(self.limit).zip(&self.values).enumerate();
        let sum: f64 = terms.map(|(at, (point, value))| weight(at) * value * function(point)).sum();
        sum * 2.0 * self.limit / INTERVALS as f64 / 3.0
    }
}

fn points(limit: f64) -> impl Iterator<Item = f64> {
    (0..=INTERVALS).map(move |at| limit * (2.0 * at as f64 / INTERVALS as f64 - 1.0))
}

/// Error probability that may be spent by `time`: on each side 2 (1 − Φ(z(α/4) / √time)). Early looks spend little of
/// it, so that the last look is almost as powerful as a test without interim looks.
fn spending(alpha: f64, time: f64) -> f64 {
    4.0 * upper_tail(upper_quantile(alpha / 4.0) / time.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundaries(alpha: f64, looks: u32) -> Vec<f64> {
        let mut spending = AlphaSpending::new(alpha);
        (1..=looks).map(|look| spending.next(f64::from(look) / f64::from(looks))).collect()
    }

    /// The expected values come from Reboussin, DeMets, Kim and Lan, Controlled Clinical Trials 21 (2000), and from the
    /// R package `ldbounds`.
    #[test]
    fn five_equal_looks_have_the_published_boundaries() {
        let published = [4.8769, 3.3569, 2.6803, 2.2898, 2.0310];
        for (z, published) in boundaries(0.05, 5).into_iter().zip(published) {
            assert!((z - published).abs() < 2e-3, "{z} instead of {published}");
        }
    }

    #[test]
    fn one_look_has_the_boundary_of_a_test_without_looks() {
        assert!((boundaries(0.05, 1)[0] - 1.959_964).abs() < 1e-4);
        assert!((boundaries(0.001, 1)[0] - 3.290_527).abs() < 1e-4);
    }

    #[test]
    fn unplanned_times_spend_everything_by_the_end_and_nothing_more() {
        let mut spending = AlphaSpending::new(0.004);
        let z: Vec<f64> = [0.13, 0.2, 0.55, 0.56, 0.9, 1.0].map(|time| spending.next(time)).to_vec();
        assert!((spending.spent - 0.004).abs() < 1e-8, "{spending:?}");
        assert!(z.iter().all(|z| *z > 2.87) && z[0] > 7.0, "{z:?}");
    }
}
