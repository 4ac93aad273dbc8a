//! The polling process of an attachment. It polls the queues that the journal lists, until the journal is undone. If a link
//! or the channels change, it polls the new NAPI instance of the queue: an io_uring with an ID that is gone polls nothing,
//! and reports nothing. If all other guardians of the journal are dead, it undoes the journal.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_change::change::{Change, NapiSettingsChange};
use quell_change::journal::{EndRecord, History, Journal, JournalFile, Keeper, Persistence};
use quell_change::persistent::PersistError;
use quell_change::recovery::{is_running, revert};
use quell_change::settings::{SettingsError, instance_of_change};
use quell_change::transaction::is_measured;
use quell_linux::netdev::Netdev;
use quell_linux::pidfd::Signal;
use quell_linux::proc::{BootId, ProcRoot};
use quell_linux::signal::Interruption;
use quell_linux::{NapiId, clock};
use tracing::{error_span, info, warn};

use super::PollerError;
use super::threads::PollingThreads;

/// Interval at which the journal and the queues are read.
const LOOKED_EVERY: Duration = Duration::from_millis(10);
/// Minimum ratio of the pause after a look to its CPU time: at most 1 % of a CPU.
const PAUSE_PER_CPU_TIME: u32 = 100;
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Time for which no owner of the journal runs before this process undoes it. A keeper needs less to take it over.
const ORPHANED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollerProcessError {
    #[error(transparent)]
    Persist(#[from] PersistError),
    #[error(transparent)]
    Poller(#[from] PollerError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("could not read the journal: {0}")]
    Journal(#[source] io::Error),
}

/// Polls the queues of the journal at `path`, whose mode has a poller. Calls `ready` once this process may poll. Returns
/// after a signal, or when the journal is undone.
///
/// # Errors
/// When a queue can no longer be polled. The owner then restores the queues, because this process exits.
pub fn poll_queues(
    journal: &Journal,
    path: &Path,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), PollerProcessError> {
    let interruption = Interruption::listen_to(&[Signal::TERM, Signal::INT]).map_err(PersistError::Listen)?;
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id().map_err(PersistError::Proc)?;
    let _span = error_span!("poll_queues").entered();
    let Some(mut witness) = journal.witness(path).map_err(PersistError::Journal)? else { return Ok(()) };
    let mut history = witness.history().map_err(PollerProcessError::Journal)?;
    let Some(mode) = history.begin.purpose.mode() else { return Ok(()) };
    let Some(settings) = mode.poller() else { return Ok(()) };
    super::check(&mode).map_err(PollerError::from)?;
    ready().map_err(PersistError::Listen)?;
    let (mut threads, mut queues) = (PollingThreads::new(settings), PolledQueues::default());
    let mut orphaned: Option<Instant> = None;
    loop {
        let began_ns = clock::thread_cpu_ns();
        if witness.is_removed().map_err(PollerProcessError::Journal)? {
            return Ok(());
        }
        history = witness.history().map_err(PollerProcessError::Journal)?;
        threads.failed()?;
        let timeout = Duration::from_nanos(mode.napi().gro_flush_timeout_ns);
        // The modes of an experiment on the programs have their own pollers.
        let is_measured = is_measured(path, &history).map_err(PersistError::Journal)?;
        let polled = if is_measured { BTreeMap::new() } else { queues.present(&proc, &history, timeout)? };
        threads.set(&polled)?;
        match has_owner(&history, boot_id, &proc) {
            true => orphaned = None,
            false if orphaned.get_or_insert_with(Instant::now).elapsed() < ORPHANED_FOR => {}
            false => {
                if let Some(JournalFile::Abandoned(owned)) = journal.take(path).map_err(PersistError::Journal)? {
                    warn!("all owners of the journal are dead: reverting");
                    let end = EndRecord::of(owned.history(), "its poller: its keeper was killed");
                    revert(owned, boot_id, &proc).map_err(PersistError::Journal)?;
                    end.into_iter().for_each(|end| journal.add_end(end));
                    return Ok(());
                }
            }
        }
        let used = Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(began_ns));
        let pause = LOOKED_EVERY.max((used * PAUSE_PER_CPU_TIME).min(PAUSE_MAX));
        if interruption.wait(pause).map_err(PersistError::Listen)?.is_some() {
            info!("stopped by a signal");
            return Ok(());
        }
    }
}

/// Whether the command that began the journal, or the keeper that took it over, runs.
fn has_owner(history: &History, boot_id: BootId, proc: &ProcRoot) -> bool {
    let Keeper { pid, start_time_ticks } = match history.persistence {
        Persistence::MaintainedBy(keeper) => keeper,
        _ => history.begin.owner,
    };
    is_running(pid, start_time_ticks, boot_id, proc)
}

/// Present NAPI instances of the queues of a journal, by the number of the change.
#[derive(Debug, Default)]
struct PolledQueues(BTreeMap<u32, FoundInstance>);

#[derive(Debug)]
struct FoundInstance {
    napi: NapiId,
    /// Socket in the namespace of its device.
    netdev: Netdev,
}

impl PolledQueues {
    /// Instances to poll, with their `gro-flush-timeout`, which is `otherwise` if the change did not have to set it.
    fn present(
        &mut self,
        proc: &ProcRoot,
        history: &History,
        otherwise: Duration,
    ) -> Result<BTreeMap<NapiId, Duration>, SettingsError> {
        let changes: BTreeMap<u32, &NapiSettingsChange> = history
            .pending()
            .filter(|(_, entry)| entry.undone.is_none())
            .filter_map(|(seq, entry)| match &entry.change {
                Change::NapiSettings(change) => Some((seq, change)),
                _ => None,
            })
            .collect();
        self.0.retain(|seq, found| changes.contains_key(seq) && found.netdev.napi(found.napi).is_ok());
        for (seq, change) in &changes {
            if self.0.contains_key(seq) {
                continue;
            }
            // A device that is down has no instance. The next look searches again.
            if let Some((namespace, napi)) = instance_of_change(proc, change)? {
                if napi.get() != change.napi_id {
                    info!(device = ?change.device, from = change.napi_id, to = napi.get(), "the queue has a new NAPI instance");
                }
                self.0.insert(*seq, FoundInstance { napi, netdev: Netdev::open_in(&namespace)? });
            }
        }
        let timeout =
            |change: &NapiSettingsChange| change.new.gro_flush_timeout_ns.map_or(otherwise, Duration::from_nanos);
        Ok(self.0.iter().filter_map(|(seq, found)| Some((found.napi, timeout(changes.get(seq)?)))).collect())
    }
}
