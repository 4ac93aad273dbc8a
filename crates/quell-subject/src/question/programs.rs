//! Running programs of this host as a subject: their queues and epolls are switched while they serve their own traffic, or
//! that of a load.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use quell_change::journal::Purpose;
use quell_experiment::SliceStage;
use quell_host::attach::attachment::refuse_what_is_attached;
use quell_host::attach::consequences::consequences_observed;
use quell_host::attach::{AttachPlan, Targets};
use quell_host::behavior;
use quell_host::findings::Finding;
use quell_host::switching::{SwitchError, Switching, refuse_queues_of_others};
use quell_linux::{CpuList, Pid, kernel};
use quell_mode::DeliveryMode;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::figures::Work;
use quell_tune::{RefusedMode, TuneMetric, TunePlan, TuneSpace};

use super::load_source::{UnderLoad, under_load};
use super::search::search;
use super::{
    Answer, LoadSource, Operator, Planned, Question, Searched, SubjectStep, Tools, Unanswered, metrics, refused_kinds,
};
use crate::experiment::clients::RemoteClients;
use crate::experiment::figures;
use crate::experiment::judge::{JudgeOutcome, Judges};
use crate::experiment::program::{Programs, Traffic};
use crate::experiment::{
    ComparisonError, Preview, compare, criteria, design, programs_facts, server_side, with_enough_blocks,
};

/// Time limit for the first packets of the load to arrive at the programs.
const TRAFFIC_WITHIN: Duration = Duration::from_secs(10);
/// Interval between two snapshots while no packets have arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Running programs, and what loads and measures them.
#[derive(Debug, Clone)]
pub struct ProgramsSpec {
    pub targets: Targets,
    pub load: LoadSource,
    /// Commands that measure each slice. None with clients on other machines.
    pub judges: Judges,
    /// Whether modes are set that stall the programs.
    pub accepts_stalls: bool,
    /// Whether only the plan is wanted: no load is started.
    pub is_dry_run: bool,
}

/// Answers a question on programs.
pub fn answer(
    spec: &ProgramsSpec,
    question: Question,
    tools: &Tools<'_>,
    operator: &mut dyn Operator,
) -> Result<Answer, Unanswered> {
    if let Question::Search(plan) = &question {
        match (&spec.load, spec.judges.is_empty()) {
            (LoadSource::Clients(_), _) => metrics::of_generator().check(plan)?,
            (_, true) => metrics::of_server().check(plan)?,
            // Checked after the first run of the command.
            (_, false) => {}
        }
    }
    // Another experiment switches these settings. A snapshot of them would be of no use.
    refuse_what_is_attached(tools.journal, &spec.targets).map_err(SwitchError::from)?;
    let source = if spec.is_dry_run { &LoadSource::Live } else { &spec.load };
    let (mut answer, why) = under_load(tools, source, operator, |load, operator| {
        Measurement { spec, tools, stopped: load.stopped }.answer(question, load, operator)
    })?;
    if let Some(why) = why {
        answer.interrupted_because(why);
    }
    Ok(answer)
}

