//! Validates the analysis on recorded noise: how often an experiment without a difference reports one, and which
//! differences it finds. For comparison, the rule of earlier versions (`paired_rule`) is applied to the same recordings
//! for the same time. `docs/results/statistics.md` has the results.
//!
//! cargo bench -p quell-experiment --bench method -- [EXPERIMENTS-OF-A [OF-B [PART-OF-A-RECORDING'S-NAME]]]
//!
//! With `files FILE...` instead, both rules are applied to result files of `quell bench`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

mod files;
mod paired_rule;
// Shared with the tests: Cargo has no place for code that only tests and benches of one crate use.
#[path = "../../tests/all/replay/mod.rs"]
mod replay;

use quell_experiment::{ContrastVerdict, Criterion, SwitchbackAnalysis};
use quell_stats::LatencyHistogram;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

use paired_rule::{difference, log_ratios, median};
use replay::{Recording, SPENT_MS, cpu, design, latency};

/// True differences that are injected into the recordings.
const DIFFERENCES: [f64; 5] = [0.01, 0.02, 0.05, 0.1, 0.2];

/// Number of treatments and duration in seconds of each experiment.
const SIZES: [(usize, u64); 6] = [(2, 30), (4, 30), (7, 30), (2, 120), (4, 120), (7, 120)];

/// Number of slices in a trial of earlier versions: 1.8 s after a warm-up of 0.2 s, which takes one slice.
const TRIAL_SLICES: usize = 9;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench").peekable();
    if arguments.next_if_eq("files").is_some() {
        return files::compare(arguments);
    }
    let experiments: u64 = arguments.next().map_or(400, |number| number.parse().unwrap());
    let of_power: u64 = arguments.next().map_or(100, |number| number.parse().unwrap());
    let part = arguments.next().unwrap_or_default();
    let recordings: Vec<Recording> = Recording::all().into_iter().filter(|one| one.name.contains(&part)).collect();
    println!("(a) experiments without a difference that call one, % of {experiments}");
    println!("{:20} {:>10} {:>6} {:>10} {:>10}", "recording", "treatments", "s", "switchback", "paired");
    let mut sums = [0.0; 2];
    for recording in &recordings {
        for (treatments, seconds) in SIZES {
            let new = share(experiments, &|seed| {
                let analysis = recording.experiment(&design(&vec![1.0; treatments], criteria(), seconds), seed);
                vec![analysis.contrasts.iter().any(|contrast| is_difference(contrast.verdict))]
            });
            let old = share(experiments, &|seed| {
                let bench = Bench::replay(recording, &vec![1.0; treatments], seconds, seed);
                vec![(0..criteria().len()).any(|criterion| bench.calls_a_difference(criterion))]
            });
            println!("{:20} {treatments:>10} {seconds:>6} {:>10.1} {:>10.1}", recording.name, new[0], old[0]);
            sums = [sums[0] + new[0], sums[1] + old[0]];
        }
    }
    let mean = sums.map(|sum| sum / (recordings.len() * SIZES.len()) as f64);
    println!("{:38} {:>10.1} {:>10.1}", "all", mean[0], mean[1]);
    consecutive(&recordings);
    println!("\n(b) true differences found, % of {} experiments: switchback / paired", of_power);
    println!("    and the smallest difference, %, that 80 % of the experiments find");
    for recording in &recordings {
        for (treatments, seconds) in SIZES.into_iter().filter(|_| of_power > 0) {
            power(recording, treatments, seconds, of_power);
        }
    }
}

/// Prints what experiments on each section of the recordings report.
fn consecutive(recordings: &[Recording]) {
    let design = design(&[1.0; 2], criteria(), 15);
    let analyses: Vec<SwitchbackAnalysis> =
        recordings.iter().flat_map(|recording| recording.consecutive_experiments(&design)).collect();
    let calls =
        |analysis: &&SwitchbackAnalysis| analysis.contrasts.iter().any(|contrast| is_difference(contrast.verdict));
    let (calling, all) = (analyses.iter().filter(calls).count(), analyses.len());
    println!("(a') of {all} experiments of 15 s with 2 treatments, on each stretch once, {calling} call a difference");
}

fn criteria() -> Vec<Criterion> {
    vec![cpu(), latency(0.5), latency(0.99), latency(0.999)]
}

fn is_difference(verdict: ContrastVerdict) -> bool {
    matches!(verdict, ContrastVerdict::Better | ContrastVerdict::Worse)
}

/// Prints which differences the experiments find. As many treatments as possible have one of the differences. The other
/// treatments equal the reference.
fn power(recording: &Recording, treatments: usize, seconds: u64, experiments: u64) {
    let names = ["cpu", "p50", "p99", "p99.9"];
    let mut found = vec![[[0.0; DIFFERENCES.len()]; 2]; names.len()];
    for (chunk, differences) in DIFFERENCES.chunks(treatments).enumerate() {
        let mut factors = vec![1.0; treatments];
        factors.iter_mut().zip(differences).for_each(|(factor, difference)| *factor = 1.0 - difference);
        let shares = share(experiments, &|seed| {
            let analysis = recording.experiment(&design(&factors, criteria(), seconds), seed);
            let bench = Bench::replay(recording, &factors, seconds, seed);
            let treatments = || 0..differences.len();
            let new = |at: usize| treatments().map(move |treatment| (at, treatment)).collect::<Vec<_>>();
            let cells: Vec<(usize, usize)> = (0..names.len()).flat_map(new).collect();
            let by_switchback = cells.iter().map(|(at, treatment)| is_better(&analysis, *treatment, &criteria()[*at]));
            let by_bench = cells.iter().map(|(at, treatment)| bench.is_lower(*treatment, *at));
            by_switchback.chain(by_bench).collect()
        });
        for (index, share) in shares.iter().enumerate() {
            let (method, cell) = (index / (names.len() * differences.len()), index % (names.len() * differences.len()));
            found[cell / differences.len()][method][chunk * treatments + cell % differences.len()] = *share;
        }
    }
    println!("\n{}, {treatments} treatments, {seconds} s", recording.name);
    let heading: Vec<String> = DIFFERENCES.iter().map(|difference| format!("{:>8.0} %", difference * 100.0)).collect();
    println!("{:6}{} {:>15}", "", heading.join(""), "80 % find");
    for (name, [new, old]) in names.iter().zip(&found) {
        let cells: Vec<String> = new.iter().zip(old).map(|(new, old)| format!("{new:>6.0}/{old:<3.0}")).collect();
        println!("{name:6}{}  {:>6} / {:<6}", cells.join(""), smallest(new), smallest(old));
    }
}

