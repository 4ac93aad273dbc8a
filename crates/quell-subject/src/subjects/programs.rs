//! Running programs of this host as a subject: their queues and epolls are switched while they serve their own traffic, or
//! that of a load.

use std::collections::BTreeMap;

use quell_change::journal::Purpose;
use quell_experiment::{ExperimentDesign, SliceStage, Treatment};
use quell_host::attach::consequences::{consequences_beside, consequences_observed};
use quell_host::attach::measured::{MeasuredAttachments, measured_attachments};
use quell_host::attach::placement::{Groups, Wanted, decide, mark_attached_filters};
use quell_host::attach::plan::AttachObstacle;
use quell_host::attach::{AttachPlan, Targets, observe_programs};
use quell_host::behavior;
use quell_host::findings::{Finding, are_steered, check_not_stopped};
use quell_host::snapshot::Snapshot;
use quell_host::steer::{SteerRequest, can_pin};
use quell_host::switching::{BegunSwitching, SwitchError, SwitchPlan, refuse_queues_of_others};
use quell_linux::Pid;
use quell_mode::{DeliveryMode, ModeKind, Threaded};
use quell_result::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::{PRESENT, ProblemFacts, ProgramsFacts};
use quell_result::figures::Work;
use quell_result::tune::TuneFile;
use quell_tune::{RefusedMode, TunePlan, TuneSpace};

use super::judged;
use super::load_source::{UnderLoad, under_load};
use super::preview::{self, Judging, Look};
use super::refused::{
    by_problem, hides_napi_threads, lacking_cpus, leave_out_base, leave_out_stalls, present_as_base, refused_here,
    under_arms,
};
use super::search::{lengthen_slices, search};
use super::unplaced::{self, Unplaced};
use super::{Answer, HelperError, LoadSource, Operator, Planned, PlannedSubject, Tools, Unanswered, metrics, placed};
use crate::counters::Watched;
use crate::experiment::clients::RemoteClients;
use crate::experiment::figures;
use crate::experiment::judge::{JudgeOutcome, Judges};
use crate::experiment::program::{Programs, Traffic};
use crate::experiment::{
    ComparisonError, Preview, check_settable, compare, criteria, design, programs_facts, server_side, with_base_named,
    with_enough_blocks,
};
use crate::other_programs::Contention;
use crate::question::{Comparison, Follow, Question, SubjectStep, report_slice};

