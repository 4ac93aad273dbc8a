//! Applies an attachment and maintains it. It has its own journal and its own keeper process, and carries out the plan
//! of each pass. [`mod@super::plan`] decides the changes; [`crate::transaction`] makes and undoes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};

use super::error::AttachError;
use super::journal_name;
use super::keeper::this_process;
use super::pass::Pass;
use super::plan::{EpollStep, Partly, Plan, QueueStep, Request, Step, plan};
use super::pollers::Told;
use super::target::{Selection, TargetError, Targets};
use crate::journal::{History, Journal, JournalError, Keeper, ListedJournal, Stay, Target};
use crate::kept::{KeptError, forget_earlier_boots};
use crate::namespaces;
use crate::picture::{Picture, Scope, TakeError, take};
use crate::recovery::{Reverted, is_running};
use crate::settings::SettingsError;
use crate::settings::values::EpollValues;
use crate::transaction::{ChangeError, EpollToSet, Moment, Transaction};

/// Prefix of the purpose that these journals record; the mode follows.
const PURPOSE: &str = "attach ";
/// Number of passes for objects that appear while values are set.
const LOOKS: u32 = 5;
/// Number of searches when a process exits during the search.
const TRIES: u32 = 5;

/// Starts the keeper of a journal, or returns the reason why it could not.
pub type StartKeeper<'a> = dyn FnMut(&Path) -> Result<Keeper, String> + 'a;
/// Observes every change, by its index within the attachment, and may stop the attachment.
pub type LooksOn<'a> = dyn FnMut(usize, Moment) -> ControlFlow<()> + 'a;

/// A mode applied to programs. It lasts as long as this value, or the keeper that takes it over.
#[derive(Debug)]
pub struct Attachment {
    transaction: Transaction,
    keeper: Keeper,
    request: Request,
    targets: Targets,
    proc: ProcRoot,
    /// Queues that were set, with their previous values.
    queues: BTreeMap<NapiId, QueueStep>,
    epolls: BTreeMap<EpollKey, EpollValues>,
    /// Sockets and rings that were set to busy poll.
    told: Told,
    /// NAPI IDs of sockets that no device has. After a link went down a socket keeps the old ID until its next packet.
    unknown_queues: BTreeSet<NapiId>,
    /// Objects that could not be set, or that another program has changed.
    given_up: BTreeSet<Key>,
    changes: usize,
}

/// An epoll or io_uring within the lifetime of its process: PID, start time, file descriptor.
type EpollKey = (Pid, u64, i32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Queue(NapiId),
    Epoll(EpollKey),
    /// Process, its start time, and whether these are AF_XDP sockets.
    Sockets(Pid, u64, bool),
    Ring(EpollKey),
}

/// An attachment as recorded in its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Path of the journal.
    pub path: PathBuf,
    /// Contents of the journal.
    pub history: History,
    /// Keeper; absent while the attachment is being made.
    pub keeper: Option<Keeper>,
}

/// Takes a snapshot of the whole host. The queues of a program may belong to a device in another namespace, and other
/// programs may use them.
///
/// # Errors
/// When the host cannot be observed.
pub fn observe() -> Result<Picture, TakeError> {
    take(&Scope { whole_host: true, ..Scope::default() }).map(|(picture, _)| picture)
}

/// Mode recorded in a journal; `None` if it is not the journal of an attachment.
#[must_use]
pub fn mode_of(history: &History) -> Option<&str> {
    history.begin.purpose.strip_prefix(PURPOSE)
}

/// Whether the attachment belongs to a launched program. Such an attachment ends only with its program.
#[must_use]
pub fn is_launched(attached: &Attached) -> bool {
    attached.keeper.is_none() && journal_name::is_of_a_launched_program(&attached.path)
}

/// Attachments with a running owner, including those that are still being made.
///
/// # Errors
/// When the journals cannot be listed.
pub fn attachments(journal: &Journal) -> Result<Vec<Attached>, KeptError> {
    let attached = |listed| match listed {
        ListedJournal::Running { path, history: Some(history) } => Some((path, history)),
        // The keeper is about to take it over, or it is dead; then the next command that recovers journals undoes it.
        ListedJournal::Abandoned { path, history } => Some((path, history)),
        _ => None,
    };
    let listed = journal.list()?.into_iter().filter_map(attached);
    let attachment = |(path, history): (PathBuf, History)| {
        mode_of(&history).filter(|_| !history.only_waits())?;
        let keeper = match history.stay {
            Stay::KeptBy(keeper) => Some(keeper),
            _ => None,
        };
        Some(Attached { path, history, keeper })
    };
    Ok(listed.filter_map(attachment).collect())
}

