//! Plays published experiments in a private lab. The server is memcached or the responder. It is started for each slice,
//! because some of the modes need the preload library.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use quell_bench::bench_load;
use quell_bench::experiment::command::LabClient;
use quell_bench::experiment::judge::Judges;
use quell_bench::experiment::{CommandRequest, ComparisonError, ExperimentResult, Timing, figures, run_command};
use quell_bench::facts::HostFacts;
use quell_bench::lab::veth::VethLab;
use quell_bench::run::{LabRequest, in_empty_lab};
use quell_bench::server::ServerCommand;
use quell_change::journal::Journal;
use quell_linux::CpuList;
use quell_linux::perf_event::HardwareCounters;
use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_load::{LoadSpec, OfferedLoad, Polling, RequestResponse, ServeShape, Transport, Workload};
use quell_mode::DeliveryMode;
use quell_sim::Load;
use quell_sim_study::published::{EventLoopForm, Experiment, IrqSuspension, PublishedCell, event_loop_rows};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::args::BenchArgs;
use super::on_command::Runner;
use super::on_veth::{self, NotRun};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::progress::Progress;

/// Value of the `schema` field of result files.
pub(super) const SCHEMA: &str = "quell-published/1";
/// Port of the responder. It is always free, because the namespace is private.
const PORT: u16 = 7_000;
/// Default maximum time for each part. A part ends earlier when its comparisons are decided.
const PART_BUDGET: Duration = Duration::from_secs(120);
const QUICK_PART_BUDGET: Duration = Duration::from_secs(40);
/// Timeout of a response, after which its connection goes on. A lost datagram must not end a slice.
const RESPONSE_TIMEOUT_MS: u32 = 100;
const SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 200;
const MARGIN: f64 = 0.05;
/// Mode to whose maximum the published loads refer.
const BASE: &str = "base";
/// Threads of the published memcached.
const SUSPENSION_WORKERS: u32 = 8;
/// Threads and flows of the published message-size sweep.
const EVENT_LOOP_THREADS: u32 = 5;
const EVENT_LOOP_FLOWS: u32 = 30;

/// Value of [`PublishedRun::ended`] after a signal.
pub(super) const INTERRUPTED: &str = "interrupted";

/// A published experiment that can be played here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LiveExperiment {
    /// IRQ suspension, 2024: memcached under 11 modes at 6 loads.
    A,
    /// Low-latency sockets, 2013: TCP_RR and UDP_RR with 1 byte; base, busy polling of sockets and of epolls.
    B,
    /// Busy loop for events, 2024: messages of 1 byte to 16 KiB; the loop in the program against plain waits.
    D,
}

impl LiveExperiment {
    /// The publication.
    pub(crate) fn published(self) -> Experiment {
        match self {
            Self::A => Experiment::A,
            Self::B => Experiment::B,
            Self::D => Experiment::D,
        }
    }

    /// Number of server threads: those of the publication, or as many as there are CPUs beside the client's.
    fn workers(self, cpus: usize) -> u32 {
        let published = match self {
            Self::A => SUSPENSION_WORKERS,
            Self::B => 1,
            Self::D => EVENT_LOOP_THREADS,
        };
        u32::try_from(cpus.saturating_sub(1)).unwrap_or(published).clamp(1, published)
    }

    fn connections(self) -> u32 {
        match self {
            Self::A => on_veth::CONNECTIONS,
            Self::B => 1,
            Self::D => EVENT_LOOP_FLOWS,
        }
    }

    /// Server of all parts, as far as this machine must have it installed.
    fn server(self, quell: &str) -> ServerCommand {
        match self {
            Self::A => ServerCommand::memcached(),
            Self::B | Self::D => ServerCommand::Other(vec![quell.to_owned()]),
        }
    }

