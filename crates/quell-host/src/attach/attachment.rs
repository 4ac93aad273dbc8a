//! Applies a mode to programs and maintains it. Each attachment has a journal and a keeper process of its own.
//! [`mod@super::plan`] decides the changes; [`quell_change::transaction`] makes and undoes them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::PipeReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quell_change::change::CompareError;
use quell_change::drift::{Condition, condition};
use quell_change::journal::{History, Journal, JournalError, Keeper, Purpose, StallRecord};
use quell_change::namespaces;
use quell_change::persistent::{PersistError, forget_earlier_boots};
use quell_change::recovery::{Reverted, is_running};
use quell_change::settings::SettingsError;
use quell_change::target::{Selection, TargetError, Targets};
use quell_change::transaction::{ChangeError, ChangeStage, EpollToSet, Transaction, is_measured};
use quell_linux::Pid;
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::process::Spawn;
use quell_mode::{DeliveryMode, EpollParams};
use tracing::{debug, error_span, info, warn};

use super::attached::{Attached, AttachedMode, refuse_what_is_attached};
use super::error::AttachError;
use super::hand_over;
use super::journal_name;
use super::ledger::{Due, Ledger};
use super::owners::newer_owner_has_set;
use super::pass::{Pass, describe_step};
use super::placement::{PlacedPrograms, look_at_programs};
use super::plan::{AttachPlan, AttachRequest, AttachStep, QueueStep, plan};
use super::poller;
use super::poller::watch::PollerWatch;
use super::stall_log::StallLog;
use super::successors::add_successors;
use crate::behavior::ReadQueues;
use crate::snapshot::{Snapshot, SnapshotScope, TakeError, take};
use crate::steer::mark_steered;

/// Maximum number of passes. Objects can appear while values are being set.
const LOOKS: u32 = 5;
/// Maximum number of searches. A process can exit during a search.
const TRIES: u32 = 5;

pub type StartKeeper<'a> = dyn FnMut(&Path) -> Result<Keeper, String> + 'a;
/// Callback for every change, with its index within the attachment. It may stop the attachment.
pub type AttachObserver<'a> = dyn FnMut(usize, ChangeStage) -> ControlFlow<()> + 'a;

/// A mode that is applied to programs until this value is dropped or handed over to the keeper.
#[derive(Debug)]
pub struct Attachment {
    transaction: Transaction,
    keeper: Keeper,
    /// Process that polls the queues, if the mode has one.
    poller: Option<PollerWatch>,
    request: AttachRequest,
    targets: Targets,
    proc: ProcRoot,
    ledger: Ledger,
    /// Sockets with a filter, and the number of queues that it selects for each.
    steered: BTreeMap<u64, u32>,
    /// Whether an experiment switched the programs in the last pass.
    is_measured: bool,
    changes: usize,
}

/// Takes a snapshot of the whole host. The queues of a program may belong to a device in another namespace, and other
/// programs may use them.
pub fn observe() -> Result<Snapshot, TakeError> {
    take(&SnapshotScope { whole_host: true, ..SnapshotScope::default() }).map(|(snapshot, _)| snapshot)
}

/// Takes a snapshot of the whole host, with the queues from which these programs read, or of the programs alone if the
/// former leaves them out because they have no network socket.
pub fn observe_programs(programs: &BTreeSet<Pid>) -> Result<Snapshot, TakeError> {
    let mut host = observe()?;
    ReadQueues::observe(&host, |pid| programs.contains(&pid)).add_to(&mut host);
    let is_shown =
        |pid: &Pid| host.processes.iter().any(|process| process.pid == *pid) || host.hidden_processes.contains(pid);
    if programs.is_empty() || programs.iter().any(is_shown) {
        return Ok(host);
    }
    let scope = SnapshotScope { pids: programs.iter().copied().collect(), ..SnapshotScope::default() };
    take(&scope).map(|(snapshot, _)| snapshot)
}

