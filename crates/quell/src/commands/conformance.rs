//! `quell conformance`: runs scenarios on the model and on this kernel, and reports where observations differ from what
//! the scenario requires.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::{Args, ValueEnum};
use quell_change::journal::Journal;
use quell_change::recovery::recover;
use quell_conformance::expect::Backend;
use quell_conformance::in_guest::{self, InGuestError};
use quell_conformance::kernel;
use quell_conformance::run::{self, BackendContext, ConformanceReport, ScenarioOutcome, ScenarioResult};
use quell_conformance::scenario::Scenario;
use quell_conformance::suite::{self, SuiteError};
use quell_linux::signal::Interruption;
use quell_linux::visible::counted;
use quell_vm::machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

use super::vm::{GuestArgs, of_machine};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, report_recovery};
use crate::output;
use crate::render::conformance as table;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;

/// Options of `quell conformance`.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Scenarios to run [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Backend [default: both, or the model alone without privileges for the kernel]
    #[arg(long, value_enum, value_name = "WHO")]
    on: Option<Who>,
    /// Options of the guest, for `--on vm`.
    #[command(flatten)]
    guest: GuestArgs,
    /// List the scenarios with their statements instead of running them.
    #[arg(long, conflicts_with = "on")]
    list: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Backend that runs the scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Who {
    /// The model; needs no privileges
    Model,
    /// The running kernel, on private veth pairs. Needs root and Linux 6.13.
    Kernel,
    /// The model and the running kernel.
    Both,
    /// A kernel of `quell vm` under QEMU, on NICs with real interrupts. Needs no root.
    Vm,
}

impl Who {
    fn places(self, journal: &Journal) -> Vec<BackendContext<'_>> {
        let mut places = Vec::new();
        if matches!(self, Self::Model | Self::Both) {
            places.push(BackendContext::Model);
        }
        if matches!(self, Self::Kernel | Self::Both) {
            places.push(BackendContext::Kernel(journal));
        }
        places
    }
}

/// Output of `quell conformance --list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ScenariosReport<'a> {
    schema: &'static str,
    scenarios: Vec<ListedScenario<'a>>,
}

impl ScenariosReport<'_> {
    pub(super) const SCHEMA: &'static str = "quell-conformance-list/1";
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedScenario<'a> {
    name: &'a str,
    /// Statement about the kernel that the scenario checks.
    statement: &'a str,
    /// Source of the statement.
    source: &'a str,
}

impl<'a> ListedScenario<'a> {
    fn of(scenario: &'a Scenario) -> Self {
        Self { name: &scenario.name, statement: &scenario.statement, source: &scenario.source }
    }
}

pub(crate) fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    let scenarios = scenarios(&args.names).map_err(|error| unknown(&error))?;
    if args.list {
        return list(&scenarios, args.json);
    }
    if args.on != Some(Who::Vm) && args.guest.is_given() {
        return Err(Failure::usage("--kernel and --nic apply to a guest: add --on vm"));
    }
    let (report, interrupted) = match who(args.on)? {
        Who::Vm => (play_in_a_guest(&scenarios, &args.guest)?, false),
        who => play(&scenarios, who)?,
    };
    let terminal = Terminal::of_stdout();
    if args.json {
        output::json(&report)?;
    } else {
        output::styled(&table::render(&report, &scenarios, terminal), terminal)?;
    }
    if interrupted {
        return Err(Failure::new(Exit::Interrupted, "interrupted: the results above are incomplete"));
    }
    verdict(&report)
}

fn scenarios(names: &[String]) -> Result<Vec<Scenario>, SuiteError> {
    if names.is_empty() {
        return Ok(suite::all()?);
    }
    names.iter().map(|name| suite::scenario(name)).collect()
}

fn unknown(error: &SuiteError) -> Failure {
    match error {
        SuiteError::Unknown { .. } => {
            Failure::usage(format!("{error}\n`quell conformance --list` lists all scenarios"))
        }
        _ => Failure::new(Exit::RolledBack, error),
    }
}

