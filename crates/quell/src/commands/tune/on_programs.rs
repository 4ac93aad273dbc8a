//! Searches on running programs of this host.

use std::time::Duration;

use quell_host::attach::Targets;
use quell_host::attach::attachment::refuse_what_is_attached;
use quell_subject::experiment::judge::Judges;
use quell_subject::question::programs::{self, ProgramsSpec};
use quell_subject::question::{Answer, Question, Searched, guarded_run_max};

use super::args::TuneArgs;
use crate::commands::asked::{Consent, answered};
use crate::commands::attach::refuse_every_process;
use crate::commands::bench;
use crate::exit::Failure;
use crate::journals::journal;

const BUDGET: Duration = Duration::from_secs(180);
/// Default duration of a slice, in ms. A command that measures latency needs more time.
const SLICE_MS: u32 = 200;
const JUDGED_SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 10;
/// Name of the load in the result.
const LIVE: &str = "the present load";

/// Searches on the programs of `targets`. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs, targets: Targets) -> Result<Option<(Searched, Targets)>, Failure> {
    refuse_every_process(&targets, "")?;
    if args.keep {
        // Otherwise the search would end with a mode that cannot be attached.
        refuse_what_is_attached(&journal(), &targets).map_err(|error| Failure::usage(error).unchanged())?;
    }
    let load = bench::on_programs::load_source(args.load.as_deref(), args.clients.as_deref())?;
    let mut judges = Judges {
        latency: bench::judge(args.latency.as_deref())?,
        // The server answers others, too.
        counts_all_requests: false,
        ..Judges::default()
    };
    let slice_ms = if judges.is_empty() { SLICE_MS } else { JUDGED_SLICE_MS };
    let plan = super::plan(args, vec![LIVE.to_owned()], slice_ms, SETTLE_MS, BUDGET);
    if let Some(limit) = guarded_run_max(&plan).map_err(Failure::usage)? {
        judges.run_max = limit;
    }
    let spec = ProgramsSpec {
        targets: targets.clone(),
        load,
        judges,
        placement: args.placement.wanted(),
        accepts_stalls: args.accept_stalls,
        is_dry_run: args.dry_run,
    };
    let consent = Consent::of(args.dry_run, "search?", args.yes);
    let question = Question::Search(Box::new(plan));
    match answered(consent, |tools, operator| programs::answer(&spec, question, tools, operator))? {
        Some(Answer::Searched(searched)) => Ok(Some((*searched, targets))),
        _ => Ok(None),
    }
}
