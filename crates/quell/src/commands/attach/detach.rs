//! `quell detach`: has the keepers of attachments put everything back, and tells what that came to.

use clap::Args;
use quell_host::attach::attachment::{Attached, attachments, is_launched};
use quell_host::attach::keeper::{Detached, detach};
use quell_host::journal::Journal;
use quell_host::kept::KeptError;
use quell_host::recovery::{Found, recover};
use quell_linux::Pid;

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::attach::detached as render;

/// Options of `quell detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// The attachments of these processes; each goes as a whole [all attachments]
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::KernelRefused, error)
}

/// Runs the command.
///
/// # Errors
/// When a process is not attached to, or something could not be put back.
pub(crate) fn run(args: &DetachArgs) -> Result<(), Failure> {
    let journal = journal();
    let mut all = orphaned(&journal)?;
    let attached = attachments(&journal).map_err(refused)?;
    let chosen = choose(attached, &args.pids, !all.is_empty())?;
    let Ended { detached, errors } = end(&journal, chosen);
    all.extend(detached);
    let put_back = put_back_by_nobody(&journal, &mut all);
    if args.json {
        output::json(&render::report(&all))?;
    } else {
        output::data(&render::text(&all))?;
    }
    put_back?;
    is_all_back(&errors, all.iter().any(|(_, detached)| !detached.failed.is_empty()))
}

/// Says why what was to be ended was not.
///
/// # Errors
/// When there is something of that, or something of what was ended could not be put back.
pub(crate) fn is_all_back(errors: &[KeptError], failed_in_part: bool) -> Result<(), Failure> {
    errors.iter().for_each(|error| output::say(&error.to_string()));
    match errors.is_empty() && !failed_in_part {
        true => Ok(()),
        false => Err(refused("not everything could be put back: what is left stays in its journal, to be tried again")),
    }
}

/// A keeper that is killed just when it is told has put back nothing, or a part: the rest is put back here.
fn put_back_by_nobody(journal: &Journal, all: &mut Vec<(Attached, Detached)>) -> Result<(), Failure> {
    for (attached, detached) in orphaned(journal)? {
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

/// Those whose keepers were killed.
fn orphaned(journal: &Journal) -> Result<Vec<(Attached, Detached)>, Failure> {
    let before = attachments(journal).map_err(refused)?;
    let mut orphaned = Vec::new();
    for found in recover(journal).map_err(refused)? {
        let Found::Recovered { path, reverted } = found else { continue };
        if let Some(attached) = before.iter().find(|attached| attached.path == path) {
            orphaned.push((attached.clone(), Detached::from(reverted)));
        }
    }
    Ok(orphaned)
}

fn choose(attached: Vec<Attached>, pids: &[Pid], found_some: bool) -> Result<Vec<Attached>, Failure> {
    let is_of = |attached: &Attached, pid: Pid| {
        attached.history.targets.iter().any(|target| i64::from(target.pid) == i64::from(pid.get()))
    };
    if pids.is_empty() {
        return match attached.is_empty() && !found_some {
            true => Err(Failure::usage("no program is attached to: `quell attach MODE PID` does that")),
            false => Ok(attached),
        };
    }
    if let Some(pid) = pids.iter().find(|pid| !found_some && !attached.iter().any(|attached| is_of(attached, **pid))) {
        return Err(Failure::usage(format!("process {pid} is not attached to: `quell status` shows which are")));
    }
    Ok(attached.into_iter().filter(|attached| pids.iter().any(|pid| is_of(attached, *pid))).collect())
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
        let _transaction = Transaction::begin(&journal, "attach-1", "attach suspend200").unwrap();
        let keeper_that_ended = Keeper { pid: u32::MAX, start_time_ticks: 0 };
        let attached = Attached { keeper: Some(keeper_that_ended), ..attachments(&journal).unwrap().remove(0) };
        let unreadable = Attached { path: dir.path().join("x".repeat(300)), ..attached.clone() };
        let ended = end(&journal, vec![unreadable, attached.clone()]);
        assert_eq!(ended.detached, [(attached, Detached::default())]);
        assert!(matches!(ended.errors[..], [KeptError::Journal(_)]), "{:?}", ended.errors);
        assert!(is_all_back(&ended.errors, false).is_err() && is_all_back(&[], false).is_ok());
    }
}
