//! Changes that stay after the program that made them ended: listed, confirmed, undone on request, and undone by a
//! watchdog when nobody confirms them in time. How a single change is undone is not told here.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, PidFdError, Signal};
use quell_linux::proc::{BootId, ProcError, ProcRoot};
use quell_linux::signal::Interruption;
use quell_linux::visible;

use crate::journal::record::Record;
use crate::journal::{
    History, HistoryError, Journal, JournalError, JournalFile, Keeper, ListedJournal, Stay, Watchdog,
};
use crate::recovery::{Reverted, is_running, revert};

/// With this a watchdog is told that what it watches over is confirmed.
const CONFIRM: Signal = Signal::USR1;
/// How long a watchdog may take to write down that it was confirmed.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// Changes that stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Their journal.
    pub path: PathBuf,
    /// What it says.
    pub history: History,
    /// Until when.
    pub standing: Standing,
}

/// How long changes stay that were kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Until somebody asks for them to be undone.
    Kept,
    /// Until the watchdog's time is over.
    Unconfirmed(Watchdog),
    /// As long as this process lives.
    KeptBy(Keeper),
    /// As long as a process lives that is not visible here: it has this number in another PID namespace.
    OutOfSight(u32),
    /// They were made before the last boot, which undid them all.
    BeforeThisBoot,
}

/// Why kept changes could not be listed, confirmed, watched over or undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptError {
    /// A journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The boot could not be identified.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The watchdog could not be told.
    #[error(
        "could not tell the watchdog of {}: {source}; unless it is told in time it undoes everything",
        visible::path(path)
    )]
    Watchdog {
        /// The journal.
        path: PathBuf,
        /// What came back.
        source: PidFdError,
    },
    /// The keeper of an attachment could not be told.
    #[error(
        "could not tell the keeper of {}: {source}; the attachment stays until its programs end",
        visible::path(path)
    )]
    Keeper {
        /// The journal.
        path: PathBuf,
        /// What came back.
        source: PidFdError,
    },
    /// It was told, and has not ended yet.
    #[error("process {pid}, which sees to {}, was told to end and has not after {after:?}", visible::path(path))]
    StillAtIt {
        /// The journal.
        path: PathBuf,
        /// The process.
        pid: Pid,
        /// How long it was waited for.
        after: Duration,
    },
    /// It lives in another PID namespace.
    #[error(
        "{} is held by a process that is not visible here (process {pid} of another PID namespace): run this there; nothing \
         was changed",
        visible::path(path)
    )]
    OutOfSight {
        /// The journal.
        path: PathBuf,
        /// The number that the process has there.
        pid: u32,
    },
    /// The time was over, or the watchdog was ended.
    #[error(
        "{} was not confirmed: its watchdog had undone it, or was ended; `quell status` shows what is applied now",
        visible::path(path)
    )]
    TooLate {
        /// The journal.
        path: PathBuf,
    },
    /// The watchdog cannot hear of a confirmation.
    #[error("could not listen for a confirmation: {0}")]
    Listen(#[source] io::Error),
    /// The journal cannot be acted upon.
    #[error("the journal {} cannot be acted upon and is left alone: {why}", visible::path(path))]
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        why: HistoryError,
    },
}

/// How a watchdog's watch ended.
#[derive(Debug)]
pub enum WatchEnded {
    /// It was confirmed: everything stays.
    Confirmed,
    /// There was nothing to watch over any more.
    AlreadyReverted,
    /// Nobody confirmed it, or who made the changes died before they were complete: everything was undone.
    Reverted(Reverted),
}

