//! Experiments on a command that is started again for each slice, under the mode of the slice. In this way, modes that
//! cannot be set on a running program can be measured, for example busy polling of sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use quell_experiment::{ExperimentSubject, SetFailure, SliceObservation};
use quell_host::attach::effect::{EffectOnQueue, ModeVerdict, judge};
use quell_host::attach::launch::own_devices;
use quell_host::attach::no_poll::no_poll_cause;
use quell_host::attach::{Selection, TargetError, Targets, observe};
use quell_host::findings::{Finding, examine};
use quell_host::snapshot::{Snapshot, SnapshotScope, SocketState, TakeError, napis_of_files, take};
use quell_linux::proc::ProcRoot;
use quell_linux::{CpuList, NapiId, Pid};
use quell_load::{Generator, LoadError, LoadSpec, OfferedLoad, RunningLoad};
use quell_mode::{DeliveryMode, ModeKind};
use quell_result::facts::{OtherProgramFacts, ProblemFacts};
use quell_sampler::QueueSample;

use super::judge::{JudgeError, JudgeOutcome, Judges, look_while};
use super::program::{Observer, observation};
use super::{ComparisonError, server_side};
use crate::bench_load::{UntilStopped, schedule};
use crate::counters::{Instruments, QueueSamples, Watched};
use crate::lab::veth::VethLab;
use crate::other_programs::ProcessTimes;

/// Time limit for the command to open a listening socket.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// Interval between two checks whether the command listens.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Starts and stops the command. The implementation records the command in the journal, so it is also stopped if this
/// process is killed.
pub trait CommandRunner {
    /// Starts the command under a mode. Returns a process whose descendants are the server.
    ///
    /// # Errors
    /// Fails if the command cannot be started under this mode.
    fn start(&mut self, mode: &DeliveryMode) -> Result<Pid, CommandFailure>;

    /// Called when the command listens. Starts the load, if the user specified one.
    ///
    /// # Errors
    /// Fails if the load cannot be started.
    fn listens(&mut self) -> Result<(), CommandFailure>;

    /// Checks that the command and its load are still running.
    ///
    /// # Errors
    /// Fails if one of them has exited.
    fn check_running(&mut self) -> Result<(), CommandFailure>;

    /// Returns the reason why the mode has no effect on the processes `pids`. Returns `None` if the mode has an effect,
    /// or if this is unknown.
    fn why_without_effect(&self, mode: &DeliveryMode, snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Option<String>;

    /// Stops the load and the command, and waits until the queues are restored. Does nothing if neither is running.
    ///
    /// # Errors
    /// Fails if a process could not be stopped or a setting could not be restored.
    fn stop(&mut self) -> Result<(), CommandFailure>;
}

/// Reason why the command does not run under a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandFailure {
    /// This host or this command does not support the mode. Other modes may be possible.
    #[error("{0}")]
    NotPossible(String),
    /// The command or its load failed.
    #[error("{0}")]
    Failed(String),
}

/// Reason why an experiment on a command failed. The command was stopped and all settings were restored, except in the
/// case [`CommandSubjectError::NotEnded`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandSubjectError {
    /// The command or its load failed.
    #[error(transparent)]
    Command(#[from] CommandFailure),
    /// A mode has no effect on the command.
    #[error("{0}")]
    NoEffect(String),
    /// The command opened no listening socket.
    #[error("the command opened no listening TCP socket and no bound UDP socket within {LISTENS_WITHIN:?}")]
    NeverListened,
    /// The judge failed or printed no figures.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The command's processes could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The snapshot of the host could not be taken.
    #[error(transparent)]
    Snapshot(#[from] TakeError),
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A process could not be stopped or a setting could not be restored. The change stays in the journal.
    #[error(
        "the command was not stopped or its settings were not restored (`quell status` lists them, `quell revert` tries again): {0}"
    )]
    NotEnded(CommandFailure),
}

/// Quell's generator as the client of a command that runs in the server's namespace of a lab. When the command listens,
/// it connects, stores the keys of its workload, and sends.
pub struct LabClient<'a> {
    lab: &'a VethLab,
    spec: LoadSpec,
    rate_per_s: Option<f64>,
    running: Option<RunningLoad>,
}

