//! Fits the published host's constants on the training modes and writes the profile to the given file.
//! `cargo bench -p quell-sim --bench fit -- FROM.toml TO.toml ROUNDS`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim::HostProfile;
use quell_sim::fit::{FITTED, Fit};
use quell_sim::published::{IrqSuspension, RunScale, held_out};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [from, to, rounds, ..] = &arguments[..] else {
        println!("usage: FROM.toml TO.toml ROUNDS");
        return;
    };
    let host = HostProfile::from_toml(&std::fs::read_to_string(from).expect("readable")).expect("a profile");
    let experiment = IrqSuspension::published().expect("the data ships");
    let training = experiment.cells.iter().filter(|cell| !held_out(&cell.mode)).collect();
    let scale = RunScale { warm_up_ns: 40_000_000, measured_ns: 40_000_000, ..RunScale::FULL };
    let rounds = rounds.parse().expect("a number");
    let fit = Fit { host, training, constants: FITTED.to_vec(), scale, rounds, threads: 2 };
    let fitted = fit
        .find(|objective, host| {
            println!("objective {objective:.1}");
            std::fs::write(to, host.to_toml()).expect("writable");
        })
        .expect("known constants");
    std::fs::write(to, fitted.host.to_toml()).expect("writable");
    println!("{:?}", fitted.objective);
}
