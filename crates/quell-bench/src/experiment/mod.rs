//! Switchback experiments on a server under load. [`program`] switches programs of this host, and the server of the lab,
//! while they serve; [`command`] starts a command for each slice; [`model`] simulates. [`ExperimentResult`] is the result
//! file, and [`quell_experiment::analyse`] derives the verdicts from it.

pub mod command;
pub mod earlier;
pub mod figures;
pub mod judge;
pub mod model;
pub mod program;
pub mod server_side;

use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use quell_experiment::{
    ContrastSet, Criterion, DesignError, ExperimentDesign, ExperimentEnd, ExperimentEvent, ExperimentRecord,
    ExperimentSubject, FinishedExperiment, Goal, StopReason, SwitchbackAnalysis, Treatment,
};
use quell_host::attach::attachment::StartKeeper;
use quell_host::attach::plan::AttachPlan;
use quell_host::attach::{Targets, observe};
use quell_host::journal::Journal;
use quell_host::snapshot::{Snapshot, TakeError};
use quell_host::switching::{SwitchError, SwitchPlan, Switching};
use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_mode::{DeliveryMode, Requirement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::{HostFacts, LabFacts, ModelFacts, ServerFacts};
use crate::offered_load::OfferedLoad;
use crate::vm::GuestFacts;
use command::{CommandRunner, CommandSubjectError, StartedCommand};
use figures::Work;
use judge::{Judge, JudgeError, Judges, PrintedFigures};
use program::{Programs, SubjectError, Traffic};

/// Value of the `schema` field that this version writes and reads.
pub const SCHEMA: &str = "quell-experiment/1";

/// Result file of an experiment: what was measured, on what, slice by slice. The verdicts follow from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExperimentResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Quell that made the measurement.
    pub quell_version: String,
    /// Start: wall-clock seconds since 1970.
    pub began_unix_s: u64,
    /// Measured machine.
    pub host: HostFacts,
    /// What was switched.
    pub subject: SubjectFacts,
    /// An experiment for each load.
    pub experiments: Vec<LoadExperiment>,
    /// Why the results are not a measurement. Absent if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_a_measurement: Option<String>,
}

/// What was switched between modes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SubjectFacts {
    /// Programs of this host.
    Programs(ProgramsFacts),
    /// A command that was started for each slice.
    Command(CommandFacts),
    /// A server in a private lab.
    Veth {
        /// Lab.
        lab: Box<LabFacts>,
        /// Server.
        server: ServerFacts,
        /// Generator without the rate.
        load: Box<quell_load::LoadSpec>,
        /// Command line of the second server on the same queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<Vec<String>>,
    },
    /// A server on the model of a host.
    Model(ModelFacts),
    /// A server in a guest of the vm lab.
    Guest(GuestFacts),
}

/// Programs of this host, and who measured them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProgramsFacts {
    /// Processes, by PID and name.
    pub processes: Vec<ProcessFacts>,
    /// Queues that were switched.
    pub queues: Vec<QueueFacts>,
    /// Number of epolls that were switched.
    pub epolls: usize,
    /// CPUs whose time was counted.
    pub cpus: Vec<u32>,
    /// Command that sent the load. Absent under live traffic.
    pub load: Option<Vec<String>>,
    /// Command that printed figures of each slice. Absent if only the server's side is known.
    pub latency: Option<Vec<String>>,
    /// Command that printed figures of another program on the same queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Vec<String>>,
}

/// A command that was started for each slice, and the commands that loaded and measured it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommandFacts {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Command that sent the load. Absent if the judge sends it, or under live traffic.
    pub load: Option<Vec<String>>,
    /// Command that printed figures of each slice. Absent if only the server's side is known.
    pub latency: Option<Vec<String>>,
    /// Command that printed figures of another program on the same queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Vec<String>>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProcessFacts {
    /// Process ID.
    pub pid: u32,
    /// Name of its main thread.
    pub name: String,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QueueFacts {
    /// Device name.
    pub device: String,
    /// Receive queues of the NAPI instance, where known.
    pub queues: Vec<u32>,
    /// NAPI ID.
    pub napi: u32,
    /// IRQ number; absent where there is none.
    pub irq: Option<u32>,
}

/// The experiment under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LoadExperiment {
    /// Load. Absent if others send it.
    pub load: Option<OfferedLoad>,
    /// Rate of an open loop, requests per second.
    pub offered_per_s: Option<f64>,
    /// Design and slices.
    pub record: ExperimentRecord<DeliveryMode>,
    /// How it ended.
    pub end: EndOfExperiment,
}