impl Attachment {
    /// Begins an attachment: creates its journal and starts its keeper. Sets nothing yet.
    ///
    /// # Errors
    /// When one of the programs is attached already, or the journal or the keeper cannot be created.
    pub fn begin(
        journal: &Journal,
        targets: Targets,
        request: Request,
        start_keeper: &mut StartKeeper<'_>,
    ) -> Result<Self, AttachError> {
        refuse_what_is_attached(journal, &targets)?;
        forget_earlier_boots(journal)?;
        let purpose = format!("{PURPOSE}{}", request.mode);
        let name = journal_name::of(targets.selection());
        let mut transaction = Transaction::begin(journal, &name, &purpose).map_err(AttachError::Begin)?;
        let keeper = start_keeper(transaction.journal_path()).map_err(AttachError::Keeper)?;
        for target in targets.living() {
            transaction.add_target(target.clone())?;
        }
        Ok(Self {
            transaction,
            keeper,
            request,
            targets,
            proc: ProcRoot::default(),
            queues: BTreeMap::new(),
            epolls: BTreeMap::new(),
            told: Told::default(),
            unknown_queues: BTreeSet::new(),
            given_up: BTreeSet::new(),
            changes: 0,
        })
    }

    /// Adds a program to an attachment that began without one, because the program is launched afterwards. Its
    /// descendants are included. `epolls` are the parameters that a preload library sets.
    ///
    /// # Errors
    /// When the program has exited, or the journal cannot be written.
    pub fn is_for(&mut self, program: Pid, epolls: Option<EpollValues>) -> Result<(), AttachError> {
        self.targets = Targets::find(Selection::Processes(vec![program]))?;
        for target in self.targets.living() {
            self.transaction.add_target(target.clone())?;
            if let Some(epolls) = epolls.filter(|_| i64::from(target.pid) == i64::from(program.get())) {
                let program = self.targets.identity(program, target.start_time_ticks);
                self.transaction.has_launched(program, epolls)?;
            }
        }
        Ok(())
    }

    /// Carries out a plan.
    ///
    /// # Errors
    /// On the first change that fails; [`Self::end`] undoes the earlier ones. Objects that vanished in the meantime are
    /// not errors.
    pub fn make(&mut self, plan: &Plan, looks_on: &mut LooksOn<'_>) -> Result<(), AttachError> {
        for steps in plan.steps.chunk_by(are_made_together) {
            for (step, made) in steps.iter().zip(self.set_together(steps, looks_on)) {
                made.map_err(|source| AttachError::Change { step: Box::new(step.clone()), source: Box::new(source) })?;
            }
        }
        Ok(())
    }

