//! `quell bench`: compares delivery modes and writes a result file.

mod args;
mod published;

use std::time::Duration;

use quell_cli::simulation::refused_mode;
use quell_linux::clock;
use quell_linux::output_file::OutputFile;
use quell_mode::DeliveryMode;
use quell_published::Experiment;
use quell_result::ResultDocument;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::Check;
use quell_result::guest_checks as checks;
use quell_result::published::INTERRUPTED;
use quell_result::published_xdp::XdpPoint;
use quell_result::store::ResultStore;
use quell_subject::experiment::judge::Judges;
use quell_subject::extent::Extent;
use quell_subject::question::Timing;
use quell_subject::question::{Comparison, Question};
use quell_subject::run::{LabRunError, check_possible};
use quell_subject::subjects::{Answer, SubjectSpec};
use quell_vm::KernelName;
use quell_vm::machine::Emulator;
use serde::Serialize;

pub(crate) use args::BenchArgs;

use super::report;
use super::results;
use super::subject::asked::{Consent, answered, of_lab_run};
use super::subject::{ModelDefault, Place, judge, server_command};
use super::vm::stored_kernel;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::document::render as render_document;
use crate::render::experiment;
use crate::render::terminal::Terminal;

/// Smallest relevant difference, as a share: 0.05 means 5 %.
const MARGIN: f64 = 0.05;

/// Modes of programs. They do not increase the CPU use of servers in production.
const MODES_OF_PROGRAMS: [&str; 4] = ["base", "suspend200", "defer200", "suspend20"];
/// Modes of a command. `sockpoll` needs the preload library.
const MODES_OF_COMMANDS: [&str; 5] = ["base", "suspend200", "sockpoll50", "defer200", "fullbusy"];
/// Number of these modes that `--quick` compares.
const QUICK_MODES: usize = 3;
/// Maximum to which the budget grows if slices take longer than planned.
const BUDGET_MAX_MS: u64 = 120_000;
const MODES_OF_GUESTS: [&str; 3] = ["base", "defer20", "suspend20"];

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let place = match (args.experiment, args.subject.place()) {
        (Some(Experiment::C), Some(Place::Vm)) => Place::PublishedGuest,
        (Some(_), None | Some(Place::Lab)) => Place::Published,
        (Some(experiment), Some(place)) => {
            let on = place.words();
            return Err(Failure::usage(format!(
                "experiment {experiment} cannot be played with {on}; only c can, --on vm"
            )));
        }
        (None, place) => place.unwrap_or(Place::Lab),
    };
    args.subject.check_applies(place, &args.applies())?;
    let (store, output) = (ResultStore::of_user(), args.subject.output.as_ref());
    if args.dry_run {
        store.check_creatable(output).map_err(Failure::usage)?;
        if let Some(experiment) = args.experiment {
            return output::prose(&published::Play::of(args, experiment, place)?.plan()?);
        }
        return compare(args, args.subject.place().map_or_else(|| lab_or_model(args), Ok)?).map(drop);
    }
    let destination = store.new_file(output, "bench").map_err(Failure::usage)?;
    destination.check_writable().map_err(Failure::usage)?;
    report::check_writable(args.subject.report.as_ref())?;
    if let Some(experiment) = args.experiment {
        return finish_published(args, published::Play::of(args, experiment, place)?.run()?, &destination);
    }
    let place = args.subject.place().map_or_else(|| lab_or_model(args), Ok)?;
    let Some(result) = compare(args, place)? else { return Ok(()) };
    finish(args, &result, &destination)?;
    check_counts(&result)
}

/// The lab, or the model if the lab is not possible and no option requires it. The output mentions the guest but does
/// not start it, because a guest only counts interrupts.
fn lab_or_model(args: &BenchArgs) -> Result<Place, Failure> {
    let why = match check_possible(&args.subject.of_lab(Vec::new(), None)?.lab) {
        Ok(_) => return Ok(Place::Lab),
        Err(error @ (LabRunError::NotPossibleHere(_) | LabRunError::Cpus(_))) if !args.asks_for_a_lab() => {
            of_lab_run(error).text
        }
        Err(error) => return Err(of_lab_run(error)),
    };
    let newest = stored_kernel(None).ok().map(|kernel| kernel.origin.name);
    output::say(&format!(
        "{why}\n\n{}\n\nThe following result is simulated on the model of another machine (use --on lab to require the \
         lab):\n",
        offer_of_guest(newest.as_ref(), Emulator::find().is_ok())
    ));
    Ok(Place::Sim)
}

/// Describes what `quell bench --on vm` offers on a machine without lab, and which of its requirements are missing.
fn offer_of_guest(newest: Option<&KernelName>, emulator: bool) -> String {
    let kernel = newest.map_or_else(|| "a newer kernel".to_owned(), |name| format!("Linux {name}"));
    let get = if newest.is_none() { "; `quell vm get` fetches it" } else { "" };
    let install = if emulator { "" } else { "; it needs QEMU (Debian: qemu-system-x86)" };
    format!(
        "quell bench --on vm can count the interrupts of {kernel} in a guest on this machine, without root{get}{install}."
    )
}

