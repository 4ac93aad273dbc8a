//! Compares modes on running programs of this host.

use std::time::Duration;

use quell_host::attach::{TargetError, Targets};
use quell_result::experiment::ExperimentResult;
use quell_subject::question::programs::{self, ProgramsSpec};
use quell_subject::question::{Answer, Comparison, LoadSource, Question};

use super::args::BenchArgs;
use crate::commands::asked::{Consent, answered};
use crate::commands::attach::refuse_every_process;
use crate::exit::Failure;

/// Default modes. They do not increase the CPU use of servers in production.
const MODES: [&str; 4] = ["base", "defer200", "suspend20", "suspend200"];
pub(super) const BUDGET: Duration = Duration::from_secs(120);
pub(super) const QUICK_BUDGET: Duration = Duration::from_secs(30);

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs, targets: Result<Targets, TargetError>) -> Result<ExperimentResult, Failure> {
    let judges = super::judges(args)?;
    let load = load_source(args.load.as_deref(), args.clients.as_deref())?;
    let budget = if args.quick { QUICK_BUDGET } else { BUDGET };
    let (modes, timing) = (super::modes(args, &MODES)?, super::timing(args, budget, super::Slices::default_of(args)));
    let targets = targets.map_err(|error| Failure::usage(error).unchanged())?;
    refuse_every_process(&targets, "")?;
    let (placement, accepts_stalls) = (args.placement.wanted(), args.accept_stalls);
    let spec = ProgramsSpec { targets, load, judges, placement, accepts_stalls, is_dry_run: false };
    let question = Question::Compare(Comparison { modes, timing });
    let consent = Consent::Ask { question: "switch the programs between these modes?", yes: args.yes };
    match answered(consent, |tools, operator| programs::answer(&spec, question, tools, operator))? {
        Some(Answer::Compared(result)) => Ok(*result),
        _ => unreachable!("a comparison that is carried out has a result"),
    }
}

/// The load of `--load` or `--clients`.
pub(in crate::commands) fn load_source(load: Option<&str>, clients: Option<&str>) -> Result<LoadSource, Failure> {
    Ok(match (super::words(clients)?, super::words(load)?) {
        (Some(words), _) => LoadSource::Clients(words),
        (None, Some(words)) => LoadSource::Command(words),
        (None, None) => LoadSource::Live,
    })
}