    /// Repeats passes until nothing is left to set.
    ///
    /// # Errors
    /// When the host cannot be observed, a change fails, or an earlier change did not persist.
    pub fn settle(&mut self, looks_on: &mut LooksOn<'_>) -> Result<(), AttachError> {
        for _ in 0..LOOKS {
            let mut pass = self.keep_up(looks_on)?;
            if let Some((step, source)) = pass.failed.pop() {
                return Err(AttachError::Change { step: Box::new(step), source: Box::new(source) });
            }
            if let Some(step) = pass.changed_by_others.pop() {
                return Err(AttachError::DidNotLast(Box::new(step)));
            }
            if pass.made.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs one pass: finds new processes, epolls and queues, and sets them.
    ///
    /// # Errors
    /// When the host cannot be observed, or the journal cannot be written. Failed changes are listed in the [`Pass`].
    pub fn keep_up(&mut self, looks_on: &mut LooksOn<'_>) -> Result<Pass, AttachError> {
        let mut pass = Pass::default();
        let Some(picture) = self.look(&mut pass)? else { return Ok(Pass { over: true, ..pass }) };
        let mut plan = plan(&picture, None, &self.targets.pids(), &self.request);
        if !unknown_queues(&plan).is_subset(&self.unknown_queues) {
            plan = super::plan::plan(&observe()?, None, &self.targets.pids(), &self.request);
            self.unknown_queues = unknown_queues(&plan);
        }
        let mut due = Vec::new();
        for step in plan.steps {
            match self.is_to_be_set(&step) {
                Due::No => {}
                Due::ChangedByOthers => {
                    self.given_up.insert(key(&step));
                    pass.changed_by_others.push(step);
                }
                Due::Yes => due.push(step),
            }
        }
        for steps in due.chunk_by(are_made_together) {
            for (step, made) in steps.iter().zip(self.set_together(steps, looks_on)) {
                match made {
                    Ok(true) => pass.made.push(step.clone()),
                    Ok(false) => {}
                    Err(error) => {
                        self.given_up.insert(key(step));
                        pass.failed.push((step.clone(), error));
                    }
                }
            }
        }
        pass.picture = Some(picture);
        Ok(pass)
    }

    /// Hands the attachment over to the keeper, which restores everything when the programs exit. Returns the journal's
    /// path.
    ///
    /// # Errors
    /// When the journal cannot be written, or the keeper has exited; then everything was undone.
    pub fn leave(self) -> Result<PathBuf, AttachError> {
        let Self { transaction, keeper, proc, .. } = self;
        let Keeper { pid, start_time_ticks } = keeper;
        let boot_id = proc.boot_id().map_err(KeptError::Proc)?;
        if !is_running(pid, start_time_ticks, boot_id, &proc) {
            return Err(AttachError::KeeperEnded(pid));
        }
        Ok(transaction.leave_to(keeper)?)
    }

    /// Records in the journal that this process maintains the attachment and ends it on SIGTERM. The keeper continues
    /// to watch this process.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn hold(&mut self) -> Result<(), AttachError> {
        Ok(self.transaction.kept_by(this_process(&self.proc)?)?)
    }

    /// Restores everything.
    ///
    /// # Errors
    /// When the journal could not be removed; everything was undone then.
    pub fn end(self) -> Result<Reverted, JournalError> {
        self.transaction.revert()
    }

    /// The programs, as found by the last pass.
    #[must_use]
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Queues that were set, with their previous values.
    pub fn queues(&self) -> impl Iterator<Item = &QueueStep> {
        self.queues.values()
    }

    /// Number of epolls that were set.
    #[must_use]
    pub fn epolls(&self) -> usize {
        self.epolls.len()
    }

    /// io_urings that were not set to busy poll: process, file descriptor and reason.
    pub fn rings_left_alone(&self) -> impl Iterator<Item = (Pid, i32, &str)> {
        self.told.left_alone()
    }

    /// Takes a snapshot of the programs and the devices in their namespaces; `None` if no program is running.
    fn look(&mut self, pass: &mut Pass) -> Result<Option<Picture>, AttachError> {
        let mut last = None;
        for _ in 0..TRIES {
            let turnover = self.targets.refresh()?;
            for target in &turnover.came {
                self.transaction.add_target(target.clone())?;
            }
            pass.came.extend(turnover.came);
            pass.ended.extend(turnover.ended);
            if self.targets.pids().is_empty() {
                return Ok(None);
            }
            match self.look_at_programs() {
                Ok(picture) => return Ok(Some(picture)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(AttachError::Target(TargetError::Gone), AttachError::Look))
    }

    fn is_to_be_set(&self, step: &Step) -> Due {
        if self.given_up.contains(&key(step)) {
            return Due::No;
        }
        let (was_set, is_reset) = match step {
            Step::Sockets(step) => return Due::once(self.told.has_told(step)),
            Step::Ring(step) => return Due::once(self.told.has_tried(step)),
            Step::Queue(step) => {
                let before = self.queues.get(&step.napi).map(|before| before.old);
                (before.is_some(), before == Some(step.old))
            }
            Step::Epoll(step) => {
                let before = self.epolls.get(&epoll_key(step));
                (before.is_some(), before == Some(&step.old))
            }
        };
        match (was_set, step.is_there()) {
            (true, true) => Due::No,
            // Another epoll has this number now, or the driver has recreated its queue.
            (true, false) if is_reset => Due::Yes,
            (true, false) => Due::ChangedByOthers,
            (false, _) => Due::Yes,
        }
    }

    /// Takes a snapshot of the programs found by the last pass.
    pub(super) fn look_at_programs(&self) -> Result<Picture, TakeError> {
        let pids = self.targets.pids().into_iter().collect();
        take(&Scope { pids, ..Scope::default() }).map(|(picture, _)| picture)
    }

    /// Number of changes so far.
    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// Runs `act`, which makes a change of another kind, and notifies the observer.
    pub(super) fn heard<T>(
        &mut self,
        looks_on: &mut LooksOn<'_>,
        act: impl FnOnce(&mut Transaction) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let number = self.changes;
        self.changes += 1;
        if looks_on(number, Moment::Before).is_break() {
            return Err(ChangeError::Stopped);
        }
        act(&mut self.transaction)
    }

    /// Carries out steps for which [`are_made_together`] holds. Returns for each step whether it changed anything.
    /// Stops at the first journal error and when the observer stops.
    fn set_together(&mut self, steps: &[Step], looks_on: &mut LooksOn<'_>) -> Vec<Result<bool, ChangeError>> {
        let epolls: Vec<EpollToSet> = steps.iter().filter_map(|step| self.epoll_to_set(step)).collect();
        if epolls.is_empty() {
            return steps.iter().map(|step| self.set(step, looks_on)).collect();
        }
        let first = self.changes;
        self.changes += epolls.len();
        let made = self.transaction.set_epolls(&epolls, &mut |place, moment| looks_on(first + place, moment));
        match made {
            Ok(made) => {
                steps.iter().zip(made).map(|(step, made)| self.came_of(step, made.map_err(Into::into))).collect()
            }
            Err(error) => vec![Err(error)],
        }
    }

    fn epoll_to_set(&self, step: &Step) -> Option<EpollToSet> {
        let Step::Epoll(EpollStep { pid, start_time_ticks, fd, watched, new, .. }) = step else { return None };
        let process = self.targets.identity(*pid, *start_time_ticks);
        Some(EpollToSet { process, fd: *fd, watched: watched.clone(), new: *new })
    }

    /// Carries out one step. Returns whether it changed anything.
    fn set(&mut self, step: &Step, looks_on: &mut LooksOn<'_>) -> Result<bool, ChangeError> {
        let number = self.changes;
        self.changes += 1;
        let mut hears = |moment| looks_on(number, moment);
        let made = match step {
            Step::Queue(queue) => {
                let namespace =
                    namespaces::by_cookie(&self.proc, queue.namespace_cookie).map_err(SettingsError::from)?;
                let Some(namespace) = namespace else { return Ok(false) };
                self.set_queue(&namespace, queue, &mut hears)
            }
            Step::Epoll(_) => unreachable!("epolls are made together"),
            Step::Sockets(step) => {
                let process = self.targets.identity(step.pid, step.start_time_ticks);
                let sockets = self.told.tell(step);
                self.transaction.set_sockets(process, &sockets, step.new).map(|changed| changed > 0)
            }
            Step::Ring(step) => {
                let process = self.targets.identity(step.pid, step.start_time_ticks);
                self.transaction
                    .set_ring(process, step.fd, step.new)
                    .map(|left_alone| self.told.tried(step, left_alone))
            }
        };
        self.came_of(step, made)
    }

    fn came_of(&mut self, step: &Step, made: Result<bool, ChangeError>) -> Result<bool, ChangeError> {
        match made {
            Err(ChangeError::Settings(error)) if error.is_absent() => Ok(false),
            other => {
                self.remember(step);
                other
            }
        }
    }

    /// Records the previous values of a queue or an epoll. Forgets objects that are gone, because their number may be
    /// reused.
    fn remember(&mut self, step: &Step) {
        match step {
            Step::Queue(queue) => _ = self.queues.insert(queue.napi, queue.clone()),
            Step::Epoll(epoll) => _ = self.epolls.insert(epoll_key(epoll), epoll.old),
            Step::Sockets(_) | Step::Ring(_) => {}
        }
    }

    fn set_queue(
        &mut self,
        namespace: &Namespace,
        step: &QueueStep,
        hears: &mut crate::transaction::LooksOn<'_>,
    ) -> Result<bool, ChangeError> {
        self.transaction.set_napi_watched(namespace, step.napi, &step.new.as_change(), hears)
    }
}

/// Whether the two steps are made together. Epolls share one write of the journal to disk.
fn are_made_together(one: &Step, other: &Step) -> bool {
    matches!((one, other), (Step::Epoll(_), Step::Epoll(_)))
}

fn unknown_queues(plan: &Plan) -> BTreeSet<NapiId> {
    let unknown = |partly: &Partly| match partly {
        Partly::UnknownQueue { napi } => Some(*napi),
        _ => None,
    };
    plan.partly.iter().filter_map(unknown).collect()
}

/// Whether a step is to be carried out.
enum Due {
    Yes,
    No,
    ChangedByOthers,
}

impl Due {
    fn once(was_done: bool) -> Self {
        if was_done { Self::No } else { Self::Yes }
    }
}

fn key(step: &Step) -> Key {
    match step {
        Step::Queue(step) => Key::Queue(step.napi),
        Step::Epoll(step) => Key::Epoll(epoll_key(step)),
        Step::Sockets(step) => Key::Sockets(step.pid, step.start_time_ticks, step.xdp),
        Step::Ring(step) => Key::Ring((step.pid, step.start_time_ticks, step.fd)),
    }
}

fn epoll_key(step: &EpollStep) -> EpollKey {
    (step.pid, step.start_time_ticks, step.fd)
}

/// Refuses programs of which one is attached already.
///
/// # Errors
/// [`AttachError::AlreadyAttached`], and when the journals cannot be listed.
pub fn refuse_what_is_attached(journal: &Journal, targets: &Targets) -> Result<(), AttachError> {
    let living: Vec<&Target> = targets.living().collect();
    for attached in attachments(journal)? {
        let is_living = |target: &&Target| living.iter().any(|living| living.is_same_process(target));
        if let Some(target) = attached.history.targets.iter().find(is_living) {
            return Err(AttachError::AlreadyAttached { pid: target.pid, purpose: attached.history.begin.purpose });
        }
    }
    Ok(())
}