fn is_better(analysis: &SwitchbackAnalysis, treatment: usize, criterion: &Criterion) -> bool {
    analysis.contrasts.iter().any(|contrast| {
        contrast.treatment == treatment.to_string()
            && contrast.criterion == *criterion
            && contrast.verdict == ContrastVerdict::Better
    })
}

/// Smallest difference that 80 % of the experiments find, interpolated between the logarithms of the injected
/// differences.
fn smallest(found: &[f64; DIFFERENCES.len()]) -> String {
    let Some(above) = found.iter().position(|share| *share >= 80.0) else { return "> 20".to_owned() };
    if above == 0 {
        return "< 1".to_owned();
    }
    let (from, to) = (DIFFERENCES[above - 1].ln(), DIFFERENCES[above].ln());
    let part = (80.0 - found[above - 1]) / (found[above] - found[above - 1]);
    format!("{:.1}", (from + part * (to - from)).exp() * 100.0)
}

/// Percentage of experiments for which each of the answers is true. All CPUs share the work.
fn share(experiments: u64, answers: &(dyn Fn(u64) -> Vec<bool> + Sync)) -> Vec<f64> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let of_thread = |thread: u64| {
        let mut counts: Vec<u64> = Vec::new();
        for seed in (thread..experiments).step_by(threads as usize) {
            let answers = answers(seed);
            counts.resize(answers.len(), 0);
            counts.iter_mut().zip(answers).for_each(|(count, answer)| *count += u64::from(answer));
        }
        counts
    };
    let counts: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |at: usize| counts.iter().filter_map(|counts| counts.get(at)).sum::<u64>();
    (0..counts[0].len()).map(|at| 100.0 * sum(at) as f64 / experiments as f64).collect()
}

/// A measurement by the rule of earlier versions on a recording.
struct Bench {
    /// Values of the repeats, by criterion and mode. The modes are base, base again, and then the treatments.
    values: Vec<Vec<Vec<f64>>>,
}

impl Bench {
    fn replay(recording: &Recording, factors: &[f64], seconds: u64, seed: u64) -> Self {
        let modes: Vec<f64> = [1.0, 1.0].iter().chain(factors).copied().collect();
        let slices = (seconds as f64 * 1000.0 / SPENT_MS) as usize;
        let mut indices = recording.bootstrap(slices, seed).into_iter();
        let mut random = Pcg64::seed_from_u64(seed);
        let mut values = vec![vec![Vec::new(); modes.len()]; criteria().len()];
        for _ in 0..slices / (TRIAL_SLICES * modes.len()) {
            let mut order: Vec<usize> = (0..modes.len()).collect();
            order.shuffle(&mut random);
            for mode in order {
                let trial: Vec<usize> = indices.by_ref().take(TRIAL_SLICES).skip(1).collect();
                let of_trial = trial_values(recording, &trial, modes[mode]);
                values.iter_mut().zip(of_trial).for_each(|(values, value)| values[mode].push(value));
            }
        }
        Self { values }
    }

    fn logs(&self, criterion: usize, from: usize, to: usize) -> Vec<f64> {
        log_ratios(&self.values[criterion][from], &self.values[criterion][to])
    }

    fn difference(&self, criterion: usize, from: usize, to: usize) -> Option<f64> {
        difference(&self.logs(criterion, from, to), &self.logs(criterion, 0, 1))
    }

    fn is_lower(&self, treatment: usize, criterion: usize) -> bool {
        self.difference(criterion, 0, treatment + 2).is_some_and(|difference| difference < 0.0)
    }

    /// Whether the best mode differs from base or from another mode.
    fn calls_a_difference(&self, criterion: usize) -> bool {
        let modes = || (0..self.values[criterion].len()).filter(|mode| *mode != 1);
        let ranked = modes().filter_map(|mode| Some((mode, median(&self.logs(criterion, 0, mode))?)));
        let Some((best, _)) = ranked.min_by(|(_, a), (_, b)| a.total_cmp(b)) else { return false };
        modes().any(|mode| self.difference(criterion, best, mode).is_some_and(|difference| difference > 0.0))
            || (best != 0 && self.difference(criterion, 0, best).is_some())
    }
}

/// Values of [`criteria`] in the slices of a trial.
fn trial_values(recording: &Recording, slices: &[usize], factor: f64) -> [f64; 4] {
    let mut latency = LatencyHistogram::new();
    let mut cpu = 0.0;
    for at in slices {
        let observation = recording.observation(*at, factor);
        observation.latency.as_ref().unwrap().add_to(&mut latency);
        cpu += observation.metric("cpu").unwrap() / slices.len() as f64;
    }
    let quantile = |quantile| latency.quantile(quantile).unwrap().as_secs_f64();
    [cpu, quantile(0.5), quantile(0.99), quantile(0.999)]
}
