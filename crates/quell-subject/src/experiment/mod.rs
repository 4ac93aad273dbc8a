//! Switchback experiments on a server under load. [`program`] switches the modes of running programs, [`command`]
//! starts a command for each slice, and [`model`] simulates a server; `xdp` binds an AF_XDP socket for each slice. The
//! result is an [`ExperimentResult`].

pub mod client_output;
pub mod clients;
pub mod command;
pub mod figures;
pub mod judge;
pub mod model;
pub mod program;
pub mod server_side;
pub(crate) mod xdp;

use std::fmt;
use std::ops::ControlFlow;

use crate::question::{Comparison, Follow, SubjectStep, Timing, report_slice};
use clients::{ClientsError, RemoteClients};
use command::{CommandRunner, CommandSubjectError, LabClient, StartedCommand};
use judge::{Judge, JudgeError, Judges};
use program::SubjectError;
use quell_experiment::{
    ContrastSet, Criterion, DesignError, Driven, ExperimentDesign, ExperimentEnd, ExperimentSubject, Goal, SliceStage,
    StopReason, Switchback, Treatment, drive,
};
use xdp::XdpSubjectError;

use quell_host::attach::plan::{AttachObstacle, AttachPlan};
use quell_host::attach::poller;
use quell_host::attach::{Targets, observe_programs};
use quell_host::snapshot::{Snapshot, SnapshotNapi, TakeError};
use quell_host::switching::{SwitchError, SwitchPlan};
use quell_linux::CpuList;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_linux::visible::thousands;
use quell_load::OfferedLoad;
use quell_mode::{DeliveryMode, ModeKind, Requirement};
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::{CommandFacts, ProcessFacts, ProgramsFacts, QueueFacts};
use quell_result::figures::{REQUESTS, Work};

/// How much longer than the first slice others may take.
const SLICES_VARY: f64 = 1.1;

/// An experiment on a command that is started under each mode.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    /// Delivery modes to compare. The first one is the reference.
    pub modes: Vec<DeliveryMode>,
    /// Durations and limits.
    pub timing: Timing,
    /// Up to where the budget grows, in milliseconds, if slices take so long that it has no time for enough of them.
    pub budget_max_ms: u64,
    /// Commands that measure each slice.
    pub judges: Judges,
    pub facts: CommandFacts,
}

/// The changes that an experiment would make to running programs.
#[derive(Debug)]
pub struct Preview {
    /// Snapshot of the host before the experiment.
    pub snapshot: Snapshot,
    /// Settings of each mode.
    pub plan: SwitchPlan,
}

impl Preview {
    /// Takes a snapshot of the host and plans the settings of each mode. Changes nothing.
    ///
    /// # Errors
    /// Fails if the snapshot cannot be taken.
    pub fn of(targets: &Targets, modes: &[DeliveryMode]) -> Result<Self, TakeError> {
        let snapshot = observe_programs(&targets.pids())?;
        let plan = SwitchPlan::new(&snapshot, targets, modes);
        Ok(Self::new(snapshot, plan, targets))
    }

    /// The settings of each mode that were planned from this snapshot of the host.
    #[must_use]
    pub fn new(snapshot: Snapshot, mut plan: SwitchPlan, targets: &Targets) -> Self {
        plan.poller_cpus = server_side::watched(&snapshot, &targets.pids(), &plan.napis()).server_cpus;
        for (mode, impossible) in plan.modes.iter().zip(&mut plan.impossible) {
            let why = why_no_poller(mode, &plan.poller_cpus, plan.queues.len());
            impossible.extend(why.map(|reason| AttachObstacle { what: format!("set {mode}"), reason }));
        }
        Self { snapshot, plan }
    }

    /// Returns a plan for each mode, which lists its effects on other programs.
    #[must_use]
    pub fn plans(&self) -> &[AttachPlan] {
        &self.plan.plans
    }

    /// Mode of the queues under `base`, which leaves their NAPI threads as they are. `None` without such threads, or if
    /// queues differ.
    #[must_use]
    pub fn base_is(&self) -> Option<DeliveryMode> {
        let napis = self.plan.napis();
        let of_queues = self.snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
        base_is(of_queues.filter(|napi| napis.contains(&napi.id)))
    }
}