/// How an experiment ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "why", rename_all = "kebab-case")]
pub enum EndOfExperiment {
    /// By its own rule.
    Stopped(StopReason),
    /// It was interrupted.
    Interrupted,
    /// It failed; the text says why. The slices before that are valid.
    Failed(String),
}

impl LoadExperiment {
    /// What follows from the slices.
    #[must_use]
    pub fn analyse(&self) -> SwitchbackAnalysis {
        quell_experiment::analyse(&self.record)
    }
}

impl ExperimentResult {
    /// JSON Schema of result files.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    pub(crate) fn begin(subject: SubjectFacts) -> Result<Self, SchedError> {
        Ok(Self {
            schema: SCHEMA.to_owned(),
            quell_version: env!("CARGO_PKG_VERSION").to_owned(),
            began_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            host: HostFacts::read(&ProcRoot::default())?,
            subject,
            experiments: Vec::new(),
            not_a_measurement: None,
        })
    }

    /// Whether an experiment was interrupted.
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.experiments.iter().any(|experiment| experiment.end == EndOfExperiment::Interrupted)
    }

    /// Why an experiment failed. `None` if none did.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.experiments.iter().find_map(|experiment| match &experiment.end {
            EndOfExperiment::Failed(why) => Some(why.as_str()),
            _ => None,
        })
    }
}

/// Times and limits of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timing {
    /// Whole time, ms.
    pub budget_ms: u64,
    /// Observed time of a slice, ms.
    pub slice_ms: u32,
    /// Time between setting a mode and observing it, ms.
    pub settle_ms: u32,
    /// Relative difference that does not matter.
    pub margin: f64,
    /// Seed of the order.
    pub seed: u64,
}

/// Programs of this host that are compared under modes.
#[derive(Debug, Clone)]
pub struct ProgramsRequest {
    /// Modes; the first is the reference.
    pub modes: Vec<DeliveryMode>,
    /// Times and limits.
    pub timing: Timing,
    /// Command that sends the load. Absent: somebody sends anyway.
    pub load: Option<Vec<String>>,
    /// Commands that measure each slice.
    pub judges: Judges,
}

/// A command that is started under each mode.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    /// Modes; the first is the reference.
    pub modes: Vec<DeliveryMode>,
    /// Times and limits.
    pub timing: Timing,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Command that sends the load. Absent: the judge sends it, or clients reconnect.
    pub load: Option<Vec<String>>,
    /// Commands that measure each slice.
    pub judges: Judges,
}

/// What an experiment would do to programs.
#[derive(Debug)]
pub struct Preview {
    /// The host as it is.
    pub snapshot: Snapshot,
    /// Values of every mode.
    pub plan: SwitchPlan,
}

impl Preview {
    /// Looks at the host and plans. Changes nothing.
    ///
    /// # Errors
    /// When the host cannot be observed.
    pub fn of(targets: &Targets, modes: &[DeliveryMode]) -> Result<Self, TakeError> {
        let snapshot = observe()?;
        let plan = SwitchPlan::new(&snapshot, targets, modes);
        Ok(Self { snapshot, plan })
    }

