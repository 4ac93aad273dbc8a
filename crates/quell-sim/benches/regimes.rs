//! Prints an unstable cell of experiment (a) over ten seeds, each with its own spread of connections
//! over queues and workers over CPUs. `cargo bench -p quell-sim --bench regimes -- defer10 800K`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim::HostProfile;
use quell_sim::published::RunScale;
use quell_sim::sweep::{in_parallel, row};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [mode, load] = &arguments[..] else {
        println!("usage: MODE LOAD");
        return;
    };
    let (mode, load) = (mode.parse().expect("a mode"), load.parse().expect("a load"));
    let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
    let rows = in_parallel(
        10,
        2,
        |seed| row(mode, load, &host, RunScale { seed: seed as u64, ..RunScale::FULL }).expect("it runs"),
        |_| (),
    );
    for row in rows {
        let figures = row.figures;
        println!(
            "seed {:2}  {:8.0} qps  mean {:7.1} us  p95 {:7.1} us",
            row.seed, figures.qps, figures.mean_us, figures.p95_us
        );
    }
}
