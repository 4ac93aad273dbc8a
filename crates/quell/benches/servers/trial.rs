//! One trial: a fresh server, its real client, the mode applied in one of the possible ways, the kernel's counters, and
//! a check that everything is as before afterwards.

use quell_linux::netdev::Napi;
use quell_linux::proc::ProcRoot;
use quell_linux::{CpuList, Pid};
use quell_load::LoadReport;
use quell_mode::{DeliveryMode, PartialNapiSettings};
use quell_sampler::{PollsByPoller, QueueSample};
use quell_subject::counters::{Instruments, TrialCounters, Watched};
use quell_subject::disturbance::{Disturbance, disturbances};
use quell_subject::lab::veth::SERVER_DEVICE;

use crate::client::{Effort, Found};
use crate::lab::{Launch, SeenEpoll, Server, ServersLab};
use crate::program::Program;
use quell_test_support::wait_until;

/// How the server gets its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arm {
    /// No mode, that is, interrupts.
    Base,
    /// Like [`Self::Base`], to show the difference between two identical arms.
    BaseAgain,
    /// `quell attach` while the server runs.
    Attach,
    /// `quell run`.
    Run,
}

impl Arm {
    pub(crate) const ALL: [Self; 4] = [Self::Base, Self::BaseAgain, Self::Attach, Self::Run];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::BaseAgain => "base again",
            Self::Attach => "attach",
            Self::Run => "run",
        }
    }
}

/// Results of one trial.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) found: Found,
    pub(crate) counters: TrialCounters,
    /// Share of polls of the server's queues that its own threads made; absent if polls cannot be counted.
    pub(crate) polled_by_the_server: Option<f64>,
    /// Share of the server's own polls that found the interrupt of the queue suspended; absent without such polls.
    pub(crate) found_suspended: Option<f64>,
    /// Settings observed under load.
    pub(crate) seen: Seen,
    /// Disturbances of the trial.
    pub(crate) disturbances: Vec<Disturbance>,
}

impl Trial {
    /// CPU time in µs per response, of the server's threads and the NAPI threads of its queues.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trial are far below 2^53")]
    pub(crate) fn cpu_us_per_request(&self) -> Option<f64> {
        let ns = self.counters.server_run_ns? + self.counters.napi_run_ns?;
        (self.found.answered > 0).then(|| ns as f64 / 1e3 / self.found.answered as f64)
    }

    pub(crate) fn p50_us(&self) -> Option<f64> {
        self.found.p50.map(|p50| p50.as_secs_f64() * 1e6)
    }
}

/// Runs one trial. The error contains the reason if it failed.
pub(crate) fn trial(lab: &ServersLab, program: Program, mode: &str, arm: Arm, effort: Effort) -> Result<Trial, String> {
    let before = lab.queues();
    let options = [&[mode], steering(lab, program)].concat();
    let launch = if arm == Arm::Run { Launch::Under(&options) } else { Launch::Plain };
    let server = lab.serve(program, lab.veth.plan.queues, launch)?;
    if arm == Arm::Run {
        wait_until_steered(&server, steering(lab, program));
    }
    warm_up(lab, program, &server, mode, arm)?;
    let trial = measured(lab, program, &server, mode, effort)?;
    if arm == Arm::Attach {
        let ended = lab.quell(&["detach", &server.pid().to_string()]);
        ended.succeeded().map_err(|said| format!("quell detach: {said}"))?;
    }
    server.stop();
    // The keeper notices the server's exit at the same time as this test.
    wait_until(|| {
        let after = lab.queues();
        if after == before { Ok(()) } else { Err(format!("{} left {after:?} of {before:?}", arm.name())) }
    });
    Ok(trial)
}

/// Options by which a filter distributes connections by queue: if the kernel selects the worker, and there are several.
fn steering(lab: &ServersLab, program: Program) -> &'static [&'static str] {
    if lab.veth.plan.queues > 1 { program.steering() } else { &[] }
}

/// A UDP socket keeps the queue of its first datagram, so the filters have to be there before. TCP and UDP have one each.
fn wait_until_steered(server: &Server, options: &[&str]) {
    wait_until(|| {
        let said = server.said();
        if said.matches("steering ").count() >= options.len() { Ok(()) } else { Err(said) }
    });
}

/// Warms the server up before the measurement. A mode is attached under load.
fn warm_up(lab: &ServersLab, program: Program, server: &Server, mode: &str, arm: Arm) -> Result<(), String> {
    let client = lab.start_client(program.client(), server.address, Effort::WarmUp);
    if arm == Arm::Attach {
        lab.wait_until_connected(server);
        let pid = server.pid().to_string();
        let words = [&["attach", mode, &pid, "--yes"], steering(lab, program)].concat();
        let ended = lab.quell(&words);
        ended.succeeded().map_err(|said| format!("quell attach: {said}"))?;
    }
    client.end().map(drop)
}