/// Running programs, and what loads and measures them.
#[derive(Debug, Clone)]
pub struct ProgramsSpec {
    pub targets: Targets,
    pub load: LoadSource,
    /// Commands that measure each slice. None with clients on other machines.
    pub judges: Judges,
    /// Steering of connections and pinning of workers, under every mode.
    pub placement: Wanted,
    /// Whether modes are set that stall the programs.
    pub accepts_stalls: bool,
    /// Whether only the plan is wanted: no load is started.
    pub is_dry_run: bool,
    /// Whether slices of a search can be longer than planned.
    pub slices_can_grow: bool,
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
    let attached = measured_attachments(tools.journal, &spec.targets).map_err(SwitchError::from)?;
    let source = if spec.is_dry_run { &LoadSource::Live } else { &spec.load };
    let (mut answer, why) = under_load(tools, source, operator, |load, operator| {
        Measurement { spec, tools, attached, stopped: load.stopped, restart_load: load.restart }
            .answer(question, load, operator)
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
    preview::preview(&|| Ok(Preview::of(targets, modes)?), has_load, stopped)
}

/// A measurement under load.
struct Measurement<'a> {
    spec: &'a ProgramsSpec,
    tools: &'a Tools<'a>,
    /// Attachments to the programs, which come back at the end.
    attached: MeasuredAttachments,
    stopped: &'a dyn Fn() -> bool,
    restart_load: &'a dyn Fn() -> Result<(), HelperError>,
}

/// Settings of the programs, and their description in the result.
struct Prepared {
    modes: Vec<DeliveryMode>,
    /// Mode of the attachments, if the comparison has no other row for it.
    present: Option<DeliveryMode>,
    preview: Preview,
    groups: Groups,
    problems: Vec<ProblemFacts>,
    has_load: bool,
    /// Whether the preview has only connections of judges, which end before the first slice.
    is_idle: bool,
    /// What the judges printed in their first run.
    printed: JudgeOutcome,
}

impl Prepared {
    /// The snapshot, if it has connections that can be there during the slices.
    fn snapshot_before(&self) -> Option<&Snapshot> {
        (!self.is_idle).then_some(&self.preview.snapshot)
    }
}

impl Measurement<'_> {
    fn answer(
        &self,
        mut question: Question,
        load: UnderLoad<'_>,
        operator: &mut dyn Operator,
    ) -> Result<Answer, Unanswered> {
        let present = match &mut question {
            Question::Compare(comparison) => self.add_present(&mut comparison.modes),
            Question::Search(_) => None,
        };
        operator.follow(SubjectStep::Doing("observing the programs"));
        let (mut preview, is_idle) =
            self.preview_under_load(&|| self.look(&question.modes()), load.has_load, question.slice_ms())?;
        check_not_stopped(&preview.snapshot, &self.spec.targets.pids())?;
        refuse_queues_of_others(self.tools.journal, &self.attached, &preview.plan)?;
        let mut not_compared = Vec::new();
        let (modes, mut problems) = match &mut question {
            Question::Compare(comparison) => {
                self.use_settings_from_before(&mut comparison.modes, &mut preview)?;
                self.add_present_setting(&mut comparison.modes, &mut preview);
                let mut serious = self.serious(comparison.modes.iter().zip(preview.plans()), &preview);
                not_compared.extend(leave_out_base(&mut comparison.modes, self.base_is(&preview)));
                if comparison.leaves_out_stalls && !self.spec.accepts_stalls {
                    not_compared.extend(leave_out_stalls(&mut comparison.modes, &serious, self.attached.mode));
                }
                if !not_compared.is_empty() {
                    serious.retain(|(mode, _)| comparison.modes.contains(mode));
                    preview = self.preview_of(preview.snapshot, &comparison.modes);
                }
                self.refuse_stalls(&serious)?;
                let impossible = &preview.plan.impossible;
                let why_not = |at: usize| impossible[at].first().map(ToString::to_string);
                check_settable(&comparison.modes, why_not)?;
                (comparison.modes.clone(), by_problem(serious))
            }
            Question::Search(plan) => self.complete(plan, &mut preview)?,
        };
        self.tools.journal.check_writable()?;
        let groups = self.decide_groups(&mut preview.snapshot)?;
        let watched = server_side::watched(&preview.snapshot, &self.spec.targets.pids(), &preview.plan.napis());
        if let Question::Search(plan) = &question {
            // Slices are only lengthened from here on, so a budget that is too short now stays too short.
            plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
        }
        let first =
            judged::first_run(self.spec, (&watched, &preview.snapshot), question.slice_ms(), (self.stopped, operator))?;
        let (contention, mut used) = Contention::observe(&watched, self.stopped);
        if !self.spec.judges.is_empty() {
            used = first.as_ref().and_then(|first| first.used);
        }
        // The run time of NAPI threads is not counted in ticks.
        used = used.filter(|_| self.spec.slices_can_grow && watched.server_napi.is_empty());
        if let (Question::Search(plan), Some(used)) = (&mut question, used) {
            lengthen_slices(plan, &used, &watched.server_cpus);
        }
        let mut judges_took_ms = first.as_ref().map(|first| first.took_ms as u64);
        let printed = first.map(|first| first.outcome).unwrap_or_default();
        // These connections are not those of the slices, which are steered.
        let is_old = self.spec.placement.steer.is_some() && !self.attached.steers;
        problems.retain(|problem| !(is_old && problem.ends_when_steered()));
        let prepared =
            Prepared { has_load: load.has_load, modes, present, preview, groups, problems, is_idle, printed };
        if self.fit_to_judges(&mut question, &prepared, judges_took_ms, load.clients.as_ref()).is_err() {
            // One slow run is no reason to refuse.
            let again = judged::first_run(
                self.spec,
                (&watched, &prepared.preview.snapshot),
                question.slice_ms(),
                (self.stopped, operator),
            )?;
            judges_took_ms = judges_took_ms.min(again.map(|again| again.took_ms as u64));
            self.fit_to_judges(&mut question, &prepared, judges_took_ms, load.clients.as_ref())?;
        }
        // A search leaves kinds of mode out that lack CPUs.
        let is_comparison = matches!(question, Question::Compare(_));
        let facts = self.facts(&prepared, load.clients.as_ref());
        let has_poller = prepared.modes.iter().any(|mode| mode.poller().is_some());
        let lacking_cpus = lacking_cpus(&prepared.preview.plan).filter(|_| has_poller && is_comparison);
        let impossible = prepared.modes.iter().zip(&prepared.preview.plan.impossible);
        let left_out = |(mode, why): (&DeliveryMode, &Vec<AttachObstacle>)| Some((*mode, why.first()?.to_string()));
        let subject = PlannedSubject::Programs {
            facts: &facts,
            left_out: impossible.filter(|_| is_comparison).filter_map(left_out).chain(not_compared).collect(),
            affected: affected(&prepared.preview),
            judges_took_ms,
            lacking_cpus,
            contention,
        };
        if !operator.agrees(&Planned { question: &question, subject }) {
            return Err(Unanswered::Declined);
        }
        let begun = ExperimentResult::begin(SubjectFacts::Programs(Box::new(facts))).map_err(ComparisonError::from)?;
        self.measure(question, prepared, begun, load.clients, &mut |step| operator.follow(step))
    }

