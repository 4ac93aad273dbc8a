//! `quell tune`: searches the values of a delivery mode that are best for a goal, confirms them on fresh slices, and
//! writes a profile. The subject is a set of running programs, a command, a server in a private
//! lab or in a guest, or the model of a host.

mod args;
mod on_command;
mod on_lab;
mod on_model;
mod on_programs;
mod on_vm;
mod profile;
mod seen;

use std::ops::ControlFlow;
use std::time::Duration;

use quell_experiment::SliceStage;
use quell_linux::clock;
use quell_linux::output_file::OutputFile;
use quell_linux::proc::ProcRoot;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::Document as _;
use quell_result::facts::HostFacts;
use quell_result::store::ResultStore;
use quell_result::tune::TuneFile;
use quell_subject::question::Searched;
use quell_tune::{TuneEnd, TunePlan, TuneSpace, Tuner};

use crate::commands::bench::args::Where;
pub(crate) use args::TuneArgs;

use crate::commands::bench::seed_from_the_clock;
use crate::commands::{asked, attach, results};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    args.check()?;
    let profile_file = args.profile.clone().map(|path| OutputFile::named(path, "the profile"));
    if args.profile.is_some() && args.profile == args.output {
        return Err(Failure::usage("--profile and --output name the same file; nothing was changed"));
    }
    let store = ResultStore::of_user();
    let result_file = match args.advise {
        true => None,
        false if args.dry_run => store.check_creatable(args.output.as_ref()).map(|()| None).map_err(Failure::usage)?,
        false => Some(store.new_file(args.output.as_ref(), "tune").map_err(Failure::usage)?),
    };
    for file in result_file.iter().chain(profile_file.as_ref().filter(|_| result_file.is_some())) {
        file.check_writable().map_err(Failure::usage)?;
    }
    let mut host = HostFacts::read(&ProcRoot::default()).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let started_unix_s = clock::realtime_ns() / 1_000_000_000;
    let found = match args.programs() {
        Some(targets) => {
            let targets = targets.map_err(|error| Failure::usage(error).unchanged())?;
            if args.advise {
                let seen = seen::see(&targets)?;
                return on_model::advise(args, Some(&seen));
            }
            on_programs::run(args, targets)?.map(|(searched, targets)| (searched, Some(targets)))
        }
        None if args.advise => return on_model::advise(args, None),
        None if !args.command.is_empty() => on_command::run(args)?.map(|searched| (searched, None)),
        None if args.on == Some(Where::Lab) => on_lab::run(args)?.map(|searched| (searched, None)),
        None if args.on == Some(Where::Vm) => on_vm::run(args)?.map(|(searched, guest)| {
            host = guest;
            (searched, None)
        }),
        None => on_model::run(args)?.map(|searched| (searched, None)),
    };
    let (Some((searched, targets)), Some(result_file)) = (found, result_file) else { return Ok(()) };
    let Searched { subject, result, not_a_measurement, left_alone } = searched;
    let quell_version = env!("CARGO_PKG_VERSION").to_owned();
    let schema = TuneFile::SCHEMA.to_owned();
    let file = TuneFile {
        schema,
        quell_version,
        started_unix_s,
        host,
        subject,
        not_a_measurement,
        left_alone,
        search: result,
    };
    finish(args, &file, &result_file, profile_file.as_ref())?;
    match (targets, file.search.answer.mode()) {
        (Some(targets), Some(mode)) if args.keep => attach::keep(&targets, mode, args.accept_stalls),
        (Some(_), None) if args.keep => {
            output::say("no mode was left attached, because none was found");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The plan of a search with the options of the user.
fn plan(args: &TuneArgs, loads: Vec<String>, slice_ms: u32, settle_ms: u32, budget: Duration) -> TunePlan {
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    TunePlan {
        guards: args.never.clone(),
        loads,
        slice_ms: args.slice.unwrap_or(slice_ms),
        settle_ms: args.settle.unwrap_or(settle_ms),
        budget_ms: u64::try_from(args.budget.unwrap_or(budget).as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(args.goal.clone(), DeliveryMode::default(), TuneSpace::default(), seed)
    }
}

/// Checks the plan of a search.
fn check(plan: &TunePlan) -> Result<(), Failure> {
    plan.check().map_err(|error| asked::invalid_plan(plan, error))
}

/// Shows the state of a search after each slice, until it is stopped.
fn watch<'a>(
    progress: &'a Progress,
    stopped: &'a dyn Fn() -> bool,
) -> impl FnMut(&Tuner, SliceStage<'_>) -> ControlFlow<()> + 'a {
    move |tuner, stage| {
        if stage == SliceStage::Recorded {
            show_progress(progress, tuner);
        }
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn show_progress(progress: &Progress, tuner: &Tuner) {
    let percent = (tuner.spent() * 100.0).clamp(0.0, 100.0) as u64;
    progress.table(percent, &render::standing(tuner));
}

/// Writes the files and prints the result. If one of them fails, the others are still done.
fn finish(
    args: &TuneArgs,
    file: &TuneFile,
    result_file: &OutputFile,
    profile_file: Option<&OutputFile>,
) -> Result<(), Failure> {
    let written = result_file.write_json(file);
    let result = &file.search;
    let found = result.answer.mode();
    let of_profile = match (profile_file, found) {
        (Some(destination), Some(mode)) => destination.write(&profile::text(
            &render::render(file),
            &file.subject,
            mode,
            &results::show_command(result_file),
        )),
        _ => Ok(()),
    };
    match args.json {
        true => output::json(file)?,
        false => output::data(&render::render(file))?,
    }
    written.map_err(crate::exit::not_written)?;
    of_profile.map_err(crate::exit::not_written)?;
    match (profile_file, found) {
        (Some(file), Some(_)) => output::say(&format!("\nprofile: {}", visible::path(file.path()))),
        (Some(_), None) => {}
        (None, _) => {}
    }
    results::say_where(result_file);
    match &result.end {
        TuneEnd::Answered => match profile_file.filter(|_| found.is_none()) {
            None => Ok(()),
            Some(file) => {
                let text =
                    format!("no profile was written to {}: no better mode was found", visible::path(file.path()));
                Err(Failure::new(Exit::VerifyFailed, text))
            }
        },
        TuneEnd::Interrupted => {
            Err(Failure::new(Exit::Interrupted, "interrupted: the table contains what was observed so far"))
        }
        end @ TuneEnd::PresentNotSettable { .. } => {
            Err(Failure::new(Exit::NotSupported, render::end(end, &file.left_alone)))
        }
        end @ (TuneEnd::GuardUnreadable { .. }
        | TuneEnd::MetricUnreadable { .. }
        | TuneEnd::BudgetSpent
        | TuneEnd::NoModeLeft) => Err(Failure::new(Exit::VerifyFailed, render::end(end, &file.left_alone))),
        end @ (TuneEnd::SubjectFailed { .. } | TuneEnd::LoadChanged { .. }) => {
            Err(Failure::new(Exit::RolledBack, render::end(end, &file.left_alone)))
        }
    }
}
