//! Undoes journals whose owners are dead, the last change first. Leaves persistent changes alone; see
//! [`crate::persistent`].

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use quell_linux::file::is_locked_by;
use quell_linux::proc::{BootId, ProcRoot, ProcessIdentity, Ticks};
use quell_linux::{Pid, visible};
use tracing::{debug, error_span, info, warn};

use crate::change::{Change, EpollParameters, Undo, UndoOutcome};
use crate::journal::claims::{Others, name_of_owner};
use crate::journal::ends;
use crate::journal::record::Record;
use crate::journal::{
    Attempt, Entry, History, Journal, JournalError, JournalFile, Keeper, ListedJournal, OwnedJournal, Persistence,
    UnusableJournal, Watchdog, Witness,
};
use crate::settings::epoll::undo_epolls;
use crate::settings::host::KnownContexts;
use crate::transaction::ChangeError;
use crate::undo::UndoError;

#[derive(Debug, Default)]
pub struct Reverted {
    /// Changes that were undone, in the order of undoing, or in journal order if another process undid them.
    pub undone: Vec<Change>,
    pub already_gone: Vec<Change>,
    pub partial: Vec<(Change, String)>,
    /// Changes that were left in place, because another program has changed the value since, with the details.
    pub left_alone: Vec<(Change, String)>,
    /// Changes whose values a newer owner has set since, with its name. They stay for that owner.
    pub superseded: Vec<(Change, String)>,
    /// Changes of queues that have no NAPI instance at present, with the details. They stay in the journal until the
    /// queue is in use.
    pub waiting: Vec<(Change, String)>,
    /// Changes that another process undid or found gone, without recording it because the disk was full.
    pub unrecorded: Vec<Change>,
    pub failed: Vec<(Change, UndoError)>,
}

impl Reverted {
    /// Outcome of a revert by another process that has exited, first change first. Omits changes that remain to be
    /// undone.
    pub fn as_seen_by(witness: &mut Witness) -> io::Result<Self> {
        let history = witness.history()?;
        let everything = witness.is_removed()?;
        let mut reverted = Self::default();
        for entry in history.entries {
            match entry.undone {
                Some(undoing) => reverted.add(entry.change, undoing),
                None if everything => reverted.unrecorded.push(entry.change),
                None => {}
            }
        }
        Ok(reverted)
    }

    pub fn after(self, before: Self) -> Self {
        fn joined<T>(mut before: Vec<T>, after: Vec<T>) -> Vec<T> {
            before.extend(after);
            before
        }
        Self {
            undone: joined(before.undone, self.undone),
            already_gone: joined(before.already_gone, self.already_gone),
            partial: joined(before.partial, self.partial),
            left_alone: joined(before.left_alone, self.left_alone),
            superseded: joined(before.superseded, self.superseded),
            waiting: joined(before.waiting, self.waiting),
            unrecorded: joined(before.unrecorded, self.unrecorded),
            failed: self.failed,
        }
    }

    /// Whether nothing remains to be done for the change.
    #[must_use]
    pub fn settles(&self, change: &Change) -> bool {
        let with_reasons =
            [&self.partial, &self.left_alone, &self.superseded].into_iter().flatten().map(|(change, _)| change);
        self.undone.iter().chain(&self.already_gone).chain(with_reasons).any(|settled| settled == change)
    }

    #[must_use]
    pub fn restored(&self) -> usize {
        self.undone.len() + self.partial.len()
    }

    fn add(&mut self, change: Change, undoing: UndoOutcome) {
        match undoing {
            UndoOutcome::Undone => self.undone.push(change),
            UndoOutcome::AlreadyGone => self.already_gone.push(change),
            UndoOutcome::Partial(why) => self.partial.push((change, why)),
            UndoOutcome::LeftAlone(why) => self.left_alone.push((change, why)),
            UndoOutcome::Superseded(owner) => self.superseded.push((change, owner)),
            UndoOutcome::Waits(why) => self.waiting.push((change, why)),
        }
    }
}

