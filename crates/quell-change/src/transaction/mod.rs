//! Reversible changes of the host. Each change is recorded in the journal, made, and its outcome recorded. Reverting
//! walks the journal backwards. A dropped transaction, for example after a panic, reverts itself. If its process is
//! killed, the next call of [`crate::recovery::recover`] reverts it.

mod epolls;
mod owners;
mod queues;
mod switched;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quell_linux::io_uring_polling::RingPolling;
use quell_linux::link::{Links, VethEnd, VethPair};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{BootId, ProcError, ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, ProcessError, Spawn};
use quell_linux::{NapiId, visible};
use quell_mode::EpollParams;
use tracing::{debug, error_span, info, warn};

use crate::change::{
    Change, ChangeOutcome, ChangeText, ContextRef, CreatedNamespace, CreatedVethPair, HostSetting, LaunchedEpolls,
    PlannedChange, ReuseportFilter, SocketsPolling, StartedProcess, UndoOutcome,
};
use crate::devices;
use crate::journal::claims::{Others, Turn};
use crate::journal::ends;
use crate::journal::record::Record;
use crate::journal::{Entry, History, Journal, JournalError, Keeper, OwnedJournal, Purpose, TargetProgram, Watchdog};
use crate::persistent::{self, PersistError};
use crate::recovery::{Reverted, revert};
use crate::reuseport_group::GroupFilter;
use crate::settings::affinity::Pin;
use crate::settings::host::{HostAccess, KnownContexts, make};
use crate::settings::ring::Ring;
use crate::settings::socket::SocketId;
use crate::settings::values::SocketPolling;
use crate::settings::{SettingsError, affinity, answered, not_possible, reuseport, ring, socket};

pub use crate::journal::claims::OwnersRefuse;
pub use crate::settings::epoll::EpollToSet;
pub use owners::{
    epolls_without, have_owners, is_measured, permit_planned, permit_queues, queues_without, refuse_queues_of_programs,
};
pub use switched::{EpollValues, QueueValues};

/// Changes that are undone together.
#[derive(Debug)]
pub struct Transaction {
    journal: Option<OwnedJournal>,
    boot_id: BootId,
    proc: ProcRoot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeStage {
    /// The change is about to be recorded.
    Before,
    /// The change is recorded in the journal, on disk.
    Journalled,
    /// The change was made; its outcome is not recorded yet.
    Made,
}

/// Callback for the progress of each change, which may stop the transaction. The changes made so far are then undone
/// with the transaction.
pub type ChangeObserver<'a> = dyn FnMut(ChangeStage) -> ControlFlow<()> + 'a;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The change observer stopped the transaction, for example after Ctrl-C.
    #[error("stopped on request")]
    Stopped,
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{what}: {owner} has set it already; detach it first")]
    HasOwner { what: String, owner: String },
    #[error("{what}: {experiment} switches it")]
    IsSwitched { what: String, experiment: String },
    /// A value has changed since the plan was made: an owner began or ended, or another program wrote it.
    #[error(
        "{what} has changed from {planned} to {now} since the modes were planned: run the command again; nothing was \
         changed"
    )]
    PlanOutdated { what: String, planned: String, now: String },
    /// A mode with a poller must not set a queue that its poller does not poll.
    #[error("NAPI {napi} is not polled: {why}")]
    NotPolled { napi: NapiId, why: String },
    #[error("NAPI {napi} of {device}: {why}")]
    Refused { napi: u32, device: String, why: OwnersRefuse },
}

impl ChangeError {
    /// Whether an experiment switches the object, so that nobody else may set it before its end.
    #[must_use]
    pub fn is_by_experiment(&self) -> bool {
        matches!(self, Self::IsSwitched { .. } | Self::Refused { why: OwnersRefuse::Experiment { .. }, .. })
    }
}

impl Transaction {
    pub fn begin(journal: &Journal, id: &str, purpose: Purpose) -> Result<Self, ChangeError> {
        let proc = ProcRoot::default();
        let boot_id = proc.boot_id()?;
        let journal = journal.begin(id, purpose, &boot_id.to_string())?;
        info!(journal = visible::path(journal.path()), purpose = %journal.history().begin.purpose, "began a transaction");
        Ok(Self { journal: Some(journal), boot_id, proc })
    }