impl Attachment {
    /// Begins an attachment: creates its journal and starts its keeper, but sets no values. Without processes it is for a
    /// program that is launched later ([`Self::add_launched`]).
    pub fn begin(
        journal: &Journal,
        targets: Targets,
        request: AttachRequest,
        start_keeper: &mut StartKeeper<'_>,
    ) -> Result<Self, AttachError> {
        refuse_what_is_attached(journal, &targets)?;
        forget_earlier_boots(journal)?;
        let mode = request.mode;
        let purpose = match targets.selection() {
            Selection::Processes(pids) if pids.is_empty() => Purpose::Launch { mode },
            Selection::Processes(_) | Selection::Cgroup(_) => Purpose::Attachment { mode },
        };
        let name = journal_name::of_attachment(targets.selection());
        let transaction = Transaction::begin(journal, &name, purpose).map_err(AttachError::Begin)?;
        forget_stalls_of(journal, &transaction, &targets);
        Self::kept_by(transaction, targets, request, start_keeper)
    }

    /// Records the programs and starts the keeper.
    fn kept_by(
        mut transaction: Transaction,
        targets: Targets,
        request: AttachRequest,
        start_keeper: &mut StartKeeper<'_>,
    ) -> Result<Self, AttachError> {
        // Before the keeper, whose start takes milliseconds: `quell detach PID` finds the attachment from here on.
        for target in targets.living() {
            transaction.add_target(target.clone())?;
        }
        let keeper = start_keeper(transaction.journal_path()).map_err(AttachError::Keeper)?;
        info!(pid = keeper.pid.get(), "keeper started: it reverts all changes if this process dies");
        let proc = ProcRoot::default();
        let poller = transaction.history().and_then(|history| PollerWatch::of_journal(history, &proc));
        Ok(Self {
            transaction,
            keeper,
            poller,
            request,
            targets,
            proc,
            ledger: Ledger::default(),
            steered: BTreeMap::new(),
            is_measured: false,
            changes: 0,
        })
    }

    #[must_use]
    pub fn journal_path(&self) -> &Path {
        self.transaction.journal_path()
    }

    /// Whether the mode has a poller that does not run yet.
    #[must_use]
    pub fn needs_poller(&self) -> bool {
        self.request.mode.poller().is_some() && self.poller.is_none()
    }

    /// Starts the process that polls the queues of a mode with a poller, before any queue is set. The process
    /// writes the line `ready` to `output` when it can poll; another line is the reason why it cannot.
    pub fn start_poller(&mut self, program: Spawn<'_>, output: PipeReader) -> Result<(), AttachError> {
        let command = ["quell".to_owned(), "poller".to_owned()];
        let child = self.transaction.spawn_lasting(&command, program).map_err(AttachError::Begin)?;
        poller::wait_until_ready(output)?;
        let pid = child.leave_running().pid;
        self.poller = self.transaction.history().and_then(|history| PollerWatch::of_journal(history, &self.proc));
        info!(pid = pid.get(), "poller started: it polls the queues of this attachment");
        Ok(())
    }

    /// Why the queues are no longer polled, if the mode has a poller. To be called every 100 ms.
    pub fn poller_failure(&mut self) -> Option<String> {
        self.poller.as_mut()?.look()
    }

    /// Takes over an earlier attachment with the same mode and options from its owner, without setting a value. `None` if
    /// it was reverted in the meantime.
    pub fn take_over(
        journal: &Journal,
        earlier: &Attached,
        targets: Targets,
        request: AttachRequest,
        start_keeper: &mut StartKeeper<'_>,
    ) -> Result<Option<Self>, AttachError> {
        let Some(transaction) = hand_over::receive(journal, earlier)? else { return Ok(None) };
        let mut taken = Self::kept_by(transaction, targets, request, start_keeper)?;
        // From here on, `quell detach` signals this process.
        taken.hold()?;
        Ok(Some(taken))
    }

