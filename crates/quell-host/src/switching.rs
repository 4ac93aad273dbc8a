//! Switches running programs between delivery modes while they serve requests, as an experiment does many times a
//! minute. The journal contains every value in advance, so a switch writes nothing to disk. An undo by another process
//! therefore recognises the values of every mode.
//!
//! [`SwitchPlan::new`] decides, without changing anything. [`BegunSwitching`] can steer connections and pin workers, which
//! stays for all modes. [`BegunSwitching::record`] records, [`Switching::switch_to`] sets, [`Switching::end`] restores.
//!
//! Queues are set before epolls. If a change ends the suspension of a queue, [`quell_change::settings`] frees the queue. An
//! epoll that still prefers busy polling cannot suspend it again. Epolls can therefore be set without a search for
//! sockets, which takes long in a program with many connections.

mod reported;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use quell_change::journal::{Journal, JournalError, Purpose};
use quell_change::namespaces;
use quell_change::recovery::Reverted;
use quell_change::settings::epoll::EpollPlace;
use quell_change::settings::{SettingsError, epoll, set_queue};
use quell_change::transaction::{
    ChangeError, EpollValues, QueueValues, Transaction, epolls_without, queues_without, refuse_queues_of_programs,
};
use quell_linux::netdev::Netdev;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{CpuList, NapiId, Pid};
use quell_mode::{DeliveryMode, EpollParams, NapiSettings, PartialNapiSettings};
use quell_sampler::SamplerError;

use crate::attach::attachment::StartKeeper;
use crate::attach::journal_name;
use crate::attach::later_queues::later_queues;
use crate::attach::measured::{MeasuredAttachments, measured_attachments};
use crate::attach::no_queue::{NoQueueCause, SEND_REQUESTS};
use crate::attach::placement::PlacedPrograms;
use crate::attach::plan::{AttachObstacle, AttachPlan, AttachRequest, AttachStep, EpollsSetBy, Limitation, plan};
use crate::attach::poller::PollerError;
use crate::attach::poller::threads::PollingThreads;
use crate::attach::stall::SuspendedQueue;
use crate::attach::stall_guard::StallGuard;
use crate::attach::{AttachError, SocketId, Targets};
use crate::snapshot::Snapshot;
use crate::snapshot::query::SnapshotQuery;

