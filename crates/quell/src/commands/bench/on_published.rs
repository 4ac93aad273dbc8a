//! Plays published experiments in a private lab. `quell run` starts the server of each slice.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_published::Experiment;
use quell_result::published::PublishedRun;
use quell_subject::experiment::Timing;
use quell_subject::replay::{Replay, ReplayRequest, play};

use super::args::BenchArgs;
use super::on_veth::{self, NotRun};
use crate::commands::asked;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::progress::Progress;

/// Default maximum time for each part. A part ends earlier when its comparisons are decided.
const PART_BUDGET: Duration = Duration::from_secs(120);
const QUICK_PART_BUDGET: Duration = Duration::from_secs(40);
const SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 200;

/// Plays the experiment. After an interruption or a failure, the result contains the parts so far.
pub(super) fn run(args: &BenchArgs, experiment: Experiment) -> Result<PublishedRun, Failure> {
    let replay = Replay::of(experiment).map_err(Failure::usage)?;
    let replay = replay.ok_or_else(|| Failure::usage(format!("a lab cannot play experiment ({experiment})")))?;
    let parts = replay.parts.len();
    let part_budget = if args.quick { QUICK_PART_BUDGET } else { PART_BUDGET };
    let budget = args.budget.unwrap_or(part_budget * u32::try_from(parts).unwrap_or(u32::MAX));
    let timing = Timing {
        budget_ms: u64::try_from(budget.as_millis()).unwrap_or(u64::MAX) / parts as u64,
        slice_ms: args.slice.unwrap_or(SLICE_MS),
        settle_ms: args.settle.unwrap_or(SETTLE_MS),
        margin: super::MARGIN,
        seed: args.seed.unwrap_or_else(super::seed_from_the_clock),
    };
    output::say(&format!(
        "({experiment}) {}\nplays {parts} parts in a private lab on this machine, for at most {} s; the lab is removed at the end",
        experiment.title(),
        budget.as_secs(),
    ));
    let request = ReplayRequest { replay, timing, insist: args.insist };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let (journal, progress, mut under) = (journal(), Progress::new(), String::new());
    progress.doing("setting up the lab");
    let mut report = |event: quell_subject::run::LabEvent<'_>| on_veth::show(&progress, &mut under, event);
    let quell = asked::this_program()?;
    let played = play(&request, &asked::tools(&journal, &quell), &mut report, &|| flag.get().is_some());
    progress.finish();
    played.map_err(|error| on_veth::failure(NotRun::Bench(error)))
}