    /// Gives a question the time that slices take with these judges.
    ///
    /// # Errors
    /// When the budget has no time for enough slices, or a metric is not measured.
    fn fit_to_judges(
        &self,
        question: &mut Question,
        prepared: &Prepared,
        judges_took_ms: Option<u64>,
        clients: Option<&RemoteClients>,
    ) -> Result<(), Unanswered> {
        match question {
            Question::Compare(comparison) => {
                let takes_ms = judges_took_ms.map_or(0, |ms| ms + u64::from(comparison.timing.settle_ms));
                let design = self.design(comparison, prepared, clients);
                let fitting = with_enough_blocks(design, takes_ms as f64, comparison.budget_max_ms)?;
                if judges_took_ms.is_some() {
                    comparison.timing.budget_ms = fitting.budget_ms;
                    comparison.budget_max_ms = fitting.budget_ms;
                }
            }
            Question::Search(plan) => {
                if let Some(ms) = judges_took_ms {
                    metrics::of_command(&self.spec.judges, &prepared.printed.figures).check(plan)?;
                    let takes_ms = ms + u64::from(plan.settle_ms);
                    plan.slice_takes_ms = None;
                    plan.slice_takes_ms = Some(takes_ms).filter(|ms| *ms > plan.slice_and_settle_ms());
                }
                plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
            }
        }
        Ok(())
    }

    fn design(
        &self,
        comparison: &Comparison,
        prepared: &Prepared,
        clients: Option<&RemoteClients>,
    ) -> ExperimentDesign<DeliveryMode> {
        let Prepared { modes, present, printed, .. } = prepared;
        let JudgeOutcome { figures: printed, steps, .. } = printed;
        let work = if self.spec.judges.counts_requests(printed) { Work::Request } else { Work::Packet };
        let criteria = clients
            .map_or_else(|| figures::criteria_of_judge(printed, work), |clients| criteria(clients.offered_load()));
        let mut design = ExperimentDesign { steps: steps.clone(), ..design(modes, criteria, comparison.timing, 1) };
        let is_present = |treatment: &&mut Treatment<_>| Some(treatment.setting) == *present;
        design.treatments.iter_mut().filter(is_present).for_each(|row| row.name = PRESENT.to_owned());
        with_base_named(design, self.base_is(&prepared.preview))
    }

    /// Takes a snapshot, in which the sockets that have or would get a filter are marked, and plans the modes.
    fn look(&self, modes: &[DeliveryMode]) -> Result<Preview, Unanswered> {
        let mut snapshot = observe_programs(&self.spec.targets.pids())?;
        self.decide_groups(&mut snapshot)?;
        Ok(self.preview_of(snapshot, modes))
    }

