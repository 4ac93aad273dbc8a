//! Plays published experiments in a lab. [`Replay`] is a table of parts. One player measures any table: it starts the
//! server of a part for each slice, because some modes need the preload library, and loads it by the generator.

mod table;
mod xdp;

use std::net::SocketAddr;
use std::sync::Arc;

use quell_linux::perf_event::HardwareCounters;
use quell_linux::proc::ProcRoot;
use quell_load::{LoadSpec, OfferedLoad, Polling, RequestResponse, ServeShape, Transport, Workload};
use quell_mode::DeliveryMode;
use quell_published::Experiment;
use quell_result::Document as _;
use quell_result::experiment::ExperimentResult;
use quell_result::facts::{CommandFacts, CpuLayout, HostFacts};
use quell_result::figures;
use quell_result::published::{INTERRUPTED, PublishedPart, PublishedRun, part_name};

use crate::bench_load;
use crate::experiment::command::LabClient;
use crate::experiment::judge::Judges;
use crate::experiment::{CommandRequest, ComparisonError, check_part, criteria, design, run_command};
use crate::lab::veth::VethLab;
use crate::question::{Follow, SubjectStep, Timing};
use crate::run::{LabRunError, LabSpec, check_possible, in_empty_lab};
use crate::server::ServerCommand;
use crate::subjects::Tools;
use crate::subjects::command::{Runner, ServerPlace};

pub use table::offered;
pub(crate) use xdp::play_points;
pub use xdp::{XdpReplay, play_xdp};

/// Port of the server. It is always free, because the namespace is private.
pub(crate) const PORT: u16 = 7_000;
/// Timeout of a response, after which its connection goes on. A lost datagram must not end a slice.
const RESPONSE_TIMEOUT_MS: u32 = 100;

/// A published experiment as a lab can play it.
#[derive(Debug, Clone)]
pub struct Replay {
    pub experiment: Experiment,
    /// Published number of server threads. On smaller machines there are fewer.
    pub threads: u32,
    pub connections: u32,
    /// Whether cycles and instructions are compared.
    pub counts_cycles: bool,
    /// Parts in the order in which they are measured. A part with a load follows the one with the load max.
    pub parts: Vec<ReplayPart>,
}

/// A server and the modes under which it is compared.
#[derive(Debug, Clone)]
pub struct ReplayPart {
    pub transport: Transport,
    /// How the server waits for requests.
    pub shape: ServeShape,
    /// Size of requests and responses of the responder, in bytes. `None` for memcached.
    pub message_bytes: Option<u32>,
    /// Published load of memcached. `None` for the responder, which is loaded in a closed loop.
    pub load: Option<OfferedLoad>,
    /// That load divided by the published maximum of `base`. Here, the same share of the maximum of `base` is offered.
    /// `None` for a closed loop.
    pub share_of_max: Option<f64>,
    /// Modes that are compared, the reference first.
    pub modes: Vec<DeliveryMode>,
}

#[derive(Debug, Clone)]
pub struct ReplayRequest {
    pub replay: Replay,
    /// Durations and limits of each part.
    pub timing: Timing,
    /// Whether to measure although there are too few CPUs.
    pub insist: bool,
}

impl ReplayRequest {
    /// Checks whether this machine can play the experiment, and returns the lab's CPUs. Changes nothing.
    ///
    /// # Errors
    /// When the design of a part is invalid, or something is missing.
    pub fn check_possible(&self, quell: &str) -> Result<CpuLayout, LabRunError> {
        self.check_designs()?;
        Ok(check_possible(&lab_spec(self, quell)?)?.1)
    }

    /// Checks whether each part has time for enough slices.
    ///
    /// # Errors
    /// [`ComparisonError::Design`] or [`ComparisonError::ShortBudget`].
    pub fn check_designs(&self) -> Result<(), ComparisonError> {
        let parts = &self.replay.parts;
        parts.iter().try_for_each(|part| {
            let design = design(&part.modes, criteria(part.load.unwrap_or(OfferedLoad::Max)), self.timing, 1);
            check_part(&design, parts.len() as u64, false)
        })
    }
}

impl ReplayPart {
    #[must_use]
    pub fn name(&self) -> String {
        part_name(self.transport, self.shape, self.message_bytes, self.load)
    }

    /// Command line of the server, with one thread on each of `cpus`.
    fn command(&self, quell: &str, address: SocketAddr, cpus: &[u32]) -> Vec<String> {
        let Some(bytes) = self.message_bytes else {
            return ServerCommand::memcached().words(address, u32::try_from(cpus.len()).unwrap_or(u32::MAX));
        };
        let bytes = bytes.to_string();
        let workers = cpus.len().to_string();
        let cpus = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let shape = if self.shape == ServeShape::Blocking { "blocking" } else { "epoll" };
        let address = address.to_string();
        let words = [quell, "respond", &address, "--shape", shape, "--workers", &workers, "--cpus", &cpus];
        let sizes = ["--request-bytes", &bytes, "--response-bytes", &bytes];
        let udp = (self.transport == Transport::Udp).then_some("--udp");
        words.into_iter().chain(sizes).chain(udp).map(str::to_owned).collect()
    }

