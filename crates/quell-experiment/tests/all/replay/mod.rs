//! Experiments on recorded slices. They test the analysis with noise of a real machine and differences of known size.
//! The benchmark `record_noise` of `quell-subject` wrote the recordings in `data/`.

#![allow(dead_code, clippy::unwrap_used, reason = "shared by a test and a benchmark, which fail by panicking")]

use std::path::Path;

use quell_experiment::{
    Criterion, ExperimentDesign, Goal, LatencyCounts, SliceObservation, Switchback, SwitchbackAnalysis, Treatment,
};
use quell_stats::LatencyHistogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Time of a recorded slice in ms, including setting and settling.
pub(crate) const SPENT_MS: f64 = 230.0;

/// Number of slices in a bootstrap block. It covers 14 s, so that drift and disturbances of several seconds are
/// preserved.
const BOOTSTRAP_SLICES: usize = 60;

/// Levels of the quantiles in a recording.
const LEVELS: [f64; 6] = [0.25, 0.5, 0.9, 0.99, 0.999, 1.0];

/// Recorded slices, in order.
pub(crate) struct Recording {
    pub(crate) name: String,
    slices: Vec<RecordedSlice>,
}

struct RecordedSlice {
    cpu_ns: f64,
    foreign_cpu: f64,
    /// Latencies in ns in ascending order, each with its count.
    latencies: Vec<(f64, u32)>,
    counts: LatencyCounts,
}

impl Recording {
    /// All recordings of this crate.
    pub(crate) fn all() -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
        let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let numbers = |line: &str| -> Vec<f64> { line.split(',').map(|number| number.parse().unwrap()).collect() };
        let of_slice = |line: &str| {
            let numbers = numbers(line);
            let quantiles: Vec<f64> = numbers[3..].iter().map(|tenth_us| tenth_us * 100.0).collect();
            let latencies = latencies(numbers[2] as u32, &quantiles);
            let counts = counts(&latencies, 1.0);
            RecordedSlice { cpu_ns: numbers[0], foreign_cpu: numbers[1] / 1e3, latencies, counts }
        };
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        Self { name, slices: text.lines().skip(1).map(of_slice).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slices.len()
    }

    /// An observation of the recorded slice `at`. `factor` multiplies the latency and the CPU time of the server.
    pub(crate) fn observation(&self, at: usize, factor: f64) -> SliceObservation {
        let slice = &self.slices[at];
        let latency = if factor == 1.0 { slice.counts.clone() } else { counts(&slice.latencies, factor) };
        let observation = SliceObservation {
            spent_ms: SPENT_MS,
            latency: Some(latency),
            foreign_cpu: Some(slice.foreign_cpu),
            ..SliceObservation::default()
        };
        observation.with_metric("cpu", Some(slice.cpu_ns * factor))
    }

    /// Indices of `count` slices. They form consecutive random sections of the recording (a block bootstrap).
    pub(crate) fn bootstrap(&self, count: usize, seed: u64) -> Vec<usize> {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut indices = Vec::with_capacity(count + BOOTSTRAP_SLICES);
        while indices.len() < count {
            let from = random.random_range(0..self.slices.len());
            indices.extend((from..from + BOOTSTRAP_SLICES).map(|at| at % self.slices.len()));
        }
        indices
    }

    /// Results of an experiment on bootstrapped slices, with one treatment per factor.
    pub(crate) fn experiment(&self, design: &ExperimentDesign<f64>, seed: u64) -> SwitchbackAnalysis {
        self.experiment_on(&self.bootstrap(slices(design), seed), design, seed)
    }

    /// Results of experiments on consecutive sections of the recording. The recorder set the mode before every slice.
    /// Without differences, a running lab would therefore have had the same results.
    pub(crate) fn consecutive_experiments(&self, design: &ExperimentDesign<f64>) -> Vec<SwitchbackAnalysis> {
        let indices: Vec<usize> = (0..self.slices.len()).collect();
        let stretches = indices.chunks_exact(slices(design)).enumerate();
        stretches.map(|(at, indices)| self.experiment_on(indices, design, at as u64)).collect()
    }

    fn experiment_on(&self, indices: &[usize], design: &ExperimentDesign<f64>, seed: u64) -> SwitchbackAnalysis {
        let mut experiment = Switchback::new(ExperimentDesign { seed, ..design.clone() }).unwrap();
        let mut indices = indices.iter();
        while let Some(factor) = experiment.next_slice().map(|slice| slice.treatment.setting) {
            experiment.record(self.observation(*indices.next().unwrap(), factor)).unwrap();
        }
        experiment.finish().1
    }
}

/// Number of slices that fit the budget.
fn slices(design: &ExperimentDesign<f64>) -> usize {
    (design.budget_ms as f64 / SPENT_MS) as usize
}

fn counts(latencies: &[(f64, u32)], factor: f64) -> LatencyCounts {
    let mut histogram = LatencyHistogram::new();
    latencies.iter().for_each(|(ns, count)| histogram.record_n((ns * factor) as u64, *count));
    LatencyCounts::from(&histogram)
}

/// Counts of `requests` latencies with the given quantiles. Between two quantiles, the logarithm of the latency is
/// linear in the logarithm of the share of slower requests.
fn latencies(requests: u32, quantiles: &[f64]) -> Vec<(f64, u32)> {
    const PARTS: u32 = 12;
    let slower = |level: f64| (1.0 - level).max(1.0 / f64::from(requests.max(1)));
    let mut counts = Vec::new();
    let mut recorded = 0;
    let (mut level_before, mut ns_before) = (0.0, quantiles[0] * 0.8);
    for (level, ns) in LEVELS.into_iter().zip(quantiles) {
        let (from, to) = (slower(level_before).ln(), slower(level).ln());
        for part in 1..=PARTS {
            let share = f64::from(part) / f64::from(PARTS);
            let is_last = level == 1.0 && part == PARTS;
            let faster = if is_last { 1.0 } else { 1.0 - (from + share * (to - from)).exp() };
            let up_to = (f64::from(requests) * faster).round() as u32;
            let at = (f64::max(ns_before, 1.0).ln() * (1.0 - share) + ns.max(1.0).ln() * share).exp();
            counts.push((at, up_to.saturating_sub(recorded)));
            recorded = recorded.max(up_to);
        }
        (level_before, ns_before) = (level, *ns);
    }
    counts.retain(|(_, count)| *count > 0);
    counts
}

pub(crate) fn cpu() -> Criterion {
    Criterion::Metric { name: "cpu".to_owned(), goal: Goal::Lowest }
}

pub(crate) fn latency(quantile: f64) -> Criterion {
    Criterion::Latency { quantile }
}

/// Creates a design with one treatment for each factor.
pub(crate) fn design(factors: &[f64], criteria: Vec<Criterion>, budget_s: u64) -> ExperimentDesign<f64> {
    let named = |(at, factor): (usize, &f64)| Treatment { name: at.to_string(), setting: *factor };
    let treatments = factors.iter().enumerate().map(named).collect();
    let reference = Treatment { name: "base".to_owned(), setting: 1.0 };
    ExperimentDesign { budget_ms: budget_s * 1000, ..ExperimentDesign::new(reference, treatments, criteria, 0) }
}