    fn parts(self) -> Result<Vec<PartPlan>, Failure> {
        let part = |transport, shape, message_bytes, modes: [&str; 2]| {
            let modes = DeliveryMode::parse_list(&modes.join(",")).map_err(Failure::usage)?;
            Ok(PartPlan { transport, shape, message_bytes: Some(message_bytes), load: None, share_of_max: None, modes })
        };
        match self {
            Self::A => suspension_parts(),
            Self::B => {
                let of_transport = |transport| {
                    [
                        part(transport, ServeShape::Blocking, 1, ["base", "sockpoll50"]),
                        part(transport, ServeShape::Epoll, 1, ["base", "napibusy"]),
                    ]
                };
                [Transport::Tcp, Transport::Udp].into_iter().flat_map(of_transport).collect()
            }
            Self::D => {
                let rows = event_loop_rows().map_err(Failure::usage)?;
                let user = rows.iter().filter(|row| row.form == EventLoopForm::User);
                // Longer than any wait in a closed loop: the program never sleeps, as published.
                let modes = ["base", "eventspin1000000"];
                user.map(|row| part(Transport::Tcp, ServeShape::Epoll, row.message_bytes, modes)).collect()
            }
        }
    }
}

/// One part for each published load, the closed loop first, because the others offer a share of its throughput.
fn suspension_parts() -> Result<Vec<PartPlan>, Failure> {
    let cells = IrqSuspension::published().map_err(Failure::usage)?.cells;
    let is_closed_base = |cell: &&PublishedCell| cell.mode == DeliveryMode::default() && cell.load == Load::Max;
    let max_per_s = cells.iter().find(is_closed_base).map(|cell| cell.figures.qps);
    let mut parts: Vec<PartPlan> = Vec::new();
    for cell in &cells {
        let load = OfferedLoad::from(cell.load);
        match parts.iter_mut().find(|part| part.load == Some(load)) {
            Some(part) => part.modes.push(cell.mode),
            None => parts.push(PartPlan {
                transport: Transport::Tcp,
                shape: ServeShape::Epoll,
                message_bytes: None,
                load: Some(load),
                share_of_max: load.rate_per_s(f64::NAN).zip(max_per_s).map(|(rate, max)| rate / max),
                modes: vec![cell.mode],
            }),
        }
    }
    parts.sort_by_key(|part| part.load != Some(OfferedLoad::Max));
    for part in &mut parts {
        part.modes.sort_by_key(|mode| *mode != DeliveryMode::default());
    }
    Ok(parts)
}

/// A server and the modes under which it is compared.
struct PartPlan {
    transport: Transport,
    shape: ServeShape,
    /// Size of requests and responses. `None` for memcached.
    message_bytes: Option<u32>,
    /// Published load. `None` for the responder, which is loaded in a closed loop.
    load: Option<OfferedLoad>,
    /// That load divided by the published maximum of `base`. Here, the same share of the maximum of `base` is offered.
    /// `None` for a closed loop.
    share_of_max: Option<f64>,
    modes: Vec<DeliveryMode>,
}

impl PartPlan {
    /// Command line of the server.
    fn command(&self, quell: &str, address: SocketAddr, cpus: &[u32]) -> Vec<String> {
        let Some(bytes) = self.message_bytes else {
            return ServerCommand::memcached().words(address, u32::try_from(cpus.len()).unwrap_or(u32::MAX));
        };
        let bytes = bytes.to_string();
        let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
        let shape = if self.shape == ServeShape::Blocking { "blocking" } else { "epoll" };
        let (address, workers, cpus) = (address.to_string(), cpus.len().to_string(), cpus.join(","));
        let words =
            [quell, "respond", &address, "--shape", shape, "--request-bytes", &bytes, "--response-bytes", &bytes];
        let words = words.into_iter().chain(["--workers", &workers, "--cpus", &cpus]);
        words.chain((self.transport == Transport::Udp).then_some("--udp")).map(str::to_owned).collect()
    }

    fn name(&self) -> String {
        part_name(self.transport, self.shape, self.message_bytes, self.load)
    }

