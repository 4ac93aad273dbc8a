//! Prints an unstable cell of experiment (a) over ten seeds, each with its own spread of connections
//! over queues and workers over CPUs. `cargo bench -p quell-sim --bench regimes -- defer10 800K`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim::HostProfile;
use quell_sim::sweep::{Point, Setup, sweep};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [mode, load] = &arguments[..] else {
        println!("usage: MODE LOAD");
        return;
    };
    let (mode, load) = (mode.parse().expect("a mode"), load.parse().expect("a load"));
    let setup = Setup::new(HostProfile::shipped("epyc7662-cx5").expect("it ships"));
    let points: Vec<_> = (0..10).map(|seed| Point { mode, load, seed }).collect();
    let rows = sweep(&setup, &points, 2, |_| ()).expect("it runs");
    for row in rows {
        let figures = row.figures;
        println!(
            "seed {:2}  {:8.0} qps  mean {:7.1} us  p95 {:7.1} us",
            row.seed, figures.qps, figures.mean_us, figures.p95_us
        );
    }
}