    fn preview_of(&self, snapshot: Snapshot, modes: &[DeliveryMode]) -> Preview {
        let targets = &self.spec.targets;
        // Each run of a judge opens new connections.
        let planned = if self.spec.judges.is_empty() { SwitchPlan::new } else { SwitchPlan::with_later_queues };
        let plan = planned(&snapshot, targets, modes);
        let mut preview = Preview::new(snapshot, plan, targets);
        preview.plan.accepts_stalls = self.spec.accepts_stalls;
        preview
    }

    fn decide_groups(&self, snapshot: &mut Snapshot) -> Result<Groups, Unanswered> {
        let wanted = placed::requested(&self.spec.placement, &self.attached);
        placed::decide_groups(&wanted, &self.attached, self.tools.journal, &self.spec.targets, snapshot)
    }

    fn helpful_placement(&self, prepared: &Prepared) -> Vec<String> {
        let is_mixed = prepared.problems.iter().any(ProblemFacts::ends_when_steered);
        let is_steered = self.spec.placement.steer.is_some() || self.attached.steers;
        let groups = || decide(&prepared.preview.snapshot, &self.spec.targets.pids(), &SteerRequest::default());
        let helps = is_mixed && !is_steered && groups().is_ok_and(|groups| !groups.steerings.is_empty());
        let can_pin = helps && can_pin(&prepared.preview.snapshot, &prepared.preview.plan.napis());
        Wanted { steer: helps.then(SteerRequest::default), pin: can_pin }.options()
    }

    /// Mode of the queues under `base`, if it is another one. The NAPI threads of an attachment pause with it.
    fn base_is(&self, preview: &Preview) -> Option<DeliveryMode> {
        let has_threads = self.attached.mode.is_some_and(|mode| mode.napi().threaded != Threaded::Off);
        preview.base_is().filter(|_| !has_threads)
    }

    fn facts(&self, prepared: &Prepared, clients: Option<&RemoteClients>) -> ProgramsFacts {
        let ProgramsSpec { targets, load, judges, placement, .. } = self.spec;
        let facts = programs_facts(&prepared.preview, targets, load.command(), judges, clients);
        let has_mode = |pid: &u32| self.attached.pids.iter().any(|attached| attached.get().unsigned_abs() == *pid);
        let (with_mode, without): (Vec<u32>, Vec<u32>) = facts.named_pids().partition(has_mode);
        ProgramsFacts {
            attached: self.attached.mode,
            attached_in_part: if without.is_empty() { Vec::new() } else { with_mode },
            base_is: self.base_is(&prepared.preview),
            placement: placed::planned((placement, &self.attached), &prepared.groups, prepared.snapshot_before()),
            helpful_placement: self.helpful_placement(prepared),
            problems: prepared.problems.clone(),
            ..facts
        }
    }

    /// Begins the experiment, places connections and workers, and records the modes. The programs may use other queues
    /// after the placement, so the modes are planned again, and connections that were mixed can be steered now. `arms`
    /// are the modes that a search tries.
    fn open(
        &self,
        arms: Option<&[DeliveryMode]>,
        mut prepared: Prepared,
        (mut judges, (budget_ms, slice_ms)): (Judges, (u64, u32)),
        clients: Option<RemoteClients>,
        follow: &mut Follow<'_>,
    ) -> Result<(Programs<'_>, ProgramsFacts), Unanswered> {
        let (targets, mut start_keeper) = (&self.spec.targets, self.tools.start_keeper);
        let purpose = if arms.is_some() { Purpose::Search } else { Purpose::Experiment };
        let mut begun = BegunSwitching::begin(self.tools.journal, purpose, targets.clone(), Some(&mut start_keeper))?;
        let before = prepared.snapshot_before();
        let mut placement = placed::planned((&self.spec.placement, &self.attached), &prepared.groups, before);
        if let Some(facts) = &mut placement {
            follow(SubjectStep::Doing("waiting for connections through the filters"));
            let wanted = placed::requested(&self.spec.placement, &self.attached);
            let restart = || Ok((self.restart_load)()?);
            let placed =
                placed::place(wanted, &prepared.groups, &mut begun, (&judges, slice_ms), &restart, self.stopped)?;
            placed::add_result(facts, &prepared.groups, &placed);
            let snapshot = || {
                let mut snapshot = observe_programs(&targets.pids())?;
                mark_attached_filters(&mut snapshot, self.tools.journal);
                Ok(snapshot)
            };
            follow(SubjectStep::Doing("waiting for connections from before the filters to be opened again"));
            placed::wait_until_sorted(facts, &prepared.groups, &snapshot, self.stopped)?;
            let look = || Ok(self.preview_of(snapshot()?, &prepared.modes));
            (prepared.preview, _) = self.preview_under_load(&look, prepared.has_load, slice_ms)?;
            placed::add_unsorted(facts, &prepared.groups, &prepared.preview.snapshot);
            if placed::no_connection_stays(&prepared.preview.snapshot, &targets.pids()) {
                placed::forget_that_none_arrived(facts);
            }
            let (modes, preview) = (&prepared.modes, &prepared.preview);
            prepared.problems = match arms {
                Some(arms) => by_problem(under_arms(self.serious_by_kind(modes, preview), arms)),
                None => by_problem(self.serious(modes.iter().zip(preview.plans()), preview)),
            };
        }
        judges.end_after(budget_ms, slice_ms);
        let facts = ProgramsFacts { placement, ..self.facts(&prepared, clients.as_ref()) };
        let Prepared { modes, preview, .. } = &prepared;
        let watched = self.watched(preview, if arms.is_some() { &[] } else { modes });
        let traffic = clients.map_or(Traffic::Live(judges), |clients| Traffic::Clients(Box::new(clients)));
        let switching = begun.record(&preview.plan)?;
        Ok((Programs::new(switching, &preview.plan, &[], watched, traffic, self.stopped), facts))
    }