/// `None` after a dry run.
fn compare(args: &BenchArgs, place: Place) -> Result<Option<ExperimentResult>, Failure> {
    let timing = timing(args, place);
    let grows = args.subject.budget.is_none() && has_long_slices(args, place);
    let budget_max_ms = if grows { BUDGET_MAX_MS } else { timing.budget_ms };
    let question = Question::Compare(Comparison {
        modes: modes(args, place)?,
        timing,
        budget_max_ms,
        leaves_out_stalls: args.modes.is_none(),
    });
    let (subject, extent) = (&args.subject, extent(args));
    let spec = match place {
        Place::Programs => {
            let targets = subject.targets().map_err(|error| Failure::usage(error).unchanged())?;
            // The server can answer others, too.
            SubjectSpec::Programs(subject.of_programs(targets, judges(args, false)?, args.dry_run)?)
        }
        // With --load, the server answers that load, too.
        Place::Command => SubjectSpec::Command(subject.of_command(judges(args, subject.load.is_none())?)?),
        Place::Lab | Place::Published | Place::PublishedGuest => {
            let beside = args.beside.as_deref().map(|command| server_command("--beside", command)).transpose()?;
            SubjectSpec::Lab(subject.of_lab(extent.loads(), beside)?)
        }
        Place::Sim => SubjectSpec::Model(Box::new(subject.of_model(ModelDefault::of_host(extent.loads()))?)),
        Place::Vm => SubjectSpec::Guest(subject.of_guest()),
    };
    let consent = match place {
        Place::Programs => Consent::of(args.dry_run, "switch the programs between these modes?", subject.yes),
        Place::Command => Consent::of(args.dry_run, "start the command under these modes?", subject.yes),
        _ if args.dry_run => Consent::DryRun,
        _ => Consent::Tell,
    };
    match answered(&spec, question, consent)? {
        Some(Answer::Compared(result)) => Ok(Some(*result)),
        _ => Ok(None),
    }
}

/// Stores and prints a result. Fails if the experiment failed or was interrupted.
fn finish(args: &BenchArgs, result: &ExperimentResult, destination: &OutputFile) -> Result<(), Failure> {
    store_and_print(result, destination, args.subject.json, || Ok(experiment::render(result, args.details)))?;
    report::write_beside(
        destination,
        ResultDocument::Experiment(Box::new(result.clone())),
        args.subject.report.as_ref(),
    )?;
    match result.failure() {
        Some(why) => Err(Failure::new(Exit::RolledBack, format!("{why}; all settings were restored"))),
        None if result.was_interrupted() => Err(interrupted()),
        None => Ok(()),
    }
}

/// As [`finish`], for a published experiment.
fn finish_published(args: &BenchArgs, document: ResultDocument, destination: &OutputFile) -> Result<(), Failure> {
    let text = || render_document(&document, args.details, Terminal::of_stdout());
    store_and_print(&document, destination, args.subject.json, text)?;
    let mut not_as_named = Vec::new();
    let ended = match &document {
        ResultDocument::Published(run) => run.ended.clone(),
        ResultDocument::PublishedXdp(run) => {
            if run.slowed_by.is_some() {
                not_as_named = run.points.iter().flat_map(XdpPoint::not_as_named).map(|(way, _)| way).collect();
            }
            run.ended.clone()
        }
        _ => None,
    };
    report::write_beside(destination, document, args.subject.report.as_ref())?;
    match ended.as_deref() {
        None if not_as_named.is_empty() => Ok(()),
        None => {
            let ways = not_as_named.join(", ");
            Err(Failure::new(Exit::VerifyFailed, format!("most polls were not by the named poller: {ways}")))
        }
        Some(INTERRUPTED) => Err(interrupted()),
        Some(why) => Err(Failure::new(Exit::RolledBack, format!("{why}; the lab was removed"))),
    }
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted: the table contains the slices measured so far")
}

/// Writes the result file and prints the result. If one of the two fails, the other is still done, because the
/// measurement took minutes.
fn store_and_print(
    document: &impl Serialize,
    destination: &OutputFile,
    json: bool,
    text: impl FnOnce() -> Result<String, Failure>,
) -> Result<(), Failure> {
    let written = destination.write_json(document);
    match json {
        true => output::json(document)?,
        false => output::prose(&text()?)?,
    }
    written.map_err(crate::exit::not_written)?;
    results::say_where(destination);
    Ok(())
}

