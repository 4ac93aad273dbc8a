//! `quell revert`: undoes what is applied or attached, as a whole or by name, and what killed commands left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use quell_change::change::Change;
use quell_change::drift::condition;
use quell_change::journal::{EndRecord, History, Journal, ListedJournal, Persistence, Purpose, StallRecord};
use quell_change::persistent::{PersistError, PersistState, Persistent, give_up, release, salvage};
use quell_change::recovery::{Found, Reverted, recover_except, recover_one};
use quell_host::attach::attached::{Attached, attachments_and_begun_profiles, in_use};
use quell_host::attach::keeper::Detached;
use quell_host::attach::owners::keep_values;
use quell_linux::visible;
use quell_mode::did_you_mean;

use super::attach::detach::{self, Ended, check_all_restored, check_nothing_waits};
use super::status::applied;
use crate::exit::Failure;
use crate::journals::{boot_id, journal, name_of};
use crate::output;
use crate::render::reverted::{self, PlannedRevert, RevertReport};

/// Options of `quell revert`.
#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    /// Undo only these: names of profiles, and names in parentheses in `quell status`, also of stalls, which it forgets
    /// [default: everything]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print what would be undone; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove damaged journals after undoing their readable lines; changes on damaged lines stay.
    #[arg(long)]
    remove_damaged: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Undoes the named journals, or all persistent changes and changes left by killed runs, and forgets their stalls.
