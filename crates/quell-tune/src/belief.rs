//! What a search believes of the modes, before and after it observes slices: a Gaussian belief in the logarithm of one
//! quantity under each mode, relative to `base`.
//!
//! Modes inform each other. Before the first slice, the belief has the spread and the correlations that the model shows
//! over its hosts and loads ([`ModelResponses`]), plus a deviation from the model that neighbors in the grid share. Each
//! slice updates it (a Kalman filter), so that a few slices of a few modes also tell about the others.

use std::sync::LazyLock;

use quell_mode::DeliveryMode;
use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::goal::TuneMetric;
use crate::space::GridPlace;

/// Deviations from the model, as standard deviations of a logarithm.
struct Deviation {
    /// Shared by neighbors in the grid; it falls to a third within two steps.
    smooth: f64,
    /// Of each mode alone.
    own: f64,
    /// Spread of a quantity that the model does not know.
    unknown: f64,
}

const LATENCY: Deviation = Deviation { smooth: 0.3, own: 0.05, unknown: 1.0 };
const WORK: Deviation = Deviation { smooth: 0.1, own: 0.02, unknown: 0.5 };

/// Variance of the level of a block before its first slice, which is as good as unknown.
const UNKNOWN_LEVEL: f64 = 1e4;
/// Share of the slices that are outliers, and the standard deviation of these in those of the others.
const OUTLIER_SHARE: f64 = 0.05;
const OUTLIER_FACTOR: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Normal {
    pub(crate) mean: f64,
    pub(crate) variance: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Belief {
    modes: usize,
    /// Of each mode, and last of the level of the current block.
    mean: Vec<f64>,
    /// Row by row.
    covariance: Vec<f64>,
    /// Levels of the blocks so far: logarithm of the quantity under `base`.
    levels: Vec<f64>,
}

impl Belief {
    /// The belief in `metric` before any slice. `hosts` are those of the model that count.
    pub(crate) fn new(metric: &TuneMetric, modes: &[DeliveryMode], hosts: &[String]) -> Self {
        let count = modes.len();
        let size = count + 1;
        let mut belief =
            Self { modes: count, mean: vec![0.0; size], covariance: vec![0.0; size * size], levels: Vec::new() };
        let base = DeliveryMode::default();
        let deviation = match metric {
            TuneMetric::Latency { .. } => LATENCY,
            _ => WORK,
        };
        let responses = MODEL.of(metric, modes, hosts);
        let places = GridPlace::of(modes);
        let steps = |a: usize, b: usize| places[a].as_ref()?.steps_to(places[b].as_ref()?);
        let shared = |a: usize, b: usize| match steps(a, b) {
            _ if a == b => 1.0,
            steps => steps.map_or(0.0, |steps| (-0.55 * steps).exp()),
        };
        let spread = |mode: usize| responses.mean[mode].map_or(deviation.unknown, |_| deviation.smooth);
        for a in (0..count).filter(|a| modes[*a] != base) {
            belief.mean[a] = responses.mean[a].unwrap_or(0.0);
            for b in (0..count).filter(|b| modes[*b] != base) {
                let own = if a == b { deviation.own.powi(2) } else { 0.0 };
                belief.covariance[a * size + b] =
                    responses.covariance(a, b) + spread(a) * spread(b) * shared(a, b) + own;
            }
        }
        belief
    }

    pub(crate) fn begin_block(&mut self) {
        let (size, level) = (self.modes + 1, self.modes);
        if self.covariance[level * size + level] > 0.0 && self.covariance[level * size + level] < UNKNOWN_LEVEL {
            self.levels.push(self.mean[level]);
        }
        for other in 0..size {
            self.covariance[level * size + other] = 0.0;
            self.covariance[other * size + level] = 0.0;
        }
        self.covariance[level * size + level] = UNKNOWN_LEVEL;
    }

    /// Updates the belief with the logarithm of the quantity in a slice. `noise` is the standard deviation of slices.
    /// Returns the logarithm of how probable the slice was.
    pub(crate) fn observe(&mut self, mode: usize, log_value: f64, noise: f64) -> f64 {
        let (size, level) = (self.modes + 1, self.modes);
        // A slice measures the sum of the mode's value and of the block's level. `with` is the covariance of that sum
        // with every component; it makes one slice of one mode inform about all others.
        let with: Vec<f64> =
            (0..size).map(|at| self.covariance[at * size + mode] + self.covariance[at * size + level]).collect();
        let residual = log_value - self.mean[mode] - self.mean[level];
        let expected = with[mode] + with[level];
        // A slice is regular, or one of few that something disturbed. It counts by the probability that it is regular,
        // so that a single disturbed slice cannot decide.
        let log_density = |share: f64, noise: f64| {
            let variance = expected + noise.powi(2);
            share.ln() - 0.5 * (variance.ln() + residual.powi(2) / variance)
        };
        let (regular, outlying) =
            (log_density(1.0 - OUTLIER_SHARE, noise), log_density(OUTLIER_SHARE, noise * OUTLIER_FACTOR));
        // Sum of both probabilities, by logarithms: the probabilities themselves can be too small for a float.
        let log_likelihood = regular.max(outlying) + (-(regular - outlying).abs()).exp().ln_1p();
        let is_regular = (regular - log_likelihood).exp();
        let precision = (is_regular + (1.0 - is_regular) / OUTLIER_FACTOR.powi(2)) / noise.powi(2);
        let variance = expected + 1.0 / precision;
        for a in 0..size {
            let gain = with[a] / variance;
            self.mean[a] += gain * residual;
            let row = &mut self.covariance[a * size..(a + 1) * size];
            row.iter_mut().zip(&with).for_each(|(cell, with)| *cell -= gain * with);
        }
        log_likelihood
    }

    /// Logarithm of the ratio of the quantity under two modes.
    pub(crate) fn ratio(&self, of: usize, to: usize) -> Normal {
        let size = self.modes + 1;
        let cell = |a: usize, b: usize| self.covariance[a * size + b];
        let variance = cell(of, of) + cell(to, to) - 2.0 * cell(of, to);
        Normal { mean: self.mean[of] - self.mean[to], variance: variance.max(0.0) }
    }

    /// A factor of the covariance of the modes, for [`Self::draw`].
    pub(crate) fn factor(&self) -> CholeskyFactor {
        CholeskyFactor::new(self.modes, |a, b| self.covariance[a * (self.modes + 1) + b])
    }

    /// Draws the logarithms of the quantity under all modes together, so that modes that behave alike are drawn alike.
    pub(crate) fn draw(&self, factor: &CholeskyFactor, random: &mut Pcg64) -> Vec<f64> {
        let deviations = factor.draw(random);
        self.mean.iter().zip(deviations).map(|(mean, deviation)| mean + deviation).collect()
    }

    /// Logarithm of the quantity under `base` in a typical block, and the variance from block to block. `None` before
    /// the second block.
    pub(crate) fn level(&self) -> Option<(Normal, f64)> {
        let count = self.levels.len() as f64;
        let mean = self.levels.iter().sum::<f64>() / count;
        let squares: f64 = self.levels.iter().map(|level| (level - mean).powi(2)).sum();
        (count >= 2.0).then(|| {
            let between = squares / (count - 1.0);
            (Normal { mean, variance: between / count }, between)
        })
    }
}

/// Lower triangular matrix L with L Lᵀ = the covariance, row by row. Modes without variance have rows of 0.
pub(crate) struct CholeskyFactor(Vec<Vec<f64>>);

impl CholeskyFactor {
    fn new(size: usize, covariance: impl Fn(usize, usize) -> f64) -> Self {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(size);
        for a in 0..size {
            let mut row: Vec<f64> = Vec::with_capacity(a + 1);
            for b in 0..=a {
                let other = rows.get(b).unwrap_or(&row);
                let rest = covariance(a, b) - row.iter().zip(other).map(|(x, y)| x * y).sum::<f64>();
                let cell = match other.get(b) {
                    None => rest.max(0.0).sqrt(),
                    Some(diagonal) if *diagonal > 1e-6 => rest / diagonal,
                    Some(_) => 0.0,
                };
                row.push(cell);
            }
            rows.push(row);
        }
        Self(rows)
    }

    fn draw(&self, random: &mut Pcg64) -> Vec<f64> {
        let standard: Vec<f64> = self.0.iter().map(|_| standard_normal(random)).collect();
        self.0.iter().map(|row| row.iter().zip(&standard).map(|(cell, standard)| cell * standard).sum()).collect()
    }
}

/// A draw from the normal distribution with mean 0 and variance 1 (Box and Muller).
pub(crate) fn standard_normal(random: &mut Pcg64) -> f64 {
    let (radius, angle) = (1.0 - random.random::<f64>(), random.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Standard deviations of slices that are considered. Their steps are as precise as an estimate from some 10 slices.
const NOISES: [f64; 11] = [0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63, 1.0];
/// Difference of logarithms of probabilities at which a standard deviation is no longer considered.
const IMPLAUSIBLE: f64 = 12.0;

#[derive(Debug, Clone)]
pub(crate) struct Estimates(Vec<Estimate>);

#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    /// Standard deviation of slices.
    pub(crate) noise: f64,
    pub(crate) belief: Belief,
    /// Logarithm of how probable the slices were.
    likelihood: f64,
}

impl Estimates {
    pub(crate) fn new(prior: &Belief) -> Self {
        Self(NOISES.iter().map(|noise| Estimate { noise: *noise, belief: prior.clone(), likelihood: 0.0 }).collect())
    }

    /// Updates the beliefs with the slices of a block: mode, and logarithm of the quantity.
    pub(crate) fn observe_block(&mut self, slices: &[(usize, f64)]) {
        if slices.is_empty() {
            return;
        }
        for Estimate { noise, belief, likelihood } in &mut self.0 {
            belief.begin_block();
            *likelihood += slices.iter().map(|(mode, log)| belief.observe(*mode, *log, *noise)).sum::<f64>();
        }
        let best = self.best().likelihood;
        self.0.retain(|estimate| estimate.likelihood > best - IMPLAUSIBLE);
    }

    pub(crate) fn best(&self) -> &Estimate {
        let best = self.0.iter().max_by(|a, b| a.likelihood.total_cmp(&b.likelihood));
        best.unwrap_or_else(|| unreachable!("the best one is retained"))
    }
}

/// What the model says of each mode of the grid relative to `base`, on each of its hosts at several loads.
#[derive(Debug)]
struct ModelResponses {
    modes: Vec<DeliveryMode>,
    rows: Vec<ResponseRow>,
}

#[derive(Debug)]
struct ResponseRow {
    host: String,
    metric: String,
    values: Vec<Option<f64>>,
}

/// Selected responses: for each mode its mean, and its deviations from it by row.
struct Selected {
    mean: Vec<Option<f64>>,
    deviations: Vec<Vec<f64>>,
}

static MODEL: LazyLock<ModelResponses> = LazyLock::new(|| ModelResponses::parse(include_str!("../data/model.tsv")));

impl ModelResponses {
    fn parse(table: &str) -> Self {
        let mut lines = table.lines();
        let modes = lines.next().unwrap_or_default().split('\t').skip(3).filter_map(|text| text.parse().ok()).collect();
        let row = |line: &str| {
            let mut cells = line.split('\t');
            let mut word = || cells.next().unwrap_or_default().to_owned();
            let (host, _load, metric) = (word(), word(), word());
            ResponseRow { host, metric, values: cells.map(|cell| cell.parse().ok()).collect() }
        };
        Self { modes, rows: lines.map(row).collect() }
    }

    fn of(&self, metric: &TuneMetric, modes: &[DeliveryMode], hosts: &[String]) -> Selected {
        let name = match metric {
            TuneMetric::Latency { quantile } if *quantile < 0.75 => "p50",
            TuneMetric::Latency { .. } => "p99",
            TuneMetric::Cpu | TuneMetric::Busy => "cpu",
            _ => "",
        };
        let rows: Vec<&ResponseRow> =
            self.rows.iter().filter(|row| row.metric == name && hosts.contains(&row.host)).collect();
        let columns: Vec<Option<usize>> =
            modes.iter().map(|mode| self.modes.iter().position(|other| other == mode)).collect();
        let values = |column: &Option<usize>| -> Option<Vec<f64>> {
            let values = rows.iter().map(|row| row.values.get((*column)?).copied().flatten());
            values.collect::<Option<Vec<f64>>>().filter(|values| values.len() > 1)
        };
        let (mut mean, mut deviations) = (Vec::new(), Vec::new());
        for column in &columns {
            let values = values(column);
            let of_mode = values.as_ref().map(|values| values.iter().sum::<f64>() / values.len() as f64);
            mean.push(of_mode);
            let deviation = |value: f64| value - of_mode.unwrap_or(0.0);
            deviations.push(values.unwrap_or_default().into_iter().map(deviation).collect());
        }
        Selected { mean, deviations }
    }
}

impl Selected {
    fn covariance(&self, a: usize, b: usize) -> f64 {
        let (a, b) = (&self.deviations[a], &self.deviations[b]);
        let products: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        if a.len().min(b.len()) > 1 { products / (a.len() as f64 - 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    const BASE: usize = 0;
    const SUSPEND40: usize = 1;
    const SUSPEND80: usize = 2;
    const DEFER40: usize = 3;

    fn estimates() -> Estimates {
        let modes: Vec<DeliveryMode> =
            ["base", "suspend40", "suspend80", "defer40"].iter().map(|mode| mode.parse().unwrap()).collect();
        Estimates::new(&Belief::new(&TuneMetric::Cpu, &modes, &["epyc7662-cx5".to_owned(), "neper-2024".to_owned()]))
    }

    /// Twenty blocks of `base` and `suspend40`, which needs 0.3 times as much, with this noise. Each block has its level.
    fn observed(noise: f64) -> Estimates {
        let (mut estimates, mut random) = (estimates(), Pcg64::seed_from_u64(1));
        for block in 0..20 {
            let (level, mut slice) = (f64::from(block % 7), || noise * standard_normal(&mut random));
            estimates.observe_block(&[(BASE, level + slice()), (SUSPEND40, level + 0.3_f64.ln() + slice())]);
        }
        estimates
    }

    #[test]
    fn the_level_of_a_block_does_not_change_ratios() {
        let ratio = observed(0.02).best().belief.ratio(SUSPEND40, BASE);
        assert!((ratio.mean.exp() - 0.3).abs() < 0.02, "{ratio:?}");
    }

    #[test]
    fn a_mode_tells_about_its_neighbors_more_than_about_others() {
        let (before, after) = (estimates(), observed(0.02));
        let narrowed = |mode: usize| {
            let variance = |of: &Estimates| of.best().belief.ratio(mode, BASE).variance;
            variance(&after) / variance(&before)
        };
        assert!(narrowed(SUSPEND80) < 0.8 && narrowed(SUSPEND80) < narrowed(DEFER40), "{}", narrowed(SUSPEND80));
        assert!(after.best().belief.ratio(SUSPEND80, BASE).mean < before.best().belief.ratio(SUSPEND80, BASE).mean);
    }

    #[test]
    fn the_noise_of_slices_is_estimated() {
        for noise in [0.02, 0.2] {
            let estimated = observed(noise).best().noise;
            assert!(estimated > noise / 1.7 && estimated < noise * 1.7, "{estimated} of {noise}");
        }
    }

    #[test]
    fn an_outlier_hardly_changes_what_many_slices_have_shown() {
        let mut estimates = observed(0.02);
        let before = estimates.best().belief.ratio(SUSPEND40, BASE);
        estimates.observe_block(&[(BASE, 0.0), (SUSPEND40, 3.0)]);
        let after = estimates.best().belief.ratio(SUSPEND40, BASE);
        assert!((after.mean - before.mean).abs() < 0.05, "{before:?} {after:?}");
    }

    #[test]
    fn a_quantity_that_the_model_does_not_know_has_a_wide_belief() {
        let modes: Vec<DeliveryMode> = ["base", "suspend40"].iter().map(|mode| mode.parse().unwrap()).collect();
        let metric = TuneMetric::Recorded { name: "irqs-per-request".to_owned() };
        let belief = Belief::new(&metric, &modes, &["epyc7662-cx5".to_owned()]);
        assert_eq!((belief.ratio(1, 0).mean, belief.ratio(0, 0).variance), (0.0, 0.0));
        assert!(belief.ratio(1, 0).variance >= 0.25);
    }
}
