//! Simulates published experiment (a), and prints published and modelled values, scores, and events per second. Usage:
//! `cargo bench -p quell-study --bench published`

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::Instant;

use quell_published::irq_suspension_cells;
use quell_sim::{Column, HostProfile, RunScale};
use quell_study::published::{ComparedCell, irq_suspension};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = RunScale { warm_up_ns: 25_000_000, measured_ns: 60_000_000, ..RunScale::FULL };
    let scale = if arguments.iter().any(|argument| argument == "quick") { quick } else { RunScale::FULL };
    let threads = arguments.iter().find_map(|argument| argument.strip_prefix("threads=")?.parse().ok()).unwrap_or(2);
    let host = match arguments.iter().find(|argument| argument.ends_with(".toml")) {
        Some(file) => HostProfile::from_toml(&std::fs::read_to_string(file).expect("readable")).expect("a profile"),
        None => HostProfile::shipped("epyc7662-cx5").expect("it ships"),
    };
    let seeds = arguments.iter().find_map(|argument| argument.strip_prefix("seeds=")?.parse().ok()).unwrap_or(1);
    let mut cells = irq_suspension_cells().expect("the data ships");
    if let Some(only) = arguments.iter().find_map(|argument| argument.strip_prefix("only=")) {
        cells.retain(|cell| only.split(',').any(|mode| cell.mode.to_string() == mode));
    }
    let began = Instant::now();
    let comparison = irq_suspension(&cells, &host, scale, seeds, threads, |_| ()).expect("it runs");
    let elapsed = began.elapsed();
    print(&comparison.cells);
    for (name, scored) in [
        ("training", &comparison.training),
        ("held out", &comparison.held_out),
        ("base", &comparison.base),
        ("ratio to base", &comparison.to_base),
    ] {
        println!("{name}:");
        for column in &scored.columns {
            println!(
                "  {:14} {:3} cells  median {:5.1} %  p90 {:6.1} %  within 25 %: {:3.0} %",
                column.column.heading(),
                column.cells,
                100.0 * column.median,
                100.0 * column.p90,
                column.within_25_pct
            );
        }
    }
    let rate = comparison.events as f64 / elapsed.as_secs_f64() / 1e6;
    println!("{} events in {elapsed:.2?} on {threads} threads: {rate:.2} M events/s", comparison.events);
}

fn print(cells: &[ComparedCell]) {
    print!("{:10} {:>6}", "mode", "load");
    for column in Column::ALL {
        print!(" {:>22}", column.heading());
    }
    println!();
    for cell in cells {
        print!("{:10} {:>6}{}", cell.mode.to_string(), cell.load, if cell.stable() { ' ' } else { '~' });
        for column in Column::ALL {
            let (published, modelled) = (column.of(&cell.published), column.of(&cell.modelled));
            print!(" {published:8.1} {modelled:8.1}{:+4.0}%", 100.0 * cell.error(column));
        }
        println!();
    }
}