#[derive(Debug)]
pub enum Found {
    Running {
        path: PathBuf,
        history: Option<History>,
    },
    Kept {
        path: PathBuf,
        history: History,
    },
    Recovered {
        /// Path of the journal, which still exists if something failed.
        path: PathBuf,
        owner: String,
        reverted: Reverted,
    },
    Unusable(UnusableJournal),
    /// It could not be taken over or read, or could not be removed after the revert.
    Failed(JournalError),
}

/// Reverts every journal whose owner is dead, and reports the others. An unreadable or unwritable journal does not stop
/// the rest.
pub fn recover(journal: &Journal) -> Result<Vec<Found>, ChangeError> {
    recover_except(journal, &BTreeSet::new())
}

/// Like [`recover`], without another wait for the journals in `tried`, if other processes hold their locks.
pub fn recover_except(journal: &Journal, tried: &BTreeSet<PathBuf>) -> Result<Vec<Found>, ChangeError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let recover = |file| {
        let was_tried = matches!(&file, JournalFile::Running { path, .. } if tried.contains(path));
        let file = if was_tried { file } else { unless_strangers_hold_it(journal, file, &proc) };
        recover_file(file, boot_id, &proc)
    };
    let mut files = journal.files()?;
    // The namespaces of a lab contain the devices on which other journals have set something.
    files.sort_by_key(removes_a_namespace);
    Ok(files.into_iter().map(recover).collect())
}

fn removes_a_namespace(file: &JournalFile) -> bool {
    let creates = |entry: &Entry| matches!(entry.change, Change::NetworkNamespace(_));
    matches!(file, JournalFile::Abandoned(owned) if owned.history().pending().any(|(_, entry)| creates(entry)))
}

/// Like [`recover`], for the journal at `path` only. Returns `None` if there is no such journal.
pub fn recover_one(journal: &Journal, path: &Path) -> Result<Option<Found>, ChangeError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    Ok(journal.take(path)?.map(|file| recover_file(file, boot_id, &proc)))
}

fn recover_file(file: JournalFile, boot_id: BootId, proc: &ProcRoot) -> Found {
    match file {
        JournalFile::Running { path, history } => {
            debug!(journal = visible::path(&path), "skipped a journal: its owner is running");
            Found::Running { path, history }
        }
        JournalFile::Unusable(unusable) => {
            warn!(error = %unusable, "skipped a damaged journal");
            Found::Unusable(unusable)
        }
        JournalFile::Unreadable(error) => {
            warn!(%error, "skipped an unreadable journal");
            Found::Failed(error)
        }
        JournalFile::Abandoned(owned) if persists(owned.history(), boot_id, proc) => {
            debug!(
                journal = visible::path(owned.path()),
                persistence = ?owned.history().persistence,
                "skipped a journal: its changes are persistent or its guardian is running"
            );
            Found::Kept { path: owned.path().to_owned(), history: owned.history().clone() }
        }
        JournalFile::Abandoned(owned) => {
            let (path, owner) = (owned.path().to_owned(), name_of_owner(owned.history()));
            info!(journal = visible::path(&path), persistence = ?owned.history().persistence, "reverting a journal: its owner is dead");
            let history = owned.history().clone();
            let reverted = revert(owned, boot_id, proc);
            if !history.only_waits() {
                ends::add(&path, &history, "a later command: its owner was killed");
            }
            reverted.map_or_else(Found::Failed, |reverted| Found::Recovered { path, owner, reverted })
        }
    }
}

/// Waits for a journal that a process other than its owner has locked. On timeout, the journal counts as unreadable.
fn unless_strangers_hold_it(journal: &Journal, file: JournalFile, proc: &ProcRoot) -> JournalFile {
    let path = match &file {
        JournalFile::Running { path, history } if !is_held_by_its_own(path, history.as_ref(), proc) => path.clone(),
        _ => return file,
    };
    match journal.take_from_strangers(&path) {
        Ok(Some(JournalFile::Running { path, .. })) => {
            JournalFile::Unreadable(JournalError::locked(Attempt::Lock, &path))
        }
        Ok(Some(taken)) => taken,
        // Another process has undone the journal and removed it.
        Ok(None) => file,
        Err(error) => JournalFile::Unreadable(error),
    }
}

