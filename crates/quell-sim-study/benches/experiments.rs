//! Runs published experiments and prints every cell published beside modelled, what they come to,
//! and what is to be known of the data. `cargo bench -p quell-sim-study --bench experiments -- b c d`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim_study::published::{Cell, ErrorKind, Experiment, ExperimentComparison};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let asked = arguments.iter().map(|letter| letter.parse().expect("a letter"));
    let experiments: Vec<Experiment> =
        if arguments.is_empty() { vec![Experiment::B, Experiment::C, Experiment::D] } else { asked.collect() };
    for experiment in experiments {
        print(&experiment.run(2, |_, _| ()).expect("it runs"));
    }
}

fn print(comparison: &ExperimentComparison) {
    println!("({}) {}, on {}", comparison.experiment, comparison.title, comparison.host);
    for cell in comparison.cells.iter().filter(|cell| cell.scored) {
        println!("  {:50} {:24} {:10.3} {:10.3} {}", cell.row, cell.column, cell.published, cell.modelled, error(cell));
    }
    for summary in &comparison.summary {
        let bound = summary.bound.map_or(String::new(), |bound| format!(" (at most {bound})"));
        println!("{}: {:.3}{bound}", summary.what, summary.value);
    }
    for note in &comparison.notes {
        println!("note: {note}");
    }
}

fn error(cell: &Cell) -> String {
    let beyond = if cell.is_beyond() { " !" } else { "" };
    match cell.error_kind {
        ErrorKind::Relative => format!("{:+.1} %{beyond}", 100.0 * cell.error),
        ErrorKind::Difference => format!("{:+.3}{beyond}", cell.error),
    }
}
