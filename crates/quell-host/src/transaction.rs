//! Changes to the host, made so that they can be undone: each is written to the journal, then made, then its outcome
//! is written. Reverting goes backwards through the journal. A transaction that is dropped, by a panic for example,
//! reverts itself; one whose process is killed is reverted by [`crate::recovery::recover`], whoever calls it next.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quell_linux::NapiId;
use quell_linux::epoll_params::EpollParams;
use quell_linux::io_uring_polling::{self, RingPolling};
use quell_linux::link::{Links, VethEnd, VethPair};
use quell_linux::netdev::NapiChange;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{BootId, ProcError, ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, ProcessError, Spawn};

use crate::journal::claims::Others;
use crate::journal::record::Record;
use crate::journal::{
    Change, EpollParameters, History, HostSetting, Journal, JournalError, Keeper, Outcome, OwnedJournal, Target,
    Undoing, Watchdog,
};
use crate::plan;
use crate::recovery::{Reverted, revert};
use crate::settings::epoll::ForeignEpoll;
use crate::settings::host::{Kernel, KnownContexts, make};
use crate::settings::ring::Ring;
use crate::settings::values::{EpollValues, NapiValues, SocketPolling};
use crate::settings::{SettingsError, affinity, napi, reuseport, ring, socket};
use crate::steer::{Pin, Steering};

/// Changes that belong together and are undone together.
#[derive(Debug)]
pub struct Transaction {
    journal: Option<OwnedJournal>,
    boot_id: BootId,
    proc: ProcRoot,
}

/// How far a change got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing was done yet.
    Before,
    /// It is in the journal, on disk.
    WrittenDown,
    /// It was made; that is not in the journal yet.
    Made,
}

