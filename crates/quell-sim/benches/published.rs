//! Runs a published experiment, prints published beside modelled, the scores, and how long it took.
//! `cargo bench -p quell-sim --bench published`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use std::time::Instant;

use quell_sim::HostProfile;
use quell_sim::published::{Column, ComparedCell, IrqSuspension, RunScale, held_out, score};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let full = arguments.iter().any(|argument| argument == "full");
    let quick = RunScale { warm_up_ns: 25_000_000, measured_ns: 60_000_000, ..RunScale::FULL };
    let scale = if full { RunScale::FULL } else { quick };
    let host = match arguments.iter().find(|argument| argument.ends_with(".toml")) {
        Some(file) => HostProfile::from_toml(&std::fs::read_to_string(file).expect("readable")).expect("a profile"),
        None => HostProfile::shipped("epyc7662-cx5").expect("it ships"),
    };
    let experiment = IrqSuspension::published().expect("the data ships");
    let began = Instant::now();
    let mut events = 0;
    let mut cells = Vec::new();
    let only: Vec<_> = arguments.iter().filter_map(|argument| argument.strip_prefix("only=")).collect();
    for published in
        experiment.cells.iter().filter(|cell| only.is_empty() || only.contains(&cell.mode.to_string().as_str()))
    {
        let run = IrqSuspension::run(published.mode, published.load, &host, scale);
        let result = run.simulate().expect("it runs");
        events += result.events;
        cells.push(ComparedCell::new(published, result.figures(8)));
    }
    let elapsed = began.elapsed();
    print(&cells);
    for (name, which) in [("training", false), ("held out", true)] {
        println!("{name}:");
        for column in score(&cells, |cell| held_out(&cell.mode) == which).columns {
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
    println!("{events} events in {elapsed:.2?}: {:.2} M events/s", events as f64 / elapsed.as_secs_f64() / 1e6);
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
