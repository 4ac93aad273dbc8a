//! `quell detach`: makes the keepers undo attachments, and reports the outcome.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use quell_change::journal::Journal;
use quell_change::persistent::PersistError;
use quell_change::recovery::{Found, recover_one};
use quell_host::attach::attached::{Attached, attachments, waiting};
use quell_host::attach::keeper::{Detached, detach};
use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::{Pid, visible};
use quell_mode::did_you_mean;

use super::ask;
use crate::commands::programs_args::{ProgramWord, ProgramsArgs};
use crate::commands::revert;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::attach::detached as render;
use crate::render::reverted::waits;

/// Options of `quell detach`.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// Detach from these programs, by PID or name; each attachment is undone as a whole [default: all, after a prompt]
    #[arg(value_name = "PID|NAME")]
    words: Vec<ProgramWord>,
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Undo all attachments on this host without a prompt.
    #[arg(long, conflicts_with_all = ["words", "ProgramsArgs"])]
    all: bool,
    /// Print what would be undone; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

pub(crate) fn run(args: &DetachArgs) -> Result<(), Failure> {
    let journal = journal();
    let attachments = attachments(&journal).map_err(Failure::refused)?;
    let waiting = waiting(&journal).map_err(Failure::refused)?;
    let mut chosen = choose(attachments, waiting, args)?;
    if args.dry_run {
        return revert::show(&journal, |path| chosen.iter().any(|attached| attached.path == path), &[], args.json);
    }
    // An experiment on an attached program first: it brings the attached mode back before that is undone.
    chosen.sort_by_key(|attached| !attached.purpose().is_experiment());
    let mut all = orphaned(&journal, &chosen)?;
    let is_left = |attached: &&Attached| !all.iter().any(|(ended, _)| ended.path == attached.path);
    let Ended { detached, errors } = end(&journal, chosen.iter().filter(is_left).cloned().collect());
    all.extend(detached);
    let restore = undo_for_killed_keepers(&journal, &chosen, &mut all);
    if args.json {
        output::json(&render::DetachReport::new(&all))?;
    } else {
        output::prose(&render::text(&all))?;
    }
    restore?;
    check_all_restored(&errors, all.iter().any(|(_, detached)| !detached.failed.is_empty()))?;
    check_nothing_waits(all.iter().map(|(_, detached)| detached.waiting.len()).sum())
}

pub(crate) fn check_nothing_waits(waiting: usize) -> Result<(), Failure> {
    match waiting {
        0 => Ok(()),
        count => Err(Failure::new(Exit::VerifyFailed, format!("restored except {}", waits(count)))),
    }
}

pub(crate) fn check_all_restored(errors: &[(PathBuf, PersistError)], failed_in_part: bool) -> Result<(), Failure> {
    errors.iter().for_each(|(_, error)| output::say(&error.to_string()));
    match errors.is_empty() && !failed_in_part {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::KernelRefused,
            "some changes could not be undone; they stay in the journal: run the command again to retry",
        )),
    }
}

/// Undoes the rest if a keeper was killed while it was undoing its attachment.
fn undo_for_killed_keepers(
    journal: &Journal,
    chosen: &[Attached],
    all: &mut Vec<(Attached, Detached)>,
) -> Result<(), Failure> {
    for (attached, detached) in orphaned(journal, chosen)? {
        all.retain(|(reported, _)| reported.path != attached.path);
        all.push((attached, detached));
    }
    Ok(())
}

#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) detached: Vec<(Attached, Detached)>,
    /// Journals of the others, and the reasons why these could not be ended.
    pub(crate) errors: Vec<(PathBuf, PersistError)>,
}

/// Signals the owners to undo their changes. An error does not affect the others.
pub(crate) fn end(journal: &Journal, chosen: Vec<Attached>) -> Ended {
    let mut ended = Ended::default();
    for attached in chosen {
        if attached.is_launched() && attached.is_locked {
            output::say(&format!("skipped: {}, which is undone when the command exits", attached.purpose()));
            continue;
        }
        match detach(journal, &attached) {
            Ok(detached) => ended.detached.push((attached, detached.unwrap_or_default())),
            Err(error) => ended.errors.push((attached.path, error)),
        }
    }
    ended
}

/// Undoes the attachments in `chosen` whose owners are dead.
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

