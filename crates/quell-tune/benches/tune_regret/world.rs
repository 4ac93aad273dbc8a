//! Cases in which the best mode is known: hosts of the model, with the recorded noise of a real machine. Shared by the
//! benchmark and a test.

#![allow(dead_code, clippy::unwrap_used, reason = "shared by a test and a benchmark, which fail by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use quell_experiment::{ExperimentSubject, LatencyCounts, SetFailure, SliceObservation};
use quell_mode::DeliveryMode;
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{CONSTANTS, HostProfile, Load};
use quell_stats::LatencyHistogram;
use quell_tune::{RefusedMode, TuneGoal, TuneSpace, observe_model};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Loads as shares of the maximum throughput of `base`.
pub(crate) const LOADS: [f64; 3] = [0.3, 0.6, 0.85];
/// Seed of the truth, and another one for the question how much depends on it.
pub(crate) const SEEDS: [u64; 2] = [11, 12];
/// Number of consecutive slices of a recording that are replayed together.
const STRETCH: usize = 60;
/// Time of a slice with settling in ms, as in the plan.
pub(crate) const SLICE_MS: f64 = 210.0;

/// All modes but `userbusy`: the server has one CPU, and none for a polling thread.
pub(crate) fn space() -> TuneSpace {
    let reason = "no CPU for a polling thread".to_owned();
    TuneSpace { refused: vec![RefusedMode { kind: "userbusy".to_owned(), reason }] }
}

/// One queue and one worker of a host, with 30 ms of warm-up and 150 ms of measured time.
pub(crate) fn setup(host: HostProfile) -> Setup {
    Setup { warm_up_ns: 30_000_000, measured_ns: 150_000_000, ..Setup::new(host).with_queues(1) }
}

/// The shipped hosts, each as it is and `perturbed` times with constants that differ by a factor of up to 1.5.
pub(crate) fn hosts(perturbed: u64) -> Vec<(String, HostProfile)> {
    let mut hosts = Vec::new();
    for name in HostProfile::shipped_names() {
        for variant in 0..=perturbed {
            let mut host = HostProfile::shipped(name).unwrap();
            let mut random = Pcg64::seed_from_u64(variant);
            for constant in CONSTANTS.iter().filter(|one| variant > 0 && one.unit() == "ns") {
                let factor = 1.5_f64.powf(random.random::<f64>() * 2.0 - 1.0);
                let value = constant.of(&host.constants) * factor;
                constant.set(&mut host.constants, value);
            }
            hosts.push((name.to_owned(), host));
        }
    }
    hosts
}

/// `base`'s maximum throughput.
pub(crate) fn reach(setup: &Setup) -> f64 {
    setup.run(&Point { mode: DeliveryMode::default(), load: Load::Max, seed: 1 }).simulate().unwrap().qps
}

/// All modes of the grid on one host at one load, without noise.
pub(crate) struct Truth {
    pub(crate) shipped: String,
    pub(crate) is_perturbed: bool,
    pub(crate) load: f64,
    pub(crate) modes: BTreeMap<DeliveryMode, SliceObservation>,
    pub(crate) other_seed: BTreeMap<DeliveryMode, SliceObservation>,
}

/// Simulates the modes on every host at every load.
pub(crate) fn truths(perturbed: u64, loads: &[f64], modes: &[DeliveryMode], threads: usize) -> Vec<Truth> {
    let hosts = hosts(perturbed);
    let setups: Vec<Setup> = hosts.iter().map(|(_, host)| setup(host.clone())).collect();
    let reaches = in_parallel(setups.len(), threads, |at| reach(&setups[at]), |_| ());
    let jobs: Vec<(usize, usize, DeliveryMode, u64)> = (0..hosts.len())
        .flat_map(|host| (0..loads.len()).map(move |load| (host, load)))
        .flat_map(|(host, load)| SEEDS.map(|seed| (host, load, seed)))
        .flat_map(|(host, load, seed)| modes.iter().map(move |mode| (host, load, *mode, seed)))
        .collect();
    let run = |at: usize| {
        let (host, load, mode, seed) = jobs[at];
        let load = Load::Qps(reaches[host] * loads[load]);
        observe_model(&setups[host], &Point { mode, load, seed }).ok()
    };
    let slices = in_parallel(jobs.len(), threads, run, |_| ());
    let mut truths: Vec<Truth> = Vec::new();
    for (name, host) in &hosts {
        for load in loads {
            let is_perturbed = host.constants != HostProfile::shipped(name).unwrap().constants;
            let (modes, other_seed) = (BTreeMap::new(), BTreeMap::new());
            truths.push(Truth { shipped: name.clone(), is_perturbed, load: *load, modes, other_seed });
        }
    }
    for ((host, load, mode, seed), slice) in jobs.iter().zip(slices) {
        let truth = &mut truths[host * loads.len() + load];
        if let Some(slice) = slice {
            let of_seed = if *seed == SEEDS[0] { &mut truth.modes } else { &mut truth.other_seed };
            of_seed.insert(*mode, slice);
        }
    }
    truths
}

/// Distance of each mode from the best one by a goal: 0 for the best. A mode that misses a limit has none.
pub(crate) type Regrets = BTreeMap<DeliveryMode, f64>;

impl Truth {
    /// Distances of all modes from the best one.
    pub(crate) fn regrets(&self, goal: &TuneGoal) -> Regrets {
        regrets(&self.modes, goal)
    }

    /// The same with another seed.
    pub(crate) fn regrets_elsewhere(&self, goal: &TuneGoal) -> Regrets {
        regrets(&self.other_seed, goal)
    }