    /// Plans of the single modes, for their effects on other programs.
    #[must_use]
    pub fn plans(&self) -> &[AttachPlan] {
        &self.plan.plans
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComparisonError {
    /// The design is invalid.
    #[error(transparent)]
    Design(#[from] DesignError),
    /// The programs cannot be switched.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The command that measures gives no figures.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The machine does not report its CPUs.
    #[error(transparent)]
    Host(#[from] SchedError),
    /// The reference cannot be set.
    #[error("{mode} cannot be set here, so nothing can be compared with it: {why}")]
    Reference {
        /// Mode.
        mode: String,
        /// Reason.
        why: String,
    },
    /// The server, its load or its judge failed in the first slice.
    #[error("under {mode}: {why}; nothing was measured, and everything was restored")]
    FirstSlice {
        /// Mode.
        mode: String,
        /// Cause.
        why: String,
    },
    /// No mode is left to compare with the reference.
    #[error("none of the modes can be set here, so nothing can be compared: {0}")]
    NoModeLeft(String),
    /// Something was not restored.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The command was not ended, or something was not restored.
    #[error(transparent)]
    Command(#[from] CommandSubjectError),
    /// It was interrupted before the first slice.
    #[error("interrupted before anything was measured; nothing was changed")]
    Interrupted,
}

/// Receives the events of an experiment.
pub type Watch<'a> = dyn FnMut(ExperimentEvent<'_, DeliveryMode>) + 'a;

/// Compares modes on programs of this host. The load, if it is a command, is running already.
///
/// # Errors
/// See [`ComparisonError`]. Everything was restored, or the error says what was not.
pub fn run_programs(
    request: &ProgramsRequest,
    preview: &Preview,
    targets: Targets,
    journal: &Journal,
    start_keeper: &mut StartKeeper<'_>,
    watch: &mut Watch<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, ComparisonError> {
    // Before anything is changed: a judge that fails, and the names of the figures that it prints.
    let judged = match request.judges.is_empty() {
        true => PrintedFigures::new(),
        false => request.judges.run(request.timing.slice_ms, stopped)?.ok_or(ComparisonError::Interrupted)?,
    };
    let design = design(&request.modes, criteria_of_judge(&judged), request.timing, 1);
    design.check()?;
    let facts = facts(request, preview, &targets);
    let mut result = ExperimentResult::begin(SubjectFacts::Programs(facts))?;
    let watched = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis());
    let switching = Switching::begin(journal, targets, &preview.plan, Some(start_keeper))?;
    let traffic = Traffic::Live(request.judges.clone());
    let mut subject = Programs::new(switching, &preview.plan, &request.modes, &[], watched, traffic, stopped);
    let finished = drive(&mut subject, design, watch, stopped)?;
    result.experiments.push(finished_experiment(finished, None, None)?);
    Ok(result)
}

/// Compares modes on a command that is started for each slice. One slice under the first mode is measured beforehand and not
/// recorded.
///
/// # Errors
/// See [`ComparisonError`]. The command was ended, or the error says that it was not.
pub fn run_command(
    request: &CommandRequest,
    runner: &mut dyn CommandRunner,
    watch: &mut Watch<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, ComparisonError> {
    let mut subject = StartedCommand::new(runner, request.judges.clone(), stopped);
    let reference = request.modes.first().copied().unwrap_or_default();
    let (printed, spent_ms) = subject.rehearse(&reference, request.timing)?;
    let design = design(&request.modes, criteria_of_judge(&printed), request.timing, 1);
    let start_ms = (spent_ms as u32).saturating_sub(request.timing.slice_ms + request.timing.settle_ms);
    // The check of the budget includes starting and ending the command.
    ExperimentDesign { settle_ms: design.settle_ms.saturating_add(start_ms), ..design.clone() }.check()?;
    let facts = CommandFacts {
        command: request.command.clone(),
        load: request.load.clone(),
        latency: words_of(request.judges.latency.as_ref()),
        beside: words_of(request.judges.beside.as_ref()),
    };
    let mut result = ExperimentResult::begin(SubjectFacts::Command(facts))?;
    let finished = drive(&mut subject, design, watch, stopped)?;
    result.experiments.push(finished_experiment(finished, None, None)?);
    Ok(result)
}

/// Criteria of an experiment that a judge measures: CPU time, and every figure that it prints.
fn criteria_of_judge(figures: &PrintedFigures) -> Vec<Criterion> {
    let work = if figures.contains_key(figures::PRINTED_REQUESTS) { Work::Request } else { Work::Packet };
    let printed = figures.keys().filter(|name| *name != figures::PRINTED_REQUESTS);
    let of_judge = |name: &String| Criterion::Metric { name: name.clone(), goal: figures::goal_of(name) };
    std::iter::once(work.cpu()).chain(printed.map(of_judge)).collect()
}

/// The design for one of `parts` experiments that share the error rate.
pub(crate) fn design(
    modes: &[DeliveryMode],
    criteria: Vec<Criterion>,
    timing: Timing,
    parts: u32,
) -> ExperimentDesign<DeliveryMode> {
    let treatment = |mode: &DeliveryMode| Treatment { name: mode.to_string(), setting: *mode };
    let reference = modes.first().map_or_else(|| treatment(&DeliveryMode::default()), treatment);
    let others = modes.iter().skip(1).map(treatment).collect();
    let Timing { budget_ms, slice_ms, settle_ms, margin, seed } = timing;
    let design = ExperimentDesign::new(reference, others, criteria, seed);
    let error_rate = design.error_rate / f64::from(parts.max(1));
    let contrasts = ContrastSet::AgainstReference;
    ExperimentDesign { budget_ms, slice_ms, settle_ms, margin, error_rate, contrasts, ..design }
}

/// Criteria under Quell's own generator: in a closed loop a faster server gets more requests, so throughput is compared, not
/// latency.
pub(crate) fn criteria(load: OfferedLoad) -> Vec<Criterion> {
    let cpu = Work::Request.cpu();
    match load {
        OfferedLoad::Max => vec![Criterion::Metric { name: figures::REQUESTS.to_owned(), goal: Goal::Highest }, cpu],
        _ => vec![Criterion::Latency { quantile: 0.5 }, Criterion::Latency { quantile: 0.99 }, cpu],
    }
}

/// Requirement of a mode that a running program cannot meet. Shorter waits are not included: without them the mode still
/// works.
pub(crate) fn needs_launch(mode: &DeliveryMode) -> Option<Requirement> {
    let launch =
        |requirement: &Requirement| matches!(requirement, Requirement::SpinBeforeSleep | Requirement::SocketBusyPoll);
    mode.requirements().into_iter().find(launch)
}

/// Runs an experiment for each load, with the modes and within the time of all. Stops after one that ended early.
pub(crate) fn one_per_load<E>(
    loads: &[OfferedLoad],
    modes: &[DeliveryMode],
    timing: Timing,
    reaches_per_s: f64,
    experiment: &mut dyn FnMut(OfferedLoad, Option<f64>, ExperimentDesign<DeliveryMode>) -> Result<LoadExperiment, E>,
) -> Result<Vec<LoadExperiment>, E> {
    let mut experiments = Vec::new();
    let mut left_ms = timing.budget_ms;
    for (index, load) in loads.iter().enumerate() {
        let budget_ms = left_ms / (loads.len() - index) as u64;
        let design = design(modes, criteria(*load), Timing { budget_ms, ..timing }, loads.len() as u32);
        let finished = experiment(*load, load.rate_per_s(reaches_per_s), design)?;
        let spent_ms: f64 = finished.record.slices.iter().map(|slice| slice.observation.spent_ms).sum();
        left_ms = left_ms.saturating_sub(spent_ms as u64);
        let goes_on = matches!(finished.end, EndOfExperiment::Stopped(_));
        experiments.push(finished);
        if !goes_on {
            break;
        }
    }
    Ok(experiments)
}

pub(crate) fn drive<S: ExperimentSubject<Setting = DeliveryMode>>(
    subject: &mut S,
    design: ExperimentDesign<DeliveryMode>,
    watch: &mut Watch<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<FinishedExperiment<DeliveryMode, S::Error>, DesignError>
where
    S::Error: std::fmt::Display,
{
    quell_experiment::run(subject, design, &mut |event| {
        watch(event);
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

pub(crate) fn finished_experiment<E: std::fmt::Display + Into<ComparisonError>>(
    finished: FinishedExperiment<DeliveryMode, E>,
    load: Option<OfferedLoad>,
    offered_per_s: Option<f64>,
) -> Result<LoadExperiment, ComparisonError> {
    let FinishedExperiment { record, end, restored, .. } = finished;
    restored.map_err(Into::into)?;
    let end = match end {
        ExperimentEnd::Stopped(StopReason::NoTreatmentLeft) => {
            let reasons: Vec<&str> = record.dropped.values().map(String::as_str).collect();
            return Err(ComparisonError::NoModeLeft(reasons.join("; ")));
        }
        ExperimentEnd::Stopped(reason) => EndOfExperiment::Stopped(reason),
        ExperimentEnd::Interrupted => EndOfExperiment::Interrupted,
        ExperimentEnd::ReferenceNotSettable(error) => {
            return Err(ComparisonError::Reference { mode: record.design.reference.name, why: error.to_string() });
        }
        ExperimentEnd::SubjectFailed { treatment, error } if record.slices.is_empty() => {
            return Err(ComparisonError::FirstSlice { mode: treatment, why: error.to_string() });
        }
        ExperimentEnd::SubjectFailed { treatment, error } => {
            EndOfExperiment::Failed(format!("under {treatment}: {error}"))
        }
        ExperimentEnd::InvalidObservation(invalid) => EndOfExperiment::Failed(invalid.to_string()),
    };
    Ok(LoadExperiment { load, offered_per_s, record, end })
}

fn words_of(judge: Option<&Judge>) -> Option<Vec<String>> {
    judge.map(|judge| judge.words().to_vec())
}

fn facts(request: &ProgramsRequest, preview: &Preview, targets: &Targets) -> ProgramsFacts {
    let watched = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis());
    let queues = preview.plan.queues.iter().map(|queue| QueueFacts {
        device: queue.device.clone(),
        queues: queue.queues.clone(),
        napi: queue.napi.get(),
        irq: queue.irq,
    });
    ProgramsFacts {
        processes: targets.living().map(|target| ProcessFacts { pid: target.pid, name: target.name.clone() }).collect(),
        queues: queues.collect(),
        epolls: preview.plan.epolls.len(),
        cpus: watched.server_cpus.iter().collect(),
        load: request.load.clone(),
        latency: words_of(request.judges.latency.as_ref()),
        beside: words_of(request.judges.beside.as_ref()),
    }
}
