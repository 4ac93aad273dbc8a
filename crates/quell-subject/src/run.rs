//! Runs `quell bench` in the veth lab: sets up the lab, starts the server and the load, and runs an experiment for each
//! load. Events are reported to the caller.

use std::sync::Arc;

use quell_change::journal::{Journal, JournalError, Purpose};
use quell_change::recovery::{Reverted, recover};
use quell_change::transaction::ChangeError;
use quell_experiment::{ExperimentDesign, SliceStage};
use quell_host::attach::placement::decide;
use quell_host::attach::{Selection, TargetError, Targets, observe};
use quell_host::snapshot::TakeError;
use quell_host::steer::{LookError, NothingSteered, SteerRequest};
use quell_host::switching::{SwitchError, Switching};
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::sched::SchedError;
use quell_linux::{CpuList, kernel};
use quell_load::{Generator, LoadError, OfferedLoad, Polling, RunSpec, RunningLoad, Schedule, Workload};
use quell_mode::{DeliveryMode, NapiSettings, Threaded};
use quell_result::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::CpuLayout;
use quell_result::facts::{Check, HostFacts, LabFacts, WorkerFacts};
use tracing::info;

use crate::bench_load::{self, UntilStopped, schedule};
use crate::beside::{BesideClient, BesideError};
use crate::checks;
use crate::counters::Watched;
use crate::cpus::{self, CpuError, PinnedTo};
use crate::experiment::figures::criteria_of_beside;
use crate::experiment::program::{GeneratorTraffic, Programs, Traffic};
use crate::experiment::{ComparisonError, Preview, compare, needs_launch, one_per_load};
use crate::lab::napi::Queues;
use crate::lab::veth::{LabError, SERVER_DEVICE, VethLab, VethPlan, unique_name};
use crate::question::{Comparison, Follow, SubjectStep, report_slice};
use crate::requirements::{Missing, missing};
use crate::server::{BESIDE_PORT, PORT, Server, ServerCommand, ServerError};
use crate::unsuitable::{Maximum, Unsuitable, other_programs};

/// Number of attempts after which a lab check counts as failed.
const LOOKS_MAX: u32 = 4;

/// Load that gives each connection a NAPI ID before the workers are inspected.
const LOOK_AROUND: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 50, measure_ms: 200 };

/// A server in a lab and its load.
#[derive(Debug, Clone)]
pub struct LabRequest {
    /// Offered loads. Each load has its own experiment.
    pub loads: Vec<OfferedLoad>,
    /// Requests to the server.
    pub workload: Workload,
    /// Second server on the same queues, whose latency is measured too. It must implement memcached's text protocol.
    pub beside: Option<ServerCommand>,
    pub lab: LabSpec,
}

/// What a lab is made for.
#[derive(Debug, Clone)]
pub struct LabSpec {
    pub server: ServerCommand,
    /// Number of receive queues. The server has one worker per queue.
    pub queues: u32,
    /// Number of generator threads.
    pub generators: u32,
    /// Total number of connections.
    pub connections: u32,
    /// Whether NAPI threads replace the interrupts of the server's queues.
    pub interrupt_stand_in: bool,
    /// Whether to measure although there are too few CPUs or a lab check fails.
    pub insist: bool,
    /// Steers the connections of each queue to its own worker, under every mode.
    pub steer: Option<SteerRequest>,
}