    /// Adds the mode of the attachments, unless it is one of `modes`. Returns it if it was added.
    fn add_present(&self, modes: &mut Vec<DeliveryMode>) -> Option<DeliveryMode> {
        let settings = |mode: &DeliveryMode| (mode.napi(), mode.epoll());
        let present = self.attached.mode.filter(|present| modes.iter().all(|mode| settings(mode) != settings(present)));
        modes.extend(present);
        present
    }

    /// Adds the settings that programs without attachments have now, unless they are those of `base` or of another row. They
    /// are the reference in place of `base`: what a mode has to be better than.
    fn add_present_setting(&self, modes: &mut Vec<DeliveryMode>, preview: &mut Preview) {
        if self.attached.mode.is_some() || preview.plan.present().is_some() {
            return;
        }
        let base = DeliveryMode::default();
        let not_other = [Some(base), self.base_is(preview)];
        let Some(present) = preview.plan.present_setting().filter(|mode| !not_other.contains(&Some(*mode))) else {
            return;
        };
        let at = if modes.first() == Some(&base) { 0 } else { modes.len() };
        modes.insert(at, present);
        *preview = self.preview_of(preview.snapshot.clone(), modes);
    }

    /// Replaces `base` by the settings from before the attachments, if all queues had the same ones.
    fn use_settings_from_before(&self, modes: &mut [DeliveryMode], preview: &mut Preview) -> Result<(), Unanswered> {
        let base = modes.iter_mut().find(|mode| **mode == DeliveryMode::default());
        let (Some(base), Some(_)) = (base, self.attached.mode) else { return Ok(()) };
        match preview.plan.setting_without(self.tools.journal, &self.attached)? {
            Some(before) if before != *base => *base = before,
            _ => return Ok(()),
        }
        *preview = self.look(modes)?;
        Ok(())
    }

    /// Waits until the queues of the programs are known. Returns, too, whether they have no other traffic than that of the
    /// judges.
    fn preview_under_load(&self, look: Look<'_>, has_load: bool, slice_ms: u32) -> Result<(Preview, bool), Unanswered> {
        let ProgramsSpec { judges, is_dry_run, .. } = self.spec;
        match has_load || judges.is_empty() {
            true => Ok((preview::preview(look, has_load, self.stopped)?, false)),
            false => Judging { judges, slice_ms, is_dry_run: *is_dry_run, stopped: self.stopped }.preview(look),
        }
    }

