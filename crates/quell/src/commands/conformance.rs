//! `quell conformance`: plays scenarios on the model and on this kernel, and says where what was seen is not what has to
//! be seen. What has to be is in the scenarios.

use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use quell_conformance::expect::Arm;
use quell_conformance::run::{self, Outcome, Report, ScenarioResult};
use quell_conformance::scenario::Scenario;
use quell_conformance::suite::{self, SuiteError};
use quell_host::recovery::recover;
use quell_linux::signal::Interruption;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::journals::{journal, tell_of_recovery};
use crate::output;
use crate::render::conformance as table;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;

/// Options of `quell conformance`.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Which scenarios [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Who plays them [both; where rights are missing for the kernel, the model]
    #[arg(long, value_enum, value_name = "WHO")]
    on: Option<Who>,
    /// List the scenarios with what they show instead of playing them.
    #[arg(long, conflicts_with_all = ["on", "schema"])]
    list: bool,
    /// Print the JSON Schema of reports instead of playing.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Who plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Who {
    /// The model: anywhere, in seconds.
    Model,
    /// The kernel that runs here, on veth pairs of its own. Needs root and Linux 6.13.
    Kernel,
    /// Both.
    Both,
}

impl Who {
    fn arms(self) -> &'static [Arm] {
        match self {
            Self::Model => &[Arm::Model],
            Self::Kernel => &[Arm::Kernel],
            Self::Both => &[Arm::Model, Arm::Kernel],
        }
    }
}

/// What `--list --json` prints.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    schema: &'static str,
    scenarios: Vec<Listed<'a>>,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    statement: &'a str,
    source: &'a str,
}

impl<'a> Listed<'a> {
    fn of(scenario: &'a Scenario) -> Self {
        Self { name: &scenario.name, statement: &scenario.statement, source: &scenario.source }
    }
}

/// Runs the command.
///
/// # Errors
/// When a name is none, the kernel's arm was asked for and cannot be played, or something did not hold.
pub(crate) fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    if args.schema {
        return output::json(&Report::json_schema());
    }
    let scenarios = scenarios(&args.names).map_err(|error| unknown(&error))?;
    if args.list {
        return list(&scenarios, args.json);
    }
    let who = who(args.on)?;
    let (report, interrupted) = play(&scenarios, who.arms())?;
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&table::render(&report, &scenarios, Terminal::of_stdout()))?;
    }
    if interrupted {
        return Err(Failure::new(Exit::Interrupted, "interrupted: what is above was played until then"));
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
        SuiteError::Unknown { .. } => Failure::usage(format!("{error}\n`quell conformance --list` names them all")),
        _ => Failure::new(Exit::RolledBack, error),
    }
}

fn list(scenarios: &[Scenario], json: bool) -> Result<(), Failure> {
    if json {
        let scenarios = scenarios.iter().map(Listed::of).collect();
        return output::json(&Listing { schema: "quell-conformance-list/1", scenarios });
    }
    output::data(&table::list(scenarios, Terminal::of_stdout()))
}

/// Without being asked, the kernel plays where it can; being asked and not being able to is an error.
fn who(asked: Option<Who>) -> Result<Who, Failure> {
    if asked == Some(Who::Model) {
        return Ok(Who::Model);
    }
    let missing = run::missing_for_the_kernel().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    if missing.is_empty() {
        return Ok(asked.unwrap_or(Who::Both));
    }
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let missing = format!("this kernel cannot be asked without {}: run it as root", missing.join(", "));
    match asked {
        Some(_) => Err(Failure::new(Exit::NotSupported, missing)),
        None => {
            output::say(&format!("{missing}; only the model plays"));
            Ok(Who::Model)
        }
    }
}

/// Plays until everything is played or an interruption comes, which is told.
fn play(scenarios: &[Scenario], arms: &[Arm]) -> Result<(Report, bool), Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let stop = interruption.flag();
    let progress = Progress::new();
    let journal = journal();
    if arms.contains(&Arm::Kernel) {
        let found = recover(&journal).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
        found.iter().for_each(|found| tell_of_recovery(&progress, found));
    }
    let total = scenarios.len() * arms.len();
    let mut done = 0;
    let report = run::run(scenarios, arms, &journal, &mut |result: &ScenarioResult| {
        done += 1;
        progress.step(done, total, &result.scenario);
        if stop.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish();
    let interrupted = report.results.len() < total;
    Ok((report, interrupted))
}

fn verdict(report: &Report) -> Result<(), Failure> {
    let count = |is: fn(&Outcome) -> bool| report.results.iter().filter(|result| is(&result.outcome)).count();
    let different = count(Outcome::is_difference);
    if different > 0 {
        return Err(Failure::new(Exit::VerifyFailed, format!("what has to hold did not {different} times: see above")));
    }
    let not_played = count(|outcome| matches!(outcome, Outcome::NotPlayed { .. }));
    if not_played > 0 {
        return Err(Failure::new(Exit::RolledBack, format!("{not_played} could not be played: see above")));
    }
    Ok(())
}