/// Fails if a check of the counts of a guest fails.
fn check_counts(result: &ExperimentResult) -> Result<(), Failure> {
    let SubjectFacts::Guest(_) = &result.subject else { return Ok(()) };
    let checked = result.experiments.iter().flat_map(checks::checks);
    let broken: Vec<String> = checked.filter(|check| !check.holds).map(|check| Check::violation(&check)).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let is_starved = result.experiments.iter().any(|experiment| checks::starved_by(experiment).is_some());
    let host = if is_starved { "; the emulator waited too long for CPUs of this host, so try again" } else { "" };
    Err(Failure::new(Exit::VerifyFailed, format!("check failed; {}{host}", broken.join("; "))))
}

/// Modes of an experiment. The first one is the reference.
fn modes(args: &BenchArgs, place: Place) -> Result<Vec<DeliveryMode>, Failure> {
    let default = match place {
        Place::Programs if args.quick => &MODES_OF_PROGRAMS[..QUICK_MODES],
        Place::Command if args.quick => &MODES_OF_COMMANDS[..QUICK_MODES],
        Place::Programs => &MODES_OF_PROGRAMS,
        Place::Command => &MODES_OF_COMMANDS,
        Place::Vm => &MODES_OF_GUESTS,
        Place::Lab | Place::Sim | Place::Published | Place::PublishedGuest => extent(args).modes(),
    };
    let modes = args.modes.clone().unwrap_or_else(|| default.join(","));
    DeliveryMode::parse_list(&modes).map_err(|error| refused_mode(&error))
}

/// The commands that measure each slice.
fn judges(args: &BenchArgs, counts_all_requests: bool) -> Result<Judges, Failure> {
    let (latency, beside) = (judge(args.subject.latency.as_deref())?, judge(args.beside_latency.as_deref())?);
    Ok(Judges { latency, beside, counts_all_requests, ..Judges::default() })
}

/// Whether a command measures each slice, or is started for it.
fn has_long_slices(args: &BenchArgs, place: Place) -> bool {
    let is_judged = args.subject.latency.is_some() || args.beside_latency.is_some();
    place == Place::Command || place == Place::Programs && is_judged
}

fn timing(args: &BenchArgs, place: Place) -> Timing {
    let (slice_ms, settle_ms) = match place {
        // Many load generators accept only whole seconds.
        Place::Programs if has_long_slices(args, place) => (1_000, 10),
        Place::Programs | Place::Lab => (200, 10),
        Place::Command => (1_000, 300),
        // A simulated run starts idle.
        Place::Sim => (100, 150),
        // About 400 requests of an emulated server.
        Place::Vm => (500, 200),
        // Its slices start no server, and settle while the load runs.
        Place::Published if args.experiment == Some(Experiment::C) && args.quick => (120, 20),
        Place::Published if args.experiment == Some(Experiment::C) => (200, 20),
        Place::Published => (500, 200),
        // About 60 requests at the lowest rate.
        Place::PublishedGuest => (500, 100),
    };
    let budget = match place {
        Place::Programs | Place::Command if args.quick => Duration::from_secs(30),
        Place::Programs | Place::Command => Duration::from_secs(120),
        Place::Lab => extent(args).budget(),
        Place::Sim => extent(args).virtual_budget(),
        Place::Vm => Duration::from_secs(60),
        Place::Published | Place::PublishedGuest => published::budget(args.experiment, place, args.quick),
    };
    Timing {
        budget_ms: u64::try_from(args.subject.budget.unwrap_or(budget).as_millis()).unwrap_or(u64::MAX),
        slice_ms: args.subject.slice.unwrap_or(slice_ms),
        settle_ms: args.subject.settle.unwrap_or(settle_ms),
        margin: MARGIN,
        seed: args.subject.seed.unwrap_or_else(seed_from_the_clock),
    }
}

fn extent(args: &BenchArgs) -> Extent {
    match (args.quick, args.full) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Full,
        _ => Extent::Standard,
    }
}

pub(super) fn seed_from_the_clock() -> u64 {
    // The seed is short so that users can type it again.
    clock::realtime_ns() / 1_000_000 % 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_compares_the_mode_that_the_pages_recommend() {
        let quick = [&MODES_OF_PROGRAMS[..QUICK_MODES], &MODES_OF_COMMANDS[..QUICK_MODES], Extent::Quick.modes()];
        for modes in quick {
            assert!(modes.len() == 3 && modes[0] == "base" && modes.contains(&"suspend200"), "{modes:?}");
        }
    }

    #[test]
    fn the_offer_of_a_guest_lists_its_missing_requirements() {
        let kernel = "7.3".parse().unwrap();
        assert_eq!(
            offer_of_guest(Some(&kernel), true),
            "quell bench --on vm can count the interrupts of Linux 7.3 in a guest on this machine, without root."
        );
        let nothing = offer_of_guest(None, false);
        assert!(nothing.contains("`quell vm get` fetches it") && nothing.contains("it needs QEMU"), "{nothing}");
    }
}
