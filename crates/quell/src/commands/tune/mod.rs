//! `quell tune`: searches the values of a delivery mode that are best for a goal, confirms them on fresh slices, and
//! writes a profile. The subject is a set of running programs, a command, a server in a private
//! lab or in a guest, or the model of a host.

mod args;
mod metrics;
mod on_command;
mod on_lab;
mod on_model;
mod on_programs;
mod on_vm;
mod profile;
mod seen;

use std::time::Duration;

use quell_linux::clock;
use quell_linux::proc::ProcRoot;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;
use quell_result::Document as _;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::HostFacts;
use quell_result::output_file::OutputFile;
use quell_result::store::ResultStore;
use quell_result::tune::TuneFile;
use quell_tune::{RefusedMode, TuneEnd, TunePlan, TunePlanError, TuneResult, Tuner};

pub(crate) use args::TuneArgs;
use args::TuneWhere;

use crate::commands::{attach, results};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

/// Longest time for which a mode that violates a guard is set, in ms: the slice, and the time to evaluate it.
const GUARDED_MS: u64 = 1_000;
const EVALUATED_MS: u64 = 100;

/// A search on a subject.
struct Searched {
    subject: SubjectFacts,
    result: TuneResult,
    not_a_measurement: Option<String>,
    /// Settings that another program changed, and that were therefore not restored.
    left_alone: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    args.check()?;
    let profile_file = args.profile.clone().map(|path| OutputFile::named(path, "the profile"));
    if args.profile.is_some() && args.profile == args.result {
        return Err(Failure::usage("--profile and --result name the same file; nothing was changed"));
    }
    let store = ResultStore::of_user();
    let result_file = match args.advise {
        true => None,
        false if args.dry_run => store.check_creatable(args.result.as_ref()).map(|()| None).map_err(Failure::usage)?,
        false => Some(store.new_file(args.result.as_ref(), "tune").map_err(Failure::usage)?),
    };
    for file in result_file.iter().chain(profile_file.as_ref().filter(|_| result_file.is_some())) {
        file.check_writable().map_err(Failure::usage)?;
    }
    let mut host = HostFacts::read(&ProcRoot::default()).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let began_unix_s = clock::realtime_ns() / 1_000_000_000;
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
    let schema = TuneFile::SCHEMA.to_owned();
    let file =
        TuneFile { schema, quell_version, began_unix_s, host, subject, not_a_measurement, left_alone, search: result };
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

/// Kinds of mode of which no value can be set, with the reason for the first one.
fn refused<W: std::fmt::Display>(
    modes: &[DeliveryMode],
    why_impossible: &dyn Fn(&DeliveryMode) -> Option<W>,
) -> Vec<RefusedMode> {
    let mut refused: Vec<RefusedMode> = Vec::new();
    for mode in modes.iter().filter(|mode| **mode != DeliveryMode::default()) {
        let kind = mode.kind().word();
        let mut of_kind = modes.iter().filter(|other| other.kind().word() == kind);
        if let Some(reason) = why_impossible(mode)
            && refused.iter().all(|one| one.kind != kind)
            && of_kind.all(|other| why_impossible(other).is_some())
        {
            refused.push(RefusedMode { kind: kind.to_owned(), reason: reason.to_string() });
        }
    }
    refused
}

/// Checks that an arm which violates a guard is left within a second. Returns the time limit of a command that measures
/// a slice, if there are guards.
fn guarded(plan: &TunePlan) -> Result<Option<Duration>, Failure> {
    if plan.guards.is_empty() {
        return Ok(None);
    }
    let left_ms = (GUARDED_MS - EVALUATED_MS).saturating_sub(plan.slice_and_settle_ms());
    match left_ms {
        0 => Err(Failure::usage(format!(
            "with --never, a mode that violates a guard is left within 1 s, so a slice and its settling time can take at \
             most {} ms together; they take {} ms (--slice, --settle)",
            GUARDED_MS - EVALUATED_MS - 1,
            plan.slice_and_settle_ms()
        ))),
        _ => Ok(Some(Duration::from_millis(GUARDED_MS - EVALUATED_MS - u64::from(plan.settle_ms)))),
    }
}

/// Checks the plan of a search.
fn check(plan: &TunePlan) -> Result<(), Failure> {
    plan.check().map_err(|error| match error {
        TunePlanError::BudgetTooShort { budget_ms, arms, needed_ms } => {
            let loads = plan.loads.len();
            let fewer_loads = if loads > 1 { ", or fewer loads (--loads)" } else { "" };
            Failure::usage(format!(
                "--budget {} s is too short for {} at {} in slices of {} ms: use at least {} s, \
                 or shorter slices (--slice, --settle){fewer_loads}",
                budget_ms / 1_000,
                counted(arms, "mode"),
                counted(loads, "load"),
                plan.slice_and_settle_ms(),
                needed_ms.div_ceil(1_000)
            ))
        }
        error => Failure::usage(error),
    })
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
    written.map_err(Failure::not_written)?;
    of_profile.map_err(Failure::not_written)?;
    match (profile_file, found) {
        (Some(file), Some(_)) => output::say(&format!("\nprofile: {}", visible::path(file.path()))),
        (Some(file), None) => output::say(&format!("\nno profile was written to {}", visible::path(file.path()))),
        (None, _) => {}
    }
    results::say_where(result_file);
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
