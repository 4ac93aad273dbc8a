//! Persistent changes, which outlive the program that made them. They are listed, confirmed and undone on request. A
//! watchdog undoes them if nobody confirms them in time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_linux::pidfd::{PidFd, PidFdError, Signal};
use quell_linux::proc::{BootId, ProcError, ProcRoot};
use quell_linux::signal::Interruption;
use quell_linux::{Pid, visible};
use tracing::{debug, error_span, info, warn};

use crate::journal::ends;
use crate::journal::record::Record;
use crate::journal::{
    Attempt, DamagedJournal, History, HistoryError, Journal, JournalError, JournalFile, Keeper, ListedJournal,
    OwnedJournal, Persistence, UnusableJournal, Watchdog,
};
use crate::recovery::{Reverted, is_running, revert, undo_pending};

/// Signal that sends a confirmation to the watchdog.
const CONFIRM: Signal = Signal::USR1;
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Persistent {
    pub path: PathBuf,
    pub history: History,
    pub state: PersistState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistState {
    UntilReverted,
    Unconfirmed(Watchdog),
    MaintainedBy(Keeper),
    /// As long as a process in another PID namespace runs. Contains its PID there.
    OutOfSight(Pid),
    /// Made before the last boot, which reset them all.
    BeforeThisBoot,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(
        "could not signal the watchdog of {}: {source}; it undoes all changes unless they are confirmed in time",
        visible::path(path)
    )]
    Watchdog { path: PathBuf, source: PidFdError },
    #[error("could not signal the owner of {}: {source}; its changes stay until it ends", visible::path(path))]
    Keeper { path: PathBuf, source: PidFdError },
    #[error(
        "process {pid}, the owner of {}, is still running {} s after SIGTERM; it restores its changes when it ends",
        visible::path(path),
        after.as_secs()
    )]
    StillRunning { path: PathBuf, pid: Pid, after: Duration },
    #[error(
        "{} belongs to a process that is not visible here (process {pid} in another PID namespace): run this command \
         in that namespace; nothing was changed",
        visible::path(path)
    )]
    OutOfSight { path: PathBuf, pid: Pid },
    #[error(
        "{} was not confirmed: its watchdog has already undone it or was killed; see `quell status`",
        visible::path(path)
    )]
    TooLate { path: PathBuf },
    #[error("could not listen for a confirmation: {0}")]
    Listen(#[source] io::Error),
    #[error(transparent)]
    Unusable(#[from] UnusableJournal),
}

#[derive(Debug)]
pub enum WatchEnded {
    Confirmed,
    AlreadyReverted,
    /// All changes were undone, either because nobody confirmed them or because the process that made them died early.
    Reverted(Reverted),
}

pub fn list(journal: &Journal) -> Result<Vec<Persistent>, PersistError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let kept = |listed| {
        let (path, history, is_locked) = match listed {
            ListedJournal::Running { path, history } => (path, history?, true),
            ListedJournal::Abandoned { path, history } => (path, history, false),
            ListedJournal::Unusable(_) | ListedJournal::Unreadable(_) => return None,
        };
        let out_of_sight = || match history.persistence {
            Persistence::UntilConfirmed(Watchdog { pid, .. }) | Persistence::MaintainedBy(Keeper { pid, .. })
                if is_locked =>
            {
                Some(PersistState::OutOfSight(pid))
            }
            _ => None,
        };
        let state = persist_state(&history, boot_id, &proc).or_else(out_of_sight)?;
        Some(Persistent { path, history, state })
    };
    Ok(journal.list()?.into_iter().filter_map(kept).collect())
}

fn persist_state(history: &History, boot_id: BootId, proc: &ProcRoot) -> Option<PersistState> {
    let this_boot = history.begin.boot_id == boot_id.to_string();
    match history.persistence {
        Persistence::WithOwner => None,
        Persistence::UntilReverted | Persistence::UntilConfirmed(_) | Persistence::MaintainedBy(_) if !this_boot => {
            Some(PersistState::BeforeThisBoot)
        }
        Persistence::UntilReverted => Some(PersistState::UntilReverted),
        Persistence::UntilConfirmed(watchdog) => {
            let Watchdog { pid, start_time_ticks, .. } = watchdog;
            is_running(pid, start_time_ticks, boot_id, proc).then_some(PersistState::Unconfirmed(watchdog))
        }
        Persistence::MaintainedBy(keeper) => {
            let Keeper { pid, start_time_ticks } = keeper;
            is_running(pid, start_time_ticks, boot_id, proc).then_some(PersistState::MaintainedBy(keeper))
        }
    }
}