/// Takes a snapshot and plans the modes. Repeats this after the load has started, until its packets show which queues
/// the programs use.
///
/// # Errors
/// When there is nothing to switch.
pub fn preview(
    targets: &Targets,
    modes: &[DeliveryMode],
    has_load: bool,
    stopped: &dyn Fn() -> bool,
) -> Result<Preview, Unanswered> {
    let deadline = Instant::now() + TRAFFIC_WITHIN;
    loop {
        let preview = Preview::of(targets, modes)?;
        match preview.plan.check_queues() {
            Ok(()) => return Ok(preview),
            Err(SwitchError::NothingToSwitch) if has_load && Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
        if stopped() {
            return Err(Unanswered::Interrupted);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// A measurement under load.
struct Measurement<'a> {
    spec: &'a ProgramsSpec,
    tools: &'a Tools<'a>,
    stopped: &'a dyn Fn() -> bool,
}

impl Measurement<'_> {
    fn answer(
        &self,
        mut question: Question,
        load: UnderLoad<'_>,
        operator: &mut dyn Operator,
    ) -> Result<Answer, Unanswered> {
        let ProgramsSpec { targets, judges, accepts_stalls, .. } = self.spec;
        let mut preview = self.preview(&question, load.has_load)?;
        refuse_queues_of_others(self.tools.journal, &preview.plan)?;
        preview.plan.accepts_stalls = *accepts_stalls;
        let modes = match &mut question {
            Question::Compare(comparison) => {
                self.refuse_stalls(&preview)?;
                comparison.modes.clone()
            }
            Question::Search(plan) => {
                let modes = self.complete(plan, &mut preview)?;
                let checked = plan.check();
                checked.map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
                modes
            }
        };
        self.tools.journal.check_writable()?;
        let clients = load.clients.as_ref();
        let facts = programs_facts(&preview, targets, self.spec.load.command(), judges, clients);
        let subject = SubjectFacts::Programs(facts);
        let planned = Planned { question: &question, subject: &subject, affected: affected(&preview) };
        if !operator.agrees(&planned) {
            return Err(Unanswered::Declined);
        }
        self.measure(question, &modes, &preview, subject, load.clients, operator)
    }

    /// See [`preview`]. If the programs have no traffic, the judges are their load.
    fn preview(&self, question: &Question, has_load: bool) -> Result<Preview, Unanswered> {
        let ProgramsSpec { targets, judges, is_dry_run, .. } = self.spec;
        let of_load = |has_load| preview(targets, &question.modes(), has_load, self.stopped);
        match of_load(has_load) {
            Err(Unanswered::Switch(SwitchError::NothingToSwitch)) if !has_load && !judges.is_empty() && !is_dry_run => {
                let _measuring = judges.start(question.slice_ms())?;
                of_load(true)
            }
            previewed => previewed,
        }
    }

    fn measure(
        &self,
        question: Question,
        modes: &[DeliveryMode],
        preview: &Preview,
        subject: SubjectFacts,
        clients: Option<RemoteClients>,
        operator: &mut dyn Operator,
    ) -> Result<Answer, Unanswered> {
        let (mut judges, stopped) = (self.spec.judges.clone(), self.stopped);
        // The first run happens before any change. It detects commands that fail, and shows the names of their figures.
        let began = Instant::now();
        let outcome = match judges.is_empty() {
            true => JudgeOutcome::default(),
            false => judges.run(question.slice_ms(), stopped)?.ok_or(Unanswered::Interrupted)?,
        };
        let ran_ms = began.elapsed().as_secs_f64() * 1e3;
        let printed = outcome.figures;
        let mut say = |text: &str| operator.follow(SubjectStep::Note(text));
        outcome.without_latency.iter().for_each(|why| say(why));
        let watched = server_side::watched(&preview.snapshot, &self.spec.targets.pids(), &preview.plan.napis());
        let open = |purpose, watched, clients: Option<RemoteClients>, judges| {
            let (targets, mut start_keeper) = (self.spec.targets.clone(), self.tools.start_keeper);
            let switching =
                Switching::begin(self.tools.journal, purpose, targets, &preview.plan, Some(&mut start_keeper))?;
            let traffic = clients.map_or(Traffic::Live(judges), |clients| Traffic::Clients(Box::new(clients)));
            Ok::<_, Unanswered>(Programs::new(switching, &preview.plan, modes, &[], watched, traffic, stopped))
        };
        match question {
            Question::Compare(comparison) => {
                let offered = clients.as_ref().map(RemoteClients::offered_load);
                let work = if judges.counts_requests(&printed) { Work::Request } else { Work::Packet };
                let criteria = offered.map_or_else(|| figures::criteria_of_judge(&printed, work), criteria);
                let design = design(modes, criteria, comparison.timing, 1);
                let design = with_enough_blocks(design, ran_ms, comparison.budget_max_ms, &mut say)?;
                judges.end_after(design.budget_ms, design.slice_ms);
                let mut result = ExperimentResult::begin(subject).map_err(ComparisonError::from)?;
                let watched = server_side::with_cpus_of(modes, watched);
                let mut programs = open(Purpose::Experiment, watched, clients, judges)?;
                let rate_per_s = offered.and_then(|load| load.rate_per_s(f64::NAN));
                let mut watch = |experiment: &_, stage: SliceStage<'_>| {
                    operator.follow(SubjectStep::Comparing { load: None, experiment, stage });
                };
                let experiment = compare(&mut programs, design, (offered, rate_per_s), &mut watch, stopped)?;
                result.experiments.push(experiment);
                Ok(Answer::Compared(Box::new(result)))
            }
            Question::Search(plan) => {
                if !judges.is_empty() {
                    metrics::of_command(&judges, &printed).check(&plan)?;
                }
                judges.end_after(plan.budget_ms, plan.slice_ms);
                let mut programs = open(Purpose::Search, watched, clients, judges)?;
                let result = search(&mut programs, *plan, operator, stopped)?;
                let left_alone = programs.left_alone;
                Ok(Answer::Searched(Box::new(Searched { subject, result, not_a_measurement: None, left_alone })))
            }
        }
    }

    /// Refuses modes that would stall the programs.
    fn refuse_stalls(&self, preview: &Preview) -> Result<(), Unanswered> {
        if self.spec.accepts_stalls {
            return Ok(());
        }
        let polls = preview.plans().iter().any(AttachPlan::polls_queues);
        let behavior = polls.then(|| behavior::observe(&preview.snapshot, &self.spec.targets.pids(), true));
        for plan in preview.plans() {
            let findings = consequences_observed(&preview.snapshot, None, plan, behavior.as_ref());
            if let Some(finding) = findings.into_iter().find(Finding::predicts_stall) {
                return Err(Unanswered::Stalls(Box::new(finding)));
            }
        }
        Ok(())
    }

    /// Completes the plan of a search: which mode the programs have now, and which kinds of mode are not possible for
    /// them. Returns all modes; a setting that is not in the grid is added to them and to the preview.
    fn complete(&self, plan: &mut TunePlan, preview: &mut Preview) -> Result<Vec<DeliveryMode>, Unanswered> {
        let targets = &self.spec.targets;
        let mut modes = TuneSpace::default().all();
        if preview.plan.present().is_none()
            && let Some(mode) = preview.plan.present_setting()
        {
            modes.push(mode);
            *preview = Preview::of(targets, &modes)?;
            preview.plan.accepts_stalls = self.spec.accepts_stalls;
        }
        let present = preview.plan.present().ok_or(Unanswered::PresentDiffers)?;
        let stall = self.stall_of_suspension(preview);
        let mut refused = refused_here(preview, &modes, stall.as_ref());
        if hides_napi_threads(plan, preview, targets) {
            let kinds = ["threaded", "threadedbusy"].into_iter();
            let kinds = kinds.filter(|kind| refused.iter().all(|one| one.kind != *kind));
            let reason = "its NAPI thread can run on CPUs that these programs do not use, whose time is not measured";
            let new = kinds.map(|kind| RefusedMode { kind: kind.to_owned(), reason: reason.to_owned() });
            refused.extend(new.collect::<Vec<_>>());
        }
        let space = TuneSpace { refused };
        let arms = space.coarse();
        if arms.len() < 2 {
            return Err(Unanswered::NothingToTry(space.refused));
        }
        (plan.present, plan.arms, plan.space) = (modes[present], arms, Some(space));
        Ok(modes)
    }

    /// The stall that the first suspending mode would cause, from an observation of the programs.
    fn stall_of_suspension(&self, preview: &Preview) -> Option<Finding> {
        if self.spec.accepts_stalls {
            return None;
        }
        let suspends = |plan: &&AttachPlan| plan.queues().any(|step| step.new.irq_suspend_timeout_ns.unwrap_or(0) > 0);
        let suspending = preview.plans().iter().find(suspends)?;
        let behavior = behavior::observe(&preview.snapshot, &self.spec.targets.pids(), true);
        let findings = consequences_observed(&preview.snapshot, None, suspending, Some(&behavior));
        findings.into_iter().find(Finding::predicts_stall)
    }
}

/// Other programs on the queues, by PID.
fn affected(preview: &Preview) -> BTreeMap<Pid, String> {
    let affected = preview.plans().iter().flat_map(|plan| &plan.affected_processes);
    affected.map(|process| (process.pid, process.name.clone())).collect()
}

/// Whether the goal or a guard uses CPU time, but the measured CPUs are not all on which a new NAPI thread can run.
fn hides_napi_threads(plan: &TunePlan, preview: &Preview, targets: &Targets) -> bool {
    let limited = plan.goal.limits.iter().map(|limit| &limit.metric);
    let metrics = limited.chain([&plan.goal.objective]).chain(plan.guards.iter().map(|guard| &guard.metric));
    let uses_cpu = metrics.into_iter().any(|metric| matches!(metric, TuneMetric::Cpu | TuneMetric::Busy));
    let measured = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis()).server_cpus;
    uses_cpu && CpuList::online(kernel::sysfs()).is_ok_and(|online| online != measured)
}

/// Kinds of mode of which no value can be set, or that would stall the programs.
fn refused_here(preview: &Preview, modes: &[DeliveryMode], stall: Option<&Finding>) -> Vec<RefusedMode> {
    let why = |mode: &DeliveryMode| {
        let at = modes.iter().position(|other| other == mode)?;
        preview.plan.impossible[at].first().map(|first| format!("{}: {}", first.what, first.reason))
    };
    let mut refused = refused_kinds(modes, &why);
    if let Some(Finding { id, observed, .. }) = stall {
        let reason = format!(
            "would stall these programs: {observed} (`quell doctor --explain {id}`); --accept-stalls searches it anyway"
        );
        refused.push(RefusedMode { kind: "suspend".to_owned(), reason });
    }
    refused
}