    fn load_spec(&self, lab: &VethLab, address: SocketAddr, connections: u32, seed: u64) -> LoadSpec {
        let Some(bytes) = self.message_bytes else {
            let workload = Workload::Memcached(bench_load::published_keys());
            return bench_load::spec(address, workload, connections, &lab.plan.cpus, seed);
        };
        let sizes = RequestResponse { request_bytes: bytes, response_bytes: bytes, check_content: false };
        // The generator of a lab with deferral must poll: a UDP socket has no NAPI ID from which it could see that.
        let is_deferred = lab.plan.client_napi.defer_hard_irqs > 0;
        LoadSpec {
            connections,
            polling: if is_deferred { Polling::BusyPoll } else { Polling::Epoll },
            cpus: lab.plan.cpus.client.clone(),
            seed,
            response_timeout_ms: RESPONSE_TIMEOUT_MS,
            ..LoadSpec::new(address, self.transport, Workload::RequestResponse(sizes))
        }
    }

    /// Measures the part. `max_per_s` is the maximum of `base` here.
    fn measure(
        &self,
        request: &ReplayRequest,
        lab: &VethLab,
        tools: &Tools<'_>,
        max_per_s: Option<f64>,
        follow: &mut Follow<'_>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<ExperimentResult, ComparisonError> {
        let cpus = &lab.plan.cpus;
        let address = SocketAddr::new(lab.server.address, PORT);
        let command = self.command(tools.quell, address, &cpus.server);
        let spec = self.load_spec(lab, address, request.replay.connections, request.timing.seed);
        let rate_per_s = self.share_of_max.zip(max_per_s).map(|(share, max)| share * max);
        let client = LabClient::new(lab, spec, rate_per_s);
        let namespace = Arc::clone(&lab.server.namespace);
        let place = ServerPlace { namespace, cpus: cpus.server_cpus().into_iter().collect() };
        let mut runner = Runner::new(tools, &command, None).at(place);
        let timing = request.timing;
        let of_command = CommandRequest {
            modes: self.modes.clone(),
            timing,
            budget_max_ms: timing.budget_ms,
            judges: Judges::default(),
            facts: CommandFacts { command: command.clone(), ..CommandFacts::default() },
        };
        let mut result = run_command(&of_command, Some(client), &mut runner, follow, stopped)?;
        result.not_a_measurement = cpus.overcommitted.clone();
        Ok(result)
    }
}

/// Plays all parts in one lab. After an interruption or a failure, the result has the parts so far.
///
/// # Errors
/// When the lab cannot be set up, or the first part fails.
pub fn play(
    request: &ReplayRequest,
    tools: &Tools<'_>,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<PublishedRun, LabRunError> {
    let replay = &request.replay;
    in_empty_lab(&lab_spec(request, tools.quell)?, tools.journal, follow, |host, lab, follow| {
        let counters = || HardwareCounters::open(&host.cpus.iter().copied().collect());
        let mut run = PublishedRun {
            schema: PublishedRun::SCHEMA.to_owned(),
            experiment: replay.experiment,
            parts: Vec::new(),
            no_hardware_counters: replay
                .counts_cycles
                .then(counters)
                .and_then(Result::err)
                .map(|error| error.to_string()),
            ended: None,
        };
        let mut max_per_s = None;
        for (index, part) in replay.parts.iter().enumerate() {
            let &ReplayPart { transport, shape, message_bytes, load, .. } = part;
            follow(SubjectStep::PartBegins { number: index + 1, of: replay.parts.len(), name: &part.name() });
            let (result, not_possible) = match part.measure(request, lab, tools, max_per_s, follow, stopped) {
                Ok(result) => (Some(result), None),
                Err(error @ (ComparisonError::NoModeLeft(_) | ComparisonError::Reference { .. })) => {
                    (None, Some(error.to_string()))
                }
                Err(error) if run.parts.is_empty() => return Err(error.into()),
                Err(error) => {
                    let is_interrupted = matches!(error, ComparisonError::Interrupted);
                    run.ended = Some(if is_interrupted { INTERRUPTED.to_owned() } else { error.to_string() });
                    break;
                }
            };
            if let Some(result) = &result {
                let interrupted = result.was_interrupted().then_some(INTERRUPTED);
                run.ended = result.failure().or(interrupted).map(str::to_owned);
                if load == Some(OfferedLoad::Max) {
                    let base = DeliveryMode::default().to_string();
                    let experiment = result.experiments.first();
                    max_per_s = experiment.and_then(|experiment| experiment.median(&base, figures::REQUESTS));
                }
            }
            let threads = lab.plan.queues;
            run.parts.push(PublishedPart { transport, shape, message_bytes, load, threads, result, not_possible });
            if run.ended.is_some() {
                break;
            }
        }
        Ok(run)
    })
}

/// A lab with a queue per server thread: as many as published, or as there are CPUs beside the generator's.
fn lab_spec(request: &ReplayRequest, quell: &str) -> Result<LabSpec, LabRunError> {
    let Replay { threads, connections, parts, .. } = &request.replay;
    let cpus = HostFacts::read(&ProcRoot::default())?.cpus.len();
    let has_memcached = parts.iter().any(|part| part.message_bytes.is_none());
    Ok(LabSpec {
        server: if has_memcached { ServerCommand::memcached() } else { ServerCommand::Other(vec![quell.to_owned()]) },
        queues: u32::try_from(cpus.saturating_sub(1)).unwrap_or(*threads).clamp(1, *threads),
        generators: 1,
        connections: *connections,
        interrupt_stand_in: true,
        insist: request.insist,
        steer: None,
    })
}
