//! Compares packaged servers with and without a delivery mode: `base` twice, `quell attach` and `quell run`, in
//! interleaved rounds, with the real client of each server. Prints a page with figures and with the parts of
//! `docs/servers.md`; progress goes to standard error.
//!
//! `make bench-servers`, or `cargo bench -p quell --bench servers` as root.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench prints, and fails by panicking"
)]

// Files of the test `servers`. A library for both would be a crate that only they use: Cargo builds each target on its own.
#[path = "../../tests/all/servers/client.rs"]
mod client;
#[path = "../../tests/all/command/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod command;
#[path = "../../tests/all/servers/fixtures.rs"]
mod fixtures;
#[path = "../../tests/all/servers/lab.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod lab;
#[path = "../../tests/all/servers/program.rs"]
mod program;

mod page;
mod table;
mod trial;

use clap::Parser;
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_linux::sched;
use quell_linux::visible::counted;
use quell_result::facts::HostFacts;

use client::Effort;
use lab::ServersLab;
use program::Program;
use table::Trials;
use trial::{Arm, Trial, reach, trial};

/// Maximum number of attempts of a disturbed trial.
const ATTEMPTS_MAX: u32 = 3;
/// Offered load as a share of the throughput of `base` in a closed loop, for clients that support a rate.
const RATE_SHARE: f64 = 0.5;

/// Measures servers from packages under a delivery mode.
#[derive(Debug, Parser)]
struct Options {
    /// Mode to compare with `base`
    #[arg(long, default_value = "suspend200")]
    mode: String,
    /// Interleaved rounds with one queue and one worker.
    #[arg(long, default_value_t = 6)]
    rounds: u64,
    /// Interleaved rounds with two queues and two workers
    #[arg(long, default_value_t = 6)]
    rounds_of_two: u64,
    /// Measured time of a trial, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only servers whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Option that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    let host = HostFacts::read(&ProcRoot::default()).unwrap();
    let Some(alone) = tried(&options, 1, options.rounds) else { return };
    let Some(several) = tried(&options, 2, options.rounds_of_two) else { return };
    print!("{}", page::page(&options, &host, &alone, &several));
}

/// Runs the trials of all servers with this number of queues and workers (if the server supports several). Returns
/// `None` if no lab is possible. Creates a new lab for each server and round, so that other users of the machine-wide
/// lock can run in between.
fn tried(options: &Options, queues: u32, rounds: u64) -> Option<Vec<(Program, Trials)>> {
    let programs = Program::ALL.into_iter().filter(|program| is_wanted(*program, options));
    let mut all: Vec<(Program, Trials)> = programs.map(|program| (program, Trials::default())).collect();
    for round in 0..rounds {
        for (program, trials) in &mut all {
            eprintln!("{}, round {}/{rounds}: {}", counted(queues, "queue"), round + 1, program.name());
            let program = *program;
            let in_a_lab = || {
                let lab = ServersLab::raise(queues)?;
                // The observing threads wake up now and then, so they run on the CPUs of the clients.
                sched::set_affinity(Pid::of_this_thread(), &lab.client_cpus()).unwrap();
                one_round(&lab, program, options, round, trials);
                Some(())
            };
            std::thread::scope(|scope| scope.spawn(in_a_lab).join().unwrap())?;
        }
    }
    Some(all)
}

fn is_wanted(program: Program, options: &Options) -> bool {
    if options.only.as_ref().is_some_and(|only| !program.name().contains(only.as_str())) {
        return false;
    }
    let missing = program.missing();
    if let Some(why) = &missing {
        eprintln!("skipped: {}: {why}", program.name());
    }
    missing.is_none()
}

fn one_round(lab: &ServersLab, program: Program, options: &Options, round: u64, trials: &mut Trials) {
    let effort = match reach(lab, program) {
        Ok(per_s) if program.client().has_a_rate() => {
            Effort::Open { seconds: options.seconds, per_s: per_s * RATE_SHARE }
        }
        Ok(expected_per_s) => Effort::Closed { seconds: options.seconds, expected_per_s },
        Err(why) => {
            eprintln!("  {why}");
            return;
        }
    };
    for arm in order(round) {
        let outcome = undisturbed_if_possible(lab, program, options, arm, effort);
        if let Err(why) = &outcome {
            eprintln!("  {}: {why}", arm.name());
            trials.failed.insert(arm, why.clone());
        }
        trials.of.entry(arm).or_default().push(outcome.ok());
    }
}

/// Order of the arms in a round. All orders are used in turn, so that no arm always follows the same one.
fn order(round: u64) -> Vec<Arm> {
    let mut arms = Arm::ALL.to_vec();
    let at = usize::try_from(round).unwrap_or(0);
    arms.rotate_left(at % Arm::ALL.len());
    if (at / Arm::ALL.len()) % 2 == 1 {
        arms.reverse();
    }
    arms
}

/// Repeats a disturbed trial and returns the attempt with the fewest disturbances.
fn undisturbed_if_possible(
    lab: &ServersLab,
    program: Program,
    options: &Options,
    arm: Arm,
    effort: Effort,
) -> Result<Trial, String> {
    let mut best: Option<Trial> = None;
    for _ in 0..ATTEMPTS_MAX {
        let trial = trial(lab, program, &options.mode, arm, effort)?;
        let better = best.as_ref().is_none_or(|best| trial.disturbances.len() < best.disturbances.len());
        let quiet = trial.disturbances.is_empty();
        if better {
            best = Some(trial);
        }
        if quiet {
            break;
        }
    }
    best.ok_or_else(|| "not attempted".to_owned())
}