/// The changes that stay, in the order of their journals' names. Only reads.
///
/// # Errors
/// When the journals cannot be listed, or this boot not be identified.
pub fn list(journal: &Journal) -> Result<Vec<Kept>, KeptError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let kept = |listed| {
        let (path, history, is_locked) = match listed {
            ListedJournal::Running { path, history } => (path, history?, true),
            ListedJournal::Abandoned { path, history } => (path, history, false),
            ListedJournal::Unusable(_) | ListedJournal::Unreadable(_) => return None,
        };
        let out_of_sight = || match history.stay {
            Stay::UntilConfirmed(Watchdog { pid, .. }) | Stay::KeptBy(Keeper { pid, .. }) if is_locked => {
                Some(Standing::OutOfSight(pid))
            }
            _ => None,
        };
        let standing = standing(&history, boot_id, &proc).or_else(out_of_sight)?;
        Some(Kept { path, history, standing })
    };
    Ok(journal.list()?.into_iter().filter_map(kept).collect())
}

fn standing(history: &History, boot_id: BootId, proc: &ProcRoot) -> Option<Standing> {
    let this_boot = history.begin.boot_id == boot_id.to_string();
    match history.stay {
        Stay::WithOwner => None,
        Stay::Kept | Stay::UntilConfirmed(_) | Stay::KeptBy(_) if !this_boot => Some(Standing::BeforeThisBoot),
        Stay::Kept => Some(Standing::Kept),
        Stay::UntilConfirmed(watchdog) => {
            let Watchdog { pid, start_time_ticks, .. } = watchdog;
            is_running(pid, start_time_ticks, boot_id, proc).then_some(Standing::Unconfirmed(watchdog))
        }
        Stay::KeptBy(keeper) => {
            let Keeper { pid, start_time_ticks } = keeper;
            is_running(pid, start_time_ticks, boot_id, proc).then_some(Standing::KeptBy(keeper))
        }
    }
}

/// Undoes the kept changes of one journal. `None`: there is no such journal, or it belongs to somebody who is alive
/// ([`give_up`] ends a watchdog's).
///
/// # Errors
/// When it cannot be read, written or acted upon, or this boot not be identified.
pub fn release(journal: &Journal, path: &Path) -> Result<Option<Reverted>, KeptError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    match journal.take(path)? {
        Some(JournalFile::Abandoned(mut owned)) => {
            if owned.history().stay != Stay::WithOwner {
                owned.write(Record::Release)?;
            }
            Ok(Some(revert(owned, boot_id, &proc)?))
        }
        Some(JournalFile::Unusable(unusable)) => Err(KeptError::Unusable { path: unusable.path, why: unusable.why }),
        Some(JournalFile::Unreadable(error)) => Err(error.into()),
        Some(JournalFile::Running { .. }) | None => Ok(None),
    }
}

/// Removes the journals of what was kept before the last boot, which undid it all.
///
/// # Errors
/// When they cannot be listed or removed, or this boot not be identified.
pub fn forget_earlier_boots(journal: &Journal) -> Result<(), KeptError> {
    let earlier = list(journal)?.into_iter().filter(|kept| kept.standing == Standing::BeforeThisBoot);
    earlier.into_iter().try_for_each(|kept| release(journal, &kept.path).map(drop))
}

/// Confirms what a watchdog watches over, and returns when that is written down.
///
/// # Errors
/// When the watchdog cannot be told, or it had undone everything before it heard.
pub fn confirm(journal: &Journal, path: &Path, watchdog: &Watchdog) -> Result<(), KeptError> {
    tell(path, SeesTo::Watchdog(*watchdog), CONFIRM, CONFIRMED_WITHIN)?;
    let confirmed = |kept: &Kept| kept.path == path && kept.standing == Standing::Kept;
    if list(journal)?.iter().any(confirmed) { Ok(()) } else { Err(KeptError::TooLate { path: path.to_owned() }) }
}

/// Has a watchdog undo at once what it watches over, and tells what it has undone, also when it was about to anyway. What
/// it could not undo is still in the journal, for [`release`].
///
/// # Errors
/// When the watchdog cannot be told or does not end in time, or the journal cannot be read.
pub fn give_up(journal: &Journal, path: &Path, watchdog: &Watchdog) -> Result<Reverted, KeptError> {
    let Some(mut witness) = journal.witness(path)? else { return Ok(Reverted::default()) };
    tell(path, SeesTo::Watchdog(*watchdog), Signal::TERM, CONFIRMED_WITHIN)?;
    refuse_what_is_held_out_of_sight(journal, path, watchdog.pid)?;
    Ok(Reverted::as_told_by(&witness.history().map_err(KeptError::Listen)?))
}

