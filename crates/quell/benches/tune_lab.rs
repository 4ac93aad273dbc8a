//! How good the answers of `quell tune` are in the lab: repeated searches on memcached, Redis and nginx, then the whole
//! grid of modes in one interleaved run, and its best modes beside the answers in another. `docs/results/tune.md` has the results. Needs root.
//!
//! cargo bench --profile dev -p quell --bench tune_lab -- --quell target/release/quell

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench prints, and fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use quell_experiment::{ExperimentRecord, SliceObservation};
use quell_mode::DeliveryMode;
use quell_result::experiment::ExperimentResult;
use quell_tune::TuneSpace;

/// Least CPU time per request among the modes whose p99 is not above that of `base`.
const GOAL: &str = "p99<=1x, least cpu";
const LOAD: &str = "90%";
const SLICE_MS: u64 = 200;
const SETTLE_MS: u64 = 10;
/// Number of modes of the grid that are measured again beside the answers.
const FINALISTS: usize = 8;
const CPU: &str = "cpu-us-per-request";

/// Searches in the lab, and compares the answers with the whole grid.
#[derive(Debug, Parser)]
struct Options {
    /// Program to run
    #[arg(long)]
    quell: PathBuf,
    /// Searches on each server
    #[arg(long, default_value_t = 10)]
    tunes: u32,
    /// Budget of a search, in seconds
    #[arg(long, default_value_t = 60)]
    budget: u32,
    /// Slices of each mode in the grid
    #[arg(long, default_value_t = 8)]
    blocks: u64,
    /// Slices of each finalist
    #[arg(long, default_value_t = 40)]
    final_blocks: u64,
    /// Directory for the result files; those that exist are not measured again
    #[arg(long, default_value = "target/tune-lab")]
    dir: PathBuf,
    /// Only servers whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Option that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// A server with one worker: its name, and the options that start and load it.
struct Subject {
    name: &'static str,
    options: Vec<String>,
}

fn subjects(dir: &Path) -> Vec<Subject> {
    let dir = dir.canonicalize().unwrap().display().to_string();
    std::fs::write(format!("{dir}/index.html"), "x".repeat(500)).unwrap();
    let nginx = format!(
        "sh -c 'printf \"daemon off; worker_processes 1; user root; pid {dir}/pid; events {{ worker_connections 1024; }} \
         http {{ access_log off; keepalive_requests 1000000000; server {{ listen {{address}}:{{port}}; root {dir}; }} }}\" \
         > {dir}/nginx.conf; exec nginx -e stderr -c {dir}/nginx.conf'"
    );
    let redis = "redis-server --bind {address} --port {port} --protected-mode no --save \"\"".to_owned();
    let options = |server: String, protocol: &str| vec![format!("--server={server}"), format!("--protocol={protocol}")];
    vec![
        Subject { name: "memcached", options: Vec::new() },
        Subject { name: "redis", options: options(redis, "redis") },
        Subject { name: "nginx", options: options(nginx, "http") },
    ]
}

fn main() {
    let options = Options::parse();
    std::fs::create_dir_all(&options.dir).unwrap();
    let subjects = subjects(&options.dir);
    let subjects: Vec<&Subject> = subjects.iter().filter(|one| one.name.contains(&options.only)).collect();
    let mut answers: BTreeMap<&str, Vec<Option<DeliveryMode>>> = BTreeMap::new();
    for seed in 1..=options.tunes {
        for subject in &subjects {
            answers.entry(subject.name).or_default().push(tuned(&options, subject, seed));
        }
    }
    for subject in &subjects {
        let grid = TuneSpace::default().all();
        let of_grid = compared(&options, subject, "grid", &grid, options.blocks);
        let mut finalists = best(&of_grid, |_| true);
        finalists.truncate(FINALISTS);
        finalists.extend(answers[subject.name].iter().flatten().copied());
        finalists.sort_unstable();
        finalists.dedup();
        // The first mode is the reference.
        finalists.insert(0, DeliveryMode::default());
        let of_finalists = compared(&options, subject, "final", &finalists, options.final_blocks);
        print(subject.name, of_grid.len(), &of_finalists, &answers[subject.name]);
    }
}

/// Compares modes with the first of them, `base`, in one interleaved run.
fn compared(
    options: &Options,
    subject: &Subject,
    name: &str,
    modes: &[DeliveryMode],
    blocks: u64,
) -> BTreeMap<DeliveryMode, Ratios> {
    let file = options.dir.join(format!("{}-{name}.json", subject.name));
    let block_ms = (modes.len() as u64 + 1) * (SLICE_MS + SETTLE_MS);
    let names: Vec<String> = modes.iter().map(ToString::to_string).collect();
    let budget = format!("--budget={}s", (blocks * block_ms).div_ceil(1000));
    let bench = ["bench".to_owned(), format!("--modes={}", names.join(",")), format!("--loads={LOAD}"), budget];
    run(options, &file, bench.into_iter().chain(subject.options.clone()).collect());
    let result: ExperimentResult = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let record = &result.experiments[0].record;
    let arms = (2..record.design.arms()).filter(|arm| !record.dropped.contains_key(arm));
    arms.map(|arm| (record.design.treatment(arm).unwrap().setting, Ratios::of(record, arm))).collect()
}

/// Modes, the best first: those whose p99 is not above that of `base`, by CPU time. Uses the blocks that `counts` selects.
fn best(of: &BTreeMap<DeliveryMode, Ratios>, counts: fn(u32) -> bool) -> Vec<DeliveryMode> {
    let mut costs: Vec<(bool, f64, DeliveryMode)> = Vec::new();
    for (mode, ratios) in of {
        let (Some(cpu), Some(p99)) = (mean(&ratios.cpu, counts), mean(&ratios.p99, counts)) else { continue };
        costs.push((p99.ratio > 1.0, cpu.ratio, *mode));
    }
    costs.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    costs.into_iter().map(|(_, _, mode)| mode).collect()
}

/// Answer of a search. `None` if no setting is better than `base`.
fn tuned(options: &Options, subject: &Subject, seed: u32) -> Option<DeliveryMode> {
    let file = options.dir.join(format!("{}-{seed}.json", subject.name));
    let search = ["tune", "--on=lab", "--goal", GOAL, "--loads", LOAD].map(str::to_owned);
    let chosen = [format!("--budget={}s", options.budget), format!("--seed={seed}")];
    run(options, &file, search.into_iter().chain(chosen).chain(subject.options.clone()).collect());
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let text = result["search"]["answer"]["mode"].as_str().map(str::to_owned);
    eprintln!("{} {seed}: {}", subject.name, text.as_deref().unwrap_or("no setting is better"));
    text.map(|mode| mode.parse().unwrap())
}

fn run(options: &Options, file: &Path, mut arguments: Vec<String>) {
    if file.exists() {
        return;
    }
    let option = "--output";
    arguments.extend([option.to_owned(), file.display().to_string()]);
    let ended = Command::new(&options.quell).args(&arguments).stdout(Stdio::null()).status().unwrap();
    assert!(file.exists(), "quell {arguments:?}: {ended}");
}

/// Logarithms of a mode's ratios to `base` in the same block, by block.
struct Ratios {
    cpu: BTreeMap<u32, f64>,
    p99: BTreeMap<u32, f64>,
}

impl Ratios {
    fn of(record: &ExperimentRecord<DeliveryMode>, arm: usize) -> Self {
        let of_block = |arm: usize, block: u32| {
            record.slices.iter().find(|slice| slice.arm == arm && slice.block == block).map(|slice| &slice.observation)
        };
        let blocks = record.slices.iter().map(|slice| slice.block + 1).max().unwrap_or(0);
        let ratio = |value: fn(&SliceObservation) -> Option<f64>| {
            let of_block = |block: u32| {
                let bases: Vec<f64> = [0, 1].iter().filter_map(|base| value(of_block(*base, block)?)).collect();
                let base = bases.iter().map(|value| value.ln()).sum::<f64>() / bases.len() as f64;
                let log = value(of_block(arm, block)?)?.ln() - base;
                log.is_finite().then_some((block, log))
            };
            (0..blocks).filter_map(of_block).collect()
        };
        let p99 = |slice: &SliceObservation| slice.latency.as_ref()?.quantile(0.99).map(|ns| ns as f64);
        Self { cpu: ratio(|slice| slice.metric(CPU)), p99: ratio(p99) }
    }
}

/// Geometric mean of ratios, and its interval of twice the standard error.
struct Mean {
    ratio: f64,
    low: f64,
    high: f64,
}

impl std::fmt::Display for Mean {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.ratio, self.low, self.high)
    }
}