fn is_held_by_its_own(path: &Path, history: Option<&History>, proc: &ProcRoot) -> bool {
    let Some(history) = history else { return false };
    let keeper = match history.persistence {
        Persistence::UntilConfirmed(Watchdog { pid, .. }) | Persistence::MaintainedBy(Keeper { pid, .. }) => Some(pid),
        Persistence::WithOwner | Persistence::UntilReverted => None,
    };
    let owners = [Some(history.begin.owner.pid), keeper].into_iter().flatten();
    owners.into_iter().any(|pid| is_locked_by(proc, path, pid))
}

/// Paths and contents of the journals that [`recover`] would revert. Only reads.
pub fn left_behind(journal: &Journal) -> Result<Vec<(PathBuf, History)>, ChangeError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let left = |listed| match listed {
        ListedJournal::Abandoned { path, history } if !persists(&history, boot_id, &proc) => Some((path, history)),
        _ => None,
    };
    Ok(journal.list()?.into_iter().filter_map(left).collect())
}

/// Settings of a journal that wait for their queues, with the present names of their devices.
#[must_use]
pub fn waiting_settings(history: &History) -> Vec<String> {
    let proc = ProcRoot::default();
    let waiting = |(_, entry): (u32, &Entry)| match &entry.undone {
        Some(UndoOutcome::Waits(recorded)) => {
            Some(entry.change.kind().waiting(&proc, history).unwrap_or_else(|| recorded.clone()))
        }
        _ => None,
    };
    history.pending().filter_map(waiting).collect()
}

fn persists(history: &History, boot_id: BootId, proc: &ProcRoot) -> bool {
    let this_boot = history.begin.boot_id == boot_id.to_string();
    match history.persistence {
        Persistence::WithOwner => false,
        Persistence::UntilReverted => true,
        Persistence::UntilConfirmed(Watchdog { pid, start_time_ticks, .. })
        | Persistence::MaintainedBy(Keeper { pid, start_time_ticks }) => {
            this_boot && is_running(pid, start_time_ticks, boot_id, proc)
        }
    }
}

/// Whether the guardian of a journal is running. A process that cannot be inspected counts as running.
pub fn is_running(pid: Pid, start_time_ticks: u64, boot_id: BootId, proc: &ProcRoot) -> bool {
    let identity = ProcessIdentity { pid, starttime: Ticks(start_time_ticks), boot_id };
    identity.is_running(proc).unwrap_or(true)
}

/// Undoes all changes of a journal. A journal of an earlier boot needs no undo, because no change survives a reboot.
/// Changes that wait for a queue stay in the journal, which gets another name to make room for a new one. An error
/// means that the journal could not be removed or renamed, after everything else was undone.
pub fn revert(mut journal: OwnedJournal, boot_id: BootId, proc: &ProcRoot) -> Result<Reverted, JournalError> {
    let _span = error_span!(
        "revert",
        journal = journal.path().file_name().map(|name| visible::name(&name.to_string_lossy()).into_owned())
    )
    .entered();
    if journal.history().begin.boot_id != boot_id.to_string() {
        info!("removing a journal of an earlier boot: the reboot has reset its changes");
        return forget(journal);
    }
    let reverted = undo_pending(&mut journal, boot_id, proc);
    info!(
        undone = reverted.undone.len(),
        already_gone = reverted.already_gone.len(),
        partial = reverted.partial.len(),
        left_alone = reverted.left_alone.len(),
        superseded = reverted.superseded.len(),
        waiting = reverted.waiting.len(),
        failed = reverted.failed.len(),
        "{}",
        if reverted.failed.is_empty() { "reverted the journal" } else { "reverted the journal in part" }
    );
    match (reverted.failed.is_empty(), reverted.waiting.is_empty()) {
        (true, true) => journal.remove()?,
        (true, false) => journal.set_aside()?,
        (false, _) => {}
    }
    Ok(reverted)
}

