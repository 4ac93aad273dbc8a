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
use std::path::Path;
use std::time::Duration;

use quell_bench::subject::{GUARDED_SLICE_MAX_MS, Searched, guarded_run_max};
use quell_experiment::SliceStage;
use quell_linux::proc::ProcRoot;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::facts::HostFacts;
use quell_result::tune::TuneFile;
use quell_tune::{TUNE_SCHEMA, TuneEnd, TunePlan, TuneSpace, Tuner};

pub(crate) use args::TuneArgs;
use args::TuneWhere;

use crate::commands::bench::results;
use crate::commands::bench::seed_from_the_clock;
use crate::commands::{asked, attach};
use crate::exit::{Exit, Failure};
use crate::file::{self, Destination};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    if args.schema {
        return output::json(&schemars::schema_for!(TuneFile));
    }
    if let Some(file) = &args.show {
        return show(&read(file)?, args.json);
    }
    args.check()?;
    let profile_file = args.profile.clone().map(|path| Destination::named(path, "the profile"));
    if args.profile.is_some() && args.profile == args.result {
        return Err(Failure::usage("--profile and --result name the same file; nothing was changed"));
    }
    let result_file = match args.advise {
        true => None,
        false if args.dry_run => results::check_creatable(args.result.as_ref()).map(|()| None)?,
        false => Some(results::destination(args.result.as_ref(), "tune")?),
    };
    for file in result_file.iter().chain(profile_file.as_ref().filter(|_| result_file.is_some())) {
        file.check_writable()?;
    }
    let mut host = HostFacts::read(&ProcRoot::default()).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let started_unix_s = results::unix_time().as_secs();
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
        None if args.experiment == Some(TuneWhere::Lab) => on_lab::run(args)?.map(|searched| (searched, None)),
        None if args.experiment == Some(TuneWhere::Vm) => on_vm::run(args)?.map(|(searched, guest)| {
            host = guest;
            (searched, None)
        }),
        None => on_model::run(args)?.map(|searched| (searched, None)),
    };
    let (Some((searched, targets)), Some(result_file)) = (found, result_file) else { return Ok(()) };
    let Searched { subject, result, not_a_measurement, left_alone } = searched;
    let quell_version = env!("CARGO_PKG_VERSION").to_owned();
    let file = TuneFile { quell_version, started_unix_s, host, subject, not_a_measurement, left_alone, search: result };
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
fn plan(
    args: &TuneArgs,
    loads: Vec<String>,
    slice_ms: u32,
    settle_ms: u32,
    budget: Duration,
) -> Result<TunePlan, Failure> {
    let goal = args.goal.clone().ok_or_else(|| Failure::usage("specify --goal"))?;
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    Ok(TunePlan {
        guards: args.never.clone(),
        loads,
        slice_ms: args.slice.unwrap_or(slice_ms),
        settle_ms: args.settle.unwrap_or(settle_ms),
        budget_ms: u64::try_from(args.budget.unwrap_or(budget).as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), seed)
    })
}

/// Checks that a mode which violates a guard is left within a second. Returns the time limit of a command that measures
/// a slice, if there are guards.
fn guarded(plan: &TunePlan) -> Result<Option<Duration>, Failure> {
    guarded_run_max(plan).ok_or_else(|| {
        Failure::usage(format!(
            "with --never, a mode that violates a guard is left within 1 s, so a slice and its settling time can take at \
             most {GUARDED_SLICE_MAX_MS} ms together; they take {} ms (--slice, --settle)",
            plan.slice_and_settle_ms()
        ))
    })
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
    result_file: &Destination,
    profile_file: Option<&Destination>,
) -> Result<(), Failure> {
    let written = result_file.write_json(file);
    let again = shell_words::quote(&result_file.path().to_string_lossy()).into_owned();
    let result = &file.search;
    let found = result.answer.mode();
    let of_profile = match (profile_file, found) {
        (Some(destination), Some(mode)) => {
            destination.write(&profile::text(&report(file), &file.subject, mode, &again))
        }
        _ => Ok(()),
    };
    show(file, args.json)?;
    written?;
    of_profile?;
    output::say(&format!(
        "\nresult file: {} (to print it again: quell tune --show {again})",
        visible::path(result_file.path())
    ));
    match (profile_file, found) {
        (Some(file), Some(_)) => output::say(&format!("profile: {}", visible::path(file.path()))),
        (Some(file), None) => output::say(&format!("no profile was written to {}", visible::path(file.path()))),
        (None, _) => {}
    }
    match &result.end {
        TuneEnd::Answered => Ok(()),
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

fn show(file: &TuneFile, json: bool) -> Result<(), Failure> {
    if json { output::json(file) } else { output::data(&report(file)) }
}

/// The result as text.
fn report(file: &TuneFile) -> String {
    render::render(&file.subject, &file.host, file.not_a_measurement.as_deref(), &file.left_alone, &file.search)
}

fn read(file: &Path) -> Result<TuneFile, Failure> {
    let no_result = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("{} is not a result of quell tune: {why}", visible::path(file)))
    };
    let result: TuneFile = serde_json::from_str(&file::read_json(file)?).map_err(|error| no_result(&error))?;
    match result.search.schema == TUNE_SCHEMA {
        true => Ok(result),
        false => Err(no_result(&format_args!("its schema is {:?}, expected {TUNE_SCHEMA:?}", result.search.schema))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_command_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("result.json");
        std::fs::write(&file, "{\"schema\": \"quell-experiment/1\"}").unwrap();
        let failure = read(&file).unwrap_err();
        assert!(failure.text.contains("is not a result of quell tune"), "{}", failure.text);
    }
}