pub(crate) fn run(args: &RevertArgs) -> Result<(), Failure> {
    let (journal, boot_id) = (journal(), boot_id()?);
    let revertible = revertible(&journal)?;
    let stalls = journal.stall_records(&boot_id).map_err(Failure::refused)?;
    let selected = match &args.names[..] {
        [] => None,
        names => Some(select(names, &revertible, &stalls).map_err(Failure::usage)?),
    };
    let is_selected = |path: &Path| selected.as_ref().is_none_or(|paths| paths.contains(path));
    let chosen = || revertible.iter().filter(|one| is_selected(&one.path));
    let histories: Vec<&History> = chosen().filter_map(|one| one.history.as_ref()).collect();
    let is_forgotten = |record: &StallRecord| {
        let is_its = |history: &&History| history.begin.purpose == record.purpose && history.targets == record.programs;
        selected.is_none() || args.names.contains(&record.journal_name) || histories.iter().any(is_its)
    };
    if args.dry_run {
        let forgotten: Vec<StallRecord> = stalls.iter().filter(|record| is_forgotten(record)).cloned().collect();
        return show(&journal, is_selected, &forgotten, args.json);
    }
    // Attachments end before profiles, because they were applied on top of them.
    let mut applied_last = attachments_and_begun_profiles(&journal).map_err(Failure::refused)?;
    applied_last.retain(|attached| is_selected(&attached.path));
    let Ended { mut detached, mut errors } = detach::end(&journal, applied_last);
    let mut all = Vec::new();
    // An attachment whose keeper is running or invisible could not be ended above.
    let is_applied = |kept: &Persistent| match kept.state {
        PersistState::MaintainedBy(_) => false,
        PersistState::OutOfSight(_) => !kept.history.begin.purpose.is_of_programs(),
        _ => true,
    };
    for kept in applied()?.into_iter().filter(is_applied).filter(|kept| is_selected(&kept.path)) {
        match restore(&journal, &kept) {
            Ok(reverted) => {
                // A watchdog has recorded the end itself.
                let end = EndRecord::of(&kept.history, "`quell revert`");
                let end = end.filter(|_| !matches!(kept.state, PersistState::Unconfirmed(_)));
                end.into_iter().for_each(|end| journal.add_end(end));
                all.push((kept.history.begin.purpose.to_string(), reverted));
            }
            Err(error) => errors.push((kept.path, error)),
        }
    }
    let mut damaged = Vec::new();
    let tried: BTreeSet<PathBuf> = errors.iter().map(|(path, _)| path.clone()).collect();
    let found = match &selected {
        None => recover_except(&journal, &tried),
        Some(paths) => {
            let untried = paths.iter().filter(|path| !tried.contains(*path));
            untried.filter_map(|path| recover_one(&journal, path).transpose()).collect()
        }
    };
    for found in found.map_err(Failure::refused)? {
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
                    || selected.is_some()
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
    let forgotten = journal.forget_stalls(&boot_id, is_forgotten).map_err(Failure::refused)?;
    if args.json {
        output::json(&RevertReport::new(&detached, &all, &damaged).forgetting(&forgotten))?;
    } else {
        let text = reverted::reverted(&detached, &all, &damaged) + &reverted::forgotten("forgot", &forgotten);
        output::prose(if text.is_empty() && errors.is_empty() { "nothing to revert\n" } else { &text })?;
    }
    let failed = all.iter().any(|(_, reverted)| !reverted.failed.is_empty())
        || detached.iter().any(|(_, detached)| !detached.failed.is_empty())
        || damaged.iter().any(|salvaged| !salvaged.removed);
    check_all_restored(&errors, failed)?;
    check_nothing_waits(waiting_changes(&detached, &all).count())
}

/// A journal that `quell revert` undoes.
#[derive(Debug)]
struct Revertible {
    path: PathBuf,
    /// Contents; absent if the journal is damaged.
    history: Option<History>,
    /// Whether a process owns it.
    is_running: bool,
}

impl Revertible {
    fn is_launched(&self) -> bool {
        let purpose = self.history.as_ref().map(|history| &history.begin.purpose);
        self.is_running && matches!(purpose, Some(Purpose::Launch { .. }))
    }

    fn purpose(&self) -> String {
        self.history.as_ref().map_or_else(|| "damaged".to_owned(), |history| history.begin.purpose.to_string())
    }

    /// The names by which a user selects it: that of the journal, and those of its profile. Several files are one profile,
    /// and each of them names it: by the path by which it was given, its file name, and that without extension.
    fn names(&self) -> impl Iterator<Item = String> {
        let profile = self.history.as_ref().and_then(|history| history.begin.purpose.profile()).unwrap_or_default();
        let of_file = |path: &str| {
            let file = path.rsplit('/').next().unwrap_or_default();
            [path, file, file.strip_suffix(".toml").unwrap_or(file)].map(str::to_owned)
        };
        let of_profile: Vec<String> = profile.split(", ").flat_map(of_file).collect();
        [name_of(&self.path), profile.to_owned()].into_iter().chain(of_profile).filter(|name| !name.is_empty())
    }

    /// Journals have the names of profiles as they are displayed.
    fn has_name(&self, name: &str) -> bool {
        self.names().any(|one| one == name || one == visible::name(name))
    }
}

/// All journals that `quell revert` without a name undoes or, if the command of `quell run` still runs, skips.
fn revertible(journal: &Journal) -> Result<Vec<Revertible>, Failure> {
    let is_meant = |history: &History, is_running: bool| match &history.begin.purpose {
        // A lab that is in use ends with its command, a persistent one with `quell lab down`.
        Purpose::Lab | Purpose::Command { .. } => !is_running && history.persistence == Persistence::WithOwner,
        _ => true,
    };
    let one = |listed| {
        let (path, history, is_running) = match listed {
            ListedJournal::Running { path, history } => (path, Some(history?), true),
            ListedJournal::Abandoned { path, history } => (path, Some(history), false),
            ListedJournal::Unusable(unusable) => (unusable.path, None, false),
            ListedJournal::Unreadable(_) => return None,
        };
        let is_meant = history.as_ref().is_none_or(|history| is_meant(history, is_running));
        is_meant.then_some(Revertible { path, history, is_running })
    };
    Ok(journal.list().map_err(Failure::refused)?.into_iter().filter_map(one).collect())
}

/// Journals with these names. Refuses names that no journal has and no record of stalls, and programs of `quell run`.
fn select(names: &[String], all: &[Revertible], stalls: &[StallRecord]) -> Result<BTreeSet<PathBuf>, String> {
    let mut selected = BTreeSet::new();
    for name in names {
        for one in all.iter().filter(|one| one.has_name(name)) {
            if one.is_launched() {
                let why = "`quell run` undoes the mode when the command exits: end the command; nothing was changed";
                return Err(format!("{}: {why}", visible::name(name)));
            }
            selected.insert(one.path.clone());
        }
        let is_of_stalls = stalls.iter().any(|record| record.journal_name == *name);
        if !is_of_stalls && !all.iter().any(|one| one.has_name(name)) {
            return Err(unknown(name, all));
        }
    }
    Ok(selected)
}

fn unknown(name: &str, all: &[Revertible]) -> String {
    let line = |one: &Revertible| format!("\n  {}: {}", visible::name(&name_of(&one.path)), one.purpose());
    let list: String = all.iter().map(line).collect();
    let exists = if all.is_empty() { "Nothing is applied".to_owned() } else { format!("Applied:{list}") };
    let names: Vec<String> = all.iter().flat_map(Revertible::names).collect();
    let near = did_you_mean(name, names.iter().map(String::as_str));
    format!(
        "no profile or journal is named {}{}; nothing was changed (`quell detach` selects programs). {exists}",
        visible::name(name),
        visible::name(&near)
    )
}

/// Prints what undoing the selected journals would restore. `forgotten` are the records of stalls that end with them.
pub(super) fn show(
    journal: &Journal,
    is_selected: impl Fn(&Path) -> bool,
    forgotten: &[StallRecord],
    json: bool,
) -> Result<(), Failure> {
    let all = revertible(journal)?;
    let chosen = all.iter().filter(|one| is_selected(&one.path));
    let mut left = in_use(journal).map_err(Failure::refused)?;
    left.retain(|owner| !is_selected(&owner.path));
    let planned = chosen.filter(|one| !one.is_launched()).map(|one| {
        // A setting that cannot be compared is one that would be restored.
        let gone = one.history.as_ref().and_then(|history| condition(&one.path, history).ok());
        let kept_for = one.history.iter().flat_map(|history| keep_values(history, &one.path, &left));
        let kept_for = kept_for.map(ToString::to_string);
        let gone = gone.map_or(0, |condition| condition.gone);
        PlannedRevert::new(&one.path, one.history.as_ref(), gone, kept_for.collect())
    });
    let planned: Vec<PlannedRevert> = planned.collect();
    if json {
        return output::json(&RevertReport::planned(planned).forgetting(forgotten));
    }
    let text = reverted::planned(&planned) + &reverted::forgotten("forgets", forgotten);
    output::prose(if text.is_empty() { "nothing to revert\n" } else { &text })
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

#[cfg(test)]
mod tests {
    use quell_change::transaction::Transaction;

    use super::*;

    fn all(purposes: &[(&str, Purpose)]) -> (tempfile::TempDir, Vec<Transaction>, Vec<Revertible>) {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let begin = |(name, purpose): &(&str, Purpose)| Transaction::begin(&journal, name, purpose.clone()).unwrap();
        let begun = purposes.iter().map(begin).collect();
        let all = revertible(&journal).unwrap();
        (dir, begun, all)
    }

    fn profile(name: &str, netns: &str) -> Purpose {
        Purpose::Profile { name: name.to_owned(), netns: Some(netns.to_owned()), content: 0 }
    }

    #[test]
    fn a_name_selects_a_journal_or_the_profiles_of_that_name_and_an_unknown_one_lists_what_exists() {
        let attachment = Purpose::Attachment { mode: "suspend20".parse().unwrap() };
        let (_dir, _begun, all) = all(&[
            ("attach-7", attachment),
            ("profile-1", profile("host.toml", "blue")),
            ("profile-2", profile("/tmp/host.toml", "green")),
            ("profile-3", profile("/etc/quell/10-nic.toml, /etc/quell/20-sysctl.toml", "red")),
            ("profile-4", profile(&visible::name("/tmp/\u{1b}[1m.toml"), "grey")),
            ("lab", Purpose::Lab),
        ]);
        let selected = |names: &[&str]| -> Result<Vec<String>, String> {
            let names: Vec<String> = names.iter().copied().map(ToOwned::to_owned).collect();
            Ok(select(&names, &all, &[])?.iter().map(|path| name_of(path)).collect())
        };
        assert_eq!(selected(&["attach-7"]).unwrap(), ["attach-7"]);
        assert_eq!(selected(&["host"]).unwrap(), ["profile-1", "profile-2"]);
        assert_eq!(selected(&["host.toml", "attach-7"]).unwrap(), ["attach-7", "profile-1", "profile-2"]);
        assert_eq!(selected(&["/tmp/host.toml"]).unwrap(), ["profile-2"]);
        for layer in ["10-nic", "20-sysctl.toml", "/etc/quell/10-nic.toml"] {
            assert_eq!(selected(&[layer]).unwrap(), ["profile-3"], "{layer}");
        }
        assert_eq!(selected(&["/tmp/\u{1b}[1m.toml"]).unwrap(), ["profile-4"]);
        assert!(selected(&["hots"]).unwrap_err().contains(" (did you mean host?)"));
        for (unknown, near) in [("7", ""), ("lab", ""), ("attach", " (did you mean attach-7?)")] {
            let error = selected(&["attach-7", unknown]).unwrap_err();
            assert!(error.starts_with(&format!("no profile or journal is named {unknown}{near}; nothing")), "{error}");
            let list = "Applied:\n  attach-7: attach suspend20\n  profile-1: profile host.toml in namespace blue\n";
            assert!(error.contains(list), "{error}");
        }
    }

    #[test]
    fn a_running_command_of_quell_run_cannot_be_reverted() {
        let (_dir, _begun, all) = all(&[("run-7", Purpose::Launch { mode: "suspend20".parse().unwrap() })]);
        let error = select(&["run-7".to_owned()], &all, &[]).unwrap_err();
        assert!(error.contains("end the command; nothing was changed"), "{error}");
    }
}