    fn measure(
        &self,
        question: Question,
        prepared: Prepared,
        mut begun: ExperimentResult,
        clients: Option<RemoteClients>,
        follow: &mut Follow<'_>,
    ) -> Result<Answer, Unanswered> {
        let (judges, stopped, pids) = (self.spec.judges.clone(), self.stopped, self.spec.targets.pids());
        let places = placed::requested(&self.spec.placement, &self.attached).changes(&prepared.preview.snapshot, &pids);
        let compared = if matches!(question, Question::Search(_)) { &[][..] } else { &prepared.modes };
        let unplaced = (places && !judges.is_empty()).then(|| Unplaced {
            judges: &self.spec.judges,
            watched: self.watched(&prepared.preview, compared),
            napis: prepared.preview.plan.napis(),
            slice_ms: question.slice_ms(),
            settle_ms: question.settle_ms(),
            stopped,
        });
        let mut slices = unplaced.as_ref().map_or(Ok(Vec::new()), |unplaced| unplaced.measure(follow))?;
        let mut answer = match question {
            Question::Compare(comparison) => {
                let offered = clients.as_ref().map(RemoteClients::offered_load);
                let design = self.design(&comparison, &prepared, clients.as_ref());
                let timing = (design.budget_ms, design.slice_ms);
                let (mut programs, facts) = self.open(None, prepared, (judges, timing), clients, follow)?;
                begun.subject = SubjectFacts::Programs(Box::new(facts));
                let rate_per_s = offered.and_then(|load| load.rate_per_s(f64::NAN));
                let mut watch = |experiment: &_, stage: SliceStage<'_>| report_slice(follow, None, experiment, stage);
                let experiment = compare(&mut programs, design, (offered, rate_per_s), &mut watch, stopped)?;
                let (settings, other_programs) = (programs.reported, programs.other_programs);
                begun.experiments.push(LoadExperiment { settings, other_programs, ..experiment });
                Answer::Compared(Box::new(begun))
            }
            Question::Search(plan) => {
                let timing = (plan.budget_ms, plan.slice_ms);
                let (mut programs, facts) = self.open(Some(&plan.arms), prepared, (judges, timing), clients, follow)?;
                begun.subject = SubjectFacts::Programs(Box::new(facts));
                let result = search(&mut programs, *plan, follow, stopped)?;
                let file = TuneFile::of(begun, result, programs.left_alone);
                let (settings, other_programs) = (programs.reported, programs.other_programs);
                Answer::Searched(Box::new(TuneFile { settings, other_programs, ..file }))
            }
        };
        // The answer stands without them.
        slices.extend(unplaced.iter().flat_map(|unplaced| unplaced.measure(follow).unwrap_or_default()));
        unplaced::add(&mut answer, slices);
        Ok(answer)
    }

    /// What is counted. The modes of a comparison can create NAPI threads; a search leaves these out.
    fn watched(&self, Preview { snapshot, plan, .. }: &Preview, compared: &[DeliveryMode]) -> Watched {
        let watched = server_side::watched(snapshot, &self.spec.targets.pids(), &plan.napis());
        server_side::with_cpus_of(compared, watched)
    }