    /// Adds a program, with its descendants, to an attachment that began before the program was launched. `epolls` are
    /// the parameters that a preload library sets.
    pub fn add_launched(&mut self, program: Pid, epolls: Option<EpollParams>) -> Result<(), AttachError> {
        self.targets = Targets::find(Selection::Processes(vec![program]))?;
        for target in self.targets.living() {
            self.transaction.add_target(target.clone())?;
            if let Some(epolls) = epolls.filter(|_| target.pid == program) {
                let program = self.targets.identity(program, target.start_time_ticks);
                self.transaction.has_launched(program, epolls)?;
            }
        }
        Ok(())
    }

    /// Carries out a plan. Objects that vanished in the meantime are skipped.
    ///
    /// # Errors
    /// On the first change that fails; [`Self::end`] undoes the earlier ones.
    pub fn make(&mut self, plan: &AttachPlan, observer: &mut AttachObserver<'_>) -> Result<(), AttachError> {
        let _span = error_span!("make", mode = %self.request.mode).entered();
        for steps in plan.steps.chunk_by(are_made_together) {
            for (step, made) in steps.iter().zip(self.set_together(steps, observer)) {
                made.map_err(|source| AttachError::Change { step: Box::new(step.clone()), source: Box::new(source) })?;
            }
        }
        Ok(())
    }