/// Throughput of a server with interrupts in a closed loop, in requests per second.
pub(crate) fn reach(lab: &ServersLab, program: Program) -> Result<f64, String> {
    let server = lab.serve(program, lab.veth.plan.queues, Launch::Plain)?;
    let found = lab.start_client(program.client(), server.address, Effort::WarmUp).end()?;
    server.stop();
    Ok(found.per_s)
}

fn measured(lab: &ServersLab, program: Program, server: &Server, mode: &str, effort: Effort) -> Result<Trial, String> {
    let napis = lab.queues().iter().map(|napi| napi.id).collect();
    let mut instruments = Instruments::new(napis, &watched(lab, server)(Pid::of_this_thread()).server_cpus);
    let (watched, proc) = (watched(lab, server), ProcRoot::default());
    // Read in the client's namespace, so that /proc/net of the reading thread belongs to the client.
    let mut snapshot = || {
        let look = || watched(Pid::of_this_thread()).snapshot(&proc, &mut instruments);
        lab.veth.client.namespace.run(look).map_err(|error| error.to_string())
    };
    let first = snapshot()?;
    let client = lab.start_client(program.client(), server.address, effort);
    lab.wait_until_connected(server);
    let seen = Seen::of(lab, server, mode);
    let found = client.end()?;
    let counters = watched(Pid::of_this_thread()).between(&first, &snapshot()?);
    let read = instruments.sampler.and_then(|sampler| sampler.read().ok());
    let samples: Vec<QueueSample> = read.iter().flatten().map(|(_, counters)| counters.since(None)).collect();
    let sum = |of: fn(&PollsByPoller) -> u64| samples.iter().map(|sample| of(&sample.polls)).sum::<u64>();
    let by_program = sum(|polls| polls.program);
    let polled_by_the_server = share(by_program + sum(|polls| polls.program_last), sum(PollsByPoller::total));
    let found_suspended: Option<u64> = samples.iter().map(|sample| sample.program_found_suspended).sum();
    let found_suspended = found_suspended.and_then(|found| share(found, by_program));
    let load = LoadReport { unanswered: found.failed, ..LoadReport::default() };
    let disturbances = disturbances(&load, &counters);
    Ok(Trial { found, counters, polled_by_the_server, found_suspended, seen, disturbances })
}

#[expect(clippy::cast_precision_loss, reason = "counts of one trial are far below 2^53")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Prepares the counters to read, given the reading thread.
fn watched(lab: &ServersLab, server: &Server) -> impl Fn(Pid) -> Watched + Sync {
    let processes = server.processes();
    let (server_napi, client_napi) = (lab.veth.server.napi_threads.clone(), lab.veth.client.napi_threads.clone());
    let server_cpus: CpuList = lab.veth.plan.cpus.server_cpus().into_iter().collect();
    move |reader| Watched {
        server: processes.clone(),
        server_napi: server_napi.clone(),
        pollers: Vec::new(),
        supervisors: Vec::new(),
        generator: vec![reader],
        client_napi: client_napi.clone(),
        server_cpus: server_cpus.clone(),
        // The client's CPU time is gone after its exit, so other work on its CPUs cannot be determined.
        client_cpus: CpuList::default(),
        server_devices: vec![SERVER_DEVICE.to_owned()],
        irqs: Vec::new(),
    }
}

/// Settings of the server observed under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Epolls with connections.
    pub(crate) epolls: usize,
    /// Epolls with connections that have the mode's parameters.
    pub(crate) epolls_set: usize,
    /// Queues on which connections arrive.
    pub(crate) queues: usize,
    /// Queues with connections that have the mode's values.
    pub(crate) queues_set: usize,
    /// Maximum number of queues of the connections in one epoll.
    pub(crate) queues_of_one_epoll: usize,
}

impl Seen {
    fn of(lab: &ServersLab, server: &Server, mode: &str) -> Self {
        let mode: DeliveryMode = mode.parse().unwrap();
        let wanted = mode.epoll().unwrap_or_default();
        let epolls = server.epolls();
        let has_parameters = |epoll: &&SeenEpoll| epoll.params == wanted;
        let used: Vec<u32> = epolls.iter().flat_map(|epoll| epoll.facts.napi_ids.iter().copied()).collect();
        let queues: Vec<Napi> = lab.queues().into_iter().filter(|queue| used.contains(&queue.id.get())).collect();
        // In the lab, NAPI threads replace interrupts in every mode.
        let napi = PartialNapiSettings { threaded: None, ..mode.napi().into() };
        let has_values = |queue: &&Napi| napi.unlike(&queue.settings).is_empty();
        Self {
            epolls: epolls.len(),
            epolls_set: epolls.iter().filter(has_parameters).count(),
            queues: queues.len(),
            queues_set: queues.iter().filter(has_values).count(),
            queues_of_one_epoll: epolls.iter().map(|epoll| epoll.facts.napi_ids.len()).max().unwrap_or(0),
        }
    }
}