    /// Findings under these modes that spoil their comparison.
    fn serious<'b>(
        &self,
        planned: impl Iterator<Item = (&'b DeliveryMode, &'b AttachPlan)>,
        preview: &Preview,
    ) -> Vec<(DeliveryMode, Finding)> {
        let (pids, planned) = (self.spec.targets.pids(), planned.collect::<Vec<_>>());
        let polls = planned.iter().any(|(_, plan)| plan.polls_queues());
        let behavior = polls.then(|| behavior::observe(&preview.snapshot, &pids, true));
        // The settings of attachments can cause the same findings already.
        let is_base = |(mode, _): &&(&DeliveryMode, &AttachPlan)| mode.kind() == ModeKind::Base;
        let base = planned.iter().find(is_base).map(|(_, plan)| *plan).filter(|_| self.attached.mode.is_some());
        let of_mode = |(mode, plan): (&DeliveryMode, &AttachPlan)| {
            let (snapshot, behavior) = (&preview.snapshot, behavior.as_ref());
            let mut findings = match base {
                Some(base) => consequences_beside(snapshot, base, plan, behavior),
                None => consequences_observed(snapshot, None, plan, behavior),
            };
            if self.spec.placement.steer.is_some() {
                are_steered(&mut findings, &pids);
            } else if self.attached.steers {
                are_steered(&mut findings, &self.attached.pids);
            }
            findings.retain(Finding::spoils_comparison);
            let mode = *mode;
            findings.into_iter().map(move |finding| (mode, finding))
        };
        planned.into_iter().flat_map(of_mode).collect()
    }

    /// Serious findings under the first mode of each kind, which stands for the others.
    fn serious_by_kind(&self, modes: &[DeliveryMode], preview: &Preview) -> Vec<(DeliveryMode, Finding)> {
        let kind = |at: usize| modes[at].kind().word();
        let is_first = |at: &usize| (0..*at).all(|other| kind(other) != kind(*at));
        let first = (0..modes.len()).filter(is_first).map(|at| (&modes[at], &preview.plans()[at]));
        self.serious(first, preview)
    }

    /// Refuses modes that would stall the programs.
    fn refuse_stalls(&self, serious: &[(DeliveryMode, Finding)]) -> Result<(), Unanswered> {
        match serious.iter().find(|(_, finding)| finding.predicts_stall()) {
            Some((_, finding)) if !self.spec.accepts_stalls => Err(Unanswered::Stalls(Box::new(finding.clone()))),
            _ => Ok(()),
        }
    }

    /// Completes the plan of a search: which mode the programs have now, and which kinds of mode are not possible for
    /// them. Returns all modes; a setting that is not in the grid is added to them and to the preview. Returns the problems
    /// of the first mode of each kind, too.
    fn complete(
        &self,
        plan: &mut TunePlan,
        preview: &mut Preview,
    ) -> Result<(Vec<DeliveryMode>, Vec<ProblemFacts>), Unanswered> {
        let targets = &self.spec.targets;
        let mut modes = TuneSpace::default().all();
        // The settings of the queues do not show a poller.
        let polled = self.attached.mode.filter(|mode| mode.poller().is_some());
        let other = match polled {
            Some(mode) => Some(mode).filter(|mode| !modes.contains(mode)),
            None if preview.plan.present().is_none() => preview.plan.present_setting(),
            None => None,
        };
        if let Some(mode) = other {
            modes.push(mode);
            // A judge that is the only client has ended by now.
            *preview = self.preview_of(preview.snapshot.clone(), &modes);
        }
        let present = match polled {
            Some(polled) => modes.iter().position(|mode| *mode == polled),
            None => preview.plan.present(),
        };
        let present = present.ok_or(Unanswered::PresentDiffers)?;
        let mut serious = self.serious_by_kind(&modes, preview);
        let stalls = |(mode, finding): &&(DeliveryMode, Finding)| {
            mode.napi().irq_suspend_timeout_ns > 0 && finding.predicts_stall() && !self.spec.accepts_stalls
        };
        let stall = serious.iter().find(stalls).map(|(_, finding)| finding);
        let mut refused = refused_here(preview, &modes, stall);
        serious.retain(|(mode, _)| refused.iter().all(|one| one.kind != mode.kind().word()));
        if hides_napi_threads(plan, preview, targets) {
            let kinds = ["threaded", "threadedbusy"].into_iter();
            let kinds = kinds.filter(|kind| refused.iter().all(|one| one.kind != *kind));
            let reason = "its NAPI thread can run on CPUs that these programs do not use, whose time is not measured";
            let new = kinds.map(|kind| RefusedMode { kind: kind.to_owned(), reason: reason.to_owned() });
            refused.extend(new.collect::<Vec<_>>());
        }
        plan.base_is = self.base_is(preview);
        let same = present_as_base(plan.base_is, modes[present]);
        refused.extend(same.filter(|same| refused.iter().all(|one| one.kind != same.kind)));
        let space = TuneSpace { refused };
        let arms = space.coarse();
        if arms.len() < 2 {
            return Err(Unanswered::NothingToTry(space.refused));
        }
        let problems = by_problem(under_arms(serious, &arms));
        (plan.present, plan.arms, plan.space) = (modes[present], arms, Some(space));
        Ok((modes, problems))
    }
}

/// Other programs on the queues, by PID.
fn affected(preview: &Preview) -> BTreeMap<Pid, String> {
    let affected = preview.plans().iter().flat_map(|plan| &plan.affected_processes);
    affected.map(|process| (process.pid, process.name.clone())).collect()
}
