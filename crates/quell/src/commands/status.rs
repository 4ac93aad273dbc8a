//! `quell status` and `quell confirm`: persistent changes, and their drift.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use quell_change::drift::{Condition, condition};
use quell_change::journal::{ListedJournal, TargetProgram};
use quell_change::persistent::{self, PersistState, Persistent, confirm};
use quell_change::recovery;
use quell_host::attach::Targets;
use quell_host::attach::attached::{attachments_and_begun_profiles, in_use};
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::owners::QueueSharers;
use quell_host::attach::payoff::DoesItPay;
use quell_host::snapshot::{Snapshot, SnapshotScope};
use quell_linux::clock;
use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_linux::{NapiId, Pid};
use quell_observer::Observer;
use quell_result::top::{IntervalReport, ObservedProgram};

use super::earlier::{below, earlier_answers};
use super::lab::is_persistent_lab;
use super::stalls::of_long_waits;
use crate::exit::{Exit, Failure};
use crate::journals::{boot_id, journal, name_of};
use crate::output;
use crate::render::progress::Progress;
use crate::render::reverted::ConfirmReport;
use crate::render::status::{AppliedReport, StatusReport};

/// Time for which programs are observed, and the time for which they are observed again if that did not suffice.
const OBSERVED: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// Options of both commands.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Persistent changes, except the lab of `quell lab up`.
pub(super) fn applied() -> Result<Vec<Persistent>, Failure> {
    let mut kept = persistent::list(&journal()).map_err(Failure::refused)?;
    kept.retain(|kept| !is_persistent_lab(kept));
    Ok(kept)
}

/// Observes these programs for a moment, as `quell top` does, and returns the latest snapshot, too. An error is the reason why
/// this is not possible.
fn observed(pids: Vec<Pid>) -> Result<(IntervalReport, Snapshot), String> {
    let scope = SnapshotScope { pids, ..SnapshotScope::default() };
    let interruption = Interruption::listen().map_err(|error| error.to_string())?;
    let mut observer = Observer::begin(scope, None, journal()).map_err(|error| error.to_string())?;
    let report = Progress::during("observing the programs", || {
        let [short, long] = OBSERVED;
        // A signal only ends the wait: the rest of the report does not depend on it.
        let is_interrupted = interruption.wait(short).map_err(|error| error.to_string())?.is_some();
        let report = observer.report().map_err(|error| error.to_string())?;
        let is_unclear = |program: &ObservedProgram| {
            let is_near = program.payoff.as_ref().is_some_and(|payoff| payoff.pays == DoesItPay::NearBreakEven);
            is_near || matches!(program.effect, Some(ModeVerdict::CannotTell(_)))
        };
        if is_interrupted || !report.programs.iter().any(is_unclear) {
            return Ok(report);
        }
        interruption.wait(long).map_err(|error| error.to_string())?;
        observer.report().map_err(|error| error.to_string())
    });
    report.map(|report| (report, observer.into_snapshot()))
}

