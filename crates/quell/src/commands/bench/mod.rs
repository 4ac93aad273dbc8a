//! `quell bench`: compares delivery modes and writes a result file. The subject is a set of running programs, a
//! command, a server in a private lab, a model, or a guest.

pub(super) mod args;
pub(super) mod on_command;
pub(super) mod on_programs;
pub(crate) mod on_published;
mod on_sim;
pub(super) mod on_veth;
pub(super) mod on_vm;

use std::time::Duration;

use quell_experiment::{SliceStage, Switchback};
use quell_linux::output_file::OutputFile;
use quell_linux::{clock, visible};
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_result::Document;
use quell_result::experiment::ExperimentResult;
use quell_result::published::{INTERRUPTED, PublishedRun};
use quell_result::store::ResultStore;
use quell_subject::experiment::Timing;
use quell_subject::experiment::judge::{Judge, Judges};
use quell_subject::extent::Extent;
use quell_subject::run::BenchError;

use args::Where;
use on_veth::NotRun;

pub(crate) use args::BenchArgs;

use super::results;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::{experiment, published};

/// Smallest relevant difference, as a share: 0.05 means 5 %.
const MARGIN: f64 = 0.05;

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if args.on != Some(Where::Vm)
        && let Some(option) = args.of_guest_only().first()
    {
        return Err(Failure::usage(format!("{option} can only be used with --on vm")));
    }
    if args.host.is_some() && args.on != Some(Where::Sim) {
        return Err(Failure::usage("--host can only be used with --on sim"));
    }
    let destination = ResultStore::of_user().new_file(args.output.as_ref(), "bench").map_err(Failure::usage)?;
    destination.check_writable().map_err(Failure::usage)?;
    if let Some(experiment) = args.experiment {
        return finish_published(args, &on_published::run(args, experiment)?, &destination);
    }
    if let Some(targets) = args.programs() {
        return finish(args, &on_programs::run(args, targets)?, &destination);
    }
    if !args.command.is_empty() {
        return finish(args, &on_command::run(args)?, &destination);
    }
    if let Some(option) = args.of_programs_only().first() {
        return Err(Failure::usage(format!(
            "{option} can only be used for programs of this host: specify --pid, --name, --unit or --cgroup, or a command after --"
        )));
    }
    match args.on {
        Some(Where::Sim) => finish(args, &on_sim::run(args)?, &destination),
        Some(Where::Lab) => finish(args, &on_veth::run(args).map_err(on_veth::failure)?, &destination),
        Some(Where::Vm) => {
            let result = on_vm::run(args)?;
            finish(args, &result, &destination)?;
            on_vm::verdict(&result)
        }
        None => wherever_possible(args, &destination),
    }
}

/// Measures in the lab, or on the model if the lab is not possible and no option requires it. The output mentions the
/// guest but does not start it, because a guest only counts interrupts.
fn wherever_possible(args: &BenchArgs, destination: &OutputFile) -> Result<(), Failure> {
    let why = match on_veth::run(args) {
        Ok(result) => return finish(args, &result, destination),
        Err(NotRun::Bench(BenchError::NotPossibleHere(missing))) if !args.asks_for_a_lab() => {
            on_veth::not_possible(&missing)
        }
        Err(NotRun::Bench(BenchError::Cpus(error))) if !args.asks_for_a_lab() => error.to_string(),
        Err(error) => return Err(on_veth::failure(error)),
    };
    output::say(&format!(
        "{why}\n\n{}\n\nThe following result is simulated on the model of another machine (use --on lab to require the \
         lab):\n",
        on_vm::offer()
    ));
    finish(args, &on_sim::run(args)?, destination)
}

/// Stores and prints a result. Fails if the experiment failed or was interrupted.
fn finish(args: &BenchArgs, result: &ExperimentResult, destination: &OutputFile) -> Result<(), Failure> {
    store_and_print(result, destination, args.json, || Ok(experiment::render(result, args.details)))?;
    match result.failure() {
        Some(why) => Err(Failure::new(Exit::RolledBack, format!("{why}; all settings were restored"))),
        None if result.was_interrupted() => Err(interrupted()),
        None => Ok(()),
    }
}

/// As [`finish`], for a published experiment.
fn finish_published(args: &BenchArgs, run: &PublishedRun, destination: &OutputFile) -> Result<(), Failure> {
    store_and_print(run, destination, args.json, || published::render(run).map_err(Failure::usage))?;
    match run.ended.as_deref() {
        None => Ok(()),
        Some(INTERRUPTED) => Err(interrupted()),
        Some(why) => Err(Failure::new(Exit::RolledBack, format!("{why}; the lab was removed"))),
    }
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted: the table contains the slices measured so far")
}