/// Undoes the persistent changes of one journal. Returns `None` if there is no such journal. Fails if the journal
/// cannot be read, removed or acted upon, or the boot ID cannot be read. Also when a running process holds the journal
/// ([`give_up`] ends a watchdog's).
pub fn release(journal: &Journal, path: &Path) -> Result<Option<Reverted>, PersistError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let Some(mut owned) = take_abandoned(journal, path)? else { return Ok(None) };
    if owned.history().persistence != Persistence::WithOwner {
        // Ignore the error, because a full disk must not prevent the undo. If this process is killed during the undo, the
        // remaining changes persist and can be released again.
        let _ = owned.write(Record::Release);
    }
    Ok(Some(revert(owned, boot_id, &proc)?))
}

/// Takes the journal at `path`. `None` if it does not exist, or a process holds it.
pub(crate) fn take_abandoned(journal: &Journal, path: &Path) -> Result<Option<OwnedJournal>, PersistError> {
    match journal.take_from_strangers(path)? {
        Some(JournalFile::Abandoned(owned)) => Ok(Some(owned)),
        Some(JournalFile::Unusable(unusable)) => Err(unusable.into()),
        Some(JournalFile::Unreadable(error)) => Err(error.into()),
        Some(JournalFile::Running { path, .. }) => Err(JournalError::locked(Attempt::Lock, &path).into()),
        None => Ok(None),
    }
}

#[derive(Debug)]
pub struct Salvaged {
    /// Path of the journal, which may be removed by now.
    pub path: PathBuf,
    pub reverted: Reverted,
    pub unreadable: Vec<HistoryError>,
    pub removed: bool,
}

/// Undoes the changes in the readable lines of a damaged journal, the last one first. The file stays, because changes
/// of the unreadable lines may still be in place. `remove` removes it, as does a journal of an earlier boot. Returns
/// `None` if there is no such journal, or if it is not damaged.
pub fn salvage(journal: &Journal, path: &Path, remove: bool) -> Result<Option<Salvaged>, PersistError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let Some(mut damaged) = journal.take_damaged(path)? else { return Ok(None) };
    let (mut reverted, mut earlier_boot) = (Reverted::default(), false);
    if let Some(whole) = &mut damaged.whole {
        earlier_boot = whole.history().begin.boot_id != boot_id.to_string();
        if !earlier_boot {
            reverted = undo_pending(whole, boot_id, &proc);
        }
    }
    let unreadable = damaged.unreadable.clone();
    let removed = earlier_boot || (remove && reverted.failed.is_empty() && reverted.waiting.is_empty());
    if removed {
        DamagedJournal::remove(damaged)?;
    }
    Ok(Some(Salvaged { path: path.to_owned(), reverted, unreadable, removed }))
}

pub fn forget_earlier_boots(journal: &Journal) -> Result<(), PersistError> {
    let earlier = list(journal)?.into_iter().filter(|kept| kept.state == PersistState::BeforeThisBoot);
    earlier.into_iter().try_for_each(|kept| release(journal, &kept.path).map(drop))
}

/// Confirms the changes that a watchdog guards. Returns when the confirmation is recorded.
pub fn confirm(journal: &Journal, path: &Path, watchdog: &Watchdog) -> Result<(), PersistError> {
    signal_guardian(path, Guardian::Watchdog(*watchdog), CONFIRM, CONFIRMED_WITHIN)?;
    let confirmed = |kept: &Persistent| kept.path == path && kept.state == PersistState::UntilReverted;
    if list(journal)?.iter().any(confirmed) { Ok(()) } else { Err(PersistError::TooLate { path: path.to_owned() }) }
}

/// Makes a watchdog undo its changes now and reports the outcome, even if its deadline has just passed. Changes that it
/// could not undo stay in the journal, for [`release`].
pub fn give_up(journal: &Journal, path: &Path, watchdog: &Watchdog) -> Result<Reverted, PersistError> {
    let Some(mut witness) = journal.witness(path)? else { return Ok(Reverted::default()) };
    signal_guardian(path, Guardian::Watchdog(*watchdog), Signal::TERM, CONFIRMED_WITHIN)?;
    Reverted::as_seen_by(&mut witness).map_err(PersistError::Listen)
}

#[derive(Debug, Clone, Copy)]
pub enum Guardian {
    Watchdog(Watchdog),
    Keeper(Keeper),
}

impl Guardian {
    fn number_and_start(self) -> (Pid, u64) {
        match self {
            Self::Watchdog(Watchdog { pid, start_time_ticks, .. }) | Self::Keeper(Keeper { pid, start_time_ticks }) => {
                (pid, start_time_ticks)
            }
        }
    }

    fn signal_error(self, path: &Path, source: PidFdError) -> PersistError {
        let path = path.to_owned();
        match self {
            Self::Watchdog(_) => PersistError::Watchdog { path, source },
            Self::Keeper(_) => PersistError::Keeper { path, source },
        }
    }
}

