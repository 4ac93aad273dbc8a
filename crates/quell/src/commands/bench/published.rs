//! Plays published experiments in a private lab. `quell run` starts the server of each slice, if there is one.

use std::time::Duration;

use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_published::Experiment;
use quell_result::ResultDocument;
use quell_result::facts::HostFacts;
use quell_subject::question::SubjectStep;
use quell_subject::question::Timing;
use quell_subject::replay::{Replay, ReplayRequest, XdpReplay, play, play_xdp};
use quell_subject::subjects::play_xdp_in_guest;

use super::args::BenchArgs;
use crate::commands::subject::Place;
use crate::commands::subject::asked::{self, Shown};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Default maximum time for a part. A part ends earlier when its comparisons are decided.
pub(super) fn budget(experiment: Option<Experiment>, place: Place, is_quick: bool) -> Duration {
    Duration::from_secs(match (experiment, is_quick) {
        (_, true) if place == Place::PublishedGuest => 40,
        (_, false) if place == Place::PublishedGuest => 120,
        (Some(Experiment::C), true) => 11,
        (Some(Experiment::C), false) => 60,
        (_, true) => 40,
        (_, false) => 120,
    })
}

/// Plays the experiment. After an interruption or a failure, the result contains the parts so far.
pub(super) fn run(args: &BenchArgs, experiment: Experiment, place: Place) -> Result<ResultDocument, Failure> {
    let timing = super::timing(args, place);
    let insist = args.subject.insist;
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    if place == Place::PublishedGuest {
        let mut replay = XdpReplay::in_guest(timing, super::extent(args)).map_err(Failure::usage)?;
        replay.timing = of_part(args, timing, experiment, replay.points.len(), IN_GUEST);
        let mut shown = Shown::new();
        let played = play_xdp_in_guest(&args.subject.of_guest(), &replay, &mut |step| shown.show(step), &stopped);
        shown.finish();
        return Ok(ResultDocument::PublishedXdp(Box::new(played.map_err(asked::failure)?)));
    }
    let (journal, quell) = (journal(), asked::this_program()?);
    if let Some(replay) = Replay::of(experiment).map_err(Failure::usage)? {
        let timing = of_part(args, timing, experiment, replay.parts.len(), IN_LAB);
        let request = ReplayRequest { replay, timing, insist };
        let mut shown = shown();
        let played = play(&request, &asked::tools(&journal, &quell), &mut |step| shown.show(step), &stopped);
        shown.finish();
        return Ok(ResultDocument::Published(Box::new(played.map_err(asked::of_lab_run)?)));
    }
    let cpus = HostFacts::read(&ProcRoot::default()).map_err(Failure::refused)?.cpus.len();
    let mut replay = XdpReplay::published(cpus, timing, super::extent(args), insist).map_err(Failure::usage)?;
    replay.timing = of_part(args, timing, experiment, replay.points.len(), IN_LAB);
    let mut shown = shown();
    let played = play_xdp(&replay, &quell, &journal, &mut |step| shown.show(step), &stopped);
    shown.finish();
    Ok(ResultDocument::PublishedXdp(Box::new(played.map_err(asked::of_lab_run)?)))
}

/// Where parts are played, and what to know about it.
const IN_LAB: [&str; 2] = ["a private lab on this machine", "the lab is removed at the end"];
const IN_GUEST: [&str; 2] =
    ["a guest, slowed down", "it counts who polls, because times in a guest mean nothing; this host is not changed"];

/// Prints what is played, and returns the timing of a part: a budget on the command line is that of all parts.
fn of_part(args: &BenchArgs, timing: Timing, experiment: Experiment, parts: usize, place: [&str; 2]) -> Timing {
    let all_ms = match args.subject.budget {
        Some(_) => timing.budget_ms,
        None => timing.budget_ms.saturating_mul(parts as u64),
    };
    output::say(&format!(
        "({experiment}) {}\nplays {parts} parts in {}, for at most {} s; {}",
        experiment.title(),
        place[0],
        all_ms / 1_000,
        place[1],
    ));
    Timing { budget_ms: all_ms / parts as u64, ..timing }
}

fn shown() -> Shown {
    let mut shown = Shown::new();
    shown.show(SubjectStep::Doing("setting up the lab"));
    shown
}
