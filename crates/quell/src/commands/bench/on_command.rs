//! Compares modes on a command.

use quell_result::experiment::ExperimentResult;
use quell_subject::question::command::{self, CommandSpec};
use quell_subject::question::{Answer, Question};

use super::args::BenchArgs;
use super::on_programs::comparison;
use crate::commands::asked::{Consent, answered};
use crate::exit::Failure;

/// Default modes. `sockpoll` needs the preload library.
const MODES: [&str; 5] = ["base", "suspend200", "sockpoll50", "defer200", "fullbusy"];

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, Failure> {
    // With --load, the server answers that load, too.
    let judges = super::judges(args, args.load.is_none())?;
    let load = super::words(args.load.as_deref())?;
    let question = Question::Compare(comparison(args, &MODES, super::Slices::Started)?);
    let spec = CommandSpec { command: args.command.clone(), load, judges };
    let consent = Consent::Ask { question: "start the command under these modes?", yes: args.yes };
    match answered(consent, |tools, operator| command::answer(&spec, question, tools, operator))? {
        Some(Answer::Compared(result)) => Ok(*result),
        _ => unreachable!("a comparison that is carried out has a result"),
    }
}