/// Mode of these queues under `base`. `None` without NAPI threads, or if queues differ.
pub(crate) fn base_is<'a>(queues: impl Iterator<Item = &'a SnapshotNapi>) -> Option<DeliveryMode> {
    let mut threading = queues.map(|napi| napi.threading.known().copied());
    let first = threading.next()??.known()?;
    let is_common = threading.all(|other| other == Some(first.into()));
    let kind = [ModeKind::Threaded, ModeKind::ThreadedBusy];
    let mode = kind.into_iter().map(DeliveryMode::from).find(|mode| mode.napi().threaded == first)?;
    is_common.then_some(mode)
}

/// Reason why a comparison has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComparisonError {
    /// The design is invalid.
    #[error(transparent)]
    Design(#[from] DesignError),
    /// The programs cannot be switched.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The judge failed or printed no figures.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The clients on other machines are not under load.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// The kernel does not report the CPUs that this process may use.
    #[error(transparent)]
    Host(#[from] SchedError),
    /// The reference cannot be set.
    #[error("{mode} cannot be set, so nothing can be compared with it: {why}")]
    Reference {
        /// Name of the reference mode.
        mode: String,
        /// Reason why the mode cannot be set.
        why: String,
    },
    /// The server, its load or its judge failed in the first slice.
    #[error("the first slice failed (mode {mode}): {why}; nothing was measured, and all settings were restored")]
    FirstSlice {
        /// Name of the mode.
        mode: String,
        /// Description of the failure.
        why: String,
    },
    /// The budget has no time for enough blocks.
    #[error(
        "a slice takes {} ms{}, so a budget of {} s has no time for enough slices: use --budget {}s{}",
        thousands(&takes_ms.to_string()),
        if *is_observed { ", as a first run shows" } else { "" },
        (*budget_ms as f64 / 100.0).round() / 10.0,
        needed_ms.div_ceil(1_000),
        if *fewer_modes { ", or fewer modes (--modes)" } else { "" }
    )]
    ShortBudget { takes_ms: u64, is_observed: bool, budget_ms: u64, needed_ms: u64, fewer_modes: bool },
    /// Only the reference can be set, so there is nothing to compare.
    #[error("no mode is left to compare with the first one: {0}")]
    NoModeLeft(String),
    /// A setting could not be restored.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The command could not be stopped, or a setting could not be restored.
    #[error(transparent)]
    Command(#[from] CommandSubjectError),
    /// The client's queue of an AF_XDP experiment could not be restored.
    #[error(transparent)]
    Xdp(#[from] XdpSubjectError),
    /// The experiment was interrupted before the first slice.
    #[error("interrupted before the first slice; nothing was changed")]
    Interrupted,
}

/// Callback that receives the state of an experiment before and after each slice.
pub type Watch<'a, T = DeliveryMode> = dyn FnMut(&Switchback<T>, SliceStage<'_>) + 'a;

