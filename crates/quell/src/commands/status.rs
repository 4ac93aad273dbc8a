//! `quell status`, `quell revert`, `quell confirm`: persistent changes, their drift, and their end.

use std::time::Duration;

use clap::Args;
use quell_change::change::Change;
use quell_change::drift::{Condition, condition};
use quell_change::journal::{EndRecord, Journal, ListedJournal, TargetProgram};
use quell_change::persistent::{self, PersistError, PersistState, Persistent, confirm, give_up, release, salvage};
use quell_change::recovery::{self, Found, Reverted, recover_except};
use quell_host::attach::attached::{Attached, attachments_and_begun_profiles};
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::keeper::Detached;
use quell_host::snapshot::SnapshotScope;
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_observer::Observer;
use quell_result::top::{IntervalReport, ObservedProgram};

use super::attach::detach::{self, Ended, check_all_restored, check_nothing_waits};
use super::lab::is_persistent_lab;
use crate::exit::{Exit, Failure};
use crate::journals::{boot_id, journal};
use crate::output;
use crate::render::progress::Progress;
use crate::render::reverted::{self, ConfirmReport, RevertReport};
use crate::render::status::{AppliedReport, StatusReport};

/// Time for which programs are observed, and the time for which they are observed again if that did not suffice.
const OBSERVED: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// Options of the three commands.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Options of `quell revert`.
#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// Remove damaged journals after undoing their readable lines; changes on damaged lines stay.
    #[arg(long)]
    remove_damaged: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Persistent changes, except the lab of `quell lab up`.
fn applied() -> Result<Vec<Persistent>, Failure> {
    let mut kept = persistent::list(&journal()).map_err(Failure::refused)?;
    kept.retain(|kept| !is_persistent_lab(kept));
    Ok(kept)
}

/// Observes these programs for a moment, as `quell top` does. An error is the reason why this is not possible.
fn observed(pids: Vec<Pid>) -> Result<IntervalReport, String> {
    let scope = SnapshotScope { pids, ..SnapshotScope::default() };
    let interruption = Interruption::listen().map_err(|error| error.to_string())?;
    let mut observer = Observer::begin(scope, None, journal()).map_err(|error| error.to_string())?;
    Progress::during("observing the programs", || {
        let [short, long] = OBSERVED;
        // A signal only ends the wait: the rest of the report does not depend on it.
        let is_interrupted = interruption.wait(short).map_err(|error| error.to_string())?.is_some();
        let report = observer.report().map_err(|error| error.to_string())?;
        let is_unclear = |program: &ObservedProgram| matches!(program.effect, Some(ModeVerdict::CannotTell(_)));
        if is_interrupted || !report.programs.iter().any(is_unclear) {
            return Ok(report);
        }
        interruption.wait(long).map_err(|error| error.to_string())?;
        observer.report().map_err(|error| error.to_string())
    })
}

/// Prints the applied profiles and attachments, their age, their drift, and whether the modes of programs are in
/// effect.
///
/// # Errors
/// With [`Exit::VerifyFailed`] if a setting has drifted, or a mode was reverted.
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
    let pids: Vec<Pid> = applied.iter().flat_map(AppliedReport::attached_pids).collect();
    if !pids.is_empty() {
        let observed = observed(pids);
        applied.iter_mut().for_each(|applied| applied.judge(&observed));
    }
    let unusable = journal().list().map_err(Failure::refused)?.into_iter().filter_map(|listed| match listed {
        ListedJournal::Unusable(unusable) => Some(unusable.to_string()),
        ListedJournal::Unreadable(error) => Some(error.to_string()),
        _ => None,
    });
    let left_behind = recovery::left_behind(&journal()).map_err(Failure::refused)?;
    let stalls = journal().stall_records(&boot_id()?).map_err(Failure::refused)?;
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