    /// Continues the transaction of a journal that its owner has left. `None` if it was reverted.
    ///
    /// # Errors
    /// When the journal is damaged, or a running process holds it.
    pub fn take_over(journal: &Journal, path: &Path) -> Result<Option<Self>, PersistError> {
        let proc = ProcRoot::default();
        let boot_id = proc.boot_id()?;
        let Some(owned) = persistent::take_abandoned(journal, path)? else { return Ok(None) };
        info!(journal = visible::path(path), "took over a transaction");
        Ok(Some(Self { journal: Some(owned), boot_id, proc }))
    }

    pub fn create_namespace(&mut self, name: &NamespaceName) -> Result<Namespace, ChangeError> {
        let _span = error_span!("create_namespace", netns = %name).entered();
        let seq = self.intend(Change::NetworkNamespace(CreatedNamespace { name: name.to_string() }))?;
        let created = answered(Namespace::create_named(name));
        if matches!(created, Err(NamespaceError::Exists { .. })) {
            self.not_made(seq)?;
        }
        let namespace = created?;
        self.done(seq, ChangeOutcome::NetworkNamespace { cookie: namespace.cookie()? })?;
        Ok(namespace)
    }

    /// Creates a veth pair; `namespace` is the name of the left end's namespace.
    pub fn create_veth(
        &mut self,
        namespace: &NamespaceName,
        left: &VethEnd<'_>,
        right: &VethEnd<'_>,
    ) -> Result<VethPair, ChangeError> {
        let _span = error_span!("create_veth", netns = %namespace, device = %left.name, peer = %right.name).entered();
        let seq = self.intend(Change::VethPair(CreatedVethPair {
            namespace: namespace.to_string(),
            link: left.name.to_string(),
        }))?;
        let created = answered(Links::open_in(left.namespace)?.create_veth(left, right));
        if created.as_ref().is_err_and(|error| error.failure() == Failure::Exists) {
            self.not_made(seq)?;
        }
        let pair = created?;
        self.done(seq, ChangeOutcome::Made)?;
        Ok(pair)
    }

    /// Starts a process in its own session, which ends at the latest when this transaction is reverted. `command` is
    /// its description in the journal. The process itself, though not its children, also dies with the calling thread.
    /// A crash before its PID is recorded therefore leaves nothing behind.
    pub fn spawn(&mut self, command: &[String], spawn: Spawn<'_>) -> Result<Child, ChangeError> {
        self.start(command, spawn.dies_with_this_thread())
    }

    /// As [`Self::spawn`], for a process that outlives this one. It has to exit if the journal vanishes: a crash before its
    /// PID is recorded leaves it behind.
    pub fn spawn_lasting(&mut self, command: &[String], spawn: Spawn<'_>) -> Result<Child, ChangeError> {
        self.start(command, spawn)
    }

    fn start(&mut self, command: &[String], spawn: Spawn<'_>) -> Result<Child, ChangeError> {
        let _span = error_span!("spawn", ?command).entered();
        let seq = self.intend(Change::Process(StartedProcess { command: command.to_vec() }))?;
        let child = answered(spawn.start())?;
        let identity = child.identity();
        debug!(pid = identity.pid.get(), "process started");
        let (pid, start_time_ticks) = (identity.pid, identity.starttime.0);
        let executable = self.proc.process(identity.pid).executable().ok();
        self.done(seq, ChangeOutcome::Process { pid, start_time_ticks, executable })?;
        Ok(child)
    }

    /// Records changes that the caller makes afterwards, possibly repeatedly, with all values that it will set.
    pub(crate) fn record_made(&mut self, changes: Vec<Change>) -> Result<(), JournalError> {
        let seqs = self.next_seq()..;
        let made = seqs.clone().zip(&changes).map(|(seq, _)| Record::Done { seq, outcome: ChangeOutcome::Made });
        let made: Vec<Record> = made.collect();
        let intents = seqs.zip(changes).map(|(seq, change)| Record::Intend { seq, change });
        self.journal_mut().write_all(intents.collect())?;
        self.journal_mut().write_all(made)
    }

    pub fn boot_id(&self) -> String {
        self.boot_id.to_string()
    }

    pub(crate) fn others(&self) -> Others {
        Others::beside(self.journal_path(), self.boot_id())
    }

