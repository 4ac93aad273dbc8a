//! The keeper process maintains an attachment and reverts it when the last program exits, on SIGTERM, when the attaching
//! process dies early, or when its queues stall. It runs in its own session; the command line starts it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_change::change::Change;
use quell_change::journal::{EndRecord, Journal, Keeper, OwnedJournal, Persistence};
use quell_change::persistent::{Guardian, PersistError, release, signal_guardian, take_over};
use quell_change::recovery::{Reverted, revert};
use quell_change::transaction::is_measured;
use quell_linux::file::is_locked_by;
use quell_linux::pidfd::Signal;
use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_linux::{Pid, clock};
use tracing::{error_span, info, warn};

use super::attached::Attached;
use super::hand_over::HAND_OVER;
use super::poller::watch::PollerWatch;
use super::stall::{LOOKED_EVERY, StallWatch, SuspendedQueue, watching_sampler};
use super::stall_log::StallLog;
use super::wait::{Ends, Woken};

/// Time limit for a keeper to revert everything, including the wait for a queue that nothing can poll.
const RESTORED_WITHIN: Duration = Duration::from_secs(120);
/// Minimum ratio of the pause after a look at the queues to its CPU time: at most 0.5 % of a CPU.
const PAUSE_PER_CPU_TIME: u32 = 200;
/// Maximum pause: a stall lasts no longer.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum KeepingEnded {
    AlreadyReverted,
    /// Another command continues the attachment.
    HandedOver,
    Reverted(Reverted),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detached {
    pub undone: Vec<Change>,
    /// Changes whose object is gone or already had its previous value.
    pub already_gone: Vec<Change>,
    /// See [`Reverted::superseded`].
    pub superseded: Vec<(Change, String)>,
    /// Changes that were partly undone, with the reason for the rest.
    pub partial: Vec<(Change, String)>,
    pub left_alone: Vec<(Change, String)>,
    /// Changes that wait for a queue, with the reasons; they stay in the journal.
    pub waiting: Vec<(Change, String)>,
    /// Changes that are undone or gone, although the keeper could not record it.
    pub unrecorded: Vec<Change>,
    /// Changes that could not be undone; they stay in the journal.
    pub failed: Vec<Change>,
}

/// Runs the keeper. It waits until the owner of the journal at `path` releases or loses its lock. If the journal is
/// complete, it keeps the changes until the programs exit or a signal arrives. Then it undoes them, except on [`HAND_OVER`].
/// Calls `ready` once
/// signals are handled.
pub fn keep(
    journal: &Journal,
    path: &Path,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<KeepingEnded, PersistError> {
    let interruption =
        Interruption::listen_to(&[Signal::TERM, Signal::INT, HAND_OVER]).map_err(PersistError::Listen)?;
    ready().map_err(PersistError::Listen)?;
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id()?;
    let _span = error_span!("keep").entered();
    let Some(owned) = take_over(journal, path, &interruption)? else { return Ok(KeepingEnded::AlreadyReverted) };
    let waited = match is_owned_by_this_process(&owned, &proc)? {
        true => {
            let pids: Vec<i32> = owned.history().targets.iter().map(|target| target.pid.get()).collect();
            info!(?pids, "took over the journal: waiting until these processes exit or a signal arrives");
            let waited = watch_until_over(&owned, &interruption);
            info!(why = ?waited, "reverting");
            waited
        }
        false => {
            info!("took over the journal of an owner that died early: reverting");
            Ok(Over::OwnerDied)
        }
    };
    if matches!(waited, Ok(Over::Left)) {
        return Ok(KeepingEnded::HandedOver);
    }
    let by = waited.as_ref().map_or_else(|_| "its keeper".to_owned(), Over::by);
    let end = EndRecord::of(owned.history(), &by);
    // If waiting fails, undo now: the programs continue with interrupts, and every remaining change would lack a
    // keeper.
    let reverted = revert(owned, boot_id, &proc)?;
    end.into_iter().for_each(|end| journal.add_end(end));
    waited.map_err(PersistError::Listen)?;
    Ok(KeepingEnded::Reverted(reverted))
}

#[derive(Debug)]
enum Over {
    ProgramsExited,
    Signalled,
    Left,
    QueuesStall,
    /// Nobody polls the queues any more, for this reason.
    NotPolled(String),
    OwnerDied,
}

impl Over {
    /// Who ends the attachment, and why.
    fn by(&self) -> String {
        match self {
            Self::ProgramsExited => "its keeper: the programs exited".to_owned(),
            Self::Left => "the command that took it over".to_owned(),
            Self::Signalled => "`quell detach`, or another SIGTERM to its keeper".to_owned(),
            Self::QueuesStall => "its keeper: its queues stalled".to_owned(),
            Self::NotPolled(why) => format!("its keeper: {why}"),
            Self::OwnerDied => "its keeper: the command that made it was killed".to_owned(),
        }
    }
}

/// Waits until the programs of a journal have exited or a signal arrives. Meanwhile, frees stalled queues, until they
/// stall too often. While an experiment switches the programs, it watches for stalls instead.
fn watch_until_over(owned: &OwnedJournal, interruption: &Interruption) -> io::Result<Over> {
    let history = owned.history();
    let programs: BTreeSet<Pid> = history.targets.iter().map(|target| target.pid).collect();
    let queues = SuspendedQueue::of_journal(history);
    let watching = (!queues.is_empty()).then(|| watching_sampler(&queues));
    let mut sampler =
        watching.and_then(|watching| watching.inspect_err(|error| warn!(%error, "not watching for stalls")).ok());
    let (mut watch, mut log) = (StallWatch::default(), StallLog::new(owned.path().to_owned(), history));
    let mut ends = Ends::of(&history.targets, interruption)?;
    let mut poller = PollerWatch::of_journal(history, &ProcRoot::default());
    poller.as_ref().and_then(PollerWatch::pidfd).map_or(Ok(()), |pidfd| ends.also_wait_for(pidfd))?;
    let mut pause = LOOKED_EVERY;
    loop {
        match ends.wait((sampler.is_some() || poller.is_some()).then(|| Instant::now() + pause))? {
            Woken::Signalled if interruption.flag().has(HAND_OVER) => return Ok(Over::Left),
            Woken::Signalled => return Ok(Over::Signalled),
            Woken::AllEnded => return Ok(Over::ProgramsExited),
            // Without a sampler and a poller there is no timeout: the keeper then sleeps until the end.
            Woken::TimeIsOver | Woken::NeededEnded => {}
        }
        if let Some(why) = poller.as_mut().and_then(PollerWatch::look) {
            return Ok(Over::NotPolled(why));
        }
        let Some(counters) = &sampler else { continue };
        let began_ns = clock::thread_cpu_ns();
        let may_poll = || !is_measured(owned.path(), history).unwrap_or(false);
        match watch.look(counters, &queues, &programs, &may_poll) {
            Ok(look) => {
                log.add(&look, &programs);
                if log.must_end() && !history.accepts_stalls {
                    log.record_revert();
                    return Ok(Over::QueuesStall);
                }
            }
            Err(error) => {
                warn!(%error, "no longer watching for stalls");
                sampler = None;
            }
        }
        // A look costs time per queue. The pause grows with it, so that the keeper of a host with thousands of queues
        // does not take a CPU.
        let used = Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(began_ns));
        pause = LOOKED_EVERY.max((used * PAUSE_PER_CPU_TIME).min(PAUSE_MAX));
    }
}

