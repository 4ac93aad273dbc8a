//! Compares modes on running programs of this host.

use std::time::Duration;

use quell_host::attach::{TargetError, Targets};
use quell_result::experiment::ExperimentResult;
use quell_subject::question::programs::{self, ProgramsSpec};
use quell_subject::question::{Answer, Comparison, LoadSource, Question};

use super::Slices;
use super::args::BenchArgs;
use crate::commands::asked::{Consent, answered};
use crate::commands::attach::refuse_every_process;
use crate::exit::Failure;

/// Default modes. They do not increase the CPU use of servers in production.
const MODES: [&str; 4] = ["base", "suspend20", "defer200", "suspend200"];
const BUDGET: Duration = Duration::from_secs(120);
const BUDGET_MAX_MS: u64 = 120_000;
const QUICK_BUDGET: Duration = Duration::from_secs(30);
const QUICK_MODES: usize = 3;

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs, targets: Result<Targets, TargetError>) -> Result<ExperimentResult, Failure> {
    // The server can answer others, too.
    let judges = super::judges(args, false)?;
    let load = load_source(args.load.as_deref(), args.clients.as_deref())?;
    let question = Question::Compare(comparison(args, &MODES, Slices::default_of(args))?);
    let targets = targets.map_err(|error| Failure::usage(error).unchanged())?;
    refuse_every_process(&targets, "")?;
    let spec = ProgramsSpec { targets, load, judges, accepts_stalls: args.accept_stalls, is_dry_run: false };
    let consent = Consent::Ask { question: "switch the programs between these modes?", yes: args.yes };
    match answered(consent, |tools, operator| programs::answer(&spec, question, tools, operator))? {
        Some(Answer::Compared(result)) => Ok(*result),
        _ => unreachable!("a comparison that is carried out has a result"),
    }
}

/// Modes to compare and their timing. The slices of judges and of started commands are long, so `--quick` compares the
/// first of the modes only, and takes longer than its budget if they take longer than planned.
pub(super) fn comparison(args: &BenchArgs, modes: &[&str], slices: Slices) -> Result<Comparison, Failure> {
    let (budget, modes) = match (args.quick, slices) {
        (false, _) => (BUDGET, modes),
        (true, Slices::Switched) => (QUICK_BUDGET, modes),
        (true, _) => (QUICK_BUDGET, &modes[..QUICK_MODES]),
    };
    let (modes, timing) = (super::modes(args, modes)?, super::timing(args, budget, slices));
    let grows = args.budget.is_none() && slices != Slices::Switched;
    let budget_max_ms = if grows { BUDGET_MAX_MS } else { timing.budget_ms };
    Ok(Comparison { modes, timing, budget_max_ms })
}

/// The load of `--load` or `--clients`.
pub(in crate::commands) fn load_source(load: Option<&str>, clients: Option<&str>) -> Result<LoadSource, Failure> {
    Ok(match (super::words(clients)?, super::words(load)?) {
        (Some(words), _) => LoadSource::Clients(words),
        (None, Some(words)) => LoadSource::Command(words),
        (None, None) => LoadSource::Live,
    })
}
