//! A bench run from its request to its result: the lab is raised, the server started, every trial of the plan run and
//! watched, the lab taken down. What happens is told to the caller as events; nothing is printed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use quell_host::journal::{Journal, JournalError};
use quell_host::recovery::{Found, Reverted, recover};
use quell_host::transaction::ChangeError;
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::sched::{self, SchedError};
use quell_linux::{CpuList, Pid, kernel};
use quell_load::{Generator, LoadError, Polling, Progress, RunObserver, RunSpec, Schedule};
use quell_mode::{NapiSettings, Threaded};

use crate::cpus::{CpuError, CpuLayout};
use crate::lab::napi::Queues;
use crate::lab::veth::{LabError, VethLab, VethPlan, unique_name};
use crate::matrix::Matrix;
use crate::plan::{Plan, TrialId};
use crate::requirements::{Missing, missing};
use crate::result::{BenchResult, Check, HostFacts, Lab, LabFacts, SCHEMA, Trial, WorkerFacts};
use crate::server::{Server, ServerCommand, ServerError, Worker};
use crate::settings::SetError;
use crate::{bench_load, checks};

/// How often the lab is looked at before a check is taken for broken.
const LOOKS_MAX: u32 = 4;

/// Some traffic, so that every connection knows its NAPI instance.
const LOOK_AROUND: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 50, measure_ms: 200 };

/// What is to be measured, and on what.
#[derive(Debug, Clone)]
pub struct Request {
    /// The modes and loads.
    pub plan: Plan,
    /// The server.
    pub server: ServerCommand,
    /// Receive queues, each with a server worker.
    pub queues: u32,
    /// Generator threads.
    pub generators: u32,
    /// Connections in all.
    pub connections: u32,
    /// NAPI threads stand in for the interrupts of the server's queues.
    pub interrupt_stand_in: bool,
    /// Measure although CPUs are too few or a check does not hold.
    pub insist: bool,
}