fn is_owned_by_this_process(owned: &OwnedJournal, proc: &ProcRoot) -> Result<bool, PersistError> {
    Ok(owned.history().persistence == Persistence::MaintainedBy(Keeper::this_process(proc)?))
}

/// Makes the owner of a journal undo its changes, and reports the outcome. Undoes the remaining changes here if the owner
/// was killed or had died. Returns `None` if nothing was left to undo.
pub fn detach(journal: &Journal, attached: &Attached) -> Result<Option<Detached>, PersistError> {
    let path = &attached.path;
    let Some(mut witness) = journal.witness(path)? else { return Ok(None) };
    let (mut owner, proc) = (attached.owner(), ProcRoot::default());
    let holds_lock = |owner: Keeper| is_locked_by(&proc, path, owner.pid);
    let is_of_this_boot = attached.history.begin.boot_id == proc.boot_id()?.to_string();
    // A keeper may be about to take the journal over. The command that began it has left it if it does not hold the lock.
    if is_of_this_boot && (attached.keeper.is_some() || holds_lock(owner)) {
        signal_guardian(path, Guardian::Keeper(owner), Signal::TERM, RESTORED_WITHIN)?;
        // The command may have handed the journal over before the signal.
        if let Persistence::MaintainedBy(keeper) = witness.history().map_err(PersistError::Listen)?.persistence
            && keeper != owner
        {
            owner = keeper;
            signal_guardian(path, Guardian::Keeper(owner), Signal::TERM, RESTORED_WITHIN)?;
        }
    }
    let mut by_others = || Reverted::as_seen_by(&mut witness).map_err(PersistError::Listen);
    // This process has retried all waiting changes.
    let before = Reverted { waiting: Vec::new(), ..by_others()? };
    Ok(Some(match release(journal, path).map_err(|error| error.of_keeper(path, owner.pid))? {
        Some(here) => here.after(before).into(),
        None => by_others()?.into(),
    }))
}

impl From<Reverted> for Detached {
    fn from(reverted: Reverted) -> Self {
        let Reverted { undone, already_gone, partial, left_alone, superseded, waiting, unrecorded, failed } = reverted;
        let failed = failed.into_iter().map(|(change, _)| change).collect();
        Self { undone, already_gone, partial, left_alone, superseded, waiting, unrecorded, failed }
    }
}

impl Detached {
    #[must_use]
    pub fn restored(&self) -> usize {
        self.undone.len() + self.partial.len()
    }
}