    /// Repeats passes until all planned values are set.
    pub fn settle(&mut self, observer: &mut AttachObserver<'_>) -> Result<(), AttachError> {
        for _ in 0..LOOKS {
            let mut pass = self.keep_up(observer)?;
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

    /// Runs one pass: finds new processes, epolls and queues, and sets them, unless an experiment switches the programs.
    ///
    /// # Errors
    /// When the host cannot be observed, or the journal cannot be written. Failed changes are listed in the [`Pass`].
    pub fn keep_up(&mut self, observer: &mut AttachObserver<'_>) -> Result<Pass, AttachError> {
        let _span = error_span!("keep_up").entered();
        let mut pass = Pass::default();
        self.is_measured = self.is_measured_now()?;
        if self.is_measured {
            self.find_programs(&mut pass)?;
            pass.over = self.targets.pids().is_empty();
            return Ok(pass);
        }
        let Some(snapshot) = self.look(&mut pass)? else { return Ok(Pass { over: true, ..pass }) };
        let mut plan = plan(&snapshot, None, &self.targets.pids(), &self.request);
        let unknown = self.ledger.new_unknown_queues(&plan);
        if !unknown.is_empty() {
            debug!(napis = ?unknown, "no known device has the NAPI IDs of some sockets; searching all namespaces");
            // The snapshot has the namespaces of the programs only. Their packets can come through a device of another
            // one (macvlan, leased queues). The search takes long, so it is made once for each unknown ID.
            let mut host = observe()?;
            mark_steered(&mut host, &self.steered);
            plan = super::plan::plan(&host, None, &self.targets.pids(), &self.request);
            self.ledger.record_unknown_queues(&plan);
        }
        pass.missing = add_successors(&mut plan, &snapshot, self.ledger.queues(), &self.request.mode);
        let mut due = Vec::new();
        for step in plan.steps {
            match self.ledger.due(&step) {
                Due::Done | Due::GivenUp => {}
                Due::ChangedByOthers if newer_owner_has_set(&self.transaction, &step)? => {}
                Due::ChangedByOthers => {
                    warn!(step = describe_step(&step), "another program has changed the value; not setting it again");
                    // Setting it again in each pass would fight with the other program, and packets would see both
                    // values in turn.
                    self.ledger.give_up(&step);
                    pass.changed_by_others.push(step);
                }
                Due::Yes => due.push(step),
            }
        }
        for steps in due.chunk_by(are_made_together) {
            for (step, made) in steps.iter().zip(self.set_together(steps, observer)) {
                match made {
                    Ok(true) => {
                        info!(step = describe_step(step), "set");
                        pass.made.push(step.clone());
                    }
                    Ok(false) => {}
                    // The experiment began during this pass.
                    Err(error) if error.is_by_experiment() => {}
                    Err(error) => {
                        warn!(step = describe_step(step), %error, "could not set the value; not trying again");
                        self.ledger.give_up(step);
                        pass.failed.push((step.clone(), error));
                    }
                }
            }
        }
        pass.snapshot = Some(snapshot);
        Ok(pass)
    }

    /// Checks that at least one program is still running. An attachment skips objects of exited programs, so it can
    /// complete without setting anything.
    pub fn check_programs_run(&mut self) -> Result<(), AttachError> {
        self.find_programs(&mut Pass::default())?;
        if self.targets.pids().is_empty() { Err(AttachError::ProgramsExited) } else { Ok(()) }
    }

    /// Hands the attachment over to the keeper, which reverts it when the programs exit. Returns the path of the
    /// journal.
    ///
    /// # Errors
    /// When the journal cannot be written, or the keeper has exited. Everything was undone in both cases.
    pub fn leave(self) -> Result<PathBuf, AttachError> {
        let Self { transaction, keeper, proc, .. } = self;
        let Keeper { pid, start_time_ticks } = keeper;
        let boot_id = proc.boot_id().map_err(PersistError::Proc)?;
        info!(pid = pid.get(), "handing the journal over to the keeper");
        if !is_running(pid, start_time_ticks, boot_id, &proc) {
            return Err(AttachError::KeeperEnded(pid));
        }
        Ok(transaction.hand_over_to(keeper)?)
    }

    /// Starts the keeper again if it has ended, as after somebody has killed it, and returns the new one. Otherwise nobody
    /// would restore anything if this process were killed.
    pub fn restart_keeper(&mut self, start_keeper: &mut StartKeeper<'_>) -> Result<Option<Pid>, AttachError> {
        let boot_id = self.proc.boot_id().map_err(PersistError::Proc)?;
        let Keeper { pid, start_time_ticks } = self.keeper;
        if is_running(pid, start_time_ticks, boot_id, &self.proc) {
            return Ok(None);
        }
        self.keeper = start_keeper(self.transaction.journal_path()).map_err(AttachError::Keeper)?;
        warn!(ended = pid.get(), pid = self.keeper.pid.get(), "the keeper had ended: started it again");
        Ok(Some(self.keeper.pid))
    }

    /// Compares the settings with the host.
    pub fn condition(&self) -> Result<Condition, CompareError> {
        let history = self.transaction.history();
        history.map_or_else(|| Ok(Condition::default()), |history| condition(self.journal_path(), history))
    }

    /// Records in the journal that this process maintains the attachment, follows its programs, and ends it on SIGTERM.
    /// The keeper continues to watch this process.
    pub fn hold(&mut self) -> Result<(), AttachError> {
        info!("this process remains the owner of the journal");
        Ok(self.transaction.maintained_by_follower(Keeper::this_process(&self.proc).map_err(PersistError::from)?)?)
    }

    pub fn accept_stalls(&mut self) -> Result<(), AttachError> {
        Ok(self.transaction.accept_stalls()?)
    }

    #[must_use]
    pub fn accepts_stalls(&self) -> bool {
        self.transaction.history().is_some_and(|history| history.accepts_stalls)
    }

    /// This mode of its programs, for commands.
    #[must_use]
    pub fn with_mode(&self, mode: DeliveryMode, pins: bool) -> AttachedMode {
        let recorded = self.transaction.history().and_then(AttachedMode::recorded);
        AttachedMode { mode, pins, ..recorded.unwrap_or_default() }
    }

    /// Whether an experiment switched the programs in the last pass.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    pub(super) fn is_measured_now(&self) -> Result<bool, JournalError> {
        let history = self.transaction.history();
        history.map_or(Ok(false), |history| is_measured(self.transaction.journal_path(), history))
    }

    pub(super) fn stall_log(&self) -> Option<StallLog> {
        Some(StallLog::new(self.transaction.journal_path().to_owned(), self.transaction.history()?))
    }

    /// Reverts the attachment.
    ///
    /// # Errors
    /// When the journal could not be removed after everything was undone.
    pub fn end(self) -> Result<Reverted, JournalError> {
        self.transaction.revert()
    }

    /// Like [`Self::end`], for a mode that was in force: `by` is who ends it, for the history.
    pub fn end_by(self, by: &str) -> Result<Reverted, JournalError> {
        self.transaction.end(by)
    }

    /// The programs that the last pass found.
    #[must_use]
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Whether `quell run` started the programs.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.transaction.history().is_some_and(|history| matches!(history.begin.purpose, Purpose::Launch { .. }))
    }