/// Writes the result file and prints the result. If one of the two fails, the other is still done, because the
/// measurement took minutes.
fn store_and_print<D: Document>(
    document: &D,
    destination: &OutputFile,
    json: bool,
    text: impl FnOnce() -> Result<String, Failure>,
) -> Result<(), Failure> {
    let written = destination.write_json(document);
    match json {
        true => output::json(document)?,
        false => output::data(&text()?)?,
    }
    written.map_err(crate::exit::not_written)?;
    results::say_where(destination);
    Ok(())
}

/// Modes of an experiment. The first one is the reference.
fn modes(args: &BenchArgs, default: &[&str]) -> Result<Vec<DeliveryMode>, Failure> {
    let modes = args.modes.clone().unwrap_or_else(|| default.join(","));
    DeliveryMode::parse_list(&modes).map_err(|error| Failure::usage(format!("{error}\n\n{}", error.caret())))
}

/// Judges of an experiment: the commands that measure each slice.
fn judges(args: &BenchArgs) -> Result<Judges, Failure> {
    let (latency, beside) = (judge(args.latency.as_deref())?, judge(args.beside_latency.as_deref())?);
    Ok(Judges { latency, beside, ..Judges::default() })
}

/// Parses the command of a judge.
pub(super) fn judge(command: Option<&str>) -> Result<Option<Judge>, Failure> {
    command.map(Judge::new).transpose().map_err(Failure::usage)
}

/// Returns the program and the arguments of a command, such as the load.
pub(super) fn words(command: Option<&str>) -> Result<Option<Vec<String>>, Failure> {
    Ok(judge(command)?.map(|command| command.words().to_vec()))
}

/// How slices are produced. This determines their default duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slices {
    /// The modes of running programs are switched.
    Switched,
    /// A judge measures each slice. Many load generators accept only whole seconds.
    Judged,
    /// The server is started for each slice.
    Started,
    /// The model simulates each slice in virtual time and starts idle.
    Simulated,
    /// The mode of a server in a guest is switched. It answers about 400 requests per slice.
    Emulated,
}

impl Slices {
    fn default_of(args: &BenchArgs) -> Self {
        if args.latency.is_some() || args.beside_latency.is_some() { Self::Judged } else { Self::Switched }
    }

    fn slice_ms(self) -> u32 {
        match self {
            Self::Switched => 200,
            Self::Judged | Self::Started => 1_000,
            Self::Simulated => 100,
            Self::Emulated => 500,
        }
    }

    fn settle_ms(self) -> u32 {
        match self {
            Self::Switched | Self::Judged => 10,
            Self::Started => 300,
            Self::Simulated => 150,
            Self::Emulated => 200,
        }
    }
}

fn timing(args: &BenchArgs, budget: Duration, slices: Slices) -> Timing {
    Timing {
        budget_ms: u64::try_from(args.budget.unwrap_or(budget).as_millis()).unwrap_or(u64::MAX),
        slice_ms: args.slice.unwrap_or(slices.slice_ms()),
        settle_ms: args.settle.unwrap_or(slices.settle_ms()),
        margin: MARGIN,
        seed: args.seed.unwrap_or_else(seed_from_the_clock),
    }
}

/// Description of the current load for progress messages.
pub(super) fn under(load: OfferedLoad) -> String {
    match load {
        OfferedLoad::Max => " in a closed loop".to_owned(),
        load => format!(" at {load}"),
    }
}

/// Prints the progress of an experiment.
pub(super) fn show_progress(
    progress: &Progress,
    under: &str,
    experiment: &Switchback<DeliveryMode>,
    stage: SliceStage<'_>,
) {
    let Some(slice) = experiment.next_slice() else { return };
    let mode = &slice.treatment.name;
    match stage {
        SliceStage::Begins => show_slice(progress, under, experiment.spent(), slice.block, mode),
        SliceStage::NotSettable(reason) => {
            progress.say(&format!("{} cannot be set on this host: {reason}", visible::name(mode)));
        }
        SliceStage::Recorded => {}
    }
}

fn show_slice(progress: &Progress, under: &str, spent: f64, block: u32, mode: &str) {
    let percent = (spent * 100.0).clamp(0.0, 100.0) as usize;
    progress.step(percent, 100, &format!("% of the budget, block {}{under}: {mode}", block + 1));
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