/// Mean over the blocks that `counts` selects. `None` with fewer than three values.
fn mean(logs: &BTreeMap<u32, f64>, counts: fn(u32) -> bool) -> Option<Mean> {
    let logs: Vec<f64> = logs.iter().filter(|(block, _)| counts(**block)).map(|(_, log)| *log).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = 2.0 * (variance / count).sqrt();
    (logs.len() >= 3).then(|| Mean { ratio: mean.exp(), low: (mean - error).exp(), high: (mean + error).exp() })
}

const EVERY: fn(u32) -> bool = |_| true;
const EVEN: fn(u32) -> bool = |block| block.is_multiple_of(2);
const ODD: fn(u32) -> bool = |block| !block.is_multiple_of(2);

/// The best mode of the finalists, from the even blocks, and each answer beside it, from the odd blocks, so that luck does
/// not choose the mode and measure it too.
fn print(server: &str, grid: usize, of: &BTreeMap<DeliveryMode, Ratios>, answers: &[Option<DeliveryMode>]) {
    let best = best(of, EVEN)[0];
    println!("\n{server}: {grid} modes in the grid, {} slices of each of {} finalists", of[&best].cpu.len(), of.len());
    println!("| mode | answers | CPU of base | p99 of base | CPU of the best |");
    println!("| --- | --- | --- | --- | --- |");
    let mut counted: BTreeMap<Option<DeliveryMode>, usize> = BTreeMap::new();
    answers.iter().for_each(|answer| *counted.entry(*answer).or_default() += 1);
    counted.entry(Some(best)).or_default();
    let text = |mean: Option<Mean>| mean.map_or("-".to_owned(), |mean| mean.to_string());
    let (mut reached, mut shown) = (0, 0);
    for (answer, count) in counted {
        let name = answer.map_or("base (no setting is better)".to_owned(), |mode| format!("`{mode}`"));
        let ratios = answer.and_then(|mode| of.get(&mode));
        let regret: BTreeMap<u32, f64> = of[&best]
            .cpu
            .iter()
            .filter_map(|(block, best)| Some((*block, ratios.map_or(Some(&0.0), |of| of.cpu.get(block))? - best)))
            .collect();
        let regret = text(mean(&regret, ODD));
        let means = ratios.and_then(|of| Some((mean(&of.cpu, EVERY)?, mean(&of.p99, EVERY)?)));
        let Some((cpu, p99)) = means else {
            println!("| {name} | {count} | 1 | 1 | {regret} |");
            continue;
        };
        reached += if p99.ratio <= 0.5 || cpu.ratio <= 0.85 && p99.ratio <= 1.0 { count } else { 0 };
        shown += if p99.high <= 0.5 || cpu.high <= 0.85 && p99.high <= 1.0 { count } else { 0 };
        println!("| {name} | {count} | {cpu} | {p99} | {regret} |");
    }
    println!(
        "half the p99 of base, or 15 % less CPU at no worse p99: {reached} of {} answers; {shown} also at the worse end \
         of the intervals",
        answers.len()
    );
}
