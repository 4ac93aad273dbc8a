//! Shows how much 13 of the fitted constants move the errors of the training modes. All of them are varied at random,
//! and each run has its own seed. Errors are regressed on the logarithms of the constants, so that the walk of adaptive
//! moderation averages out. Prints what 20 % of each constant does. Usage:
//! `cargo bench -p quell-study --bench sensitivity -- RUNS [HOST.toml]`

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use nalgebra::{DMatrix, DVector};
use quell_published::{PublishedCell, irq_suspension_cells};
use quell_sim::sweep::in_parallel;
use quell_sim::{Column, Constant, HostProfile, RunScale};
use quell_study::fit::weighted_errors;
use quell_study::published::held_out;

const CONSTANTS: [&str; 13] = [
    "device_irq_ns",
    "preempting_irq_ns",
    "napi_poll_ns",
    "rx_request_ns",
    "wake_ns",
    "epoll_wait_ns",
    "request_ns",
    "batch_extra_ns",
    "batch_packet_ns",
    "interference_ns",
    "cross_cpu_ns",
    "contention_ns",
    "contention_packet_ns",
];
/// Largest change of a constant, as a logarithm.
const REACH: f64 = 0.25;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runs = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(40);
    let host = match arguments.iter().find(|argument| argument.ends_with(".toml")) {
        Some(file) => HostProfile::from_toml(&std::fs::read_to_string(file).expect("readable")).expect("a profile"),
        None => HostProfile::shipped("epyc7662-cx5").expect("it ships"),
    };
    let cells = irq_suspension_cells().expect("the data ships");
    let training: Vec<&PublishedCell> = cells.iter().filter(|cell| !held_out(&cell.mode)).collect();
    let constants = CONSTANTS.map(|name| Constant::named(name).expect("a constant"));

    let designs = DMatrix::from_fn(runs, CONSTANTS.len(), |run, constant| unit(run, constant) * 2.0 - 1.0);
    let simulate = |run: usize| {
        let mut host = host.clone();
        for (constant, step) in constants.iter().zip(designs.row(run).iter()) {
            let value = constant.of(&host.constants) * libm::exp(REACH * step);
            constant.set(&mut host.constants, value);
        }
        let scale = RunScale { seed: run as u64 + 1, ..RunScale::FULL };
        let errors = |cell: &&PublishedCell| weighted_errors(cell, &host, scale).expect("it runs");
        training.iter().flat_map(errors).collect::<Vec<f64>>()
    };
    let rows = in_parallel(runs, 2, simulate, |_| ());
    let errors = DMatrix::from_fn(runs, rows[0].len(), |run, error| rows[run][error]);

    let design = designs.insert_column(0, 1.0);
    let solved = design.svd(true, true).solve(&errors, 1e-9).expect("both factors were computed");
    let here: DVector<f64> = solved.row(0).transpose();
    let slopes = solved.rows(1, CONSTANTS.len()).transpose();
    println!("objective {:.1}", here.norm_squared());
    for (index, constant) in constants.iter().enumerate() {
        let twenty_pct = libm::log(1.2) / REACH * slopes.column(index);
        let change = |sign: f64| (&here + sign * &twenty_pct).norm_squared() - here.norm_squared();
        let (most, _) = twenty_pct.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).expect("cells");
        let (cell, column) = (training[most / Column::ALL.len()], Column::ALL[most % Column::ALL.len()]);
        println!(
            "{:22} {:8.1}  20 % less {:+6.1}  20 % more {:+6.1}  most: {} {} {} {:+.1} tolerances",
            constant.name,
            constant.of(&host.constants),
            change(-1.0),
            change(1.0),
            cell.mode,
            cell.load,
            column.heading(),
            twenty_pct[most],
        );
    }
}

/// A number in [0, 1) that looks random (the finalizer of `SplitMix64`).
fn unit(run: usize, constant: usize) -> f64 {
    let mut bits = ((run * 64 + constant + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
