//! The process that keeps an attachment in place and puts everything back: when the last of its programs ends, when it is
//! told to, and at once when whoever made the attachment died before it was complete. It runs in a session of its own;
//! starting it is the command line's.

use std::io;
use std::path::Path;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::pidfd::Signal;
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::signal::Interruption;

use super::wait::wait_for_all;
use crate::journal::{Change, Journal, JournalFile, Keeper, OwnedJournal, Stay};
use crate::kept::{KeptError, SeesTo, release, tell};
use crate::recovery::{Reverted, revert};

/// How long a keeper may take to put everything back: a queue that nothing can poll is waited for.
const PUT_BACK_WITHIN: Duration = Duration::from_secs(120);

/// How keeping ended.
#[derive(Debug)]
pub enum KeepingEnded {
    /// Somebody else had put everything back.
    AlreadyReverted,
    /// Everything was put back.
    Reverted(Reverted),
}

/// What putting an attachment back came to, as its journal tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detached {
    /// What was undone.
    pub undone: Vec<Change>,
    /// What was as before already, or is gone.
    pub already_gone: Vec<Change>,
    /// What was undone in part, and why the rest was left alone.
    pub in_part: Vec<(Change, String)>,
    /// What was left alone, and why.
    pub left_alone: Vec<(Change, String)>,
    /// What waits for a queue, and why; it stays in the journal.
    pub waiting: Vec<(Change, String)>,
    /// What was undone or gone, without the keeper being able to write down which.
    pub unrecorded: Vec<Change>,
    /// What could not be undone; it stays in the journal.
    pub failed: Vec<Change>,
}

/// What a keeper does: waits until the owner of the journal at `path` has let it go, then, if it is told in there to keep
/// it, until its programs have ended or a signal comes; then undoes it. `ready` is called once it hears signals.
///
/// # Errors
/// When it cannot listen or wait, or the journal cannot be read or written.
pub fn keep(journal: &Journal, path: &Path, ready: impl FnOnce() -> io::Result<()>) -> Result<KeepingEnded, KeptError> {
    let told = Interruption::listen_to(&[Signal::TERM, Signal::INT]).map_err(KeptError::Listen)?;
    ready().map_err(KeptError::Listen)?;
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let owned = match journal.take_when_abandoned(path, &told)? {
        Some(JournalFile::Abandoned(owned)) => owned,
        Some(JournalFile::Unusable(unusable)) => return Err(unusable.into()),
        _ => return Ok(KeepingEnded::AlreadyReverted),
    };
    let waited = match is_left_to_this_process(&owned, &proc)? {
        true => wait_for_all(&owned.history().targets, &told),
        false => Ok(()),
    };
    // Where it cannot be waited, the programs go on with interrupts, and nothing is left that nobody keeps.
    let reverted = revert(owned, boot_id, &proc)?;
    waited.map_err(KeptError::Listen)?;
    Ok(KeepingEnded::Reverted(reverted))
}

/// Who this process is, as a journal calls it.
///
/// # Errors
/// When /proc cannot be read.
pub fn this_process(proc: &ProcRoot) -> Result<Keeper, KeptError> {
    let identity = ProcessIdentity::of(proc, Pid::of_this_process())?;
    Ok(Keeper { pid: identity.pid.get().unsigned_abs(), start_time_ticks: identity.starttime.0 })
}

fn is_left_to_this_process(owned: &OwnedJournal, proc: &ProcRoot) -> Result<bool, KeptError> {
    Ok(owned.history().stay == Stay::KeptBy(this_process(proc)?))
}

/// Has `keeper` undo the attachment of the journal at `path`, and tells what that came to; what a keeper that is dead, or
/// was killed meanwhile, has not undone is undone here. `None`: there was nothing left.
///
/// # Errors
/// When the keeper cannot be told or does not end in time, or the journal cannot be read.
pub fn detach(journal: &Journal, path: &Path, keeper: &Keeper) -> Result<Option<Detached>, KeptError> {
    let Some(mut witness) = journal.witness(path)? else { return Ok(None) };
    tell(path, SeesTo::Keeper(*keeper), Signal::TERM, PUT_BACK_WITHIN)?;
    let mut by_others = || Reverted::as_seen_by(&mut witness).map_err(KeptError::Listen);
    // What waited was tried again here, if anything was.
    let before = Reverted { waiting: Vec::new(), ..by_others()? };
    Ok(Some(match release(journal, path).map_err(|error| error.of_keeper(path, keeper.pid))? {
        Some(here) => here.after(before).into(),
        None => by_others()?.into(),
    }))
}

impl From<Reverted> for Detached {
    fn from(reverted: Reverted) -> Self {
        let Reverted { undone, already_gone, in_part, left_alone, waiting, unrecorded, failed } = reverted;
        let failed = failed.into_iter().map(|(change, _)| change).collect();
        Self { undone, already_gone, in_part, left_alone, waiting, unrecorded, failed }
    }
}

impl Detached {
    /// How many changes were undone, wholly or in part.
    #[must_use]
    pub fn restored(&self) -> usize {
        self.undone.len() + self.in_part.len()
    }
}
