//! Compares modes on a command.

use quell_result::experiment::ExperimentResult;
use quell_subject::question::command::{self, CommandSpec};
use quell_subject::question::{Answer, Comparison, Question};

use super::args::BenchArgs;
use super::on_programs::{BUDGET, QUICK_BUDGET};
use crate::commands::asked::{Consent, answered};
use crate::exit::Failure;

/// Default modes. The last two need the preload library.
const MODES: [&str; 5] = ["base", "defer200", "suspend200", "fullbusy", "sockpoll50"];

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, Failure> {
    let (judges, load) = (super::judges(args)?, super::words(args.load.as_deref())?);
    let budget = if args.quick { QUICK_BUDGET } else { BUDGET };
    let (modes, timing) = (super::modes(args, &MODES)?, super::timing(args, budget, super::Slices::Started));
    let spec = CommandSpec { command: args.command.clone(), load, judges, placement: args.placement.wanted() };
    let question = Question::Compare(Comparison { modes, timing });
    let consent = Consent::Ask { question: "start the command under these modes?", yes: args.yes };
    match answered(consent, |tools, operator| command::answer(&spec, question, tools, operator))? {
        Some(Answer::Compared(result)) => Ok(*result),
        _ => unreachable!("a comparison that is carried out has a result"),
    }
}
