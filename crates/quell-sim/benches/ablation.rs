//! Prints how far each column moves without each part of the model, in four cells of experiment (a).
//! `cargo bench -p quell-sim --bench ablation`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim::HostProfile;
use quell_sim::ablation::ablate;
use quell_sim::published::{Load, RunScale};

fn main() {
    let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
    let scale = RunScale { warm_up_ns: 25_000_000, measured_ns: 60_000_000, ..RunScale::FULL };
    let cells: Vec<_> =
        [("base", Load::Qps(200e3)), ("base", Load::Max), ("defer20", Load::Qps(400e3)), ("suspend20", Load::Max)]
            .map(|(mode, load)| (mode.parse().expect("a mode"), load))
            .to_vec();
    for cell in ablate(&cells, &host, scale, 2, |_, _| ()).expect("it runs") {
        let moved: Vec<_> = cell
            .changes
            .iter()
            .filter(|(_, change)| change.abs() >= 0.02)
            .map(|(column, change)| format!("{} {:+.0} %", column.heading(), 100.0 * change))
            .collect();
        println!("{:10} {:>5} without {:?}: {}", cell.mode.to_string(), cell.load, cell.without, moved.join(", "));
    }
}
