//! Plays published experiments in a private lab. `quell run` starts the server of each slice.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_published::Experiment;
use quell_result::published::PublishedRun;
use quell_subject::question::SubjectStep;
use quell_subject::question::Timing;
use quell_subject::replay::{Replay, ReplayRequest, play};

use super::args::BenchArgs;
use crate::commands::subject::Place;
use crate::commands::subject::asked::{self, Shown};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Default maximum time for a part. A part ends earlier when its comparisons are decided.
pub(super) fn budget(is_quick: bool) -> Duration {
    Duration::from_secs(if is_quick { 40 } else { 120 })
}

/// Plays the experiment. After an interruption or a failure, the result contains the parts so far.
pub(super) fn run(args: &BenchArgs, experiment: Experiment) -> Result<PublishedRun, Failure> {
    let replay = Replay::of(experiment).map_err(Failure::usage)?;
    let replay = replay.ok_or_else(|| Failure::usage(format!("a lab cannot play experiment ({experiment})")))?;
    let parts = replay.parts.len();
    let timing = super::timing(args, Place::Published);
    let all_ms = match args.subject.budget {
        Some(_) => timing.budget_ms,
        None => timing.budget_ms.saturating_mul(parts as u64),
    };
    let timing = Timing { budget_ms: all_ms / parts as u64, ..timing };
    output::say(&format!(
        "({experiment}) {}\nplays {parts} parts in a private lab on this machine, for at most {} s; the lab is removed at the end",
        experiment.title(),
        all_ms / 1_000,
    ));
    let request = ReplayRequest { replay, timing, insist: args.subject.insist };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let (journal, mut shown) = (journal(), Shown::new());
    shown.show(SubjectStep::Doing("setting up the lab"));
    let quell = asked::this_program()?;
    let tools = asked::tools(&journal, &quell);
    let played = play(&request, &tools, &mut |step| shown.show(step), &|| flag.get().is_some());
    shown.finish();
    played.map_err(asked::of_lab_run)
}