pub(crate) fn undo_pending(journal: &mut OwnedJournal, boot_id: BootId, proc: &ProcRoot) -> Reverted {
    let mut reverted = Reverted::default();
    let mut contexts = KnownContexts::default();
    let others = Others::beside(journal.path(), boot_id.to_string());
    let pending = in_the_order_of_undoing(journal.history());
    let are_epolls = |(_, one): &(u32, Entry), (_, other): &(u32, Entry)| is_epoll(one) && is_epoll(other);
    // Consecutive epolls are undone together: inspecting a process and freeing its queues take far longer than setting
    // an epoll.
    for together in pending.chunk_by(are_epolls) {
        let (_, first) = &together[0];
        // Hold the lock until the undo is recorded. If two processes undo the same queue, the second must see the
        // outcome of the first.
        let _turn = match first.change.kind().has_owners().then(|| others.turn(&mut || false)) {
            // The holder of the lock has not recorded its settings of the queue yet.
            Some(Err(error)) if error.is_locked() => {
                reverted.failed.push((first.change.clone(), error.into()));
                continue;
            }
            turn => turn,
        };
        let _span = error_span!("undo", seq = together[0].0).entered();
        let history = journal.history();
        let undoings = match &first.change {
            // An unreadable list of journals must not prevent the restoration.
            Change::EpollParameters(_) => {
                let owned = others.of_epolls(Some(history)).unwrap_or_default();
                undo_epolls(&epolls(together), &owned, boot_id, proc)
            }
            change => {
                let (others, outcome, contexts) = (&others, first.outcome, &mut contexts);
                vec![change.kind().undo(&mut Undo { proc, boot_id, others, history, outcome, contexts })]
            }
        };
        let mut undone = Vec::new();
        for ((seq, entry), undoing) in together.iter().zip(undoings) {
            match undoing {
                Ok(undoing) => {
                    match &undoing {
                        UndoOutcome::Undone | UndoOutcome::AlreadyGone => {
                            debug!(seq, change = %entry.change, outcome = ?undoing, "undone");
                        }
                        UndoOutcome::Partial(why)
                        | UndoOutcome::LeftAlone(why)
                        | UndoOutcome::Superseded(why)
                        | UndoOutcome::Waits(why) => {
                            info!(seq, change = %entry.change, why, "not undone, or undone in part");
                        }
                    }
                    reverted.add(entry.change.clone(), undoing.clone());
                    undone.push(Record::Undone { seq: *seq, undoing });
                }
                Err(error) => {
                    warn!(seq, change = %entry.change, %error, "could not undo a change; it stays in the journal");
                    reverted.failed.push((entry.change.clone(), error));
                }
            }
        }
        // If recording fails, continue: undoing a change twice is harmless.
        if let Err(error) = journal.write_all(undone) {
            warn!(%error, "changes were undone, but this could not be recorded");
        }
    }
    reverted
}

fn is_epoll(entry: &Entry) -> bool {
    matches!(entry.change, Change::EpollParameters(_))
}

fn epolls(entries: &[(u32, Entry)]) -> Vec<(&EpollParameters, bool)> {
    let epolls = entries.iter().filter_map(|(_, entry)| match &entry.change {
        Change::EpollParameters(change) => Some((change, entry.outcome.is_some())),
        _ => None,
    });
    epolls.collect()
}

fn in_the_order_of_undoing(history: &History) -> Vec<(u32, Entry)> {
    let mut pending: Vec<(u32, Entry)> = history.pending().map(|(seq, entry)| (seq, entry.clone())).collect();
    // `pending` yields the last change first, and the sort is stable: changes of equal order are undone in the reverse
    // order of making them.
    pending.sort_by_key(|(_, entry)| entry.change.kind().undo_order());
    pending
}

fn forget(journal: OwnedJournal) -> Result<Reverted, JournalError> {
    let already_gone = journal.history().pending().map(|(_, entry)| entry.change.clone()).collect();
    journal.remove()?;
    Ok(Reverted { already_gone, ..Reverted::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::CreatedNamespace;
    use crate::journal::Purpose;

    #[test]
    fn a_removed_journal_shows_that_unrecorded_changes_were_undone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        let change = Change::NetworkNamespace(CreatedNamespace { name: "quell-x".into() });
        owned.write(Record::Intend { seq: 0, change: change.clone() }).unwrap();
        let mut witness = journal.witness(owned.path()).unwrap().unwrap();
        assert!(Reverted::as_seen_by(&mut witness).unwrap().unrecorded.is_empty(), "it remains to be undone");
        owned.remove().unwrap();
        assert_eq!(Reverted::as_seen_by(&mut witness).unwrap().unrecorded, [change]);
    }
}