    /// Configuration of the generator.
    fn load_spec(&self, lab: &VethLab, request: &LabRequest, address: SocketAddr) -> LoadSpec {
        let Some(bytes) = self.message_bytes else {
            let (workload, seed) = (request.workload.clone(), request.timing.seed);
            return bench_load::spec(address, workload, request.connections, &lab.plan.cpus, seed);
        };
        let sizes = RequestResponse { request_bytes: bytes, response_bytes: bytes, check_content: false };
        // The generator of a lab with deferral must poll: a UDP socket has no NAPI ID from which it could see that.
        let is_deferred = lab.plan.client_napi.defer_hard_irqs > 0;
        LoadSpec {
            connections: request.connections,
            polling: if is_deferred { Polling::BusyPoll } else { Polling::Epoll },
            cpus: lab.plan.cpus.client.clone(),
            seed: request.timing.seed,
            response_timeout_ms: RESPONSE_TIMEOUT_MS,
            ..LoadSpec::new(address, self.transport, Workload::RequestResponse(sizes))
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all parts of a lab run")]
    fn measure(
        &self,
        quell: &str,
        lab: &VethLab,
        request: &LabRequest,
        max_per_s: Option<f64>,
        journal: &Journal,
        progress: &Progress,
        under: &str,
        stopped: &dyn Fn() -> bool,
    ) -> Result<ExperimentResult, ComparisonError> {
        let address = SocketAddr::new(lab.server.address, PORT);
        let command = self.command(quell, address, &lab.plan.cpus.server);
        let spec = self.load_spec(lab, request, address);
        let rate_per_s = self.share_of_max.zip(max_per_s).map(|(share, max)| share * max);
        let (modes, timing) = (self.modes.clone(), request.timing);
        let request = CommandRequest { modes, timing, command, load: None, judges: Judges::default() };
        let cpus: CpuList = lab.plan.cpus.server_cpus().into_iter().collect();
        let namespace = format!("--net=/run/netns/{}-server", lab.name);
        let within = ["taskset", "-c", &cpus.to_string(), "nsenter", &namespace, quell].map(str::to_owned).to_vec();
        let mut runner = Runner::started_by(within, journal, &request.command, None);
        let client = LabClient::new(lab, spec, rate_per_s);
        let mut watch = |event: quell_experiment::ExperimentEvent<'_, _>| super::show_progress(progress, under, event);
        let mut result = run_command(&request, Some(client), &mut runner, &mut watch, stopped)?;
        result.not_a_measurement = lab.plan.cpus.overcommitted.clone();
        Ok(result)
    }
}

/// Name of a part: its server, and its load or message size.
pub(crate) fn part_name(
    transport: Transport,
    shape: ServeShape,
    message_bytes: Option<u32>,
    load: Option<OfferedLoad>,
) -> String {
    match (message_bytes, load) {
        (Some(bytes), _) => format!("{}, {bytes} B", server_name(transport, shape)),
        (None, Some(load)) => format!("memcached, {load}"),
        (None, None) => "memcached".to_owned(),
    }
}

/// Name of a responder: its transport and how it waits.
pub(crate) fn server_name(transport: Transport, shape: ServeShape) -> String {
    let transport = if transport == Transport::Tcp { "TCP" } else { "UDP" };
    let shape = if shape == ServeShape::Blocking { "recv" } else { "epoll" };
    format!("{transport} {shape}")
}

/// Result file: the parts of a published experiment, each measured as an experiment of its own.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PublishedRun {
    /// Format of the file: `quell-published/1`.
    pub(crate) schema: String,
    /// Published experiment.
    pub(crate) experiment: LiveExperiment,
    /// Parts, in the order in which they were measured.
    pub(crate) parts: Vec<PublishedPart>,
    /// Reason why cycles and instructions are absent. Absent if this machine counts them, or if the experiment does not
    /// use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) no_hardware_counters: Option<String>,
    /// Reason why the experiment ended before its last part. Absent if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<String>,
}

/// One server under several modes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PublishedPart {
    /// Transport protocol.
    pub(crate) transport: Transport,
    /// How the server waits for requests.
    pub(crate) shape: ServeShape,
    /// Size of requests and responses, in bytes. Absent for memcached, which has the published distributions of sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_bytes: Option<u32>,
    /// Published load of memcached. Here, the same share of the throughput of `base` in a closed loop is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) load: Option<OfferedLoad>,
    /// Number of server threads.
    pub(crate) threads: u32,
    /// The measurement. Absent if the part is not possible here.
    pub(crate) result: Option<ExperimentResult>,
    /// Reason why the part is not possible here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_possible: Option<String>,
}