/// Undoes all persistent changes, and changes left by killed runs.
pub(crate) fn revert(args: &RevertArgs) -> Result<(), Failure> {
    let journal = journal();
    // Attachments end before profiles, because they were applied on top of them.
    let applied_last = attachments_and_begun_profiles(&journal).map_err(Failure::refused)?;
    let Ended { mut detached, mut errors } = detach::end(&journal, applied_last);
    let mut all = Vec::new();
    // An attachment whose keeper is running or invisible could not be ended above.
    let is_applied = |kept: &Persistent| match kept.state {
        PersistState::MaintainedBy(_) => false,
        PersistState::OutOfSight(_) => !kept.history.begin.purpose.is_of_programs(),
        _ => true,
    };
    for kept in applied()?.into_iter().filter(is_applied) {
        match restore(&journal, &kept) {
            Ok(reverted) => {
                // A watchdog has recorded the end itself.
                let end = EndRecord::of(&kept.history, "`quell revert`");
                let end = end.filter(|_| !matches!(kept.state, PersistState::Unconfirmed(_)));
                end.into_iter().for_each(|end| journal.add_end(end));
                all.push((name(&kept), reverted));
            }
            Err(error) => errors.push((kept.path, error)),
        }
    }
    let mut damaged = Vec::new();
    let tried = errors.iter().map(|(path, _)| path.clone()).collect();
    for found in recover_except(&journal, &tried).map_err(Failure::refused)? {
        match found {
            Found::Recovered { owner, reverted, .. } => {
                // A queue that the end of another owner has brought back.
                let waits = |(change, _): &(Change, String)| !reverted.settles(change);
                detached.iter_mut().for_each(|(_, detached)| detached.waiting.retain(waits));
                all.iter_mut().for_each(|(_, reverted)| reverted.waiting.retain(waits));
                // Do not count changes twice that were set aside just now and tried again.
                let is_new = |change: &Change| !waiting_changes(&detached, &all).any(|waiting| waiting == change);
                if reverted.restored() > 0
                    || !reverted.failed.is_empty()
                    || reverted.waiting.iter().any(|(change, _)| is_new(change))
                {
                    all.push((owner, reverted));
                }
            }
            Found::Unusable(unusable) => match salvage(&journal, &unusable.path, args.remove_damaged) {
                Ok(salvaged) => damaged.extend(salvaged),
                Err(error) => errors.push((unusable.path, error)),
            },
            Found::Failed(error) => errors.push((error.path.clone(), error.into())),
            Found::Running { .. } | Found::Kept { .. } => {}
        }
    }
    journal.forget_stalls(&boot_id()?, |_| true).map_err(Failure::refused)?;
    if args.json {
        output::json(&RevertReport::new(&detached, &all, &damaged))?;
    } else {
        let text = reverted::reverted(&detached, &all, &damaged);
        output::prose(if text.is_empty() && errors.is_empty() { "nothing to revert\n" } else { &text })?;
    }
    let failed = all.iter().any(|(_, reverted)| !reverted.failed.is_empty())
        || detached.iter().any(|(_, detached)| !detached.failed.is_empty())
        || damaged.iter().any(|salvaged| !salvaged.removed);
    check_all_restored(&errors, failed)?;
    check_nothing_waits(waiting_changes(&detached, &all).count())
}

fn waiting_changes<'a>(
    detached: &'a [(Attached, Detached)],
    all: &'a [(String, Reverted)],
) -> impl Iterator<Item = &'a Change> {
    let of_attachments = detached.iter().flat_map(|(_, detached)| &detached.waiting);
    of_attachments.chain(all.iter().flat_map(|(_, reverted)| &reverted.waiting)).map(|(change, _)| change)
}

fn restore(journal: &Journal, kept: &Persistent) -> Result<Reverted, PersistError> {
    let by_watchdog = match kept.state {
        PersistState::Unconfirmed(watchdog) => give_up(journal, &kept.path, &watchdog)?,
        PersistState::OutOfSight(pid) => return Err(PersistError::OutOfSight { path: kept.path.clone(), pid }),
        _ => Reverted::default(),
    };
    Ok(release(journal, &kept.path)?.unwrap_or_default().after(by_watchdog))
}

fn name(kept: &Persistent) -> String {
    kept.history.begin.purpose.to_string()
}

/// Keeps the changes made by `apply --confirm`.
pub(crate) fn confirmed(args: &StatusArgs) -> Result<(), Failure> {
    let journal = journal();
    let mut confirmed = Vec::new();
    for kept in applied()? {
        if let PersistState::Unconfirmed(watchdog) = kept.state {
            confirm(&journal, &kept.path, &watchdog).map_err(|error| Failure::new(Exit::RolledBack, error))?;
            confirmed.push(name(&kept));
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