pub use reported::{ModeValues, ReportedEpoll, ReportedQueue, ReportedSettings, ReportedValues};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SwitchPlan {
    pub modes: Vec<DeliveryMode>,
    pub queues: Vec<SwitchedQueue>,
    pub epolls: Vec<SwitchedEpoll>,
    /// Obstacles by mode; empty for a mode that can be set.
    pub impossible: Vec<Vec<AttachObstacle>>,
    pub limitations: Vec<Vec<Limitation>>,
    /// Plan of each mode on its own, as `attach` would make it.
    pub plans: Vec<AttachPlan>,
    /// CPUs on which polling threads may run, unless a mode selects one. Empty: all.
    pub poller_cpus: CpuList,
    pub accepts_stalls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchedQueue {
    pub namespace_cookie: u64,
    pub device: String,
    pub queues: Vec<u32>,
    pub napi: NapiId,
    /// IRQ number; absent if the instance has no interrupt or it is unknown.
    pub irq: Option<u32>,
    /// Current values, with the same fields as those of the modes.
    pub old: PartialNapiSettings,
    /// Values by mode, each with the same fields.
    pub values: Vec<PartialNapiSettings>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchedEpoll {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub fd: i32,
    pub sockets: usize,
    pub napis: Vec<NapiId>,
    pub watched: Vec<SocketId>,
    /// Further descriptors of the epoll.
    pub duplicates: Vec<EpollPlace>,
    pub old: EpollParams,
    pub params: Vec<EpollParams>,
}

/// An experiment that has a journal and a keeper, and no modes yet. Dropping it restores everything.
#[derive(Debug)]
pub struct BegunSwitching {
    transaction: Transaction,
    targets: Targets,
    measured: MeasuredAttachments,
    /// Sockets with a filter, and the number of queues that it selects for each.
    steered: BTreeMap<u64, u32>,
    changes: usize,
}

/// A queue, and how its namespace and its settings are reached.
type OpenQueue = (Namespace, Netdev, SwitchedQueue);

/// Programs that are being switched between modes. Dropping it restores everything.
#[derive(Debug)]
pub struct Switching {
    transaction: Transaction,
    targets: Targets,
    proc: ProcRoot,
    queues: Vec<OpenQueue>,
    epolls: Vec<SwitchedEpoll>,
    modes: Vec<DeliveryMode>,
    reported: ReportedSettings,
    poller_cpus: CpuList,
    /// Polling threads of the current mode. They are dropped after the transaction, which restores the queues.
    polling: Option<PollingThreads>,
    /// Index of the current mode; `None` before the first switch, and after a failed one.
    current: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("there is nothing to switch: {0}; {SEND_REQUESTS}, then try again")]
    NothingToSwitch(NoQueueCause),
    /// No queue of the programs is known, because no mode can be planned.
    #[error("not possible here: {what}: {why}; nothing was changed", what = .0.what, why = .0.reason)]
    NotPossible(AttachObstacle),
    #[error("the network namespace of {0} is gone")]
    NamespaceGone(String),
    #[error("another program has changed {what} from {set} to {now}, so modes cannot be compared")]
    ChangedByOthers { what: String, set: String, now: String },
    #[error("process {0} has exited")]
    ProgramEnded(Pid),
    #[error(transparent)]
    Poller(#[from] PollerError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl SwitchPlan {
    #[must_use]
    pub fn new(snapshot: &Snapshot, targets: &Targets, modes: &[DeliveryMode]) -> Self {
        Self::of_plans(modes, plans(snapshot, &targets.pids(), modes))
    }

    /// The same with the queues from which the next connections of the programs can come.
    #[must_use]
    pub fn with_later_queues(snapshot: &Snapshot, targets: &Targets, modes: &[DeliveryMode]) -> Self {
        let (query, pids) = (SnapshotQuery::new(snapshot, None), targets.pids());
        let later = later_queues(snapshot, &pids);
        let mut plans = plans(snapshot, &pids, modes);
        for (plan, mode) in plans.iter_mut().zip(modes) {
            plan.add_later_queues(&query, &pids, &later, mode);
        }
        Self::of_plans(modes, plans)
    }

    fn of_plans(modes: &[DeliveryMode], plans: Vec<AttachPlan>) -> Self {
        let mut switched = Self {
            modes: modes.to_vec(),
            queues: queues(&plans),
            epolls: epolls(&plans),
            impossible: plans.iter().map(|plan| plan.impossible.clone()).collect(),
            limitations: plans.iter().map(|plan| plan.limitations.clone()).collect(),
            plans,
            poller_cpus: CpuList::default(),
            accepts_stalls: false,
        };
        for (plan, impossible) in switched.plans.iter().zip(&mut switched.impossible) {
            impossible.extend(plan.steps.iter().find_map(only_once));
        }
        switched
    }

    /// Index of the first mode that changes nothing: what the queues and epolls have now. Never one with a poller, which
    /// they do not show.
    #[must_use]
    pub fn present(&self) -> Option<usize> {
        let is_present = |mode: &usize| {
            self.impossible[*mode].is_empty()
                && self.modes[*mode].poller().is_none()
                && self.queues.iter().all(|queue| queue.values[*mode] == queue.old)
                && self.epolls.iter().all(|epoll| epoll.params[*mode] == epoll.old)
        };
        (0..self.plans.len()).find(is_present)
    }

    /// Current settings of all queues and all epolls as a mode, under its own name if it has one. `None` if they
    /// differ, or if no mode has them.
    #[must_use]
    pub fn present_setting(&self) -> Option<DeliveryMode> {
        let queues: Vec<PartialNapiSettings> = self.queues.iter().map(|queue| queue.old).collect();
        let epolls: Vec<EpollParams> = self.epolls.iter().map(|epoll| epoll.old).collect();
        common_setting(&queues, &epolls)
    }

    /// Settings that the queues and epolls would have without the attachments, as a mode; see [`Self::present_setting`].
    pub fn setting_without(
        &self,
        journal: &Journal,
        attachments: &MeasuredAttachments,
    ) -> Result<Option<DeliveryMode>, SwitchError> {
        let ended = &attachments.journals;
        let queues = queues_without(journal, ended, self.queues.iter().map(SwitchedQueue::place))?;
        // The attachment may have set more than the modes of this plan do.
        let switched = self.queues.first().map_or(PartialNapiSettings::NONE, |queue| queue.old);
        let queues: Vec<_> = queues.iter().map(|values| values.where_present_in(&switched)).collect();
        let epoll = |epoll: &SwitchedEpoll| (EpollPlace::new(epoll.pid, epoll.start_time_ticks, epoll.fd), epoll.old);
        let epolls = epolls_without(journal, ended, self.epolls.iter().map(epoll))?;
        Ok(common_setting(&queues, &epolls))
    }

    /// Checks whether there is a queue to switch.
    ///
    /// # Errors
    /// [`SwitchError::NothingToSwitch`] if packets could help, otherwise [`SwitchError::NotPossible`].
    pub fn check_queues(&self) -> Result<(), SwitchError> {
        if !self.queues.is_empty() {
            return Ok(());
        }
        match self.impossible.iter().map(|of_mode| of_mode.first()).collect::<Option<Vec<_>>>().as_deref() {
            Some([obstacle, ..]) => Err(SwitchError::NotPossible((*obstacle).clone())),
            _ => {
                let cause = self.plans.iter().find_map(|plan| plan.without_queue.clone());
                Err(SwitchError::NothingToSwitch(cause.unwrap_or_default()))
            }
        }
    }

    #[must_use]
    pub fn napis(&self) -> BTreeSet<NapiId> {
        self.queues.iter().map(|queue| queue.napi).collect()
    }
}

fn plans(snapshot: &Snapshot, pids: &BTreeSet<Pid>, modes: &[DeliveryMode]) -> Vec<AttachPlan> {
    let request = |mode: &DeliveryMode| AttachRequest { mode: *mode, epolls: EpollsSetBy::Attachment };
    modes.iter().map(|mode| plan(snapshot, None, pids, &request(mode))).collect()
}

/// Settings that all queues and all epolls have, as a mode. `None` if they differ, or if no mode has them.
fn common_setting(queues: &[PartialNapiSettings], epolls: &[EpollParams]) -> Option<DeliveryMode> {
    let queue = queues.first()?;
    let epoll = epolls.first().copied().unwrap_or_default();
    let is_equal = queues.iter().all(|other| other == queue) && epolls.iter().all(|other| *other == epoll);
    let napi = PartialNapiSettings::from(NapiSettings::default()).changed_by(queue).complete()?;
    is_equal.then(|| DeliveryMode::recognised(napi, epoll))?
}

/// Sockets cannot be switched under load, because connections inherit busy polling from their listening socket and keep
/// it after a switch.
fn only_once(step: &AttachStep) -> Option<AttachObstacle> {
    let what = match step {
        AttachStep::Sockets(_) => "switch busy polling of sockets",
        AttachStep::Ring(_) => "switch busy polling of an io_uring",
        AttachStep::Queue(_) | AttachStep::Epoll(_) => return None,
    };
    let why = "an experiment can switch only queues and epolls; `quell bench -- COMMAND` starts a program under it";
    Some(AttachObstacle { what: what.to_owned(), reason: why.to_owned() })
}

/// Collects the queues of all plans. If a mode does not set a field of a queue, it gets the current value of the field.
fn queues(plans: &[AttachPlan]) -> Vec<SwitchedQueue> {
    let mut old: BTreeMap<NapiId, PartialNapiSettings> = BTreeMap::new();
    let mut queues: BTreeMap<NapiId, SwitchedQueue> = BTreeMap::new();
    for step in plans.iter().flat_map(AttachPlan::queues) {
        let known = old.entry(step.napi).or_default();
        *known = known.changed_by(&step.old);
        queues.entry(step.napi).or_insert_with(|| SwitchedQueue {
            namespace_cookie: step.namespace_cookie,
            device: step.device.clone(),
            queues: step.queues.clone(),
            napi: step.napi,
            irq: step.irq,
            old: PartialNapiSettings::default(),
            values: Vec::new(),
        });
    }
    for queue in queues.values_mut() {
        queue.old = old[&queue.napi];
    }
    for plan in plans {
        for queue in queues.values_mut() {
            let new = plan
                .queues()
                .find(|step| step.napi == queue.napi)
                .map_or(PartialNapiSettings::default(), |step| step.new);
            queue.values.push(queue.old.changed_by(&new));
        }
    }
    queues.into_values().collect()
}

/// Collects the epolls of all plans. If a mode does not set epolls, they get the kernel's default, which is no busy
/// polling.
fn epolls(plans: &[AttachPlan]) -> Vec<SwitchedEpoll> {
    let mut epolls: BTreeMap<(Pid, i32), SwitchedEpoll> = BTreeMap::new();
    for step in plans.iter().flat_map(AttachPlan::epolls) {
        epolls.entry((step.pid, step.fd)).or_insert_with(|| SwitchedEpoll {
            pid: step.pid,
            start_time_ticks: step.start_time_ticks,
            fd: step.fd,
            sockets: step.sockets,
            napis: step.napis.clone(),
            watched: step.watched.clone(),
            duplicates: step.duplicates.clone(),
            old: step.old,
            params: Vec::new(),
        });
    }
    for plan in plans {
        for ((pid, fd), epoll) in &mut epolls {
            let step = plan.epolls().find(|step| (step.pid, step.fd) == (*pid, *fd));
            epoll.params.push(step.map_or(EpollParams::default(), |step| step.new));
        }
    }
    epolls.into_values().collect()
}

impl SwitchedQueue {
    fn place(&self) -> (u64, NapiId) {
        (self.namespace_cookie, self.napi)
    }
}

impl SwitchedEpoll {
    fn values(&self, targets: &Targets) -> EpollValues {
        EpollValues {
            process: targets.identity(self.pid, self.start_time_ticks),
            fd: self.fd,
            watched: self.watched.clone(),
            duplicates: self.duplicates.clone(),
            old: self.old,
            values: self.params.iter().chain([&self.old]).copied().collect(),
        }
    }
}

impl BegunSwitching {
    /// Creates the journal, and starts the keeper that restores everything if this process is killed. `purpose` is an
    /// experiment, a search, or a lab with its own programs. The programs may be attached ([`measured_attachments`]): the
    /// experiment is then the newest owner.
    ///
    /// # Errors
    /// See [`SwitchError`]. Nothing was changed in that case.
    pub fn begin(
        journal: &Journal,
        purpose: Purpose,
        targets: Targets,
        start_keeper: Option<&mut StartKeeper<'_>>,
    ) -> Result<Self, SwitchError> {
        let measured = measured_attachments(journal, &targets)?;
        let name = journal_name::of_experiment(targets.selection());
        let mut transaction = Transaction::begin(journal, &name, purpose)?;
        for target in targets.living() {
            transaction.add_target(target.clone())?;
        }
        if let Some(start_keeper) = start_keeper {
            start_keeper(transaction.journal_path()).map_err(AttachError::Keeper)?;
        }
        Ok(Self { transaction, targets, measured, steered: BTreeMap::new(), changes: 0 })
    }

    /// Records the values of all modes. Sets none of them.
    ///
    /// # Errors
    /// See [`SwitchError`]. Everything was restored in that case.
    pub fn record(self, plan: &SwitchPlan) -> Result<Switching, SwitchError> {
        let Self { mut transaction, targets, measured, .. } = self;
        plan.check_queues()?;
        if plan.accepts_stalls {
            transaction.accept_stalls()?;
        }
        let proc = ProcRoot::default();
        let mut queues = Vec::new();
        for queue in &plan.queues {
            let namespace = namespaces::by_cookie(&proc, queue.namespace_cookie).map_err(SettingsError::from)?;
            let namespace = namespace.ok_or_else(|| SwitchError::NamespaceGone(queue.device.clone()))?;
            let netdev = Netdev::open_in(&namespace)?;
            queues.push((namespace, netdev, queue.clone()));
        }
        // All values of all modes are recorded once, before the first switch. A switch then writes nothing to the disk,
        // which would disturb the measurement, and any of the values is recognized as Quell's.
        let recorded: Vec<QueueValues<'_>> = queues
            .iter()
            .map(|(namespace, _, queue)| QueueValues {
                namespace,
                napi: queue.napi,
                old: queue.old,
                values: queue.values.iter().chain([&queue.old]).copied().collect(),
            })
            .collect();
        let epolls: Vec<EpollValues> = plan.epolls.iter().map(|epoll| epoll.values(&targets)).collect();
        transaction.record_switched(&measured.journals, &recorded, &epolls)?;
        Ok(Switching {
            transaction,
            targets,
            proc,
            queues,
            epolls: plan.epolls.clone(),
            modes: plan.modes.clone(),
            reported: ReportedSettings::before(plan),
            poller_cpus: plan.poller_cpus.clone(),
            polling: None,
            current: None,
        })
    }
}

impl<'a> From<&'a mut BegunSwitching> for PlacedPrograms<'a> {
    fn from(begun: &'a mut BegunSwitching) -> Self {
        let BegunSwitching { transaction, targets, steered, changes, .. } = begun;
        Self { transaction, targets, steered, changes }
    }
}

impl Switching {
    /// Begins an experiment without placement of connections and workers; see [`BegunSwitching`].
    pub fn begin(
        journal: &Journal,
        purpose: Purpose,
        targets: Targets,
        plan: &SwitchPlan,
        start_keeper: Option<&mut StartKeeper<'_>>,
    ) -> Result<Self, SwitchError> {
        BegunSwitching::begin(journal, purpose, targets, start_keeper)?.record(plan)
    }

    #[must_use]
    pub fn journal_path(&self) -> &Path {
        self.transaction.journal_path()
    }

    /// Sets the mode with this index in the plan and verifies every value. Skips epolls that the program has closed.
    ///
    /// # Errors
    /// When another program has changed a value, the kernel refuses, or a program has exited. Some of the values may be
    /// set in that case.
    pub fn switch_to(&mut self, mode: usize) -> Result<(), SwitchError> {
        self.switch(Some(mode))
    }

    /// Sets the values from before the experiment. It can continue with another mode.
    pub fn set_none(&mut self) -> Result<(), SwitchError> {
        self.switch(None)
    }

    /// Begins to watch the queues for stalls; `None` if no mode suspends or stalls are accepted.
    pub fn stall_guard(&self) -> Result<Option<StallGuard>, SamplerError> {
        let suspends = |values: &PartialNapiSettings| values.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        let suspended = self.queues.iter().filter(|(.., queue)| queue.values.iter().any(suspends));
        let queue =
            |(.., queue): &OpenQueue| SuspendedQueue { napi: queue.napi, namespace_cookie: queue.namespace_cookie };
        let queues: Vec<SuspendedQueue> = suspended.map(queue).collect();
        if queues.is_empty() || self.transaction.history().is_some_and(|history| history.accepts_stalls) {
            return Ok(None);
        }
        StallGuard::start(queues, self.targets.pids()).map(Some)
    }

    /// Threads of this process that poll the queues under the current mode.
    #[must_use]
    pub fn polling_tids(&self) -> Vec<Pid> {
        self.polling.iter().flat_map(PollingThreads::tids).map(|(_, tid)| tid).collect()
    }

    /// Polling threads of a mode. Checks that those of the current mode have polled until now.
    fn begin_polling(&mut self, mode: Option<usize>) -> Result<Option<PollingThreads>, SwitchError> {
        self.polling.as_mut().map_or(Ok(()), PollingThreads::failed)?;
        let Some((mode, settings)) = mode.and_then(|mode| Some((mode, self.modes.get(mode)?.poller()?))) else {
            return Ok(None);
        };
        let timeout = |queue: &SwitchedQueue| queue.values.get(mode)?.gro_flush_timeout_ns;
        let queue = |(.., queue): &OpenQueue| (queue.napi, Duration::from_nanos(timeout(queue).unwrap_or_default()));
        let mut threads = PollingThreads::new(settings).within(self.poller_cpus.clone());
        threads.set(&self.queues.iter().map(queue).collect())?;
        Ok(Some(threads))
    }

    fn switch(&mut self, mode: Option<usize>) -> Result<(), SwitchError> {
        // A queue must not defer without its poller: the threads begin before it is set, and end afterwards.
        let polling = self.begin_polling(mode)?;
        let polled_before = std::mem::replace(&mut self.polling, polling);
        let switched = self.set_values(mode);
        drop(polled_before);
        switched
    }

    fn set_values(&mut self, mode: Option<usize>) -> Result<(), SwitchError> {
        let current = self.current.take();
        let current_mode = current.and_then(|current| self.modes.get(current)).copied();
        for ((namespace, netdev, queue), reported) in self.queues.iter_mut().zip(&mut self.reported.queues) {
            let Some(wanted) = mode.map_or(Some(&queue.old), |mode| queue.values.get(mode)) else { continue };
            let now = netdev.napi(queue.napi)?.settings.where_present_in(wanted);
            current_mode.into_iter().for_each(|mode| reported.values.set_under(mode, now));
            if let Some(set) = current.and_then(|current| queue.values.get(current)).filter(|set| **set != now) {
                let what = format!("NAPI {} of {}", queue.napi, queue.device);
                return Err(SwitchError::ChangedByOthers { what, set: set.to_string(), now: now.to_string() });
            }
            if now != *wanted {
                set_queue(namespace, &self.proc, queue.napi, wanted)?;
            }
        }
        let mut closed = Vec::new();
        for of_process in self.epolls.chunk_by(|one, other| one.pid == other.pid) {
            let process = self.targets.identity(of_process[0].pid, of_process[0].start_time_ticks);
            let program = match epoll::Program::open(&self.proc, process, false) {
                Err(error) if error.is_absent() => return Err(SwitchError::ProgramEnded(of_process[0].pid)),
                program => program?,
            };
            for epoll in of_process {
                let Some(wanted) = mode.map_or(Some(&epoll.old), |mode| epoll.params.get(mode)) else { continue };
                let set = current.and_then(|current| epoll.params.get(current)).unwrap_or(&epoll.old);
                let changed = program.change(epoll.fd, *set, *wanted);
                if let (Some(mode), Ok(now)) = (current_mode, &changed)
                    && let Some(reported) = self.reported.epoll(epoll.pid, epoll.fd)
                {
                    reported.set_under(mode, *now);
                }
                match changed {
                    Ok(now) if now == *set => {}
                    Ok(now) => {
                        let what = format!("epoll {} of process {}", epoll.fd, epoll.pid);
                        return Err(SwitchError::ChangedByOthers { what, set: set.to_string(), now: now.to_string() });
                    }
                    Err(error) if error.is_absent() => closed.push((epoll.pid, epoll.fd)),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.epolls.retain(|epoll| !closed.contains(&(epoll.pid, epoll.fd)));
        self.current = mode;
        Ok(())
    }

    /// Index of the mode that is set; `None` if it is the state from before the experiment, or a switch failed.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    #[must_use]
    pub fn epolls(&self) -> usize {
        self.epolls.len()
    }

    #[must_use]
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Restores the values from before the experiment. Returns all values that the kernel reported, too.
    ///
    /// # Errors
    /// When the journal could not be removed after everything was undone.
    pub fn end(mut self) -> Result<(Reverted, ReportedSettings), JournalError> {
        let mode = self.current.and_then(|current| self.modes.get(current)).copied();
        mode.into_iter().for_each(|mode| self.reported.read_under(mode, &mut self.queues, &self.epolls, &self.targets));
        let reverted = self.transaction.revert()?;
        self.reported.read_after(&mut self.queues, &self.epolls, &self.targets);
        Ok((reverted, self.reported))
    }
}

/// Checks that no mode of another program has set a queue of the plan. [`BegunSwitching::record`] checks it again.
pub fn refuse_queues_of_others(
    journal: &Journal,
    measured: &MeasuredAttachments,
    plan: &SwitchPlan,
) -> Result<(), SwitchError> {
    Ok(refuse_queues_of_programs(journal, &measured.journals, plan.queues.iter().map(SwitchedQueue::place))?)
}