/// Reason why this machine cannot count cycles and instructions.
fn why_not_counted(cpus: &[u32]) -> Option<String> {
    HardwareCounters::open(&cpus.iter().copied().collect()).err().map(|error| error.to_string())
}

/// Plays the experiment. After an interruption or a failure, the result contains the parts so far.
pub(super) fn run(args: &BenchArgs, experiment: LiveExperiment) -> Result<PublishedRun, Failure> {
    let parts = experiment.parts()?;
    let quell = std::env::current_exe().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let quell = quell.to_string_lossy().into_owned();
    let host = HostFacts::read(&ProcRoot::default()).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let part_budget = if args.quick { QUICK_PART_BUDGET } else { PART_BUDGET };
    let budget = args.budget.unwrap_or(part_budget * u32::try_from(parts.len()).unwrap_or(u32::MAX));
    let timing = Timing {
        budget_ms: u64::try_from(budget.as_millis()).unwrap_or(u64::MAX) / parts.len() as u64,
        slice_ms: args.slice.unwrap_or(SLICE_MS),
        settle_ms: args.settle.unwrap_or(SETTLE_MS),
        margin: MARGIN,
        seed: args.seed.unwrap_or_else(super::seed_from_the_clock),
    };
    let lab = LabRequest {
        modes: Vec::new(),
        loads: vec![OfferedLoad::Max],
        timing,
        server: experiment.server(&quell),
        workload: Workload::Memcached(bench_load::published_keys()),
        beside: None,
        queues: experiment.workers(host.cpus.len()),
        generators: 1,
        connections: experiment.connections(),
        interrupt_stand_in: true,
        insist: args.insist,
    };
    output::say(&format!(
        "({0}) {1}\nplays {2} parts in a private lab on this machine, for at most {3} s; the lab is removed at the end",
        experiment.published(),
        experiment.published().title(),
        parts.len(),
        budget.as_secs(),
    ));
    let no_hardware_counters = if experiment == LiveExperiment::A { why_not_counted(&host.cpus) } else { None };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let (journal, progress) = (journal(), Progress::new());
    progress.doing("setting up the lab");
    let mut report = |event: quell_bench::run::LabEvent<'_>| on_veth::show(&progress, &mut String::new(), event);
    let played = in_empty_lab(&lab, &journal, &mut report, |_, veth, _| {
        let (mut played, mut ended, mut max_per_s) = (Vec::new(), None, None);
        for (index, part) in parts.iter().enumerate() {
            let under = format!(", part {} of {} ({})", index + 1, parts.len(), part.name());
            let measured = part.measure(&quell, veth, &lab, max_per_s, &journal, &progress, &under, &stopped);
            let (result, not_possible) = match measured {
                Ok(result) => (Some(result), None),
                Err(error @ (ComparisonError::NoModeLeft(_) | ComparisonError::Reference { .. })) => {
                    (None, Some(error.to_string()))
                }
                Err(error) if played.is_empty() => return Err(error.into()),
                Err(ComparisonError::Interrupted) => {
                    ended = Some(INTERRUPTED.to_owned());
                    break;
                }
                Err(error) => {
                    ended = Some(error.to_string());
                    break;
                }
            };
            ended = result.as_ref().and_then(|result| {
                let interrupted = result.was_interrupted().then_some(INTERRUPTED);
                result.failure().or(interrupted).map(str::to_owned)
            });
            if part.load == Some(OfferedLoad::Max) {
                let experiment = result.as_ref().and_then(|result| result.experiments.first());
                max_per_s = experiment.and_then(|experiment| experiment.median(BASE, figures::REQUESTS));
            }
            let PartPlan { transport, shape, message_bytes, load, .. } = *part;
            let threads = lab.queues;
            played.push(PublishedPart { transport, shape, message_bytes, load, threads, result, not_possible });
            if ended.is_some() {
                break;
            }
        }
        Ok((played, ended))
    });
    progress.finish();
    let (parts, ended) = played.map_err(|error| on_veth::failure(NotRun::Bench(error)))?;
    Ok(PublishedRun { schema: SCHEMA.to_owned(), experiment, parts, no_hardware_counters, ended })
}