/// What happens during a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// What killed runs left was looked for; running labs disturb each other's figures.
    Recovered(&'a [Found]),
    /// The lab is up and the server runs in it.
    LabIsUp(&'a LabFacts),
    /// A mode cannot be set here.
    Refused {
        /// What the table would have called it.
        label: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// A trial begins.
    TrialBegins {
        /// How many are done.
        done: usize,
        /// How many there are in all, with those that are measured again.
        total: usize,
        /// Which.
        id: TrialId,
    },
    /// The lab was taken down, as far as it could be. What was measured is the result all the same.
    TakenDown(&'a Result<Reverted, JournalError>),
    /// A trial has ended.
    TrialEnds {
        /// What was found.
        trial: &'a Trial,
        /// It was disturbed and will be measured again.
        again: bool,
    },
}

/// Why there is no result. Whatever was set up has been taken down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// This machine lacks something.
    #[error("this machine cannot run the lab")]
    NotPossibleHere(Vec<Missing>),
    /// Every mode of the plan is refused here.
    #[error("none of the modes can be set here: {0}")]
    NoModeLeft(String),
    /// The CPUs are too few.
    #[error(transparent)]
    Cpus(#[from] CpuError),
    /// A check before measuring does not hold.
    #[error("lab check failed, and figures of this lab would be wrong; {}", .0.violation())]
    Check(Check),
    /// What killed runs left could not be removed, or journals not be read.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The lab could not be set up.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The server could not be started or reached.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server ended in the middle of the run.
    #[error("the server ended in the middle of the run")]
    ServerEnded,
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A mode that could be set before could not be set again.
    #[error("could not set {label}: {source}")]
    Set {
        /// What the table calls it.
        label: String,
        /// What came back.
        source: SetError,
    },
    /// A thread could not be pinned.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// It was interrupted before the first trial.
    #[error("interrupted before anything was measured")]
    Interrupted,
}

/// What the client's queue is told when the generator polls it: the generator spins, and the queue's NAPI thread comes
/// in only when it has not polled for this long.
const CLIENT_GRO_FLUSH_TIMEOUT_NS: u64 = 1_000_000;
const CLIENT_DEFER_HARD_IRQS: u32 = 100;

/// Runs the bench. `watch` is told what happens; `stopped` is asked often whether to end early, and what has been
/// measured by then is the result.
///
/// # Errors
/// See [`BenchError`].
pub fn run(
    request: &Request,
    journal: &Journal,
    watch: &mut dyn FnMut(Event<'_>),
    stopped: &dyn Fn() -> bool,
) -> Result<BenchResult, BenchError> {
    let missing = missing(&request.server);
    if !missing.is_empty() {
        return Err(BenchError::NotPossibleHere(missing));
    }
    watch(Event::Recovered(&recover(journal)?));
    let host = HostFacts::read(&ProcRoot::default())?;
    let workers = request.queues as usize;
    let cpus = CpuLayout::plan(&host.cpus, workers, request.generators as usize, request.insist)?;
    let _pinned = PinnedTo::new(&cpus.client_cpus())?;
    let mut lab = VethLab::raise(journal, unique_name(), veth_plan(request, cpus))?;
    let result = measure(request, host, &mut lab, watch, stopped);
    watch(Event::TakenDown(&lab.take_down()));
    result
}

fn veth_plan(request: &Request, cpus: CpuLayout) -> VethPlan {
    VethPlan {
        queues: request.queues,
        cpus,
        interrupt_stand_in: request.interrupt_stand_in,
        client_napi: client_napi(request),
    }
}

/// One generator thread with few connections polls the one queue itself. Otherwise the queues are left to their NAPI
/// threads, undeferred: of several queues a thread could poll only one, and many connections take too long to ask.
fn client_napi(request: &Request) -> NapiSettings {
    let threaded = NapiSettings { threaded: Threaded::Thread, ..NapiSettings::default() };
    let polls_itself =
        request.queues == 1 && request.generators == 1 && request.connections <= Polling::CONNECTIONS_MAX;
    if !polls_itself {
        return threaded;
    }
    NapiSettings {
        defer_hard_irqs: CLIENT_DEFER_HARD_IRQS,
        gro_flush_timeout_ns: CLIENT_GRO_FLUSH_TIMEOUT_NS,
        ..threaded
    }
}

/// Everything between raising the lab and taking it down.
fn measure(
    request: &Request,
    host: HostFacts,
    lab: &mut VethLab,
    watch: &mut dyn FnMut(Event<'_>),
    stopped: &dyn Fn() -> bool,
) -> Result<BenchResult, BenchError> {
    let mut server = Server::start(lab, &request.server, stopped)?;
    let spec = bench_load::spec(server.address(), request.connections, &lab.plan.cpus, request.plan.seed);
    let mut generator = Generator::connect(spec.clone(), Some(Arc::clone(&lab.client.namespace)))?;
    preload(&mut generator, &mut server, stopped)?;
    let (workers, mut checks) = look_until_it_holds(lab, &server, &mut generator)?;
    checks.push(checks::of_system_wide_busy_polling(host.busy_poll_us));
    let facts = lab_facts(lab, checks);
    watch(Event::LabIsUp(&facts));
    let broken = facts.checks.iter().find(|check| !check.holds).cloned();
    if let Some(check) = broken.clone().filter(|_| !request.insist) {
        return Err(BenchError::Check(check));
    }
    let mut result = BenchResult {
        schema: SCHEMA.to_owned(),
        quell_version: env!("CARGO_PKG_VERSION").to_owned(),
        began_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        host,
        server: Some(server.facts(&workers)),
        load: Some(spec),
        plan: request.plan.clone(),
        base_reaches: Vec::new(),
        trials: Vec::new(),
        refused: BTreeMap::new(),
        not_a_measurement: not_a_measurement(&facts, broken),
        interrupted: false,
        lab: Lab::Veth(facts),
    };
    Matrix::new(lab, &mut server, &workers, &mut generator, watch, stopped).measure(&mut result)?;
    drop(generator);
    server.stop()?;
    Ok(result)
}

/// Stores the keys, unless the server ends or the user has enough meanwhile.
fn preload(generator: &mut Generator, server: &mut Server, stopped: &dyn Fn() -> bool) -> Result<(), BenchError> {
    match generator.preload(Generator::PRELOAD_LIMIT, &mut UntilStopped(stopped)) {
        Ok(_) => Ok(()),
        Err(LoadError::Cancelled) => Err(BenchError::Interrupted),
        Err(_) if !server.is_running()? => Err(BenchError::ServerEnded),
        Err(error) => Err(error.into()),
    }
}

/// Ends what the generator does when the user has had enough.
struct UntilStopped<'a>(&'a dyn Fn() -> bool);

impl RunObserver for UntilStopped<'_> {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        if (self.0)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Looks a few times: what other programs of the machine receive just then can break a check that holds.
fn look_until_it_holds(
    lab: &mut VethLab,
    server: &Server,
    generator: &mut Generator,
) -> Result<(Vec<Worker>, Vec<Check>), BenchError> {
    let mut looked = look_at_the_workers(lab, server, generator)?;
    for _ in 1..LOOKS_MAX {
        if looked.1.iter().all(|check| check.holds) {
            break;
        }
        looked = look_at_the_workers(lab, server, generator)?;
    }
    Ok(looked)
}

/// Finds the workers while some traffic has told every connection its NAPI instance, and checks the lab by it.
fn look_at_the_workers(
    lab: &mut VethLab,
    server: &Server,
    generator: &mut Generator,
) -> Result<(Vec<Worker>, Vec<Check>), BenchError> {
    let proc = ProcRoot::default();
    let before = proc.softirqs()?;
    let report = generator.run(&LOOK_AROUND, &mut ())?;
    let after = proc.softirqs()?;
    let mut workers = server.workers()?;
    Server::pin(&mut workers, lab.server.queues.ids(), &lab.plan.cpus.server)?;
    let napi_ids: Vec<u32> = lab.server.queues.ids().iter().map(|id| id.get()).collect();
    let seen: Vec<WorkerFacts> = workers.iter().map(|worker| worker.facts.clone()).collect();
    let mut checks = checks::of_workers(&seen, &napi_ids);
    let server_cpus = lab.plan.cpus.server_cpus();
    checks.push(checks::of_receive_work(&before, &after, &server_cpus, report.answered_in_window));
    Ok((workers, checks))
}

fn lab_facts(lab: &VethLab, checks: Vec<Check>) -> LabFacts {
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

/// The calling thread on the client's CPUs for as long as this lives: it wakes up now and then, and not on the
/// server's CPUs.
struct PinnedTo {
    before: CpuList,
}

impl PinnedTo {
    fn new(cpus: &[u32]) -> Result<Self, SchedError> {
        let before = sched::affinity(Pid::of_this_thread())?;
        sched::set_affinity(Pid::of_this_thread(), &cpus.iter().copied().collect())?;
        Ok(Self { before })
    }
}

impl Drop for PinnedTo {
    fn drop(&mut self) {
        // It could be set before, so it can be set again; should it fail, the thread stays on fewer CPUs.
        let _ = sched::set_affinity(Pid::of_this_thread(), &self.before);
    }
}
