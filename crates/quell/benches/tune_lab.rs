//! How good the answers of `quell tune` are in the lab: repeated searches on memcached, Redis and nginx, and then the
//! whole grid of modes in one interleaved run. `docs/results/tune.md` has the results. Needs root.
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
use quell_bench::experiment::ExperimentResult;
use quell_experiment::{ExperimentRecord, SliceObservation};
use quell_mode::DeliveryMode;
use quell_tune::TuneSpace;

/// Least CPU time per request among the modes whose p99 is not above that of `base`.
const GOAL: &str = "p99<=1x, least cpu";
const LOAD: &str = "90%";
const SLICE_MS: u64 = 200;
const SETTLE_MS: u64 = 10;
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
    #[arg(long, default_value_t = 12)]
    blocks: u64,
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
        let file = options.dir.join(format!("{}-grid.json", subject.name));
        let modes = TuneSpace::default().all();
        let block_ms = (modes.len() as u64 + 1) * (SLICE_MS + SETTLE_MS);
        let names: Vec<String> = modes.iter().map(ToString::to_string).collect();
        let budget = format!("--budget={}s", (options.blocks * block_ms).div_ceil(1000));
        let grid = ["bench".to_owned(), format!("--modes={}", names.join(",")), format!("--loads={LOAD}"), budget];
        run(&options, &file, grid.into_iter().chain(subject.options.clone()).collect());
        let result: ExperimentResult = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        print(subject.name, &result.experiments[0].record, &answers[subject.name]);
    }
}

/// Answer of a search. `None` if no setting is better than `base`.
fn tuned(options: &Options, subject: &Subject, seed: u32) -> Option<DeliveryMode> {
    let file = options.dir.join(format!("{}-{seed}.json", subject.name));
    let search = ["tune", "--experiment=lab", "--goal", GOAL, "--loads", LOAD].map(str::to_owned);
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
    let option = if arguments[0] == "tune" { "--result" } else { "--output" };
    arguments.extend([option.to_owned(), file.display().to_string()]);
    let ended = Command::new(&options.quell).args(&arguments).stdout(Stdio::null()).status().unwrap();
    assert!(file.exists(), "quell {arguments:?}: {ended}");
}

/// Logarithms of a mode's ratios to `base` in the same blocks.
struct Ratios {
    cpu: Vec<f64>,
    p99: Vec<f64>,
}

impl Ratios {
    fn of(record: &ExperimentRecord<DeliveryMode>, arm: usize) -> Self {
        let of_block = |arm: usize, block: u32| {
            record.slices.iter().find(|slice| slice.arm == arm && slice.block == block).map(|slice| &slice.observation)
        };
        let ratio = |value: fn(&SliceObservation) -> Option<f64>| {
            let blocks = 0..record.slices.iter().map(|slice| slice.block + 1).max().unwrap_or(0);
            let of_arm = blocks.filter_map(|block| {
                let bases: Vec<f64> = [0, 1].iter().filter_map(|base| value(of_block(*base, block)?)).collect();
                let base = bases.iter().map(|value| value.ln()).sum::<f64>() / bases.len() as f64;
                Some(value(of_block(arm, block)?)?.ln() - base)
            });
            of_arm.filter(|log| log.is_finite()).collect()
        };
        let p99 = |slice: &SliceObservation| slice.latency.as_ref()?.quantile(0.99).map(|ns| ns as f64);
        Self { cpu: ratio(|slice| slice.metric(CPU)), p99: ratio(p99) }
    }

    /// Those of every other block, beginning with this one.
    fn half(&self, first: usize) -> Self {
        let half = |logs: &[f64]| logs.iter().skip(first).step_by(2).copied().collect();
        Self { cpu: half(&self.cpu), p99: half(&self.p99) }
    }
}

/// Geometric mean of ratios, with twice its standard error as a factor.
fn mean(logs: &[f64]) -> (f64, f64) {
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean.exp(), (2.0 * (variance / count).sqrt()).exp())
}

/// The best mode of the grid, from every other block, and each answer beside it, from the blocks between these, so that
/// luck does not choose the mode and measure it too.
fn print(server: &str, record: &ExperimentRecord<DeliveryMode>, answers: &[Option<DeliveryMode>]) {
    let arms = (2..record.design.arms()).filter(|arm| !record.dropped.contains_key(arm));
    let of_arm = |arm: usize| (record.design.treatment(arm).unwrap().setting, Ratios::of(record, arm));
    let grid: BTreeMap<DeliveryMode, Ratios> = arms.map(of_arm).collect();
    let cost = |ratios: &Ratios| (mean(&ratios.p99).0 > 1.0, mean(&ratios.cpu).0);
    let halves = grid.iter().map(|(mode, ratios)| (*mode, cost(&ratios.half(0))));
    let best = halves.min_by(|(_, a), (_, b)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap().0;
    let text = |logs: &[f64]| {
        let (ratio, factor) = mean(logs);
        format!("{ratio:.2} ({:.2} to {:.2})", ratio / factor, ratio * factor)
    };
    println!("\n{server}: {} modes of the grid, {} slices of each", grid.len(), grid[&best].cpu.len());
    println!("| mode | answers | CPU of base | p99 of base | CPU of the grid's best, other blocks |");
    println!("| --- | --- | --- | --- | --- |");
    let mut counted: BTreeMap<Option<DeliveryMode>, usize> = BTreeMap::new();
    answers.iter().for_each(|answer| *counted.entry(*answer).or_default() += 1);
    counted.entry(Some(best)).or_default();
    let mut reached = 0;
    for (answer, count) in counted {
        let best = grid[&best].half(1);
        let ratios = answer.and_then(|mode| grid.get(&mode));
        let name = answer.map_or("base (no setting is better)".to_owned(), |mode| mode.to_string());
        let regret = |of: Option<&Ratios>| -> Vec<f64> {
            let of = of.map(|ratios| ratios.half(1).cpu);
            best.cpu.iter().enumerate().map(|(at, best)| of.as_ref().map_or(0.0, |of| of[at]) - best).collect()
        };
        match ratios {
            Some(ratios) => {
                let (cpu, p99) = (mean(&ratios.cpu).0, mean(&ratios.p99).0);
                reached += if p99 <= 0.5 || cpu <= 0.85 && p99 <= 1.0 { count } else { 0 };
                println!(
                    "| `{name}` | {count} | {} | {} | {} |",
                    text(&ratios.cpu),
                    text(&ratios.p99),
                    text(&regret(Some(ratios)))
                );
            }
            None => println!("| {name} | {count} | 1 | 1 | {} |", text(&regret(None))),
        }
    }
    println!("half the p99 of base, or 15 % less CPU at no worse p99: {reached} of {} searches", answers.len());
}
