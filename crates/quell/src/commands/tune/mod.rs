//! `quell tune`: searches the values of a delivery mode that are best for a goal, confirms them on fresh slices, and
//! writes a profile.

mod advise;
mod args;
mod profile;

pub(super) use advise::AdviceReport;

use std::time::Duration;

use quell_host::attach::attached::refuse_what_is_attached;
use quell_linux::output_file::OutputFile;
use quell_linux::visible;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_report::words;
use quell_result::ResultDocument;
use quell_result::store::ResultStore;
use quell_result::tune::TuneFile;
use quell_subject::experiment::judge::Judges;
use quell_subject::question::Question;
use quell_subject::subjects::{Answer, GUEST_ARMS, SubjectSpec, guarded_run_max};
use quell_tune::{TuneEnd, TuneMetric, TunePlan, TuneSpace};

use super::subject::asked::{Consent, answered};
use super::subject::{ModelDefault, Place, judge};
use crate::commands::bench::seed_from_the_clock;
use crate::commands::{attach, report, results};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::tune as render;

pub(crate) use args::TuneArgs;

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    let place = args.place()?;
    let profile_file = args.profile.clone().map(|path| OutputFile::named(path, "the profile"));
    let output = args.subject.output.as_ref();
    if args.profile.is_some() && args.profile.as_ref() == output {
        return Err(Failure::usage("--profile and --output name the same file; nothing was changed"));
    }
    let targets = match place {
        Place::Programs => Some(args.subject.targets().map_err(|error| Failure::usage(error).unchanged())?),
        _ => None,
    };
    if args.advise {
        return advise::advise(args, targets.as_ref());
    }
    if let Some(targets) = targets.as_ref().filter(|_| args.keep) {
        // Otherwise the search would end with a mode that cannot be attached.
        refuse_what_is_attached(&journal(), targets).map_err(attach::failure)?;
    }
    let store = ResultStore::of_user();
    let result_file = match args.dry_run {
        true => store.check_creatable(output).map(|()| None).map_err(Failure::usage)?,
        false => Some(store.new_file(output, "tune").map_err(Failure::usage)?),
    };
    for file in result_file.iter().chain(profile_file.as_ref().filter(|_| result_file.is_some())) {
        file.check_writable().map_err(Failure::usage)?;
    }
    report::check_writable(args.subject.report.as_ref())?;
    let plan = plan(args, place)?;
    let run_max = guarded_run_max(&plan).map_err(Failure::usage)?;
    let (subject, yes) = (&args.subject, args.subject.yes);
    let (spec, consent) = match (place, &targets) {
        (Place::Programs, Some(targets)) => {
            // The server answers others, too.
            let spec = subject.of_programs(targets.clone(), judges(args, false, run_max)?, args.dry_run)?;
            (SubjectSpec::Programs(spec), Consent::of(args.dry_run, "search?", yes))
        }
        (Place::Command, _) => {
            // With --load, the server answers that load, too.
            let spec = subject.of_command(judges(args, subject.load.is_none(), run_max)?)?;
            (SubjectSpec::Command(spec), Consent::of(args.dry_run, "start the command under these modes?", yes))
        }
        (Place::Lab, _) => (SubjectSpec::Lab(subject.of_lab(loads(args, place), None)?), told(args)),
        (Place::Vm, _) => (SubjectSpec::Guest(subject.of_guest()), told(args)),
        _ => (SubjectSpec::Model(Box::new(subject.of_model(ModelDefault::of_host(loads(args, place)))?)), told(args)),
    };
    let answer = answered(&spec, Question::Search(Box::new(plan)), consent)?;
    if let Some(file) = profile_file.as_ref().filter(|_| args.dry_run) {
        output::data(&format!("would write the profile of a better mode to {}\n", visible::path(file.path())))?;
    }
    if args.keep && args.dry_run {
        output::data("would leave a better mode attached; `quell detach` undoes it\n")?;
    }
    let (Some(Answer::Searched(mut file)), Some(result_file)) = (answer, result_file) else { return Ok(()) };
    file.profile = args.profile.as_ref().and_then(|path| path.to_str()).map(str::to_owned);
    finish(args, &file, &result_file, profile_file.as_ref())?;
    match (targets, file.found()) {
        (Some(targets), Some(mode)) if args.keep => {
            attach::keep(&targets, mode, &subject.placement, subject.accept_stalls)
        }
        (Some(_), None) if args.keep => {
            output::say("no mode was left attached, because none was found");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn told(args: &TuneArgs) -> Consent {
    if args.dry_run { Consent::DryRun } else { Consent::Tell }
}

fn judges(args: &TuneArgs, counts_all_requests: bool, run_max: Option<Duration>) -> Result<Judges, Failure> {
    let default = Judges::default();
    let run_max = run_max.unwrap_or(default.run_max);
    Ok(Judges { latency: judge(args.subject.latency.as_deref())?, counts_all_requests, run_max, ..default })
}

/// The plan of a search. The subject completes it.
fn plan(args: &TuneArgs, place: Place) -> Result<TunePlan, Failure> {
    let seed = args.subject.seed.unwrap_or_else(seed_from_the_clock);
    let is_judged = args.subject.latency.is_some();
    let (slice_ms, settle_ms, budget_s) = match place {
        Place::Programs => (if is_judged { 500 } else { 200 }, 10, 180),
        // Each slice starts the command.
        Place::Command => (500, 300, 300),
        Place::Lab | Place::Published | Place::PublishedGuest => (200, 10, 180),
        // A simulated run starts idle.
        Place::Sim => (100, 150, 180),
        Place::Vm => (guest_slice_ms(args), 200, 90),
    };
    let loads = match place {
        Place::Programs => vec!["the present load".to_owned()],
        Place::Command => vec!["present".to_owned()],
        Place::Vm => vec![OfferedLoad::Max.to_string()],
        _ => loads(args, place).iter().map(ToString::to_string).collect(),
    };
    let budget = args.subject.budget.unwrap_or(Duration::from_secs(budget_s));
    let plan = TunePlan {
        guards: args.never.clone(),
        loads,
        slice_ms: args.subject.slice.unwrap_or(slice_ms),
        settle_ms: args.subject.settle.unwrap_or(settle_ms),
        budget_ms: u64::try_from(budget.as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(args.goal.clone(), DeliveryMode::default(), TuneSpace::default(), seed)
    };
    if place != Place::Vm {
        return Ok(plan);
    }
    let arms: Result<Vec<DeliveryMode>, _> = GUEST_ARMS.iter().map(|mode| mode.parse()).collect();
    Ok(TunePlan { arms: arms.map_err(Failure::usage)?, space: None, ..plan })
}

/// Loads of a search in the lab or on the model.
fn loads(args: &TuneArgs, place: Place) -> Vec<OfferedLoad> {
    let percents: &[f64] = if place == Place::Sim { &[25.0, 50.0, 90.0] } else { &[50.0, 90.0] };
    let default = || percents.iter().copied().map(OfferedLoad::Percent).collect();
    args.subject.loads.clone().unwrap_or_else(default)
}

/// Default duration of a slice in a guest, in ms, with some 1,000 requests; on a host with other work there are fewer. A
/// p99 needs 500. With guards, an arm must be left within a second.
fn guest_slice_ms(args: &TuneArgs) -> u32 {
    let names_latency = args.goal.metrics().any(|metric| matches!(metric, TuneMetric::Latency { .. }));
    if names_latency && args.never.is_empty() { 1_000 } else { 500 }
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
    let found = file.found();
    let of_profile = match (profile_file, found) {
        (Some(destination), Some(mode)) => destination.write(&profile::text(
            &render::render(file, false),
            &file.subject,
            mode,
            &results::show_command(result_file),
        )),
        _ => Ok(()),
    };
    match args.subject.json {
        true => output::json(file)?,
        false => output::prose(&render::render(file, false))?,
    }
    written.map_err(crate::exit::not_written)?;
    of_profile.map_err(crate::exit::not_written)?;
    if let (Some(file), Some(_)) = (profile_file, found) {
        output::say(&format!("\nprofile: {}", visible::path(file.path())));
    }
    results::say_where(result_file);
    report::write_beside(result_file, ResultDocument::Tune(Box::new(file.clone())), args.subject.report.as_ref())?;
    match &result.end {
        TuneEnd::Answered if found.is_some() => Ok(()),
        TuneEnd::Answered => {
            let unwritten = profile_file.map_or_else(String::new, |profile| {
                let older = if profile.path().exists() { ", which has an older one" } else { "" };
                format!("no profile was written to {}{older}: ", visible::path(profile.path()))
            });
            let present = result.plan.name(result.plan.present);
            // Without --profile, a present setting that is kept is an answer, although a rival may be better.
            if file.why_withheld().is_some() || profile_file.is_some() && !file.is_decided() {
                let text = format!("{unwritten}whether a mode is better than {present} was not decided");
                return Err(Failure::new(Exit::VerifyFailed, text));
            }
            if profile_file.is_some() {
                let why = match result.answer.mode() {
                    Some(_) => "because of what the filters and pins cost",
                    None => "because the search found no better mode",
                };
                output::say(&format!("{unwritten}keep {present}, {why}"));
            }
            Ok(())
        }
        TuneEnd::Interrupted => {
            Err(Failure::new(Exit::Interrupted, "interrupted: the table contains what was observed so far"))
        }
        end @ TuneEnd::PresentNotSettable { .. } => {
            Err(Failure::new(Exit::NotSupported, words::search_end(end, &file.left_alone)))
        }
        end @ (TuneEnd::GuardUnreadable { .. }
        | TuneEnd::MetricUnreadable { .. }
        | TuneEnd::BudgetSpent
        | TuneEnd::PresentViolatesGuard { .. }
        | TuneEnd::LoadChanged { .. }
        | TuneEnd::NoModeLeft) => Err(Failure::new(Exit::VerifyFailed, words::search_end(end, &file.left_alone))),
        end @ TuneEnd::SubjectFailed { .. } => {
            Err(Failure::new(Exit::RolledBack, words::search_end(end, &file.left_alone)))
        }
    }
}
