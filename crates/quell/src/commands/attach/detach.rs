//! `quell detach`: has the keepers of attachments put everything back, and tells what that came to.

use clap::Args;
use quell_host::attach::attachment::{Attached, attachments, is_launched};
use quell_host::attach::keeper::{Detached, detach};
use quell_host::journal::Journal;
use quell_host::kept::KeptError;
use quell_host::recovery::{Found, recover_one, recover_what_waits};
use quell_linux::Pid;

use super::ask;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::attach::detached as render;
use crate::render::status::waits;

/// Options of `quell detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// The attachments of these processes; each goes as a whole [all, after they were listed and it was asked]
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// All attachments of this host, whoever made them, without asking.
    #[arg(long, conflicts_with = "pids")]
    all: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When a process is not attached to, or something could not be put back.
pub(crate) fn run(args: &DetachArgs) -> Result<(), Failure> {
    let journal = journal();
    let attachments = attachments(&journal).map_err(Failure::refused)?;
    if attachments.is_empty() && args.pids.is_empty() && restore_what_waits(&journal)? > 0 {
        return Ok(());
    }
    let chosen = choose(attachments, args)?;
    let mut all = orphaned(&journal, &chosen)?;
    let is_left = |attached: &&Attached| !all.iter().any(|(ended, _)| ended.path == attached.path);
    let Ended { detached, errors } = end(&journal, chosen.iter().filter(is_left).cloned().collect());
    all.extend(detached);
    let put_back = put_back_by_nobody(&journal, &chosen, &mut all);
    restore_what_waits(&journal)?;
    if args.json {
        output::json(&render::report(&all))?;
    } else {
        output::data(&render::text(&all))?;
    }
    put_back?;
    is_all_back(&errors, all.iter().any(|(_, detached)| !detached.failed.is_empty()))?;
    nothing_waits(all.iter().map(|(_, detached)| detached.waiting.len()).sum())
}

/// Says that settings wait for their queues.
///
/// # Errors
/// With [`Exit::VerifyFailed`] when any do.
pub(crate) fn nothing_waits(waiting: usize) -> Result<(), Failure> {
    match waiting {
        0 => Ok(()),
        count => Err(Failure::new(Exit::VerifyFailed, format!("restored but for {}", waits(count)))),
    }
}

/// Says why what was to be ended was not.
///
/// # Errors
/// When there is something of that, or something of what was ended could not be put back.
pub(crate) fn is_all_back(errors: &[KeptError], failed_in_part: bool) -> Result<(), Failure> {
    errors.iter().for_each(|error| output::say(&error.to_string()));
    match errors.is_empty() && !failed_in_part {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::KernelRefused,
            "not everything could be restored: what is left stays in its journal, to be tried again",
        )),
    }
}

/// Settings of earlier attachments wait for queues that may be in use now. Says how many were restored.
fn restore_what_waits(journal: &Journal) -> Result<usize, Failure> {
    let mut restored = 0;
    for found in recover_what_waits(journal).map_err(Failure::refused)? {
        match found {
            Found::Recovered { reverted, .. } => {
                restored += reverted.restored();
                reverted.failed.iter().for_each(|(_, error)| output::say(&error.to_string()));
            }
            Found::Failed(error) => output::say(&error.to_string()),
            Found::Running { .. } | Found::Kept { .. } | Found::Unusable(_) => {}
        }
    }
    if restored > 0 {
        let settings = if restored == 1 { "setting" } else { "settings" };
        output::say(&format!("restored {restored} {settings} of earlier attachments that waited for their queues"));
    }
    Ok(restored)
}

/// A keeper that is killed just when it is told has put back nothing, or a part: the rest is put back here.
fn put_back_by_nobody(
    journal: &Journal,
    chosen: &[Attached],
    all: &mut Vec<(Attached, Detached)>,
) -> Result<(), Failure> {
    for (attached, detached) in orphaned(journal, chosen)? {
        all.retain(|(told, _)| told.path != attached.path);
        all.push((attached, detached));
    }
    Ok(())
}

/// What ending attachments came to.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Those that were ended, each with what putting it back came to.
    pub(crate) detached: Vec<(Attached, Detached)>,
    /// Why the others were not.
    pub(crate) errors: Vec<KeptError>,
}

/// Ends attachments by their keepers. One that cannot be ended does not keep the others.
pub(crate) fn end(journal: &Journal, chosen: Vec<Attached>) -> Ended {
    let mut ended = Ended::default();
    for attached in chosen {
        if is_launched(&attached) {
            let mode = &attached.history.begin.purpose;
            output::say(&format!("left alone: {mode}, by `quell run`: it goes back when the command ends"));
        }
        let Some(keeper) = attached.keeper else { continue };
        match detach(journal, &attached.path, &keeper) {
            Ok(detached) => ended.detached.push((attached, detached.unwrap_or_default())),
            Err(error) => ended.errors.push(error),
        }
    }
    ended
}

/// Those of `chosen` whose keepers were killed: they are put back here.
fn orphaned(journal: &Journal, chosen: &[Attached]) -> Result<Vec<(Attached, Detached)>, Failure> {
    let mut orphaned = Vec::new();
    for attached in chosen {
        if let Some(Found::Recovered { reverted, .. }) =
            recover_one(journal, &attached.path).map_err(Failure::refused)?
        {
            orphaned.push((attached.clone(), Detached::from(reverted)));
        }
    }
    Ok(orphaned)
}

/// Those of the processes that were named; without any, all of the host, also somebody else's, when that is confirmed.
fn choose(attached: Vec<Attached>, args: &DetachArgs) -> Result<Vec<Attached>, Failure> {
    let is_of = |attached: &Attached, pid: Pid| {
        attached.history.targets.iter().any(|target| i64::from(target.pid) == i64::from(pid.get()))
    };
    if args.pids.is_empty() {
        if attached.is_empty() {
            return Err(Failure::usage("no program is attached to: `quell attach MODE PID` does that"));
        }
        if !args.all {
            output::say("attachments of this host:");
            attached.iter().for_each(|attached| output::say(&format!("  {}", render::name(attached))));
            ask::unless(false, "detach all of them?", "--all, or the PID of a program")?;
        }
        return Ok(attached);
    }
    if let Some(pid) = args.pids.iter().find(|pid| !attached.iter().any(|attached| is_of(attached, **pid))) {
        return Err(Failure::usage(format!("process {pid} is not attached to: `quell status` shows which are")));
    }
    Ok(attached.into_iter().filter(|attached| args.pids.iter().any(|pid| is_of(attached, *pid))).collect())
}

#[cfg(test)]
mod tests {
    use quell_host::journal::Keeper;
    use quell_host::transaction::Transaction;

    use super::*;

    #[test]
    fn an_attachment_that_cannot_be_ended_does_not_keep_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let transaction = Transaction::begin(&journal, "attach-1", "attach suspend200").unwrap();
        let keeper_that_ended = Keeper { pid: u32::MAX, start_time_ticks: 0 };
        let attached = Attached { keeper: Some(keeper_that_ended), ..attachments(&journal).unwrap().remove(0) };
        let unreadable = Attached { path: dir.path().join("x".repeat(300)), ..attached.clone() };
        drop(transaction);
        let ended = end(&journal, vec![unreadable, attached.clone()]);
        assert_eq!(ended.detached, [(attached, Detached::default())]);
        assert!(matches!(ended.errors[..], [KeptError::Journal(_)]), "{:?}", ended.errors);
        assert!(is_all_back(&ended.errors, false).is_err() && is_all_back(&[], false).is_ok());
    }
}