    /// Records that the preload library of `program` sets these parameters on its epolls.
    pub fn has_launched(&mut self, program: ProcessIdentity, epolls: EpollParams) -> Result<(), JournalError> {
        let (pid, start_time_ticks) = (program.pid, program.starttime.0);
        let seq = self.intend(Change::LaunchedEpolls(LaunchedEpolls { pid, start_time_ticks, new: epolls }))?;
        self.done(seq, ChangeOutcome::Made)
    }

    /// Attaches a filter to a reuseport group, replacing an existing one. Marks earlier filters of this transaction as
    /// undone if they are on the same group or if all their sockets are closed. Fails if the group's sockets have
    /// changed since the decision.
    pub fn steer(&mut self, filter: impl Into<GroupFilter>) -> Result<(), ChangeError> {
        let filter = filter.into();
        let _span = error_span!("steer", group = %filter.group).entered();
        debug!(sockets = filter.sockets.len(), to = ?filter.filter, "requested change");
        let mut to_attach = reuseport::FilterToAttach::prepare(&self.proc, &filter).inspect_err(not_possible)?;
        let group = |filter: &ReuseportFilter| (filter.namespace_cookie, filter.protocol, filter.local);
        let own = group(to_attach.change());
        let _turn = self.turn_without_others(
            "the filter of the group",
            |change| matches!(change, Change::ReuseportFilter(other) if group(other) == own),
        )?;
        let over = self.filters_with(&to_attach);
        let forgotten: Vec<ReuseportFilter> = over
            .iter()
            .filter(|(_, earlier)| !to_attach.inherit(earlier))
            .map(|(_, earlier)| earlier.clone())
            .collect();
        let seq = self.intend(Change::ReuseportFilter(to_attach.change().clone()))?;
        answered(to_attach.make(&self.proc, &filter))?;
        self.done(seq, ChangeOutcome::Made)?;
        forgotten.iter().for_each(reuseport::forget);
        // After `Done`: a crash in between leaves both records, and undoing a filter that was replaced finds that it is
        // gone.
        for (earlier, _) in over {
            self.journal_mut().write(Record::Undone { seq: earlier, undoing: UndoOutcome::AlreadyGone })?;
        }
        Ok(())
    }

    /// Waits for the lock, and checks that no other owner has a change that `concerns` selects.
    fn turn_without_others(
        &self,
        what: impl ToString,
        concerns: impl Fn(&Change) -> bool,
    ) -> Result<Turn, ChangeError> {
        let turn = self.turn(&mut |_| ControlFlow::Continue(()))?;
        match self.others().owner_of(concerns)? {
            Some(owner) => Err(ChangeError::HasOwner { what: what.to_string(), owner }),
            None => Ok(turn),
        }
    }

    fn filters_with(&self, to_attach: &reuseport::FilterToAttach) -> Vec<(u32, ReuseportFilter)> {
        let over = |(seq, entry): (u32, &Entry)| {
            let Change::ReuseportFilter(earlier) = &entry.change else { return None };
            to_attach.takes_the_place_of(earlier).then(|| (seq, earlier.clone()))
        };
        self.history().into_iter().flat_map(History::pending).filter_map(over).collect()
    }

    /// Binds a thread to the CPUs of its queue. Records nothing and returns false if its affinity is already right.
    pub fn pin(&mut self, pin: &Pin) -> Result<bool, ChangeError> {
        let _span = error_span!("pin", tid = pin.tid.get()).entered();
        let change = affinity::plan(&self.proc, pin).inspect_err(not_possible)?;
        debug!(pid = change.pid.get(), from = %change.old, to = %change.new, "requested change");
        if change.old == change.new {
            return Ok(false);
        }
        let seq = self.intend(Change::ThreadAffinity(change))?;
        affinity::set(pin.tid, &pin.new)?;
        self.done(seq, ChangeOutcome::Made)?;
        Ok(true)
    }

