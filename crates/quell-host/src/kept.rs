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
    Attempt, DamagedJournal, History, HistoryError, Journal, JournalError, JournalFile, Keeper, ListedJournal, Stay,
    UnusableJournal, Watchdog,
};
use crate::recovery::{Reverted, is_running, revert, undo_pending};

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
    /// A journal of which a part cannot be read.
    #[error(transparent)]
    Unusable(#[from] UnusableJournal),
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

/// Undoes the kept changes of one journal. `None`: there is no such journal.
///
/// # Errors
/// When it cannot be read, removed or acted upon, or this boot not be identified; also when somebody who is alive holds it
/// ([`give_up`] ends a watchdog's).
pub fn release(journal: &Journal, path: &Path) -> Result<Option<Reverted>, KeptError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    match journal.take_from_strangers(path)? {
        Some(JournalFile::Abandoned(mut owned)) => {
            if owned.history().stay != Stay::WithOwner {
                // On a full disk it is undone all the same. Should this process be killed meanwhile, the rest stays, to be
                // released again.
                let _ = owned.write(Record::Release);
            }
            Ok(Some(revert(owned, boot_id, &proc)?))
        }
        Some(JournalFile::Unusable(unusable)) => Err(unusable.into()),
        Some(JournalFile::Unreadable(error)) => Err(error.into()),
        Some(JournalFile::Running { path, .. }) => Err(JournalError::locked(Attempt::Lock, &path).into()),
        None => Ok(None),
    }
}

/// What became of a journal of which a part could not be read.
#[derive(Debug)]
pub struct Salvaged {
    /// Where it is, or was.
    pub path: PathBuf,
    /// What reverting its whole lines came to.
    pub reverted: Reverted,
    /// Its other lines.
    pub unreadable: Vec<HistoryError>,
    /// It was removed.
    pub removed: bool,
}

/// Undoes what the whole lines of a damaged journal say, the last change first. The file stays, for what the other lines
/// said may still be there, unless `remove` asks for its end, or it is of an earlier boot. `None`: there is no such journal,
/// or it is not damaged.
///
/// # Errors
/// When the journal cannot be taken, read or removed, or this boot not be identified.
pub fn salvage(journal: &Journal, path: &Path, remove: bool) -> Result<Option<Salvaged>, KeptError> {
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
    let removed = earlier_boot || (remove && reverted.failed.is_empty());
    if removed {
        DamagedJournal::remove(damaged)?;
    }
    Ok(Some(Salvaged { path: path.to_owned(), reverted, unreadable, removed }))
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
    Reverted::as_seen_by(&mut witness).map_err(KeptError::Listen)
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

impl KeptError {
    /// Of a journal that is to be undone by process `pid`, which does not run here: one that is locked all the same has its
    /// keeper in another PID namespace, where numbers mean other processes, or somebody else holds it.
    pub(crate) fn of_keeper(self, path: &Path, pid: u32) -> Self {
        match &self {
            Self::Journal(error) if error.is_locked_out_of_sight() => Self::OutOfSight { path: path.to_owned(), pid },
            _ => self,
        }
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
    let mut owned = match journal.take_when_abandoned(path, &asked)? {
        Some(JournalFile::Abandoned(owned)) => owned,
        Some(JournalFile::Unusable(unusable)) => return Err(unusable.into()),
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