/// The process that sees to a journal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SeesTo {
    /// Until what is in it is confirmed.
    Watchdog(Watchdog),
    /// As long as an attachment lasts.
    Keeper(Keeper),
}

impl SeesTo {
    fn number_and_start(self) -> (u32, u64) {
        match self {
            Self::Watchdog(Watchdog { pid, start_time_ticks, .. }) | Self::Keeper(Keeper { pid, start_time_ticks }) => {
                (pid, start_time_ticks)
            }
        }
    }

    fn could_not_be_told(self, path: &Path, source: PidFdError) -> KeptError {
        let path = path.to_owned();
        match self {
            Self::Watchdog(_) => KeptError::Watchdog { path, source },
            Self::Keeper(_) => KeptError::Keeper { path, source },
        }
    }
}

/// Signals the process that sees to the journal at `path`, and returns when it has ended, which it may have before: what
/// it did is in the journal.
pub(crate) fn tell(path: &Path, who: SeesTo, signal: Signal, within: Duration) -> Result<(), KeptError> {
    let (pid, start_time_ticks) = who.number_and_start();
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let Some(pid) = Pid::from_kernel(pid) else { return Ok(()) };
    let told = PidFd::open(pid).and_then(|process| {
        // Looked at after it was opened: from here on the number cannot mean another process.
        if !is_running(pid.get().unsigned_abs(), start_time_ticks, boot_id, &proc) {
            return Ok(true);
        }
        process.signal(signal)?;
        process.wait_for_exit(within)
    });
    match told {
        Ok(true) => Ok(()),
        Ok(false) => Err(KeptError::StillAtIt { path: path.to_owned(), pid, after: within }),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(who.could_not_be_told(path, error)),
    }
}

/// A journal whose keeper is not running is locked by nobody: one that is has its keeper in another PID namespace, where
/// numbers mean other processes.
pub(crate) fn refuse_what_is_held_out_of_sight(journal: &Journal, path: &Path, pid: u32) -> Result<(), KeptError> {
    match journal.take(path)? {
        Some(JournalFile::Running { .. }) => Err(KeptError::OutOfSight { path: path.to_owned(), pid }),
        _ => Ok(()),
    }
}

/// What a watchdog does: waits until the owner of the journal at `path` has let it go, then for at most `patience` for a
/// confirmation. `ready` is called once the watchdog hears confirmations.
///
/// # Errors
/// When it cannot listen, or the journal cannot be read or written.
pub fn watch(
    journal: &Journal,
    path: &Path,
    patience: Duration,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<WatchEnded, KeptError> {
    let asked = Interruption::listen_to(&[CONFIRM, Signal::TERM, Signal::INT]).map_err(KeptError::Listen)?;
    ready().map_err(KeptError::Listen)?;
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let mut owned = match journal.take_when_abandoned(path)? {
        Some(JournalFile::Abandoned(owned)) => owned,
        Some(JournalFile::Unusable(unusable)) => {
            return Err(KeptError::Unusable { path: unusable.path, why: unusable.why });
        }
        _ => return Ok(WatchEnded::AlreadyReverted),
    };
    if matches!(owned.history().stay, Stay::UntilConfirmed(_)) && is_confirmed(&asked, patience)? {
        owned.write(Record::Keep)?;
        return Ok(WatchEnded::Confirmed);
    }
    Ok(WatchEnded::Reverted(revert(owned, boot_id, &proc)?))
}

fn is_confirmed(asked: &Interruption, patience: Duration) -> Result<bool, KeptError> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match asked.wait(left).map_err(KeptError::Listen)? {
            Some(signal) => return Ok(signal.number() == CONFIRM.as_raw()),
            None if left.is_zero() => return Ok(false),
            None => {}
        }
    }
}