    /// Enables busy polling on these sockets of `process`, except those closed in the meantime. Returns the number of
    /// changed sockets; records nothing if it is zero.
    pub fn set_sockets(
        &mut self,
        process: ProcessIdentity,
        sockets: &[SocketId],
        wanted: SocketPolling,
    ) -> Result<usize, ChangeError> {
        let _span = error_span!("set_sockets", pid = process.pid.get()).entered();
        let prepared = socket::prepare(&self.proc, process, sockets, wanted).inspect_err(not_possible)?;
        let Some(change) = prepared.change() else {
            debug!(sockets = sockets.len(), to = %wanted.values, "unchanged: the sockets already have these values, or are closed");
            return Ok(0);
        };
        debug!(from = ?change.sockets, to = %change.new.values, "requested change");
        let inodes = |change: &SocketsPolling| -> BTreeSet<u64> {
            change.sockets.iter().flat_map(|alike| &alike.inodes).copied().collect()
        };
        let own = inodes(change);
        let _turn = self.turn_without_others(
            format!("sockets of process {}", process.pid),
            |change| matches!(change, Change::SocketsPolling(other) if !own.is_disjoint(&inodes(other))),
        )?;
        let seq = self.intend(Change::SocketsPolling(change.clone()))?;
        let changed = answered(prepared.make())?;
        self.done(seq, ChangeOutcome::Made)?;
        Ok(changed)
    }

    /// Enables busy polling on the io_uring `fd` of `process`. If the ring must be left alone, records nothing and
    /// returns the reason.
    pub fn set_ring(
        &mut self,
        process: ProcessIdentity,
        fd: i32,
        wanted: RingPolling,
    ) -> Result<Option<String>, ChangeError> {
        let _span = error_span!("set_ring", pid = process.pid.get(), fd).entered();
        let change = match ring::look(&self.proc, process, fd, wanted).inspect_err(not_possible)? {
            Ring::CanBeSet(change) => change,
            Ring::LeftAlone(why) => {
                info!(why, "the io_uring is left alone");
                return Ok(Some(why));
            }
        };
        debug!(from = "off", to = ?change.new, "requested change");
        let seq = self.intend(Change::RingPolling(change))?;
        answered(ring::make(&self.proc, process, &change))?;
        self.done(seq, ChangeOutcome::Made)?;
        Ok(None)
    }

    /// Makes one change of a plan in `namespace`. `observer` observes its progress. If it stops, the rest is skipped,
    /// and the completed part is undone with the transaction.
    pub fn set(
        &mut self,
        namespace: &Namespace,
        setting: &PlannedChange,
        observer: &mut ChangeObserver<'_>,
    ) -> Result<(), ChangeError> {
        if let PlannedChange::Napi(queue) = setting {
            return self.set_planned_queue(namespace, queue, observer).map(drop);
        }
        let device = setting.device().map(|device| device.name.as_str());
        let _span = error_span!("set", device = device.unwrap_or("none"), queue = setting.queue()).entered();
        let ChangeText { what, old, new } = setting.text();
        debug!(setting = what, from = old, to = new, "requested change");
        notify(observer, ChangeStage::Before)?;
        let proc = self.proc.clone();
        let kernel = HostAccess::new(namespace, &proc);
        let link = setting.device().map(|device| kernel.link(device)).transpose()?;
        let change = HostSetting {
            namespace_cookie: namespace.cookie()?,
            sysfs_inode: link.and_then(|link| devices::sysfs_inode(namespace, &link)),
            setting: setting.clone(),
        };
        let seq = self.intend(Change::HostSetting(change))?;
        notify(observer, ChangeStage::Journalled)?;
        let contexts = self.contexts_made();
        let outcome = answered(make(&kernel, &contexts, setting))?;
        notify(observer, ChangeStage::Made)?;
        Ok(self.done(seq, outcome)?)
    }

    /// RSS contexts that this transaction has created, by their names in the plan.
    fn contexts_made(&mut self) -> KnownContexts {
        let mut known = KnownContexts::default();
        for entry in &self.journal_mut().history().entries {
            if let (Change::HostSetting(change), Some(ChangeOutcome::RssContext { id })) =
                (&entry.change, entry.outcome)
                && let PlannedChange::RssContext { device, context: ContextRef::Planned(label), .. } = &change.setting
            {
                known.planned.insert((device.clone(), label.clone()), id);
            }
        }
        known
    }