/// Prints the applied profiles and attachments, their age, their drift, and whether the modes of programs are in
/// effect.
///
/// # Errors
/// With [`Exit::VerifyFailed`] if a setting has drifted, a process that was started since lacks the mode although a
/// follower has had the time to set it, a mode was reverted, or a killed command left settings.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let mut applied = applied()?.iter().map(describe).collect::<Result<Vec<_>, _>>()?;
    let in_progress = attachments_and_begun_profiles(&journal()).map_err(Failure::refused)?;
    for attached in in_progress.iter().filter(|attached| attached.is_in_progress()) {
        // Other commands are still changing their settings.
        let condition = match attached.is_launched() {
            true => condition(&attached.path, &attached.history).map_err(Failure::refused)?,
            false => Condition::default(),
        };
        applied.push(AppliedReport::in_progress(attached, condition));
    }
    for applied in &mut applied {
        applied.update_programs(running);
        applied.find_started_since(parent_of);
    }
    let owners = in_use(&journal()).map_err(Failure::refused)?;
    applied.iter_mut().for_each(|applied| applied.find_other_owners(&owners, parent_of));
    let pids: Vec<Pid> = applied.iter().flat_map(AppliedReport::observed_pids).collect();
    if !pids.is_empty() {
        let (report, snapshot) = match observed(pids.clone()) {
            Ok((report, snapshot)) => (Ok(report), Some(snapshot)),
            Err(why) => (Err(why), None),
        };
        applied.iter_mut().for_each(|applied| applied.judge(&report));
        if let (Ok(report), Some(snapshot)) = (&report, &snapshot) {
            let (predicted, answers) = (of_long_waits(report, snapshot, &pids), earlier_answers());
            let below = |pids: &BTreeSet<Pid>| below(snapshot, pids, &owners);
            for applied in &mut applied {
                applied.predict(&predicted);
                applied.look(snapshot, &answers, below);
            }
        }
    }
    let mut stalls = journal().stall_records(&boot_id()?).map_err(Failure::refused)?;
    applied.iter_mut().for_each(|applied| applied.count_stalls(&stalls));
    // The history has what ended.
    stalls.retain(|stall| !stall.reverted || stall.programs.iter().any(|program| running(program).is_some()));
    let since_boot = Duration::from_nanos(clock::boottime_ns());
    applied.iter_mut().for_each(|applied| applied.leave_new_ones_to_follower(since_boot));
    let listed = journal().list().map_err(Failure::refused)?;
    let still_there: BTreeSet<String> = listed.iter().filter_map(ListedJournal::path).map(name_of).collect();
    // What was undone during the observation looks as if other programs had changed it.
    applied.retain(|applied| still_there.contains(applied.journal_name()));
    let unusable = listed.into_iter().filter_map(|listed| match listed {
        ListedJournal::Unusable(unusable) => Some(unusable.to_string()),
        ListedJournal::Unreadable(error) => Some(error.to_string()),
        _ => None,
    });
    let left_behind = recovery::left_behind(&journal()).map_err(Failure::refused)?;
    let report = StatusReport::new(applied, unusable.collect(), &left_behind, stalls, journal().ends());
    if args.json {
        output::json(&report)?;
    } else {
        output::prose(&report.to_string())?;
    }
    match report.advice() {
        None => Ok(()),
        Some(advice) => Err(Failure::new(Exit::VerifyFailed, advice)),
    }
}

/// Attachments of other programs that use one of these queues, as far as journals can be read.
pub(super) fn queue_sharers(programs: &Targets, napis: &BTreeSet<NapiId>) -> Option<QueueSharers> {
    QueueSharers::of(&programs.pids(), napis, &in_use(&journal()).unwrap_or_default(), parent_of)
}

fn parent_of(pid: Pid) -> Option<Pid> {
    ProcRoot::default().process(pid).stat().ok()?.ppid
}

/// The program with its present name, if it runs.
fn running(program: &TargetProgram) -> Option<TargetProgram> {
    let stat = ProcRoot::default().process(program.pid).stat().ok()?;
    let present = TargetProgram { pid: program.pid, start_time_ticks: stat.starttime.0, name: stat.name() };
    present.is_same_process(program).then_some(present)
}

fn describe(kept: &Persistent) -> Result<AppliedReport, Failure> {
    let condition = match kept.state {
        PersistState::BeforeThisBoot | PersistState::OutOfSight(_) => Condition::default(),
        PersistState::UntilReverted | PersistState::MaintainedBy(_) | PersistState::Unconfirmed(_) => {
            condition(&kept.path, &kept.history).map_err(Failure::refused)?
        }
    };
    Ok(AppliedReport::new(kept, condition))
}

/// Keeps the changes made by `apply --confirm`.
pub(crate) fn confirmed(args: &StatusArgs) -> Result<(), Failure> {
    let journal = journal();
    let mut confirmed = Vec::new();
    for kept in applied()? {
        if let PersistState::Unconfirmed(watchdog) = kept.state {
            confirm(&journal, &kept.path, &watchdog).map_err(|error| Failure::new(Exit::RolledBack, error))?;
            confirmed.push(kept.history.begin.purpose.to_string());
        }
    }
    if confirmed.is_empty() {
        return Err(Failure::usage("nothing to confirm: `quell status` lists applied profiles"));
    }
    if args.json {
        return output::json(&ConfirmReport::new(confirmed));
    }
    output::data(&confirmed.iter().map(|name| format!("{name} confirmed\n")).collect::<String>())
}