/// Compares modes on a command that is started for each slice. The first slice is a rehearsal and is not recorded. With a
/// client, the command has to run in the server's namespace of the client's lab, and there must be no judges.
///
/// # Errors
/// See [`ComparisonError`]. The command was stopped, unless the error reports otherwise.
pub fn run_command(
    request: &CommandRequest,
    client: Option<LabClient<'_>>,
    runner: &mut dyn CommandRunner,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, ComparisonError> {
    let generator = client.as_ref().map(|client| Box::new(client.spec().clone()));
    let load = client.as_ref().map(LabClient::load);
    let mut subject = StartedCommand::new(runner, request.judges.clone(), stopped).with_client(client);
    let reference = request.modes.first().copied().unwrap_or_default();
    let (outcome, spent_ms) = subject.rehearse(&reference, request.timing.slice_ms, request.timing.settle_ms)?;
    outcome.without_latency.iter().for_each(|why| follow(SubjectStep::Note(why)));
    let work = if request.judges.counts_requests(&outcome.figures) { Work::Request } else { Work::Packet };
    let criteria = load.map_or_else(|| figures::criteria_of_judge(&outcome.figures, work), criteria);
    let design = ExperimentDesign { steps: outcome.steps, ..design(&request.modes, criteria, request.timing, 1) };
    let mut design = with_base_named(design, request.facts.base_is);
    // A published experiment has many parts, so a part on a busy machine rather has too few slices for an interval.
    if generator.is_none() {
        let planned_ms = design.budget_ms;
        design = with_enough_blocks(design, spent_ms, request.budget_max_ms)?;
        if design.budget_ms > planned_ms {
            let seconds = design.budget_ms.div_ceil(1_000);
            let text = format!(
                "a slice takes {} ms: the measurement takes up to {seconds} s",
                thousands(&format!("{spent_ms:.0}"))
            );
            follow(SubjectStep::Note(&text));
        }
        subject.limit_judges(design.budget_ms, design.slice_ms);
    }
    let facts = CommandFacts { client: generator, ..request.facts.clone() };
    let mut result = ExperimentResult::begin(SubjectFacts::Command(facts))?;
    let rate_per_s = load.and_then(|load| load.rate_per_s(f64::NAN));
    let mut watch = |experiment: &_, stage: SliceStage<'_>| report_slice(follow, None, experiment, stage);
    let experiment = compare(&mut subject, design, (load, rate_per_s), &mut watch, stopped)?;
    let (other_programs, effects) = (subject.other_programs(), subject.take_effects());
    result.subject.set_problems(subject.take_problems());
    result.experiments.push(LoadExperiment { other_programs, effects, ..experiment });
    Ok(result)
}

/// Returns the design of one of `parts` experiments, which share the error probability.
pub(crate) fn design<T: Copy + Default + fmt::Display>(
    modes: &[T],
    criteria: Vec<Criterion>,
    timing: Timing,
    parts: u32,
) -> ExperimentDesign<T> {
    let treatment = |mode: &T| Treatment { name: mode.to_string(), setting: *mode };
    let reference = modes.first().map_or_else(|| treatment(&T::default()), treatment);
    let others = modes.iter().skip(1).map(treatment).collect();
    let Timing { budget_ms, slice_ms, settle_ms, margin, seed } = timing;
    let design = ExperimentDesign::new(reference, others, criteria, seed);
    let error_rate = design.error_rate / f64::from(parts.max(1));
    let contrasts = ContrastSet::AgainstReference;
    ExperimentDesign { budget_ms, slice_ms, settle_ms, margin, error_rate, contrasts, ..design }
}

/// Names a reference `base` with what it is on queues with NAPI threads.
pub(crate) fn with_base_named(
    mut design: ExperimentDesign<DeliveryMode>,
    base_is: Option<DeliveryMode>,
) -> ExperimentDesign<DeliveryMode> {
    if let Some(mode) = base_is.filter(|_| design.reference.setting == DeliveryMode::default()) {
        design.reference.name = format!("{} ({mode})", design.reference.name);
    }
    design
}

/// Gives a design time for enough blocks of slices that take `slice_takes_ms` each, up to `budget_max_ms`.
pub(crate) fn with_enough_blocks(
    design: ExperimentDesign<DeliveryMode>,
    slice_takes_ms: f64,
    budget_max_ms: u64,
) -> Result<ExperimentDesign<DeliveryMode>, ComparisonError> {
    let wanted_ms = design.enough_ms(slice_takes_ms * SLICES_VARY);
    let budget_ms = design.budget_ms.max(wanted_ms.min(budget_max_ms));
    let settle_ms = (slice_takes_ms as u32).saturating_sub(design.slice_ms).max(design.settle_ms);
    let checked = ExperimentDesign { budget_ms, settle_ms, ..design.clone() }.check();
    if let Err(DesignError::BudgetTooShort { .. }) = checked {
        let (planned_ms, fewer_modes) = (f64::from(design.slice_ms + design.settle_ms), design.treatments.len() > 1);
        let (takes_ms, is_observed) = (slice_takes_ms.max(planned_ms) as u64, slice_takes_ms > planned_ms);
        return Err(ComparisonError::ShortBudget {
            takes_ms,
            is_observed,
            budget_ms,
            needed_ms: wanted_ms,
            fewer_modes,
        });
    }
    checked?;
    Ok(ExperimentDesign { budget_ms, ..design })
}

/// Checks whether the reference and another mode can be set. `why_not` is the reason why a mode cannot.
///
/// # Errors
/// [`ComparisonError::Reference`] or [`ComparisonError::NoModeLeft`].
pub(crate) fn check_settable(
    modes: &[DeliveryMode],
    why_not: impl Fn(usize) -> Option<String>,
) -> Result<(), ComparisonError> {
    let Some((reference, others)) = modes.split_first() else { return Ok(()) };
    if let Some(why) = why_not(0) {
        return Err(ComparisonError::Reference { mode: reference.to_string(), why });
    }
    let reasons: Option<Vec<String>> = (1..=others.len()).map(&why_not).collect();
    match reasons {
        Some(mut reasons) if !reasons.is_empty() => {
            reasons.dedup();
            Err(ComparisonError::NoModeLeft(reasons.join("; ")))
        }
        _ => Ok(()),
    }
}

/// Returns the criteria of an experiment with Quell's generator. In a closed loop, a faster server gets more requests.
/// Therefore throughput is compared instead of latency.
pub(crate) fn criteria(load: OfferedLoad) -> Vec<Criterion> {
    let cpu = Work::Request.cpu();
    match load {
        OfferedLoad::Max => vec![Criterion::Metric { name: REQUESTS.to_owned(), goal: Goal::Highest }, cpu],
        _ => vec![Criterion::Latency { quantile: 0.5 }, Criterion::Latency { quantile: 0.99 }, cpu],
    }
}

/// Why the pollers of a mode cannot be compared with other modes: these have the CPUs `cpus` of the programs, and no other.
fn why_no_poller(mode: &DeliveryMode, cpus: &CpuList, queues: usize) -> Option<String> {
    if let Err(error) = poller::check(mode) {
        return Some(error.to_string());
    }
    let first = mode.poller()?.cpu?;
    let last = first.saturating_add(u32::try_from(queues).unwrap_or(u32::MAX).saturating_sub(1));
    let elsewhere = (first..=last).find(|cpu| !cpus.contains(*cpu))?;
    Some(format!(
        "its poller would have CPU {elsewhere}, and the programs have only CPUs {cpus}: let the programs run there, too, so \
         that all modes have the same CPUs"
    ))
}

/// Returns the requirement of a mode that can only be met when a program is started. Shortened waits are not such a
/// requirement, because the mode has an effect even if waits are not shortened.
pub(crate) fn needs_launch(mode: &DeliveryMode) -> Option<Requirement> {
    let launch =
        |requirement: &Requirement| matches!(requirement, Requirement::SpinBeforeSleep | Requirement::SocketBusyPoll);
    mode.requirements().into_iter().find(launch)
}

/// Checks the design of an experiment for each load, which have equal parts of the budget.
///
/// # Errors
/// [`ComparisonError::Design`] or [`ComparisonError::ShortBudget`].
pub(crate) fn check_designs(loads: &[OfferedLoad], comparison: &Comparison) -> Result<(), ComparisonError> {
    let Comparison { modes, timing, .. } = comparison;
    let parts = loads.len().max(1) as u64;
    for load in loads {
        let timing = Timing { budget_ms: timing.budget_ms / parts, ..*timing };
        check_part(&design(modes, criteria(*load), timing, 1), parts, modes.len() > 2)?;
    }
    Ok(())
}

/// Checks the design of one of `parts` experiments. `fewer_modes`: whether the user can leave modes out.
///
/// # Errors
/// [`ComparisonError::Design`] or [`ComparisonError::ShortBudget`].
pub(crate) fn check_part<T>(
    design: &ExperimentDesign<T>,
    parts: u64,
    fewer_modes: bool,
) -> Result<(), ComparisonError> {
    match design.check() {
        Err(DesignError::BudgetTooShort { budget_ms, .. }) => Err(ComparisonError::ShortBudget {
            takes_ms: u64::from(design.slice_ms) + u64::from(design.settle_ms),
            is_observed: false,
            budget_ms: budget_ms * parts,
            needed_ms: design.enough_ms(0.0) * parts,
            fewer_modes,
        }),
        checked => Ok(checked?),
    }
}

/// Runs an experiment for each load, within the time limit of all experiments. Stops after an experiment that was
/// interrupted or failed.
pub(crate) fn one_per_load<E>(
    loads: &[OfferedLoad],
    modes: &[DeliveryMode],
    timing: Timing,
    experiment: &mut dyn FnMut(OfferedLoad, ExperimentDesign<DeliveryMode>) -> Result<LoadExperiment, E>,
) -> Result<Vec<LoadExperiment>, E> {
    let mut experiments = Vec::new();
    let mut left_ms = timing.budget_ms;
    for (index, load) in loads.iter().enumerate() {
        let budget_ms = left_ms / (loads.len() - index) as u64;
        let design = design(modes, criteria(*load), Timing { budget_ms, ..timing }, loads.len() as u32);
        let finished = experiment(*load, design)?;
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

/// Runs an experiment under one load. `load` and `offered_per_s` describe it.
pub(crate) fn compare<T: Clone + PartialEq, S: ExperimentSubject<Setting = T>>(
    subject: &mut S,
    design: ExperimentDesign<T>,
    (load, offered_per_s): (Option<OfferedLoad>, Option<f64>),
    watch: &mut Watch<'_, T>,
    stopped: &dyn Fn() -> bool,
) -> Result<LoadExperiment<T>, ComparisonError>
where
    S::Error: std::fmt::Display + Into<ComparisonError>,
{
    let mut experiment = Switchback::new(design)?;
    let Driven { end, restored } = drive(subject, &mut experiment, &mut |experiment, stage| {
        watch(experiment, stage);
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    restored.map_err(Into::into)?;
    let failed_under = experiment.next_slice().map(|slice| slice.treatment.name.clone()).unwrap_or_default();
    let stopped_because = experiment.stopped();
    let (record, _) = experiment.finish();
    let end = match end {
        ExperimentEnd::Ended if stopped_because == Some(StopReason::NoTreatmentLeft) => {
            let reason = |(&arm, why): (&usize, &String)| match record.design.treatment(arm) {
                Some(mode) => format!("{}: {why}", mode.name),
                None => why.clone(),
            };
            let reasons: Vec<String> = record.dropped.iter().map(reason).collect();
            return Err(ComparisonError::NoModeLeft(reasons.join("; ")));
        }
        ExperimentEnd::Ended => stopped_because.map_or(EndOfExperiment::Interrupted, EndOfExperiment::Stopped),
        ExperimentEnd::Interrupted => EndOfExperiment::Interrupted,
        ExperimentEnd::ReferenceNotSettable(error) => {
            return Err(ComparisonError::Reference { mode: record.design.reference.name, why: error.to_string() });
        }
        ExperimentEnd::SubjectFailed(error) if record.slices.is_empty() => {
            return Err(ComparisonError::FirstSlice { mode: failed_under, why: error.to_string() });
        }
        ExperimentEnd::SubjectFailed(error) => EndOfExperiment::Failed(format!("under {failed_under}: {error}")),
        ExperimentEnd::InvalidObservation(invalid) => EndOfExperiment::Failed(invalid.to_string()),
    };
    Ok(LoadExperiment { load, offered_per_s, ..LoadExperiment::new(record, end) })
}

fn words_of(judge: Option<&Judge>) -> Option<Vec<String>> {
    judge.map(|judge| judge.words().to_vec())
}

/// Describes the programs, and the commands that generate load and measure.
#[must_use]
pub fn programs_facts(
    preview: &Preview,
    targets: &Targets,
    load: Option<&[String]>,
    judges: &Judges,
    clients: Option<&RemoteClients>,
) -> ProgramsFacts {
    let watched = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis());
    let namespaces = &preview.snapshot.namespaces;
    let netns = |cookie: u64| {
        let namespace = namespaces.iter().find(|one| one.cookie.known() == Some(&cookie))?;
        namespace.name().map(str::to_owned)
    };
    let queues = preview.plan.queues.iter().map(|queue| QueueFacts {
        device: queue.device.clone(),
        queues: queue.queues.clone(),
        napi: queue.napi.get(),
        irq: queue.irq,
        netns: netns(queue.namespace_cookie),
    });
    let (pids, proc) = (targets.pids(), ProcRoot::default());
    let processes = targets.living().map(|target| ProcessFacts {
        pid: target.pid.get().unsigned_abs(),
        name: target.name.clone(),
        is_child: proc.process(target.pid).stat().is_ok_and(|stat| stat.ppid.is_some_and(|it| pids.contains(&it))),
    });
    ProgramsFacts {
        processes: processes.collect(),
        queues: queues.collect(),
        epolls: preview.plan.epolls.len(),
        cpus: watched.server_cpus.iter().collect(),
        load: load.map(<[String]>::to_vec),
        latency: words_of(judges.latency.as_ref()),
        beside: words_of(judges.beside.as_ref()),
        clients: clients.map(|clients| clients.facts().clone()),
        base_is: preview.base_is(),
        ..ProgramsFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_grows_to_enough_blocks_of_real_slices_up_to_its_maximum_and_otherwise_names_the_options() {
        let timing = Timing { budget_ms: 30_000, slice_ms: 1_000, settle_ms: 0, margin: 0.05, seed: 1 };
        let modes = DeliveryMode::parse_list("base,suspend20,defer200").unwrap();
        let budget_ms = |slice_takes_ms, budget_max_ms| {
            let design = design(&modes, vec![Work::Packet.cpu()], timing, 1);
            let grown = with_enough_blocks(design, slice_takes_ms, budget_max_ms);
            grown.map(|design| (design.budget_ms, design.settle_ms)).map_err(|error| error.to_string())
        };
        assert_eq!(budget_ms(0.0, 120_000), Ok((32_000, 0)));
        assert_eq!(budget_ms(2_000.0, 120_000), Ok((70_400, 0)));
        let refused = budget_ms(2_000.0, 30_000).unwrap_err();
        assert_eq!(
            refused,
            "a slice takes 2,000 ms, as a first run shows, so a budget of 30 s has no time for enough slices: use --budget 71s, or \
             fewer modes (--modes)"
        );
        assert_eq!(budget_ms(2_000.0, 53_000), Ok((53_000, 0)));
    }

    #[test]
    fn loads_share_the_budget_that_is_checked_before_the_first_one() {
        let modes = DeliveryMode::parse_list("base,suspend20").unwrap();
        let timing = Timing { budget_ms: 6_000, slice_ms: 200, settle_ms: 10, margin: 0.05, seed: 1 };
        let comparison = Comparison { modes, timing, budget_max_ms: 6_000, leaves_out_stalls: false };
        let [one, two] = [1, 2].map(|loads| check_designs(&vec![OfferedLoad::Max; loads], &comparison));
        assert!(one.is_ok(), "{one:?}");
        let two = two.map_err(|error| error.to_string());
        let said = "a slice takes 210 ms, so a budget of 6 s has no time for enough slices: use --budget 11s";
        assert_eq!(two, Err(said.to_owned()), "the budget of all loads; one of two modes cannot be left out");
        let timing = Timing { budget_ms: 8_000, ..timing };
        assert!(check_designs(&[OfferedLoad::Max; 2], &Comparison { timing, ..comparison }).is_ok());
    }

    #[test]
    fn a_reference_that_cannot_be_set_and_others_that_cannot_are_known_from_the_plan() {
        let modes = DeliveryMode::parse_list("userbusy,base").unwrap();
        let check =
            |refused: &'static [usize]| check_settable(&modes, |at| refused.contains(&at).then(|| "no CPU".to_owned()));
        assert!(matches!(check(&[0]), Err(ComparisonError::Reference { mode, .. }) if mode == "userbusy"));
        assert!(matches!(check(&[1]), Err(ComparisonError::NoModeLeft(why)) if why == "no CPU"));
        assert!(check(&[]).is_ok());
    }
}
