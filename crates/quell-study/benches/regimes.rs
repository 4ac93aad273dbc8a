//! Simulates the unstable cells of experiment (a) with ten seeds, and with queues that differ by up to ±6 %. Prints the
//! regime of each run. Usage: `cargo bench -p quell-study --bench regimes`, or for a single cell: `-- defer10 800K`

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use quell_mode::DeliveryMode;
use quell_sim::sweep::in_parallel;
use quell_sim::{ConnectionSpread, HostProfile, Load, Run, RunScale};

/// Number of seeds per cell.
const SEEDS: usize = 10;
/// Maximum difference between queues.
const IMBALANCE: ConnectionSpread = ConnectionSpread::Imbalanced { percent: 6 };
/// 95th percentile of latency in µs above which a run has backlogged queues. A queue without a backlog answers in 100
/// to 500 µs. A backlogged queue, whose 560 connections all wait, takes more than 4,000 µs.
const BACKLOG_US: f64 = 1000.0;
/// Cells whose mean latency varied by 14 to 61 % across the published runs.
const UNSTABLE: [(&str, &str); 6] = [
    ("base", "1000K"),
    ("defer10", "1000K"),
    ("defer20", "1000K"),
    ("defer50", "1000K"),
    ("defer200", "1000K"),
    ("defer10", "800K"),
];

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let host = match arguments.iter().position(|argument| argument.ends_with(".toml")) {
        Some(at) => HostProfile::from_toml(&std::fs::read_to_string(arguments.remove(at)).expect("readable"))
            .expect("a profile"),
        None => HostProfile::shipped("epyc7662-cx5").expect("it ships"),
    };
    let cells = match &arguments[..] {
        [mode, load] => vec![(mode.as_str(), load.as_str())],
        _ => UNSTABLE.to_vec(),
    };
    for (mode, load) in cells {
        cell(&host, mode.parse().expect("a mode"), load.parse().expect("a load"));
    }
}

fn cell(host: &HostProfile, mode: DeliveryMode, load: Load) {
    let simulate = |seed: usize| {
        let scale = RunScale { seed: seed as u64 + 1, ..RunScale::FULL };
        let run = Run { spread: IMBALANCE, ..Run::memcached(mode, load, host, scale) };
        run.simulate().expect("it runs").figures(host.cpus)
    };
    let runs = in_parallel(SEEDS, 2, simulate, |_| ());
    let backlog = runs.iter().filter(|figures| figures.p95_us > BACKLOG_US).count();
    println!("{mode} {load}: {} quick, {backlog} backlogged", SEEDS - backlog);
    for (seed, figures) in runs.iter().enumerate() {
        println!(
            "  seed {:2}  {:8.0} qps  mean {:7.1} us  median {:7.1} us  p95 {:7.1} us",
            seed + 1,
            figures.qps,
            figures.mean_us,
            figures.p50_us,
            figures.p95_us
        );
    }
}