/// Hears how far each change got, and may stop: what was made is undone with the transaction then.
pub type LooksOn<'a> = dyn FnMut(Moment) -> ControlFlow<()> + 'a;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// It could not be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The boot could not be identified.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// A namespace could not be made.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A link could not be made.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A process could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Who looked on had enough, after Ctrl-C for example.
    #[error("stopped on request")]
    Stopped,
    /// A setting could not be read or changed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl Transaction {
    /// Begins a transaction called `id`, for a purpose that people understand.
    ///
    /// # Errors
    /// When the journal cannot be begun.
    pub fn begin(journal: &Journal, id: &str, purpose: &str) -> Result<Self, ChangeError> {
        let proc = ProcRoot::default();
        let boot_id = proc.boot_id()?;
        let journal = journal.begin(id, purpose, &boot_id.to_string())?;
        Ok(Self { journal: Some(journal), boot_id, proc })
    }

    /// Makes a network namespace.
    ///
    /// # Errors
    /// When it could not be written down or made.
    pub fn create_namespace(&mut self, name: &NamespaceName) -> Result<Namespace, ChangeError> {
        let seq = self.intend(Change::NetworkNamespace { name: name.to_string() })?;
        let created = Namespace::create_named(name);
        if matches!(created, Err(NamespaceError::Exists { .. })) {
            self.not_made(seq)?;
        }
        let namespace = created?;
        self.done(seq, Outcome::NetworkNamespace { cookie: namespace.cookie()? })?;
        Ok(namespace)
    }

    /// Makes a veth pair; `namespace` is the name of the left end's namespace.
    ///
    /// # Errors
    /// When it could not be written down or made.
    pub fn create_veth(
        &mut self,
        namespace: &NamespaceName,
        left: &VethEnd<'_>,
        right: &VethEnd<'_>,
    ) -> Result<VethPair, ChangeError> {
        let seq = self.intend(Change::VethPair { namespace: namespace.to_string(), link: left.name.to_string() })?;
        let created = Links::open_in(left.namespace)?.create_veth(left, right);
        if created.as_ref().is_err_and(|error| error.failure() == Failure::Exists) {
            self.not_made(seq)?;
        }
        let pair = created?;
        self.done(seq, Outcome::Made)?;
        Ok(pair)
    }

    /// Starts a process in a session of its own, which ends at the latest when this transaction is reverted. `command`
    /// is how the journal calls it. The process itself, though not what it starts, also ends with the calling thread:
    /// a crash before its number is written down leaves nothing behind.
    ///
    /// # Errors
    /// When it could not be written down or started.
    pub fn spawn(&mut self, command: &[String], spawn: Spawn<'_>) -> Result<Child, ChangeError> {
        let seq = self.intend(Change::Process { command: command.to_vec() })?;
        let child = spawn.dies_with_this_thread().start()?;
        let identity = child.identity();
        let pid = identity.pid.get().unsigned_abs();
        let executable = self.proc.process(identity.pid).executable().ok();
        self.done(seq, Outcome::Process { pid, start_time_ticks: identity.starttime.0, executable })?;
        Ok(child)
    }

    /// Sets what `wanted` names on a NAPI instance, so that no suspended queue is left stalled, and reads it back.
    /// Returns whether anything was to be changed; if not, nothing is written down. Where other transactions have set the
    /// same queue, it goes back to what it was only when the last of them is reverted.
    ///
    /// # Errors
    /// When it could not be written down or set; the journal then undoes what was done of it.
    pub fn set_napi(&mut self, namespace: &Namespace, id: NapiId, wanted: &NapiChange) -> Result<bool, ChangeError> {
        self.set_napi_watched(namespace, id, wanted, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Self::set_napi`], while `looks_on` looks on.
    ///
    /// # Errors
    /// As there, and when `looks_on` had enough.
    pub fn set_napi_watched(
        &mut self,
        namespace: &Namespace,
        id: NapiId,
        wanted: &NapiChange,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<bool, ChangeError> {
        hears(looks_on, Moment::Before)?;
        let others = Others::beside(self.journal_path(), self.boot_id.to_string());
        // Until it is set: whoever sets or undoes the same queue comes before that or after it, never in between.
        let _turn = others.turn()?;
        let planned = napi::plan(namespace, id, &NapiValues::of_change(wanted), &others.claims(id)?)?;
        let Some(change) = planned else { return Ok(false) };
        let new = change.new;
        let seq = self.intend(Change::NapiSettings(change))?;
        hears(looks_on, Moment::WrittenDown)?;
        napi::set(namespace, &self.proc, id, &new)?;
        hears(looks_on, Moment::Made)?;
        self.done(seq, Outcome::Made)?;
        Ok(true)
    }

    /// Sets the busy-poll parameters of the epoll that `process` has open at `fd`, so that no suspended queue is left
    /// stalled, and reads them back. Returns whether anything was to be changed; if not, nothing is written down.
    ///
    /// # Errors
    /// As [`Self::set_napi`]; also when the process is gone or may not be looked into.
    pub fn set_epoll(&mut self, process: ProcessIdentity, fd: i32, wanted: EpollParams) -> Result<bool, ChangeError> {
        self.set_epoll_watched(process, fd, wanted, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Self::set_epoll`], while `looks_on` looks on.
    ///
    /// # Errors
    /// As there, and when `looks_on` had enough.
    pub fn set_epoll_watched(
        &mut self,
        process: ProcessIdentity,
        fd: i32,
        wanted: EpollParams,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<bool, ChangeError> {
        hears(looks_on, Moment::Before)?;
        let proc = self.proc.clone();
        let epoll = ForeignEpoll::open(&proc, process, fd)?;
        let (old, new) = (epoll.get()?, EpollValues::from(wanted));
        if old == new {
            return Ok(false);
        }
        let pid = process.pid.get().unsigned_abs();
        let start_time_ticks = process.starttime.0;
        let change = EpollParameters { pid, start_time_ticks, fd, old, new };
        let seq = self.intend(Change::EpollParameters(change))?;
        hears(looks_on, Moment::WrittenDown)?;
        epoll.set(new)?;
        hears(looks_on, Moment::Made)?;
        self.done(seq, Outcome::Made)?;
        Ok(true)
    }

    /// Gives a reuseport group its filter, in the place of any that it had. One of this transaction is over with that, and
    /// so is one whose sockets are all closed: neither is left to be undone.
    ///
    /// # Errors
    /// When it could not be written down or put on; also when sockets came to the group or left it since it was looked
    /// at.
    pub fn steer(&mut self, steering: &Steering) -> Result<(), ChangeError> {
        let put_on = reuseport::PutOn::prepare(&self.proc, steering)?;
        let over = self.filters_over_with(&put_on);
        let seq = self.intend(Change::ReuseportFilter(put_on.change().clone()))?;
        put_on.make(steering)?;
        self.done(seq, Outcome::Made)?;
        for earlier in over {
            self.journal_mut().write(Record::Undone { seq: earlier, undoing: Undoing::AlreadyGone })?;
        }
        Ok(())
    }

    fn filters_over_with(&self, put_on: &reuseport::PutOn) -> Vec<u32> {
        let pending = self.history().into_iter().flat_map(History::pending);
        let over = pending.filter(|(_, entry)| match &entry.change {
            Change::ReuseportFilter(earlier) => put_on.takes_the_place_of(earlier),
            _ => false,
        });
        over.map(|(seq, _)| seq).collect()
    }

    /// Binds a thread to the CPUs of its queue. Returns whether anything was to be changed; if not, nothing is written
    /// down.
    ///
    /// # Errors
    /// When it could not be written down or bound; also when the thread is gone.
    pub fn pin(&mut self, pin: &Pin) -> Result<bool, ChangeError> {
        let change = affinity::plan(&self.proc, pin)?;
        if change.old == change.new {
            return Ok(false);
        }
        let seq = self.intend(Change::ThreadAffinity(change))?;
        affinity::set(pin.tid, &pin.new)?;
        self.done(seq, Outcome::Made)?;
        Ok(true)
    }

    /// Lets the sockets that `process` has open under these numbers poll by themselves; numbers that are closed by now
    /// are left out. Returns how many were changed; if none, nothing is written down.
    ///
    /// # Errors
    /// When it could not be written down or set; also when the process is gone or may not be looked into.
    pub fn set_sockets(
        &mut self,
        process: ProcessIdentity,
        fds: &[i32],
        wanted: SocketPolling,
    ) -> Result<usize, ChangeError> {
        let prepared = socket::prepare(&self.proc, process, fds, wanted)?;
        let Some(change) = prepared.change() else { return Ok(0) };
        let seq = self.intend(Change::SocketsPolling(change.clone()))?;
        let changed = prepared.make()?;
        self.done(seq, Outcome::Made)?;
        Ok(changed)
    }

    /// Has the io_uring that `process` has open at `fd` busy poll. Returns why it is left alone, where it is; nothing is
    /// written down then.
    ///
    /// # Errors
    /// When it could not be written down or told; also when the process is gone or may not be looked into.
    pub fn set_ring(
        &mut self,
        process: ProcessIdentity,
        fd: i32,
        wanted: RingPolling,
    ) -> Result<Option<String>, ChangeError> {
        let (ring, change) = match ring::look(&self.proc, process, fd, wanted)? {
            Ring::CanBeTold(ring, change) => (ring, change),
            Ring::LeftAlone(why) => return Ok(Some(why)),
        };
        let seq = self.intend(Change::RingPolling(change))?;
        io_uring_polling::set(&ring, wanted).map_err(SettingsError::from)?;
        self.done(seq, Outcome::Made)?;
        Ok(None)
    }

    /// Makes one change of a plan in `namespace`. `looks_on` hears how far it got; when it says that this is enough, the
    /// rest is not done, and what was done is undone with the transaction.
    ///
    /// # Errors
    /// When it could not be written down or made, or `looks_on` had enough.
    pub fn set(
        &mut self,
        namespace: &Namespace,
        setting: &plan::Change,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<(), ChangeError> {
        hears(looks_on, Moment::Before)?;
        let change = HostSetting { namespace_cookie: namespace.cookie()?, setting: setting.clone() };
        let seq = self.intend(Change::HostSetting(change))?;
        hears(looks_on, Moment::WrittenDown)?;
        let contexts = self.contexts_made();
        let outcome = make(&Kernel::new(namespace, &self.proc), &contexts, setting)?;
        hears(looks_on, Moment::Made)?;
        Ok(self.done(seq, outcome)?)
    }

    /// The RSS contexts that this transaction has made, by the plan's names for them.
    fn contexts_made(&mut self) -> KnownContexts {
        let mut known = KnownContexts::default();
        for entry in &self.journal_mut().history().entries {
            if let (Change::HostSetting(change), Some(Outcome::RssContext { id })) = (&entry.change, entry.outcome)
                && let plan::Change::RssContext { device, context: plan::ContextRef::Planned(label), .. } =
                    &change.setting
            {
                known.planned.insert((device.clone(), label.clone()), id);
            }
        }
        known
    }

    /// Undoes everything, the last change first. What fails stays in the journal and does not keep the rest from being
    /// undone.
    ///
    /// # Errors
    /// When the journal could not be removed; everything was undone then.
    pub fn revert(mut self) -> Result<Reverted, JournalError> {
        match self.journal.take() {
            Some(journal) => revert(journal, self.boot_id, &self.proc),
            None => Ok(Reverted::default()),
        }
    }

    /// Ends the transaction with everything in place: it stays until the journal is reverted. Returns where that is.
    ///
    /// # Errors
    /// When it could not be written down that it is to stay; everything was undone then.
    pub fn keep(self) -> Result<PathBuf, JournalError> {
        self.end_with(Record::Keep)
    }

    /// As [`Self::keep`], but only if somebody confirms it in time: the process `watchdog` takes the journal over and
    /// undoes everything otherwise.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub fn keep_if_confirmed(self, watchdog: Watchdog) -> Result<PathBuf, JournalError> {
        self.end_with(Record::KeepIfConfirmed(watchdog))
    }

    /// Writes down a process for whose sake changes follow.
    ///
    /// # Errors
    /// When it could not be written down.
    pub fn add_target(&mut self, target: Target) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Target(target))
    }

    /// Writes down that everything is to stay as long as `keeper` lives, which undoes it when it is told to end.
    ///
    /// # Errors
    /// When it could not be written down.
    pub fn kept_by(&mut self, keeper: Keeper) -> Result<(), JournalError> {
        self.journal_mut().write(Record::KeptBy(keeper))
    }

    /// As [`Self::kept_by`], and leaves the journal to the keeper, which takes it over. Returns where it is.
    ///
    /// # Errors
    /// When it could not be written down; everything was undone then.
    pub fn leave_to(self, keeper: Keeper) -> Result<PathBuf, JournalError> {
        self.end_with(Record::KeptBy(keeper))
    }

    /// What the journal says so far.
    #[must_use]
    pub fn history(&self) -> Option<&History> {
        self.journal.as_ref().map(OwnedJournal::history)
    }

    fn end_with(mut self, record: Record) -> Result<PathBuf, JournalError> {
        let journal = self.journal_mut();
        journal.write(record)?;
        let path = journal.path().to_owned();
        self.journal = None;
        Ok(path)
    }

    /// Where the journal is.
    #[must_use]
    pub fn journal_path(&self) -> &Path {
        self.journal.as_ref().map_or(Path::new(""), OwnedJournal::path)
    }

    fn intend(&mut self, change: Change) -> Result<u32, JournalError> {
        let journal = self.journal_mut();
        let seq = u32::try_from(journal.history().entries.len()).unwrap_or(u32::MAX);
        journal.write(Record::Intend { seq, change })?;
        Ok(seq)
    }

    fn done(&mut self, seq: u32, outcome: Outcome) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Done { seq, outcome })
    }

    /// What has the name belongs to somebody else: it must not be undone.
    fn not_made(&mut self, seq: u32) -> Result<(), JournalError> {
        self.journal_mut().write(Record::Undone { seq, undoing: Undoing::AlreadyGone })
    }

    fn journal_mut(&mut self) -> &mut OwnedJournal {
        self.journal.as_mut().unwrap_or_else(|| unreachable!("only `revert` takes the journal, and it takes self"))
    }
}

fn hears(looks_on: &mut LooksOn<'_>, moment: Moment) -> Result<(), ChangeError> {
    match looks_on(moment) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ChangeError::Stopped),
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(journal) = self.journal.take() {
            // What fails here stays in the journal, where the next run finds it.
            let _ = revert(journal, self.boot_id, &self.proc);
        }
    }
}
