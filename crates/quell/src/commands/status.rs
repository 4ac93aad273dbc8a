//! `quell status`, `quell revert`, `quell confirm`: what stays applied, what of it has drifted, and its end.

use clap::Args;
use quell_host::apply::profile_of;
use quell_host::attach::attachment::{Attached, attachments, is_launched, mode_of};
use quell_host::attach::keeper::Detached;
use quell_host::drift::{Condition, condition};
use quell_host::journal::{Change, Journal, ListedJournal};
use quell_host::kept::{self, Kept, KeptError, Standing, confirm, give_up, release, salvage};
use quell_host::recovery::{self, Found, Reverted, recover};
use quell_linux::visible;

use super::attach::detach::{self, Ended, is_all_back, nothing_waits};
use super::lab::is_kept_lab;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::status::{self as render, AppliedReport, StatusReport};

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
    /// Remove damaged journals once their whole lines are undone; what their other lines said stays as it is.
    #[arg(long)]
    remove_damaged: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// What stays applied; a lab that is up is not.
fn applied() -> Result<Vec<Kept>, Failure> {
    let mut kept = kept::list(&journal()).map_err(Failure::refused)?;
    kept.retain(|kept| !is_kept_lab(kept));
    Ok(kept)
}

/// What is applied, since when, by which profile, and what has drifted.
///
/// # Errors
/// With [`Exit::VerifyFailed`] when something has drifted.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let mut applied = applied()?.iter().map(describe).collect::<Result<Vec<_>, _>>()?;
    for launched in attachments(&journal()).map_err(Failure::refused)?.iter().filter(|attached| is_launched(attached)) {
        let condition = condition(&launched.path, &launched.history).map_err(Failure::refused)?;
        applied.push(AppliedReport::launched(launched, condition));
    }
    let unusable = journal().list().map_err(Failure::refused)?.into_iter().filter_map(|listed| match listed {
        ListedJournal::Unusable(unusable) => Some(unusable.to_string()),
        ListedJournal::Unreadable(error) => Some(error.to_string()),
        _ => None,
    });
    let left_behind = recovery::left_behind(&journal()).map_err(Failure::refused)?;
    let report = StatusReport::new(applied, unusable.collect(), &left_behind);
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&report.to_string())?;
    }
    match report.advice() {
        None => Ok(()),
        Some(advice) => Err(Failure::new(Exit::VerifyFailed, advice)),
    }
}

fn describe(kept: &Kept) -> Result<AppliedReport, Failure> {
    let condition = match kept.standing {
        Standing::BeforeThisBoot | Standing::OutOfSight(_) => Condition::default(),
        Standing::Kept | Standing::KeptBy(_) | Standing::Unconfirmed(_) => {
            condition(&kept.path, &kept.history).map_err(Failure::refused)?
        }
    };
    Ok(AppliedReport::new(kept, condition))
}

/// Puts back everything that stays applied, and what killed runs left.
///
/// # Errors
/// When something could not be put back, or a journal could not be taken or read as a whole.
pub(crate) fn revert(args: &RevertArgs) -> Result<(), Failure> {
    let journal = journal();
    // Before the profiles: they were set on top of them.
    let Ended { detached, mut errors } = detach::end(&journal, attachments(&journal).map_err(Failure::refused)?);
    let mut all = Vec::new();
    // An attachment that is still kept, or out of sight, could not be ended above.
    let is_applied = |kept: &Kept| match kept.standing {
        Standing::KeptBy(_) => false,
        Standing::OutOfSight(_) => mode_of(&kept.history).is_none(),
        _ => true,
    };
    for kept in applied()?.into_iter().filter(is_applied) {
        match put_back(&journal, &kept) {
            Ok(reverted) => all.push((name(&kept), reverted)),
            Err(error) => errors.push(error),
        }
    }
    let mut damaged = Vec::new();
    for found in recover(&journal).map_err(Failure::refused)? {
        match found {
            Found::Recovered { path, reverted } => {
                // What was set aside just now has been tried a second time.
                let is_new = |change: &Change| !waiting_since(&detached, &all).any(|waiting| waiting == change);
                if reverted.restored() > 0
                    || !reverted.failed.is_empty()
                    || reverted.waiting.iter().any(|(change, _)| is_new(change))
                {
                    all.push((visible::path(&path), reverted));
                }
            }
            Found::Unusable(unusable) => match salvage(&journal, &unusable.path, args.remove_damaged) {
                Ok(salvaged) => damaged.extend(salvaged),
                Err(error) => errors.push(error),
            },
            Found::Failed(error) => errors.push(error.into()),
            Found::Running { .. } | Found::Kept { .. } => {}
        }
    }
    if args.json {
        output::json(&render::reverted_report(&detached, &all, &damaged))?;
    } else {
        output::data(&render::reverted(&detached, &all, &damaged))?;
    }
    let failed = all.iter().any(|(_, reverted)| !reverted.failed.is_empty())
        || detached.iter().any(|(_, detached)| !detached.failed.is_empty())
        || damaged.iter().any(|salvaged| !salvaged.removed);
    is_all_back(&errors, failed)?;
    nothing_waits(waiting_since(&detached, &all).count())
}

fn waiting_since<'a>(
    detached: &'a [(Attached, Detached)],
    all: &'a [(String, Reverted)],
) -> impl Iterator<Item = &'a Change> {
    let of_attachments = detached.iter().flat_map(|(_, detached)| &detached.waiting);
    of_attachments.chain(all.iter().flat_map(|(_, reverted)| &reverted.waiting)).map(|(change, _)| change)
}

fn put_back(journal: &Journal, kept: &Kept) -> Result<Reverted, KeptError> {
    let by_watchdog = match kept.standing {
        Standing::Unconfirmed(watchdog) => give_up(journal, &kept.path, &watchdog)?,
        Standing::OutOfSight(pid) => return Err(KeptError::OutOfSight { path: kept.path.clone(), pid }),
        _ => Reverted::default(),
    };
    Ok(release(journal, &kept.path)?.unwrap_or_default().after(by_watchdog))
}

fn name(kept: &Kept) -> String {
    profile_of(&kept.history).map_or_else(|| visible::path(&kept.path), |profile| format!("profile {profile}"))
}

/// Lets stay what was applied with `--confirm`.
///
/// # Errors
/// When nothing waits for it, or it comes too late.
pub(crate) fn confirmed(args: &StatusArgs) -> Result<(), Failure> {
    let journal = journal();
    let mut confirmed = Vec::new();
    for kept in applied()? {
        if let Standing::Unconfirmed(watchdog) = kept.standing {
            confirm(&journal, &kept.path, &watchdog).map_err(|error| Failure::new(Exit::RolledBack, error))?;
            confirmed.push(name(&kept));
        }
    }
    if confirmed.is_empty() {
        return Err(Failure::usage("nothing waits to be confirmed: `quell status` shows what is applied"));
    }
    if args.json {
        return output::json(&confirmed);
    }
    output::data(&confirmed.iter().map(|name| format!("{name} stays\n")).collect::<String>())
}