/// Reason why there is no result. All changes were undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabRunError {
    /// This machine does not meet a requirement of the lab.
    #[error("this machine cannot run the lab")]
    NotPossibleHere(Vec<Missing>),
    /// The experiment failed.
    #[error(transparent)]
    Experiment(#[from] ComparisonError),
    /// The server's processes could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The host could not be observed.
    #[error(transparent)]
    Snapshot(#[from] TakeError),
    /// The server could not be switched between modes.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The reuseport groups of the server could not be read.
    #[error(transparent)]
    Groups(#[from] LookError),
    /// The server's connections cannot be steered.
    #[error("{0}; the lab was removed")]
    NotSteered(#[from] NothingSteered),
    /// This process may use too few CPUs.
    #[error(transparent)]
    Cpus(#[from] CpuError),
    /// A check before the measurement failed.
    #[error("lab check failed, so the figures of this lab would be wrong; {}", .0.violation())]
    Check(Check),
    /// Changes left by killed runs could not be reverted, or journals could not be read.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The lab could not be set up.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The second server could not be measured.
    #[error(transparent)]
    Beside(#[from] BesideError),
    /// The server could not be started or contacted.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server exited during the run.
    #[error("the server exited during the run")]
    ServerEnded,
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A thread could not be pinned.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The run was interrupted before the first trial.
    #[error("interrupted before the first slice")]
    Interrupted,
}

/// `gro_flush_timeout` of the client's queue while the generator busy polls it, in nanoseconds. The queue's NAPI thread
/// takes over only if the generator has not polled for this long.
const CLIENT_GRO_FLUSH_TIMEOUT_NS: u64 = 1_000_000;
const CLIENT_DEFER_HARD_IRQS: u32 = 100;

/// Sets up the lab, compares modes, and removes the lab. Calls `stopped` often; when it
/// returns true, the run ends early, and the result contains the slices measured so far.
///
/// # Errors
/// See [`LabRunError`].
pub fn run(
    request: &LabRequest,
    comparison: &Comparison,
    journal: &Journal,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, LabRunError> {
    in_lab(request, comparison.timing.seed, journal, follow, stopped, |server, follow| {
        let mut result = ExperimentResult::begin(server.subject.clone()).map_err(ComparisonError::from)?;
        result.not_a_measurement = server.not_a_measurement.clone();
        result.experiments = server.experiments(comparison, follow)?;
        Ok(result)
    })
}

/// Sets up the lab with its servers, runs `measure`, and removes the lab.
///
/// # Errors
/// See [`LabRunError`].
pub fn in_lab<T>(
    request: &LabRequest,
    seed: u64,
    journal: &Journal,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
    measure: impl FnOnce(&mut LabServer<'_>, &mut Follow<'_>) -> Result<T, LabRunError>,
) -> Result<T, LabRunError> {
    in_empty_lab(&request.lab, journal, follow, |host, lab, follow| {
        let mut server = LabServer::start(request, seed, host, lab, journal, follow, stopped)?;
        let result = measure(&mut server, follow)?;
        server.stop()?;
        Ok(result)
    })
}

/// Checks whether this machine can run the lab, and chooses its CPUs. Changes nothing.
///
/// # Errors
/// When something is missing.
pub fn check_possible(spec: &LabSpec) -> Result<(HostFacts, CpuLayout), LabRunError> {
    let missing = missing(&spec.server);
    for lacking in &missing {
        info!(what = lacking.what, seen = lacking.observed, "requirement not met");
    }
    if !missing.is_empty() {
        return Err(LabRunError::NotPossibleHere(missing));
    }
    let host = HostFacts::read(&ProcRoot::default())?;
    let cpus = cpus::assign(&host.cpus, spec.queues as usize, spec.generators as usize, spec.insist)?;
    Ok((host, cpus))
}

/// Sets up the lab without servers, runs `measure`, and removes the lab.
///
/// # Errors
/// See [`LabRunError`].
pub fn in_empty_lab<T>(
    spec: &LabSpec,
    journal: &Journal,
    follow: &mut Follow<'_>,
    measure: impl FnOnce(&HostFacts, &mut VethLab, &mut Follow<'_>) -> Result<T, LabRunError>,
) -> Result<T, LabRunError> {
    let (host, cpus) = check_possible(spec)?;
    follow(SubjectStep::Recovered(&recover(journal)?));
    info!(?cpus, "CPUs chosen");
    if let Some(reason) = other_programs(&cpus)? {
        follow(SubjectStep::Note(&reason.to_string()));
    }
    let _pinned = PinnedTo::new(&cpus.client_cpus())?;
    let mut lab = VethLab::raise(journal, unique_name(), veth_plan(spec, cpus))?;
    let result = measure(&host, &mut lab, follow);
    note_what_is_left(&lab.take_down(), follow);
    result
}

/// The measured slices are valid even if a part of the lab was not removed.
fn note_what_is_left(taken_down: &Result<Reverted, JournalError>, follow: &mut Follow<'_>) {
    match taken_down {
        Ok(reverted) => reverted.failed.iter().for_each(|(_, error)| {
            follow(SubjectStep::Note(&format!("not removed (`quell lab clean` tries again): {error}")));
        }),
        Err(error) => follow(SubjectStep::Note(&error.to_string())),
    }
}

fn veth_plan(spec: &LabSpec, cpus: CpuLayout) -> VethPlan {
    VethPlan { queues: spec.queues, cpus, interrupt_stand_in: spec.interrupt_stand_in, client_napi: client_napi(spec) }
}

/// NAPI settings of the client's queues. A single generator thread with few connections busy polls the single queue.
/// Otherwise NAPI threads poll the queues without deferral, because a generator thread cannot poll several queues or
/// many connections fast enough.
fn client_napi(spec: &LabSpec) -> NapiSettings {
    let threaded = NapiSettings { threaded: Threaded::Thread, ..NapiSettings::default() };
    let polls_itself = spec.queues == 1 && spec.generators == 1 && spec.connections <= Polling::CONNECTIONS_MAX;
    if !polls_itself {
        return threaded;
    }
    NapiSettings {
        defer_hard_irqs: CLIENT_DEFER_HARD_IRQS,
        gro_flush_timeout_ns: CLIENT_GRO_FLUSH_TIMEOUT_NS,
        ..threaded
    }
}

/// A server in a lab, ready to be measured.
pub struct LabServer<'a> {
    /// Lab, server and load, as results describe them.
    pub subject: SubjectFacts,
    /// Reason why results in this lab are not measurements.
    pub not_a_measurement: Option<String>,
    request: &'a LabRequest,
    lab: &'a VethLab,
    server: Server,
    beside: Option<Beside>,
    /// `None` while it generates load.
    generator: Option<Generator>,
    journal: &'a Journal,
    stopped: &'a dyn Fn() -> bool,
}

impl<'a> LabServer<'a> {
    /// Starts the servers in a lab that is already set up, and checks the lab.
    fn start(
        request: &'a LabRequest,
        seed: u64,
        host: &HostFacts,
        lab: &'a mut VethLab,
        journal: &'a Journal,
        follow: &mut Follow<'_>,
        stopped: &'a dyn Fn() -> bool,
    ) -> Result<Self, LabRunError> {
        let mut server = Server::start(lab, &request.lab.server, PORT, stopped)?;
        steer(lab, &server, request.lab.steer.as_ref())?;
        let spec =
            bench_load::spec(server.address(), request.workload.clone(), request.lab.connections, &lab.plan.cpus, seed);
        let mut generator = Generator::connect(spec.clone(), Some(Arc::clone(&lab.client.namespace)))?;
        preload(&mut generator, &mut server, stopped)?;
        let (workers, mut checks) = look_until_it_holds(lab, &server, &mut generator)?;
        checks.push(checks::of_system_wide_busy_polling(host.busy_poll_us));
        for check in &checks {
            info!(holds = check.holds, ?check, "lab checked");
        }
        for worker in &workers {
            info!(?worker, "worker found");
        }
        let facts = lab_facts(lab, &request.lab, checks);
        follow(SubjectStep::Doing("measuring in the lab"));
        let broken = facts.checks.iter().find(|check| !check.holds).cloned();
        if let Some(check) = broken.clone().filter(|_| !request.lab.insist) {
            return Err(LabRunError::Check(check));
        }
        let beside = request.beside.as_ref().map(|command| Beside::start(lab, command, seed, stopped));
        let beside = beside.transpose()?;
        let not_a_measurement = not_a_measurement(&facts, broken);
        let subject = SubjectFacts::Veth {
            lab: Box::new(facts),
            server: server.facts(&workers),
            load: Box::new(spec),
            beside: beside.as_ref().map(|beside| beside.server.facts(&[]).command),
        };
        let generator = Some(generator);
        Ok(Self { subject, not_a_measurement, request, lab, server, beside, generator, journal, stopped })
    }

    /// Stops the servers.
    fn stop(self) -> Result<(), LabRunError> {
        drop(self.generator);
        self.server.stop()?;
        if let Some(Beside { server, client }) = self.beside {
            drop(client);
            server.stop()?;
        }
        Ok(())
    }

    fn maximum(&mut self) -> Result<Maximum, LabRunError> {
        let generator = self.generator.as_mut().unwrap_or_else(|| unreachable!("the generator is idle"));
        Maximum::measure(generator, &mut UntilStopped(self.stopped)).map_err(interrupted)
    }

    /// The server under the first load, as a subject that can be switched between `modes`.
    ///
    /// # Errors
    /// See [`LabRunError`].
    pub fn under_load(&mut self, modes: &[DeliveryMode]) -> Result<Programs<'a>, LabRunError> {
        let loads = &self.request.loads;
        let needs_reach = loads.iter().any(|load| matches!(load, OfferedLoad::Percent(_)));
        let reaches_per_s = if needs_reach { self.maximum()?.per_s() } else { 0.0 };
        let rates_per_s: Vec<Option<f64>> = loads.iter().map(|load| load.rate_per_s(reaches_per_s)).collect();
        let generator = self.generator.take().unwrap_or_else(|| unreachable!("the generator is idle"));
        let running = generator.keep_running(schedule(rates_per_s.first().copied().flatten()))?;
        self.programs(modes, GeneratorTraffic { running, beside: None, rates_per_s })
    }

    /// Rate of a load, for a load in percent that of the present maximum; `None` for a closed loop.
    fn offered_per_s(&mut self, load: OfferedLoad, follow: &mut Follow<'_>) -> Result<Option<f64>, LabRunError> {
        let OfferedLoad::Percent(_) = load else { return Ok(load.rate_per_s(0.0)) };
        let maximum = self.maximum()?;
        if !maximum.is_stable() {
            follow(SubjectStep::Note(&Unsuitable::MaximumVaries(maximum).to_string()));
        }
        Ok(load.rate_per_s(maximum.per_s()))
    }

    /// Reports a maximum that fell below the offered rate during the experiment.
    fn check_that_it_fits(&mut self, offered_per_s: f64, follow: &mut Follow<'_>) -> Result<(), LabRunError> {
        let reaches_per_s = match self.maximum() {
            Err(LabRunError::Interrupted) => return Ok(()),
            maximum => maximum?.per_s(),
        };
        if reaches_per_s < offered_per_s {
            follow(SubjectStep::Note(&Unsuitable::NoLongerFits { offered_per_s, reaches_per_s }.to_string()));
        }
        Ok(())
    }

    /// Runs an experiment for each load. The maximum is measured before each load that refers to it, and once more
    /// afterwards: it falls when other programs take CPUs.
    fn experiments(
        &mut self,
        comparison: &Comparison,
        follow: &mut Follow<'_>,
    ) -> Result<Vec<LoadExperiment>, LabRunError> {
        let Comparison { modes, timing, .. } = comparison;
        one_per_load(&self.request.loads, modes, *timing, &mut |load, design| {
            let offered_per_s = self.offered_per_s(load, follow)?;
            let generator =
                self.generator.take().unwrap_or_else(|| unreachable!("every experiment returns the generator"));
            let running = generator.keep_running(schedule(offered_per_s))?;
            let experiment = self.experiment(modes, (load, offered_per_s), design, running, follow)?;
            if !self.server.is_running()? {
                return Err(LabRunError::ServerEnded);
            }
            if let (OfferedLoad::Percent(_), Some(offered_per_s)) = (load, offered_per_s) {
                self.check_that_it_fits(offered_per_s, follow)?;
            }
            Ok(experiment)
        })
    }

    fn experiment(
        &mut self,
        modes: &[DeliveryMode],
        (load, offered_per_s): (OfferedLoad, Option<f64>),
        mut design: ExperimentDesign<DeliveryMode>,
        running: RunningLoad,
        follow: &mut Follow<'_>,
    ) -> Result<LoadExperiment, LabRunError> {
        let beside = self.beside.as_ref().map(|beside| Arc::clone(&beside.client));
        if beside.is_some() {
            design.criteria.extend(criteria_of_beside());
        }
        let traffic = GeneratorTraffic { running, beside, rates_per_s: vec![offered_per_s] };
        let mut subject = self.programs(modes, traffic)?;
        let mut watch = |experiment: &_, stage: SliceStage<'_>| report_slice(follow, Some(load), experiment, stage);
        let experiment = compare(&mut subject, design, (Some(load), offered_per_s), &mut watch, self.stopped)?;
        let Traffic::Generator(traffic) = subject.traffic else { unreachable!("the subject keeps its traffic") };
        self.generator = Some(traffic.running.stop()?);
        Ok(LoadExperiment { settings: subject.reported, other_programs: subject.other_programs, ..experiment })
    }

    /// The server as a subject that can be switched between `modes`.
    fn programs(&self, modes: &[DeliveryMode], traffic: GeneratorTraffic) -> Result<Programs<'a>, LabRunError> {
        let lab = self.lab;
        let targets = Targets::find(Selection::Processes(self.server.processes()?))?;
        let preview = Preview::of(&targets, modes)?;
        let watched = Watched {
            server: self.server.processes()?,
            server_napi: lab.server.napi_threads.clone(),
            pollers: Vec::new(),
            supervisors: Vec::new(),
            generator: traffic.running.generator().tids(),
            client_napi: lab.client.napi_threads.clone(),
            server_cpus: lab.plan.cpus.server_cpus().into_iter().collect(),
            client_cpus: lab.plan.cpus.client_cpus().into_iter().collect(),
            server_devices: vec![SERVER_DEVICE.to_owned()],
            irqs: Vec::new(),
        };
        let why_not = |mode| why_not_here(lab.plan.interrupt_stand_in, mode);
        let impossible: Vec<Option<String>> = modes.iter().map(why_not).collect();
        let switching = Switching::begin(self.journal, Purpose::Lab, targets, &preview.plan, None)?;
        Ok(Programs::new(switching, &preview.plan, &impossible, watched, Traffic::Generator(traffic), self.stopped))
    }
}

/// A second server on the same queues and CPUs, with its client.
struct Beside {
    server: Server,
    client: Arc<BesideClient>,
}

impl Beside {
    fn start(
        lab: &mut VethLab,
        command: &ServerCommand,
        seed: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, LabRunError> {
        let server = Server::start(lab, command, BESIDE_PORT, stopped)?;
        let cpus = lab.plan.cpus.client_cpus().into_iter().collect();
        let client = BesideClient::start(server.address(), Arc::clone(&lab.client.namespace), cpus, seed)?;
        Ok(Self { server, client: Arc::new(client) })
    }
}

/// Attaches filters to the server's groups of listening sockets, before the generator connects. They end with the server.
fn steer(lab: &mut VethLab, server: &Server, request: Option<&SteerRequest>) -> Result<(), LabRunError> {
    let Some(request) = request else { return Ok(()) };
    let groups = decide(&observe()?, &server.processes()?.into_iter().collect(), request)?;
    if groups.steerings.is_empty() {
        return Err(NothingSteered(groups.refused).into());
    }
    groups.steerings.iter().try_for_each(|steering| Ok(lab.transaction.steer(steering)?))
}

/// Reason why modes with polling threads cannot be set in the lab.
pub(crate) const NO_CPU_FOR_POLLERS: &str = "in this mode, a thread of Quell polls each queue continuously; in this lab, it would \
                                             share the server's CPU: measure a running program (--pid)";

/// Reason why a mode cannot be set in the lab. A mode with shortened waits is not refused, because it has an effect
/// even if waits are not shortened.
pub(crate) fn why_not_here(interrupt_stand_in: bool, mode: &DeliveryMode) -> Option<String> {
    if let Some(requirement) = needs_launch(mode) {
        return Some(requirement.to_string());
    }
    match mode.napi().threaded {
        _ if mode.poller().is_some() => Some(NO_CPU_FOR_POLLERS.to_owned()),
        Threaded::BusyPoll => Some(
            "in this mode, a thread polls each queue continuously and needs its own CPU; in this lab, it would share the \
             server's CPU"
                .to_owned(),
        ),
        Threaded::Thread if interrupt_stand_in => Some(
            "NAPI threads replace the interrupts in this lab, so this mode equals base; measure it with \
             --no-interrupt-stand-in"
                .to_owned(),
        ),
        _ => None,
    }
}

fn interrupted(error: LoadError) -> LabRunError {
    match error {
        LoadError::Cancelled => LabRunError::Interrupted,
        error => error.into(),
    }
}

/// Stores the keys in the server, unless the server exits or the user interrupts.
fn preload(generator: &mut Generator, server: &mut Server, stopped: &dyn Fn() -> bool) -> Result<(), LabRunError> {
    match generator.preload(Generator::PRELOAD_LIMIT, &mut UntilStopped(stopped)) {
        Ok(_) => Ok(()),
        Err(LoadError::Cancelled) => Err(LabRunError::Interrupted),
        Err(_) if !server.is_running()? => Err(LabRunError::ServerEnded),
        Err(error) => Err(error.into()),
    }
}

/// Repeats the lab checks a few times, because receive work of other programs can make them fail temporarily.
fn look_until_it_holds(
    lab: &mut VethLab,
    server: &Server,
    generator: &mut Generator,
) -> Result<(Vec<WorkerFacts>, Vec<Check>), LabRunError> {
    let mut looked = look_at_the_workers(lab, server, generator)?;
    for _ in 1..LOOKS_MAX {
        if looked.1.iter().all(|check| check.holds) {
            break;
        }
        looked = look_at_the_workers(lab, server, generator)?;
    }
    Ok(looked)
}

/// Inspects the server's workers and checks the lab. The generator runs first, so that every connection has a NAPI ID.
fn look_at_the_workers(
    lab: &mut VethLab,
    server: &Server,
    generator: &mut Generator,
) -> Result<(Vec<WorkerFacts>, Vec<Check>), LabRunError> {
    let proc = ProcRoot::default();
    let before = proc.softirqs()?;
    let report = generator.run(&LOOK_AROUND, &mut ())?;
    let after = proc.softirqs()?;
    let mut workers = server.workers()?;
    Server::pin(&mut workers, lab.server.queues.ids(), &lab.plan.cpus.server)?;
    let napi_ids: Vec<u32> = lab.server.queues.ids().iter().map(|id| id.get()).collect();
    let mut checks = checks::of_workers(&workers, &napi_ids);
    let server_cpus = lab.plan.cpus.server_cpus();
    checks.push(checks::of_receive_work(&before, &after, &server_cpus, report.answered_in_window));
    Ok((workers, checks))
}

fn lab_facts(lab: &VethLab, spec: &LabSpec, checks: Vec<Check>) -> LabFacts {
    let ids = |queues: &Queues| queues.ids().iter().map(|id| id.get()).collect();
    LabFacts {
        name: lab.name.clone(),
        queues: lab.plan.queues,
        interrupt_stand_in: lab.plan.interrupt_stand_in,
        shared_core: shared_core(&lab.plan.cpus),
        cpus: lab.plan.cpus.clone(),
        server_napi_ids: ids(&lab.server.queues),
        client_napi_ids: ids(&lab.client.queues),
        client_napi: lab.plan.client_napi,
        steered: spec.steer.is_some(),
        checks,
    }
}

fn shared_core(cpus: &CpuLayout) -> Option<bool> {
    let client = cpus.client_cpus();
    let mut shared = false;
    for cpu in cpus.server_cpus() {
        let siblings = CpuList::siblings(kernel::sysfs(), cpu).ok()?;
        shared |= client.iter().any(|&client| client != cpu && siblings.contains(client));
    }
    Some(shared)
}

fn not_a_measurement(lab: &LabFacts, broken: Option<Check>) -> Option<String> {
    let check = broken.map(|check| check.violation());
    lab.cpus.overcommitted.clone().or(check)
}