    pub(crate) fn value(&self, metric: &quell_tune::TuneMetric, mode: &DeliveryMode) -> f64 {
        metric.value(&self.modes[mode]).unwrap()
    }
}

fn regrets(modes: &BTreeMap<DeliveryMode, SliceObservation>, goal: &TuneGoal) -> Regrets {
    let bounds = bounds(goal, &modes[&DeliveryMode::default()]);
    let of_mode = |(mode, slice): (&DeliveryMode, &SliceObservation)| {
        cost(goal, &bounds, slice).filter(|(excess, _)| *excess <= 0.0).map(|(_, cost)| (*mode, cost))
    };
    let costs: Vec<(DeliveryMode, f64)> = modes.iter().filter_map(of_mode).collect();
    let best = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    costs.into_iter().map(|(mode, cost)| (mode, (cost - best).exp_m1())).collect()
}

/// Bound of each limit, if `base` is the present setting.
pub(crate) fn bounds(goal: &TuneGoal, base: &SliceObservation) -> Vec<f64> {
    goal.limits.iter().map(|limit| limit.bound(limit.metric.value(base).unwrap())).collect()
}

/// Log excess over the worst limit, and log cost.
pub(crate) fn cost(goal: &TuneGoal, bounds: &[f64], slice: &SliceObservation) -> Option<(f64, f64)> {
    let sign = if goal.direction == quell_tune::TuneDirection::Lowest { 1.0 } else { -1.0 };
    let excess = goal.limits.iter().zip(bounds).map(|(limit, bound)| Some((limit.metric.value(slice)? / bound).ln()));
    let excess = excess.collect::<Option<Vec<f64>>>()?.into_iter().fold(f64::NEG_INFINITY, f64::max);
    Some((excess, goal.objective.value(slice)?.ln() * sign))
}

/// Factors of one recorded slice relative to the median of its recording: CPU, p50, p99; and the foreign CPU share.
type NoiseSlice = [f64; 4];

/// The recordings of `quell-experiment`.
pub(crate) fn recordings() -> Vec<Vec<NoiseSlice>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quell-experiment/data");
    let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let row = |line: &str| line.split(',').map(|number| number.parse().unwrap()).collect::<Vec<f64>>();
        let rows: Vec<Vec<f64>> = text.lines().skip(1).map(row).collect();
        let median = |column: usize| {
            let mut values: Vec<f64> = rows.iter().map(|row| row[column]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let medians = [0, 4, 6].map(median);
        let slice = |row: &Vec<f64>| [row[0] / medians[0], row[4] / medians[1], row[6] / medians[2], row[1] / 1e3];
        rows.iter().map(slice).collect()
    };
    paths.iter().map(read).collect()
}

/// The model as a subject, with replayed noise.
pub(crate) struct Noisy<'a> {
    pub(crate) truth: &'a Truth,
    noise: &'a [NoiseSlice],
    random: Pcg64,
    at: usize,
    left: usize,
    mode: DeliveryMode,
    pub(crate) slices: u32,
}

impl<'a> Noisy<'a> {
    pub(crate) fn new(truth: &'a Truth, noise: &'a [NoiseSlice], seed: u64) -> Self {
        let random = Pcg64::seed_from_u64(seed);
        Self { truth, noise, random, at: 0, left: 0, mode: DeliveryMode::default(), slices: 0 }
    }

    /// The next slice of a mode. `None` if the model cannot run it.
    pub(crate) fn slice(&mut self, mode: &DeliveryMode) -> Option<SliceObservation> {
        let truth = self.truth.modes.get(mode)?;
        if self.left == 0 {
            (self.at, self.left) = (self.random.random_range(0..self.noise.len()), STRETCH);
        }
        let [cpu, p50, p99, foreign_cpu] = self.noise[self.at % self.noise.len()];
        (self.at, self.left, self.slices) = (self.at + 1, self.left - 1, self.slices + 1);
        let mut slice = truth.clone();
        slice.spent_ms = SLICE_MS;
        slice.foreign_cpu = Some(foreign_cpu);
        *slice.metrics.get_mut("cpu-us-per-request")? *= cpu;
        slice.latency = slice.latency.map(|latency| scaled(&latency, p50, p99));
        Some(slice)
    }
}

/// Multiplies latencies below the median by `p50`, and those above the 99th percentile by `p99`, with a gradual change
/// in between.
fn scaled(latency: &LatencyCounts, p50: f64, p99: f64) -> LatencyCounts {
    let (mut histogram, mut below) = (LatencyHistogram::new(), 0.0);
    let all = latency.count() as f64;
    for (ns, count) in latency.slots() {
        below += f64::from(*count);
        let share = ((below / all - 0.5) / 0.49).clamp(0.0, 1.0);
        let factor = p50.powf(1.0 - share) * p99.powf(share);
        histogram.record_n((*ns as f64 * factor) as u64, *count);
    }
    LatencyCounts::from(&histogram)
}

impl ExperimentSubject for Noisy<'_> {
    type Setting = DeliveryMode;
    type Error = String;

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<String>> {
        if !self.truth.modes.contains_key(mode) {
            return Err(SetFailure::NotSettable("the model cannot run it".to_owned()));
        }
        self.mode = *mode;
        Ok(())
    }

    fn settle(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn observe(&mut self, _: u32) -> Result<Option<SliceObservation>, String> {
        let mode = self.mode;
        Ok(self.slice(&mode))
    }

    fn restore(&mut self) -> Result<(), String> {
        Ok(())
    }
}
