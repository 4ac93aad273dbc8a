//! Searches on a command.

use std::time::Duration;

use quell_subject::experiment::judge::Judges;
use quell_subject::question::command::{self, CommandSpec};
use quell_subject::question::{Answer, Question, Searched, guarded_run_max};

use super::args::TuneArgs;
use crate::commands::asked::{Consent, answered};
use crate::commands::bench;
use crate::exit::Failure;

/// Each slice starts the command, which takes longer than switching its mode.
const BUDGET: Duration = Duration::from_secs(300);
const SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 300;
/// Name of the load in the result.
const LOAD: &str = "present";

/// Searches on the command. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs) -> Result<Option<Searched>, Failure> {
    let load = bench::words(args.load.as_deref())?;
    let mut judges = Judges {
        latency: bench::judge(args.latency.as_deref())?,
        // With --load, the server answers that load, too.
        counts_all_requests: load.is_none(),
        ..Judges::default()
    };
    let plan = super::plan(args, vec![LOAD.to_owned()], SLICE_MS, SETTLE_MS, BUDGET);
    if let Some(limit) = guarded_run_max(&plan).map_err(Failure::usage)? {
        judges.run_max = limit;
    }
    let spec = CommandSpec { command: args.command.clone(), load, judges, placement: args.placement.wanted() };
    let consent = Consent::of(args.dry_run, "start the command under these modes?", args.yes);
    let question = Question::Search(Box::new(plan));
    match answered(consent, |tools, operator| command::answer(&spec, question, tools, operator))? {
        Some(Answer::Searched(searched)) => Ok(Some(*searched)),
        _ => Ok(None),
    }
}