    /// Undoes everything, the last change first. Changes that cannot be undone stay in the journal and do not stop the
    /// others. An error means that the journal could not be removed after everything was undone.
    pub fn revert(mut self) -> Result<Reverted, JournalError> {
        match self.journal.take() {
            Some(journal) => revert(journal, self.boot_id, &self.proc),
            None => Ok(Reverted::default()),
        }
    }

    /// Like [`Self::revert`], for changes that were in force: `by` is who ended them, for the history.
    pub fn end(self, by: &str) -> Result<Reverted, JournalError> {
        let (path, history) = (self.journal_path().to_owned(), self.history().cloned());
        let reverted = self.revert();
        history.iter().for_each(|history| ends::add(&path, history, by));
        reverted
    }

    /// Ends the transaction. Its changes persist until the journal is reverted. Returns the path of the journal. On an
    /// error everything has been undone.
    pub fn persist(self) -> Result<PathBuf, JournalError> {
        self.end_with(Record::Persist)
    }

    /// Like [`Self::persist`], but requires a confirmation in time. Otherwise the process `watchdog`, which takes over the
    /// journal, undoes everything.
    pub fn persist_if_confirmed(self, watchdog: Watchdog) -> Result<PathBuf, JournalError> {
        self.end_with(Record::PersistIfConfirmed(watchdog))
    }

    /// Records a process for which the following changes are made.
    pub fn add_target(&mut self, target: TargetProgram) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Target(target))
    }

    /// Records that the changes persist as long as `keeper` runs. The keeper undoes them on SIGTERM.
    pub fn maintained_by(&mut self, keeper: Keeper) -> Result<(), JournalError> {
        self.journal_mut().write(Record::MaintainedBy(keeper))
    }

    /// Like [`Self::maintained_by`], for an owner that sets the values again when a driver recreates its queues.
    pub fn maintained_by_follower(&mut self, follower: Keeper) -> Result<(), JournalError> {
        self.journal_mut().write(Record::MaintainedByFollower(follower))
    }

    pub fn accept_stalls(&mut self) -> Result<(), JournalError> {
        self.journal_mut().write(Record::AcceptStalls)
    }

    /// Like [`Self::maintained_by`], and hands the journal over to the keeper. Returns the path of the journal. On an
    /// error everything has been undone.
    pub fn hand_over_to(self, keeper: Keeper) -> Result<PathBuf, JournalError> {
        self.end_with(Record::MaintainedBy(keeper))
    }

    #[must_use]
    pub fn history(&self) -> Option<&History> {
        self.journal.as_ref().map(OwnedJournal::history)
    }

    fn end_with(mut self, record: Record) -> Result<PathBuf, JournalError> {
        let journal = self.journal_mut();
        info!(journal = visible::path(journal.path()), ?record, "the transaction ended; its changes persist");
        journal.write(record)?;
        let path = journal.path().to_owned();
        self.journal = None;
        Ok(path)
    }

    #[must_use]
    pub fn journal_path(&self) -> &Path {
        self.journal.as_ref().map_or(Path::new(""), OwnedJournal::path)
    }

    fn intend(&mut self, change: Change) -> Result<u32, JournalError> {
        let seq = self.next_seq();
        debug!(seq, "recorded the change in the journal");
        self.journal_mut().write(Record::Intend { seq, change })?;
        Ok(seq)
    }

    fn next_seq(&mut self) -> u32 {
        self.journal_mut().history().next_seq()
    }

    fn done(&mut self, seq: u32, outcome: ChangeOutcome) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Done { seq, outcome })
    }

    /// Marks a change as undone because the name belongs to an object of another program.
    fn not_made(&mut self, seq: u32) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Undone { seq, undoing: UndoOutcome::AlreadyGone })
    }

    fn journal_mut(&mut self) -> &mut OwnedJournal {
        self.journal.as_mut().unwrap_or_else(|| unreachable!("only `revert` takes the journal, and it takes self"))
    }
}

fn notify(observer: &mut ChangeObserver<'_>, stage: ChangeStage) -> Result<(), ChangeError> {
    match observer(stage) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ChangeError::Stopped),
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(journal) = self.journal.take() {
            info!(journal = visible::path(journal.path()), "the transaction ends early: reverting");
            if let Err(error) = revert(journal, self.boot_id, &self.proc) {
                warn!(%error, "could not revert all changes; the next command finds the rest in the journal");
            }
        }
    }
}