    #[must_use]
    pub fn request(&self) -> AttachRequest {
        self.request
    }

    pub fn queues(&self) -> impl Iterator<Item = &QueueStep> {
        self.ledger.queues()
    }

    #[must_use]
    pub fn epolls(&self) -> usize {
        self.ledger.epolls()
    }

    /// io_urings without busy polling, with the reason: process, file descriptor, reason.
    pub fn rings_left_alone(&self) -> impl Iterator<Item = (Pid, i32, &str)> {
        self.ledger.rings_left_alone()
    }

    /// Takes a snapshot of the programs and the devices in their namespaces; `None` if no program is running.
    fn look(&mut self, pass: &mut Pass) -> Result<Option<Snapshot>, AttachError> {
        let mut last = None;
        for _ in 0..TRIES {
            self.find_programs(pass)?;
            if self.targets.pids().is_empty() {
                return Ok(None);
            }
            match look_at_programs(&self.targets, &self.steered) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(error) => {
                    debug!(%error, "could not take a snapshot: trying again");
                    last = Some(error);
                }
            }
        }
        Err(last.map_or(AttachError::Target(TargetError::Gone), AttachError::Look))
    }

    fn find_programs(&mut self, pass: &mut Pass) -> Result<(), AttachError> {
        let turnover = self.targets.refresh()?;
        for target in &turnover.started {
            self.transaction.add_target(target.clone())?;
        }
        pass.started.extend(turnover.started);
        pass.ended.extend(turnover.ended);
        Ok(())
    }

    /// Whether it steers connections.
    #[must_use]
    pub fn steers(&self) -> bool {
        self.transaction.history().is_some_and(History::steers)
    }

    /// Carries out steps for which [`are_made_together`] holds. Returns for each step whether it changed anything.
    /// Stops at the first journal error or when the observer requests it.
    fn set_together(
        &mut self,
        steps: &[AttachStep],
        observer: &mut AttachObserver<'_>,
    ) -> Vec<Result<bool, ChangeError>> {
        let epolls: Vec<EpollToSet> = steps.iter().filter_map(|step| self.epoll_to_set(step)).collect();
        if epolls.is_empty() {
            return steps.iter().map(|step| self.set(step, observer)).collect();
        }
        let first = self.changes;
        self.changes += epolls.len();
        let made = self.transaction.set_epolls(&epolls, &mut |place, stage| observer(first + place, stage));
        match made {
            Ok(made) => steps
                .iter()
                .zip(made)
                .map(|(step, made)| self.unless_vanished(step, made.map_err(Into::into)))
                .collect(),
            Err(error) => vec![Err(error)],
        }
    }

    fn epoll_to_set(&self, step: &AttachStep) -> Option<EpollToSet> {
        let AttachStep::Epoll(step) = step else { return None };
        let process = self.targets.identity(step.pid, step.start_time_ticks);
        let (watched, duplicates) = (step.watched.clone(), step.duplicates.clone());
        Some(EpollToSet { process, fd: step.fd, watched, duplicates, new: step.new })
    }

    /// Carries out one step. Returns whether it changed anything.
    fn set(&mut self, step: &AttachStep, observer: &mut AttachObserver<'_>) -> Result<bool, ChangeError> {
        let number = self.changes;
        self.changes += 1;
        let mut notify = |stage| observer(number, stage);
        let made = match step {
            AttachStep::Queue(queue) => {
                let namespace =
                    namespaces::by_cookie(&self.proc, queue.namespace_cookie).map_err(SettingsError::from)?;
                let Some(namespace) = namespace else {
                    info!(step = describe_step(step), "skipped: the network namespace no longer exists");
                    return Ok(false);
                };
                self.set_queue(&namespace, queue, &mut notify)
            }
            AttachStep::Epoll(_) => unreachable!("epolls are made together"),
            AttachStep::Sockets(step) => {
                let process = self.targets.identity(step.pid, step.start_time_ticks);
                let sockets = self.ledger.record_sockets(step);
                self.transaction.set_sockets(process, &sockets, step.new).map(|changed| changed > 0)
            }
            AttachStep::Ring(step) => {
                let process = self.targets.identity(step.pid, step.start_time_ticks);
                self.transaction
                    .set_ring(process, step.fd, step.new)
                    .map(|left_alone| self.ledger.record_ring(step, left_alone))
            }
        };
        self.unless_vanished(step, made)
    }

    fn unless_vanished(&mut self, step: &AttachStep, made: Result<bool, ChangeError>) -> Result<bool, ChangeError> {
        match made {
            Err(ChangeError::Settings(error)) if error.is_absent() => {
                info!(step = describe_step(step), %error, "skipped: the object no longer exists");
                Ok(false)
            }
            other => {
                self.ledger.record(step);
                other
            }
        }
    }

    fn set_queue(
        &mut self,
        namespace: &Namespace,
        step: &QueueStep,
        notify: &mut quell_change::transaction::ChangeObserver<'_>,
    ) -> Result<bool, ChangeError> {
        let Some(poller) = &self.poller else {
            return self.transaction.set_napi_observed(namespace, step.napi, &step.new, notify);
        };
        // The poller finds the queue in the journal. The queue must not defer before it is polled.
        let mut not_polled = None;
        let mut observer = |stage| {
            if stage == ChangeStage::Journalled
                && let Err(error) = poller.wait_until_polled(step.napi)
            {
                not_polled = Some(error);
                return ControlFlow::Break(());
            }
            notify(stage)
        };
        let set = self.transaction.set_napi_observed(namespace, step.napi, &step.new, &mut observer);
        match not_polled {
            Some(error) => Err(ChangeError::NotPolled { napi: step.napi, why: error.to_string() }),
            None if set.is_ok() && !self.transaction.history().is_some_and(|history| history.has_queue(step.napi)) => {
                Err(ChangeError::NotPolled {
                    napi: step.napi,
                    why: "it has the values of the mode already; choose another gro-flush-timeout".to_owned(),
                })
            }
            None => set,
        }
    }
}

impl<'a> From<&'a mut Attachment> for PlacedPrograms<'a> {
    fn from(attachment: &'a mut Attachment) -> Self {
        let Attachment { transaction, targets, steered, changes, .. } = attachment;
        Self { transaction, targets, steered, changes }
    }
}

/// Whether both steps can share one write of the journal to disk. Only epoll steps can.
fn are_made_together(one: &AttachStep, other: &AttachStep) -> bool {
    matches!((one, other), (AttachStep::Epoll(_), AttachStep::Epoll(_)))
}

/// Forgets stalls of earlier attachments of the programs. A record that stays is only reported once more.
fn forget_stalls_of(journal: &Journal, transaction: &Transaction, targets: &Targets) {
    let is_of_them = |record: &StallRecord| {
        record.programs.iter().any(|program| targets.living().any(|target| target.is_same_process(program)))
    };
    let _ = journal.forget_stalls(&transaction.boot_id(), is_of_them);
}
