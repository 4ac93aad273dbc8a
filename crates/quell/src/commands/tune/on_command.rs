//! Searches on a command that `quell run` starts for each slice. This also works for modes that need the preload library.

use std::ops::ControlFlow;
use std::time::Duration;

use quell_bench::experiment::command::StartedCommand;
use quell_bench::experiment::judge::Judges;
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::CommandFacts;
use quell_tune::{TuneEnd, TuneEvent, TunePlan, TuneSpace, tune};

use super::args::TuneArgs;
use super::{Searched, check, guarded, metrics, show_progress};
use crate::commands::attach::ask;
use crate::commands::bench::on_command::Runner;
use crate::commands::bench::{self, seed_from_the_clock};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

/// Each slice starts the command, which takes longer than switching its mode.
const BUDGET: Duration = Duration::from_secs(300);
const SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 300;

/// Searches on the command. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs) -> Result<Option<Searched>, Failure> {
    let goal = args.goal.clone();
    let load = bench::words(args.load.as_deref())?;
    let mut judges = Judges {
        latency: bench::judge(args.latency.as_deref())?,
        // With --load, the server answers that load, too.
        counts_all_requests: load.is_none(),
        ..Judges::default()
    };
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    let plan = TunePlan {
        guards: args.never.clone(),
        slice_ms: args.slice.unwrap_or(SLICE_MS),
        settle_ms: args.settle.unwrap_or(SETTLE_MS),
        budget_ms: u64::try_from(args.budget.unwrap_or(BUDGET).as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), seed)
    };
    if let Some(limit) = guarded(&plan)? {
        judges.run_max = limit;
    }
    check(&plan)?;
    // The figures that a command of --latency prints are known after the first slice.
    if judges.latency.is_none() {
        metrics::of_server().check(&plan)?;
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
    let mut runner = Runner::new(&journal, &args.command, load.as_deref())?;
    judges.end_after(plan.budget_ms, plan.slice_ms);
    let mut started = StartedCommand::new(&mut runner, judges, &stopped);
    let progress = Progress::new();
    let mut watch = |event: TuneEvent<'_>| {
        if let TuneEvent::SliceRecorded(tuner) = event {
            show_progress(&progress, tuner);
        }
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finished = tune(&mut started, plan, &mut |_, _| Ok(()), &mut watch);
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
