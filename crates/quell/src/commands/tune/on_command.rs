//! Searches on a command that `quell run` starts for each slice. This also works for modes that need the preload library.

use std::time::Duration;

use quell_bench::experiment::command::StartedCommand;
use quell_bench::experiment::judge::Judges;
use quell_bench::subject::{Searched, metrics};
use quell_linux::signal::Interruption;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::CommandFacts;
use quell_tune::{TuneEnd, tune};

use super::args::TuneArgs;
use super::{check, guarded, watch};
use crate::commands::attach::ask;
use crate::commands::bench;
use crate::commands::bench::on_command::{Runner, quell};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

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
    let plan = super::plan(args, vec![LOAD.to_owned()], SLICE_MS, SETTLE_MS, BUDGET)?;
    if let Some(limit) = guarded(&plan)? {
        judges.run_max = limit;
    }
    check(&plan)?;
    // The figures that a command of --latency prints are known after the first slice.
    if judges.latency.is_none() {
        metrics::of_server().check(&plan).map_err(Failure::usage)?;
    }
    let has_load = load.is_some() || judges.latency.is_some();
    let subject = SubjectFacts::Command(CommandFacts {
        command: args.command.clone(),
        load: load.clone(),
        latency: judges.latency.as_ref().map(|judge| judge.words().to_vec()),
        beside: None,
        client: None,
    });
    let text = format!(
        "searches on {}\n{}the connections of the command are closed after each slice\n{}",
        render::searched_on(&subject),
        render::plan(&plan, ""),
        if has_load { "" } else { "--load and --latency are absent: clients have to connect again in each slice\n" }
    );
    if args.dry_run {
        return output::data(&text).map(|()| None);
    }
    let journal = journal();
    revert_killed_runs(&journal).map_err(Failure::refused)?;
    output::say(text.trim_end());
    ask::unless(args.yes, "start the command under these modes?", "--yes")?;
    let interruption =
        Interruption::listen_and_never_stop().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let quell = quell()?;
    let mut runner = Runner::new(&quell, &journal, &args.command, load.as_deref());
    judges.end_after(plan.budget_ms, plan.slice_ms);
    let mut started = StartedCommand::new(&mut runner, judges, &stopped);
    let progress = Progress::new();
    let finished = tune(&mut started, plan, &mut watch(&progress, &stopped));
    progress.finish();
    let finished = finished.map_err(Failure::usage)?;
    finished.restored.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut result = finished.result;
    if let (TuneEnd::MetricUnreadable { .. }, false) = (&result.end, has_load) {
        let reason = "nothing has sent requests to the command: name a load with --load or --latency".to_owned();
        result.end = TuneEnd::SubjectFailed { reason };
    }
    Ok(Some(Searched { subject, result, not_a_measurement: None, left_alone: Vec::new() }))
}