fn list(scenarios: &[Scenario], json: bool) -> Result<(), Failure> {
    if json {
        let scenarios = scenarios.iter().map(ListedScenario::of).collect();
        return output::json(&ScenariosReport { schema: ScenariosReport::SCHEMA, scenarios });
    }
    let terminal = Terminal::of_stdout();
    output::styled(&table::list(scenarios, terminal), terminal)
}

/// Selects the backends. By default, uses the kernel if possible. If the user has requested it, missing privileges are
/// an error.
fn who(asked: Option<Who>) -> Result<Who, Failure> {
    if let Some(who @ (Who::Model | Who::Vm)) = asked {
        return Ok(who);
    }
    let missing = run::missing_for_the_kernel().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    if missing.is_empty() {
        return Ok(asked.unwrap_or(Who::Both));
    }
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let missing = format!("running scenarios on this kernel needs {}: run as root", missing.join(", "));
    match asked {
        Some(_) => Err(Failure::new(Exit::NotSupported, missing)),
        None => {
            output::say(&format!("{missing}; using the model only"));
            Ok(Who::Model)
        }
    }
}

/// Runs the scenarios until all are done or a signal arrives. The flag tells whether a signal arrived.
fn play(scenarios: &[Scenario], who: Who) -> Result<(ConformanceReport, bool), Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let stop = interruption.flag();
    let progress = Progress::new();
    let journal = journal();
    let places = who.places(&journal);
    if places.iter().any(|place| place.arm() == Backend::Kernel) {
        let found = recover(&journal).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
        found.iter().for_each(|found| report_recovery(&progress, found));
    }
    let total = scenarios.len() * places.len();
    let mut done = 0;
    let report = run::run(scenarios, &places, &mut |result: &ScenarioResult| {
        done += 1;
        progress.step(done, total, &result.scenario);
        if stop.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish();
    let interrupted = report.results.len() < total;
    Ok((report, interrupted))
}

/// Time limit for booting a guest, and for a scenario with all its repetitions in it.
const SCENARIO_BOUND: Duration = Duration::from_secs(20);
const BOOT_BOUND: Duration = Duration::from_secs(100);

fn play_in_a_guest(scenarios: &[Scenario], guest: &GuestArgs) -> Result<ConformanceReport, Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let stop = interruption.flag();
    let total = scenarios.len();
    let limit = BOOT_BOUND + SCENARIO_BOUND * u32::try_from(total).unwrap_or(u32::MAX);
    let machine = Machine { cpus: kernel::guest::CPUS, ..guest.machine(limit)? };
    output::say(&format!("booting Linux {} in a guest", machine.kernel.origin.version));
    let progress = Progress::new();
    progress.doing("the guest boots");
    let mut done = 0;
    let mut watch = |result: &ScenarioResult| {
        done += 1;
        progress.step(done, total, &result.scenario);
    };
    let played = in_guest::play(&machine, scenarios, &mut watch, &|| stop.get().is_some());
    progress.finish();
    played.map_err(|error| match error {
        InGuestError::Machine(error) => of_machine(&error),
        error => Failure::new(Exit::RolledBack, error),
    })
}

/// Runs scenarios in this guest and prints each result as a line of JSON as soon as it is available.
pub(crate) fn play_in_this_guest(names: &[String]) -> Result<(), Failure> {
    let scenarios = scenarios(names).map_err(|error| unknown(&error))?;
    let guest = kernel::guest::raise().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut printed = Ok(());
    run::run(&scenarios, &[BackendContext::Guest(&guest.site)], &mut |result: &ScenarioResult| {
        printed = output::json_line(result);
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    printed
}

fn verdict(report: &ConformanceReport) -> Result<(), Failure> {
    let count = |is: fn(&ScenarioOutcome) -> bool| report.results.iter().filter(|result| is(&result.outcome)).count();
    let different = count(ScenarioOutcome::is_difference);
    if different > 0 {
        return Err(Failure::new(
            Exit::VerifyFailed,
            format!("{} failed: see above", counted(different, "requirement")),
        ));
    }
    let not_played = count(|outcome| matches!(outcome, ScenarioOutcome::NotRun { .. }));
    if not_played > 0 {
        return Err(Failure::new(
            Exit::RolledBack,
            format!("{} could not be run: see above", counted(not_played, "scenario")),
        ));
    }
    Ok(())
}