/// Selects the attachments of the given programs. Without them, selects all after a confirmation, which settings that
/// only wait for their queues do not need.
fn choose(attached: Vec<Attached>, waiting: Vec<Attached>, args: &DetachArgs) -> Result<Vec<Attached>, Failure> {
    args.programs.refuse_both(&args.words)?;
    let selects = args.programs.is_given() || !args.words.is_empty();
    if !selects {
        if attached.is_empty() && waiting.is_empty() {
            const NONE: &str = "no program is attached";
            if !args.all {
                return Err(Failure::usage(NONE));
            }
            output::say(NONE);
        }
        if !args.all && !args.dry_run && !attached.is_empty() {
            output::say("attachments of this host:");
            attached.iter().for_each(|attached| output::say(&format!("  {}", render::name(attached))));
            ask::unless(false, "detach all of them?", "--all, or the PID of a program")?;
        }
    }
    let all: Vec<Attached> = attached.into_iter().chain(waiting).collect();
    if !selects {
        return Ok(all);
    }
    let mut chosen = Vec::new();
    for selected in selected(&all, args)? {
        let of_it = |attached: &&Attached| attached.history.targets.iter().any(|it| selected.pids.contains(&it.pid));
        let its: Vec<&Attached> = all.iter().filter(of_it).collect();
        if its.is_empty() {
            let names = all.iter().flat_map(|attached| &attached.history.targets).map(|target| &*target.name);
            return Err(Failure::usage(format!(
                "{} is not attached{}; `quell status` lists attachments",
                selected.name,
                visible::name(&did_you_mean(&selected.name, names))
            )));
        }
        if its.iter().any(|attached| attached.is_launched()) {
            return Err(Failure::usage(format!(
                "`quell run` started {}, and undoes the mode when it exits: end it; nothing was changed",
                selected.name
            )));
        }
        chosen.extend(its.into_iter().map(|attached| attached.path.clone()));
    }
    Ok(all.into_iter().filter(|attached| chosen.contains(&attached.path)).collect())
}

/// Processes of one selected program, which may have exited.
struct SelectedProgram {
    name: String,
    pids: BTreeSet<Pid>,
}

/// The selected programs, one for each word. A program that has exited is found in its attachment.
fn selected(all: &[Attached], args: &DetachArgs) -> Result<Vec<SelectedProgram>, Failure> {
    let refused = |error: TargetError| Failure::usage(error);
    let running = |selection| Targets::find(selection).map(|targets| targets.pids());
    let named = args.programs.name.iter().cloned().map(ProgramWord::Name);
    let pids = args.programs.pid.iter().copied().map(ProgramWord::Pid);
    let mut found = Vec::new();
    for word in args.words.iter().cloned().chain(named).chain(pids) {
        found.push(match word {
            ProgramWord::Pid(pid) => {
                let mut pids = running(Selection::Processes(vec![pid])).unwrap_or_default();
                if pid.get() == 1 {
                    // Every process descends from it.
                    pids.clear();
                }
                pids.insert(pid);
                SelectedProgram { name: format!("process {pid}"), pids }
            }
            ProgramWord::Name(name) => {
                let pids = match Selection::named(&name).and_then(running) {
                    Err(TargetError::NoSuchName { .. }) => {
                        let targets = all.iter().flat_map(|attached| &attached.history.targets);
                        targets.filter(|target| target.name == name).map(|target| target.pid).collect()
                    }
                    found => found.map_err(refused)?,
                };
                SelectedProgram { name: visible::name(&name).into_owned(), pids }
            }
        });
    }
    if let Some(name) = args.programs.unit.as_ref().or(args.programs.cgroup.as_ref()) {
        let pids = args.programs.selection(&[]).and_then(running).map_err(refused)?;
        found.push(SelectedProgram { name: visible::name(name).into_owned(), pids });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use quell_change::journal::{Keeper, Purpose};
    use quell_change::transaction::Transaction;

    use super::*;

    #[test]
    fn an_error_of_one_attachment_does_not_affect_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let purpose = Purpose::Attachment { mode: "suspend200".parse().unwrap() };
        let transaction = Transaction::begin(&journal, "attach-1", purpose).unwrap();
        let keeper_that_ended = Keeper { pid: Pid::new(i32::MAX).unwrap(), start_time_ticks: 0 };
        let attached = Attached { keeper: Some(keeper_that_ended), ..attachments(&journal).unwrap().remove(0) };
        let unreadable = Attached { path: dir.path().join("x".repeat(300)), ..attached.clone() };
        drop(transaction);
        let ended = end(&journal, vec![unreadable, attached.clone()]);
        assert_eq!(ended.detached, [(attached, Detached::default())]);
        assert!(matches!(ended.errors[..], [(_, PersistError::Journal(_))]), "{:?}", ended.errors);
        assert!(check_all_restored(&ended.errors, false).is_err() && check_all_restored(&[], false).is_ok());
    }
}