/// Signals the guardian of the journal at `path` and waits for its exit. The guardian may have exited before. The
/// journal records the outcome.
pub fn signal_guardian(path: &Path, who: Guardian, signal: Signal, within: Duration) -> Result<(), PersistError> {
    let (pid, start_time_ticks) = who.number_and_start();
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let signalled = PidFd::open(pid).and_then(|process| {
        // Check after opening the pidfd: from then on, the PID cannot refer to another process.
        if !is_running(pid, start_time_ticks, boot_id, &proc) {
            return Ok(true);
        }
        info!(pid = pid.get(), ?signal, ?within, "signalling the guardian and waiting for its exit");
        process.signal(signal)?;
        process.wait_for_exit(within)
    });
    match signalled {
        Ok(true) => Ok(()),
        Ok(false) => Err(PersistError::StillRunning { path: path.to_owned(), pid, after: within }),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(who.signal_error(path, error)),
    }
}

impl PersistError {
    /// Explains a journal whose guardian, with PID `pid`, does not run here. If the journal is locked, its guardian
    /// runs in another PID namespace, or another process holds the lock.
    pub fn of_keeper(self, path: &Path, pid: Pid) -> Self {
        match &self {
            Self::Journal(error) if error.is_locked_out_of_sight() => Self::OutOfSight { path: path.to_owned(), pid },
            _ => self,
        }
    }
}

/// Waits for the owner of the journal at `path` to release or lose its lock, and takes it over. `None` if the owner has
/// reverted all changes. Fails if the journal cannot be read; names the holder of the lock ten seconds after a signal.
pub fn take_over(
    journal: &Journal,
    path: &Path,
    interruption: &Interruption,
) -> Result<Option<OwnedJournal>, PersistError> {
    debug!(journal = visible::path(path), "waiting for the journal's lock");
    match journal.take_when_abandoned(path, interruption)? {
        Some(JournalFile::Abandoned(owned)) => Ok(Some(owned)),
        Some(JournalFile::Unusable(unusable)) => {
            warn!(error = %unusable, "the journal that was taken over is damaged");
            Err(unusable.into())
        }
        _ => {
            info!("the journal is gone: its owner has reverted all changes");
            Ok(None)
        }
    }
}

/// Runs the watchdog: waits until the owner of the journal at `path` releases or loses its lock, then waits at most
/// `patience` for a confirmation. Calls `ready` once it can receive confirmations.
pub fn watch(
    journal: &Journal,
    path: &Path,
    patience: Duration,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<WatchEnded, PersistError> {
    // Before `ready`: a confirmation that arrived earlier would kill this process, whose default action for the signal
    // is to exit.
    let asked = Interruption::listen_to(&[CONFIRM, Signal::TERM, Signal::INT]).map_err(PersistError::Listen)?;
    ready().map_err(PersistError::Listen)?;
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let _span = error_span!("watch").entered();
    // The lock decides who acts: it is free once `apply` has left the journal, or was killed. Both end in this process,
    // which reverts unless the journal says that all changes were made.
    let Some(mut owned) = take_over(journal, path, &asked)? else { return Ok(WatchEnded::AlreadyReverted) };
    info!(persistence = ?owned.history().persistence, ?patience, "took over the journal");
    let answer = match owned.history().persistence {
        Persistence::UntilConfirmed(_) => wait_for_answer(&asked, patience)?,
        _ => Answer::None,
    };
    if answer == Answer::Confirmed {
        info!("confirmed: the changes persist");
        owned.write(Record::Persist)?;
        return Ok(WatchEnded::Confirmed);
    }
    // Also if `apply` died before it recorded `PersistIfConfirmed`: then there is nothing to confirm.
    info!("not confirmed: reverting");
    let (path, history) = (owned.path().to_owned(), owned.history().clone());
    let reverted = revert(owned, boot_id, &proc)?;
    let by = match answer {
        Answer::Signalled => "`quell revert`",
        _ => "its watchdog: it was not confirmed in time",
    };
    ends::add(&path, &history, by);
    Ok(WatchEnded::Reverted(reverted))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Confirmed,
    Signalled,
    None,
}

fn wait_for_answer(asked: &Interruption, patience: Duration) -> Result<Answer, PersistError> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match asked.wait(left).map_err(PersistError::Listen)? {
            Some(signal) if signal.number() == CONFIRM.as_raw() => return Ok(Answer::Confirmed),
            Some(_) => return Ok(Answer::Signalled),
            // Not every return of `wait` without a signal is the deadline.
            None if left.is_zero() => return Ok(Answer::None),
            None => {}
        }
    }
}