impl<'a> LabClient<'a> {
    /// Creates a client that does not send yet. Without a rate, it sends in a closed loop.
    #[must_use]
    pub fn new(lab: &'a VethLab, spec: LoadSpec, rate_per_s: Option<f64>) -> Self {
        Self { lab, spec, rate_per_s, running: None }
    }

    /// Configuration of the generator.
    #[must_use]
    pub fn spec(&self) -> &LoadSpec {
        &self.spec
    }

    /// Offered load.
    #[must_use]
    pub fn load(&self) -> OfferedLoad {
        self.rate_per_s.map_or(OfferedLoad::Max, OfferedLoad::Rate)
    }

    fn start(&mut self, stopped: &dyn Fn() -> bool) -> Result<(), LoadError> {
        let mut generator = Generator::connect(self.spec.clone(), Some(self.lab.client.namespace.clone()))?;
        match generator.preload(Generator::PRELOAD_LIMIT, &mut UntilStopped(stopped)) {
            Ok(_) => self.running = Some(generator.keep_running(schedule(self.rate_per_s))?),
            Err(LoadError::Cancelled) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Measures a window, and samples its queues. Returns `None` if `stopped` returned true before the end.
    fn observe(
        &mut self,
        server: Watched,
        napis: BTreeSet<NapiId>,
        slice_ms: u32,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(SliceObservation, QueueSamples)>, LoadError> {
        let Some(load) = &mut self.running else { return Ok(None) };
        let cpus = &self.lab.plan.cpus;
        let watched = Watched {
            server_napi: self.lab.server.napi_threads.clone(),
            generator: load.generator().tids(),
            client_napi: self.lab.client.napi_threads.clone(),
            server_cpus: cpus.server_cpus().into_iter().collect(),
            client_cpus: cpus.client_cpus().into_iter().collect(),
            ..server
        };
        let proc = ProcRoot::default();
        let mut instruments = Instruments::new(napis, &watched.server_cpus);
        let mut observer = Observer::new(&watched, &proc, &mut instruments, stopped);
        match load.measure(Duration::from_millis(slice_ms.into()), &mut observer) {
            Ok(report) => {
                let mut counters = observer.counters(slice_ms);
                let queues = counters.as_mut().map(|counters| std::mem::take(&mut counters.queues));
                Ok(Some((observation(&watched, slice_ms, &report, counters), queues.unwrap_or_default())))
            }
            Err(LoadError::Cancelled) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The subject of an experiment: a command that is started for each slice.
pub struct StartedCommand<'a> {
    runner: &'a mut dyn CommandRunner,
    judges: Judges,
    client: Option<LabClient<'a>>,
    stopped: &'a dyn Fn() -> bool,
    /// Modes that had no effect on the command, with the reasons.
    without_effect: BTreeMap<String, String>,
    /// Whether modes were in effect on the queues of the lab.
    effects: BTreeMap<String, ModeVerdict>,
    /// Problems under some of the modes.
    problems: Vec<ProblemFacts>,
    /// Modes under which its connections were seen.
    examined: BTreeSet<String>,
    running: Option<Running>,
    /// What the judges printed in the most recent slice.
    printed: JudgeOutcome,
    slice_began: Instant,
    /// CPU times before the first start.
    processes: Option<ProcessTimes>,
    /// CPUs of the command in the most recent slice.
    server_cpus: CpuList,
    /// NAPI threads from before the first start. `None` before it.
    napi_threads: Option<BTreeSet<Pid>>,
}

struct Running {
    mode: DeliveryMode,
    /// Process that [`CommandRunner::start`] returned.
    launcher: Pid,
    targets: Targets,
}

impl<'a> StartedCommand<'a> {
    /// Creates the subject without starting the command.
    #[must_use]
    pub fn new(runner: &'a mut dyn CommandRunner, judges: Judges, stopped: &'a dyn Fn() -> bool) -> Self {
        Self {
            runner,
            judges,
            client: None,
            stopped,
            without_effect: BTreeMap::new(),
            effects: BTreeMap::new(),
            problems: Vec::new(),
            examined: BTreeSet::new(),
            running: None,
            printed: JudgeOutcome::default(),
            slice_began: Instant::now(),
            processes: ProcessTimes::read(&ProcRoot::default()),
            server_cpus: CpuList::default(),
            napi_threads: None,
        }
    }

    /// Loads and measures the command with this client. There must be no judges.
    #[must_use]
    pub fn with_client(self, client: Option<LabClient<'a>>) -> Self {
        Self { client, ..self }
    }

    /// Busiest programs besides the command since this subject was created. The command must have been stopped. `None` if
    /// processes cannot be listed.
    pub(crate) fn other_programs(&self) -> Option<Vec<OtherProgramFacts>> {
        let others =
            self.processes.as_ref()?.others_since(&ProcRoot::default(), std::iter::empty(), &self.server_cpus)?;
        // This process started the server, too.
        Some(others.into_iter().filter(|one| !one.is_of_measurement).collect())
    }

    /// Whether modes were in effect, judged by who polled their queues. Empty outside of a lab.
    pub(crate) fn take_effects(&mut self) -> BTreeMap<String, ModeVerdict> {
        std::mem::take(&mut self.effects)
    }

    /// Problems that its connections had under some of the modes, by the rules of `quell doctor`.
    pub(crate) fn take_problems(&mut self) -> Vec<ProblemFacts> {
        std::mem::take(&mut self.problems)
    }

    /// Adds what its connections showed under a mode. Each start has other processes, so that the text has none.
    fn add_problems(&mut self, mode: DeliveryMode, findings: Option<Vec<Finding>>) {
        let Some(findings) = findings else { return };
        self.examined.insert(mode.to_string());
        for finding in findings {
            match self.problems.iter_mut().find(|known| known.id == finding.id) {
                Some(known) if known.modes.contains(&mode) => {}
                Some(known) => known.modes.push(mode),
                None => self.problems.push(ProblemFacts::new(&finding, finding.observed.clone(), mode)),
            }
        }
    }

    /// Measures one slice under the first mode without recording it. Returns the judges' outcome and the total time of
    /// the slice in milliseconds, including the start and the stop of the command.
    ///
    /// # Errors
    /// Fails if the command does not listen, or if the judge prints no figures.
    pub(crate) fn rehearse(
        &mut self,
        mode: &DeliveryMode,
        slice_ms: u32,
        settle_ms: u32,
    ) -> Result<(JudgeOutcome, f64), ComparisonError> {
        let observed = self.unrecorded_slice(mode, slice_ms, settle_ms)?;
        let spent_ms = observed.spent_ms + self.spent_ms();
        self.slice_began = Instant::now();
        Ok((self.printed.clone(), spent_ms))
    }

    /// Starts the command under a mode, measures one slice, and stops the command.
    ///
    /// # Errors
    /// Fails if the command does not listen, or if the judge prints no figures.
    pub(crate) fn unrecorded_slice(
        &mut self,
        mode: &DeliveryMode,
        slice_ms: u32,
        settle_ms: u32,
    ) -> Result<SliceObservation, ComparisonError> {
        let observed = self.one_slice(mode, slice_ms, settle_ms);
        self.restore()?;
        let observed = observed.map_err(|error| match error {
            CommandSubjectError::Judge(error) => ComparisonError::Judge(error),
            error => ComparisonError::Reference { mode: mode.to_string(), why: error.to_string() },
        })?;
        observed.ok_or(ComparisonError::Interrupted)
    }

    /// Limits the runs of judges to a budget that begins now.
    pub(crate) fn limit_judges(&mut self, budget_ms: u64, slice_ms: u32) {
        self.judges.end_after(budget_ms, slice_ms);
    }

    fn one_slice(
        &mut self,
        mode: &DeliveryMode,
        slice_ms: u32,
        settle_ms: u32,
    ) -> Result<Option<SliceObservation>, CommandSubjectError> {
        self.slice_began = Instant::now();
        self.start(mode)?;
        self.settle(settle_ms)?;
        self.observe(slice_ms)
    }

    fn spent_ms(&self) -> f64 {
        self.slice_began.elapsed().as_secs_f64() * 1e3
    }

    /// Starts the command and waits until it listens.
    fn start(&mut self, mode: &DeliveryMode) -> Result<(), CommandSubjectError> {
        if self.napi_threads.is_none() {
            self.napi_threads = Some(napi_threads(&observe()?));
        }
        let pid = self.runner.start(mode)?;
        let deadline = Instant::now() + LISTENS_WITHIN;
        loop {
            self.runner.check_running()?;
            if (self.stopped)() {
                return Ok(());
            }
            let mut targets = Targets::find(Selection::Processes(vec![pid]))?;
            targets.refresh()?;
            let scope = SnapshotScope { pids: targets.pids().into_iter().collect(), ..SnapshotScope::default() };
            if listens(&take(&scope)?.0) {
                self.runner.listens()?;
                if let Some(client) = &mut self.client {
                    client.start(self.stopped)?;
                }
                self.running = Some(Running { mode: *mode, launcher: pid, targets });
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CommandSubjectError::NeverListened);
            }
            server_side::sleep(LOOK_AGAIN, self.stopped);
        }
    }
}

/// Returns whether a process of the snapshot has a listening TCP socket or a bound UDP socket.
fn listens(snapshot: &Snapshot) -> bool {
    let held = |inode: &u64| {
        let at = snapshot.sockets.binary_search_by_key(inode, |socket| socket.inode).ok()?;
        Some(&snapshot.sockets[at])
    };
    let files = snapshot.processes.iter().filter_map(|process| process.files.known());
    let mut sockets = files.flat_map(|files| &files.sockets).filter_map(|socket| held(&socket.inode));
    sockets.any(|socket| match socket.state {
        SocketState::Listen => true,
        SocketState::Close => socket.local.is_some_and(|local| local.port() != 0),
        _ => false,
    })
}

fn napi_threads(snapshot: &Snapshot) -> BTreeSet<Pid> {
    let queues = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
    queues.filter_map(|napi| Some(napi.thread.known()?.as_ref()?.tid)).collect()
}

/// Returns the NAPI instances that delivered packets to the sockets of the processes `pids`.
fn napis(snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> BTreeSet<NapiId> {
    let processes = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let index = snapshot.index();
    processes
        .filter_map(|process| process.files.known())
        .flat_map(|files| napis_of_files(snapshot, &index, files))
        .collect()
}

/// Findings about the epolls of the processes `pids` that spoil a comparison. `None` without a connection.
fn problems(snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Option<Vec<Finding>> {
    let mut connections = snapshot.sockets_of(pids).filter(|socket| socket.state == SocketState::Established);
    connections.next()?;
    let mut findings = examine(snapshot, None).findings;
    findings.retain(|finding| finding.spoils_comparison() && finding.has_epoll_of(pids));
    Some(findings)
}

/// Examines the processes `pids` after some time, unless the caller is unparked.
fn problems_after(pids: &BTreeSet<Pid>, time: Duration) -> Option<Vec<Finding>> {
    thread::park_timeout(time);
    let scope = SnapshotScope { pids: pids.iter().copied().collect(), ..SnapshotScope::default() };
    problems(&take(&scope).ok()?.0, pids)
}

/// Whether a mode was in effect during a slice on all of these queues. `None` without a queue.
fn in_effect(
    mode: &DeliveryMode,
    slice_ms: u32,
    queues: &[(NapiId, QueueSample)],
    snapshot: &Snapshot,
    pids: &BTreeSet<Pid>,
) -> Option<ModeVerdict> {
    let judged = queues.iter().map(|(napi, sample)| {
        let seen = EffectOnQueue::of(*napi, u64::from(slice_ms) * 1_000_000, sample);
        judge(mode, &seen, || no_poll_cause(snapshot, None, pids, *napi))
    });
    judged.reduce(ModeVerdict::worse)
}

impl ExperimentSubject for StartedCommand<'_> {
    type Setting = DeliveryMode;
    type Error = CommandSubjectError;

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<CommandSubjectError>> {
        if let Some(why) = self.without_effect.get(&mode.to_string()) {
            return Err(SetFailure::NotSettable(CommandSubjectError::NoEffect(why.clone())));
        }
        if mode.poller().is_some() {
            let why = format!("{mode} is compared on running programs (--pid), whose CPUs its poller shares");
            return Err(SetFailure::NotSettable(CommandSubjectError::NoEffect(why)));
        }
        self.restore().map_err(SetFailure::SubjectFailed)?;
        self.start(mode).map_err(|error| match error {
            error @ CommandSubjectError::Command(CommandFailure::NotPossible(_)) => SetFailure::NotSettable(error),
            error => SetFailure::SubjectFailed(error),
        })
    }

    fn settle(&mut self, settle_ms: u32) -> Result<(), CommandSubjectError> {
        server_side::sleep(Duration::from_millis(settle_ms.into()), self.stopped);
        Ok(())
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, CommandSubjectError> {
        let Some(running) = &mut self.running else { return Ok(None) };
        running.targets.refresh()?;
        let pids = running.targets.pids();
        let snapshot = observe()?;
        let mut napis = napis(&snapshot, &pids);
        if napis.is_empty() && !self.judges.is_empty() {
            // They are connected during the slice only.
            napis =
                own_devices(&snapshot).flat_map(|device| device.napis.known_elements()).map(|napi| napi.id).collect();
        }
        let mut watched = server_side::watched(&snapshot, &pids, &napis);
        // Those of a mode exist under it only, where CPU time would otherwise be another quantity.
        watched.server_napi.retain(|tid| self.napi_threads.as_ref().is_some_and(|before| before.contains(tid)));
        // It follows the command under some modes only.
        watched.supervisors = watched.server.extract_if(.., |pid| *pid == running.launcher).collect();
        self.server_cpus.clone_from(&watched.server_cpus);
        let mode = running.mode;
        let is_unknown = mode.kind() != ModeKind::Base && !self.examined.contains(&mode.to_string());
        let (observed, found) = match &mut self.client {
            Some(client) => {
                let observed = client.observe(watched, napis, slice_ms, self.stopped)?;
                let observed = observed.map(|(observed, queues)| {
                    let verdict = in_effect(&mode, slice_ms, &queues, &snapshot, &pids);
                    let known = self.effects.remove(&mode.to_string()).into_iter();
                    let worst = known.chain(verdict).reduce(ModeVerdict::worse);
                    self.effects.extend(worst.map(|worst| (mode.to_string(), worst)));
                    (observed, JudgeOutcome::default())
                });
                (observed, problems(&snapshot, &pids).filter(|_| is_unknown))
            }
            None => {
                let mut instruments = Instruments::new(napis, &watched.server_cpus);
                let mut run = || server_side::observe(&watched, &mut instruments, &self.judges, slice_ms, self.stopped);
                let half = Duration::from_millis(u64::from(slice_ms) / 2);
                let (observed, seen) = match is_unknown {
                    true => look_while(run, |_| problems_after(&pids, half)),
                    false => (run(), None),
                };
                (observed?, seen.flatten())
            }
        };
        self.add_problems(mode, found);
        self.runner.check_running()?;
        if let Some(why) = self.runner.why_without_effect(&mode, &observe()?, &pids) {
            self.without_effect.insert(mode.to_string(), why);
        }
        let spent_ms = self.spent_ms();
        // The analysis after this slice takes time of the next one.
        self.slice_began = Instant::now();
        let Some((observed, printed)) = observed else { return Ok(None) };
        self.printed = printed;
        Ok(Some(SliceObservation { spent_ms, ..observed }))
    }

    fn repeats_slice(&self, error: &CommandSubjectError) -> bool {
        matches!(error, CommandSubjectError::Judge(error) if error.is_worth_repeating())
    }

    fn is_budget_spent(&self, error: &CommandSubjectError) -> bool {
        matches!(error, CommandSubjectError::Judge(JudgeError::BudgetSpent { .. }))
    }

    fn restore(&mut self) -> Result<(), CommandSubjectError> {
        self.running = None;
        if let Some(client) = &mut self.client {
            client.running = None;
        }
        self.runner.stop().map_err(CommandSubjectError::NotEnded)
    }
}
