//! The state machine of a search. It selects the next slice, records what was observed, and derives the answer. It has
//! no access to the subject or to a clock.

use quell_experiment::{
    ContrastSet, ContrastVerdict, Criterion, ExperimentDesign, ExperimentRecord, InvalidObservation, RatioEstimate,
    SliceFlag, SliceObservation, SliceRecord, Switchback, SwitchbackAnalysis, Treatment, analyse, blocked_z,
    upper_quantile,
};
use quell_mode::DeliveryMode;
use quell_sim::HostProfile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goal::{TuneGoal, TuneGuard, TuneLimit, TuneMetric};
use crate::load_watch::{LoadChange, LoadWatch};
use crate::race::Race;
use crate::result::{ArmReport, ArmState, Confirmation, TUNE_SCHEMA, TuneAnswer, TuneEnd, TunePhase, TuneResult};
use crate::space::TuneSpace;

/// Share of the budget for the search; the rest is for the confirmation, which needs more slices to show that limits hold.
const SEARCH_SHARE: f64 = 0.7;
const SEARCH_SHARE_WITH_LIMITS: f64 = 0.5;
/// Share of the time that is left for the confirmation of one candidate at all loads, if others may have to be confirmed
/// after it.
const CONFIRM_SHARE: f64 = 0.6;
/// Maximum number of candidates that are confirmed one after another, if there are limits. Without limits, the first
/// confirmation decides.
const CONFIRMATIONS_MAX: usize = 4;
/// Error probability of the statement that a candidate holds a limit, or that the present setting misses one.
const LIMIT_ERROR: f64 = 0.05;
/// One-sided critical value for [`LIMIT_ERROR`].
pub(crate) const LIMIT_Z: f64 = 1.645;
/// Minimum number of slices of each arm in a confirmation, which is the minimum number of blocks of an experiment.
const CONFIRM_BLOCKS_MIN: u64 = 6;

/// Plan of a search, which is fixed before the first slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TunePlan {
    /// What to optimize.
    pub goal: TuneGoal,
    /// Conditions under which an arm is abandoned.
    pub guards: Vec<TuneGuard>,
    /// Setting that the server has now. It is compared with every arm.
    pub present: DeliveryMode,
    /// Modes of the first round, besides `base` and the present setting.
    pub arms: Vec<DeliveryMode>,
    /// Grid from which the modes of the other rounds are selected. Without it, only `arms` are tried.
    pub space: Option<TuneSpace>,
    /// Hosts of the model whose responses to modes are the search's first belief. All shipped ones, if not stated.
    #[serde(default = "model_hosts")]
    pub model_hosts: Vec<String>,
    /// Names of the loads, at least one. Blocks take turns.
    pub loads: Vec<String>,
    /// Time for which each slice is observed, in ms. An arm that violates a guard is left after at most one slice.
    pub slice_ms: u32,
    /// Time between setting a mode and observing it, in ms.
    pub settle_ms: u32,
    /// Maximum total time of all slices, in ms.
    pub budget_ms: u64,
    /// Seed of the order of the slices.
    pub seed: u64,
    /// Maximum probability that the confirmation reports a gain that does not exist.
    pub error_rate: f64,
}

impl TunePlan {
    /// Creates a plan with slices of 200 ms, a settling time of 10 ms, one load, a budget of 3 minutes and an error rate
    /// of 5 %. It begins with the coarse grid of `space`.
    #[must_use]
    pub fn new(goal: TuneGoal, present: DeliveryMode, space: TuneSpace, seed: u64) -> Self {
        Self {
            goal,
            guards: Vec::new(),
            present,
            arms: space.coarse(),
            space: Some(space),
            model_hosts: model_hosts(),
            loads: vec!["present".to_owned()],
            slice_ms: 200,
            settle_ms: 10,
            budget_ms: 180_000,
            seed,
            error_rate: 0.05,
        }
    }

    /// Planned time of a slice with setting and settling, in ms.
    #[must_use]
    pub fn slice_and_settle_ms(&self) -> u64 {
        u64::from(self.slice_ms) + u64::from(self.settle_ms)
    }

    /// Shortest budget in ms: three rounds of all arms, and a confirmation at each load.
    #[must_use]
    pub fn budget_min_ms(&self) -> u64 {
        let loads = self.loads.len() as u64;
        let search = 3 * (self.arms.len() as u64 + 2) * loads * self.slice_and_settle_ms();
        let confirm = 4 * CONFIRM_BLOCKS_MIN * loads * self.slice_and_settle_ms();
        let share = self.search_share();
        ((search as f64 / share) as u64).max((confirm as f64 / (1.0 - share) / self.confirm_share(0)) as u64) + 1
    }

    /// Share of the budget for the search.
    #[must_use]
    pub fn search_share(&self) -> f64 {
        if self.goal.limits.is_empty() { SEARCH_SHARE } else { SEARCH_SHARE_WITH_LIMITS }
    }

    /// Maximum number of candidates that are confirmed.
    fn confirmations_max(&self) -> usize {
        if self.goal.limits.is_empty() { 1 } else { CONFIRMATIONS_MAX }
    }

    /// Share of the time that is left for a confirmation after `done` others.
    fn confirm_share(&self, done: usize) -> f64 {
        if done + 1 < self.confirmations_max() { CONFIRM_SHARE } else { 1.0 }
    }

    /// Number of slices of each arm in a confirmation if `left_ms` is left after `done` others.
    fn confirm_slices(&self, left_ms: f64, done: usize) -> f64 {
        let arms = if self.present == DeliveryMode::default() { 3 } else { 4 };
        let block_ms = (arms * self.loads.len() as u64 * self.slice_and_settle_ms()) as f64;
        left_ms * self.confirm_share(done) / block_ms
    }

    /// Checks the conditions that the type does not enforce.
    ///
    /// # Errors
    /// See [`TunePlanError`].
    pub fn check(&self) -> Result<(), TunePlanError> {
        let needed_ms = self.budget_min_ms();
        if self.loads.is_empty() {
            return Err(TunePlanError::NoLoad);
        }
        if self.slice_ms == 0 {
            return Err(TunePlanError::NoSlice);
        }
        if !(self.error_rate > 0.0 && self.error_rate < 1.0) {
            return Err(TunePlanError::ErrorRate(self.error_rate));
        }
        if self.budget_ms < needed_ms {
            return Err(TunePlanError::BudgetTooShort { budget_ms: self.budget_ms, arms: self.arms.len(), needed_ms });
        }
        Ok(())
    }
}

/// Names of the shipped hosts.
fn model_hosts() -> Vec<String> {
    HostProfile::shipped_names().map(str::to_owned).collect()
}

/// Why a plan is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TunePlanError {
    /// The plan has no load.
    #[error("the plan has no load: name at least one")]
    NoLoad,
    /// Slices have no duration.
    #[error("slices of 0 ms observe nothing: use at least 1 ms")]
    NoSlice,
    /// The error rate is not a probability.
    #[error("the error rate is {0}; it must be above 0 and below 1")]
    ErrorRate(f64),
    /// The budget is too short for the arms and loads.
    #[error(
        "the budget of {budget_ms} ms is too short for {arms} arms: use at least {needed_ms} ms, or fewer arms or loads"
    )]
    BudgetTooShort {
        /// Budget in ms.
        budget_ms: u64,
        /// Number of arms.
        arms: usize,
        /// Shortest possible budget in ms.
        needed_ms: u64,
    },
}

/// The slice that must be observed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextTuneSlice {
    /// Part of the search.
    pub phase: TunePhase,
    /// Mode that must be set.
    pub mode: DeliveryMode,
    /// Index of the load in the plan.
    pub load: usize,
}

#[derive(Debug, Clone)]
struct Confirming {
    mode: DeliveryMode,
    /// Budget at each load.
    budget_ms: u64,
    /// The experiments of the loads. The current one is the last.
    experiments: Vec<Switchback<DeliveryMode>>,
}

/// A search in progress.
#[derive(Debug, Clone)]
pub struct Tuner {
    plan: TunePlan,
    race: Race,
    confirming: Option<Confirming>,
    confirmations: Vec<Confirmation>,
    load_watch: LoadWatch,
    spent_ms: f64,
    ended: Option<(TuneAnswer, TuneEnd)>,
}

impl Tuner {
    /// Starts a search.
    ///
    /// # Errors
    /// When the plan is invalid.
    pub fn new(plan: TunePlan) -> Result<Self, TunePlanError> {
        plan.check()?;
        let confirm_ms = plan.budget_ms as f64 * (1.0 - plan.search_share());
        let race = Race::new(&plan, plan.confirm_slices(confirm_ms, 0));
        let load_watch = LoadWatch::new(plan.loads.len());
        let mut tuner =
            Self { plan, race, confirming: None, confirmations: Vec::new(), load_watch, spent_ms: 0.0, ended: None };
        if tuner.race.is_decided() {
            tuner.answer(TuneAnswer::NoSettingBetter);
        }
        Ok(tuner)
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &TunePlan {
        &self.plan
    }

    /// The next slice. `None` if the search has ended.
    #[must_use]
    pub fn next_slice(&self) -> Option<NextTuneSlice> {
        if self.ended.is_some() {
            return None;
        }
        if let Some(confirming) = &self.confirming {
            let load = confirming.experiments.len() - 1;
            let mode = confirming.experiments[load].next_slice()?.treatment.setting;
            return Some(NextTuneSlice { phase: TunePhase::Confirm, mode, load });
        }
        let mode = self.race.arms[self.race.next()?].0;
        Some(NextTuneSlice { phase: TunePhase::Search, mode, load: self.race.load(&self.plan) })
    }

    /// Records the observation of the next slice. An arm that violates a guard is abandoned. If a guard cannot be read or
    /// the load has changed, the search ends.
    ///
    /// # Errors
    /// When a value is below 0, infinite or not a number. The slice then remains the next one.
    pub fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation> {
        let Some(next) = self.next_slice() else { return Ok(()) };
        observation.check()?;
        self.spent_ms += observation.spent_ms;
        let mut violated = None;
        for guard in &self.plan.guards {
            match guard.is_violated(&observation) {
                None => {
                    let guard = guard.to_string();
                    self.ended = Some((TuneAnswer::None, TuneEnd::GuardUnreadable { guard }));
                    return Ok(());
                }
                Some(true) => violated = Some(guard.to_string()),
                Some(false) => {}
            }
        }
        if let Some(change) = self.load_watch.record(next.load, next.mode == self.plan.present, &observation) {
            let LoadChange { from_per_s, to_per_s } = change;
            self.ended = Some((TuneAnswer::None, TuneEnd::LoadChanged { from_per_s, to_per_s }));
            return Ok(());
        }
        // The present setting is what the server has without this search, so a guard does not end it.
        match violated.filter(|_| next.mode != self.plan.present) {
            Some(guard) => self.leave(ArmState::ViolatedGuard { guard }),
            None if next.phase == TunePhase::Search => {
                if self.race.record(&self.plan, observation) {
                    self.end_round();
                }
                // Slices can take much longer than planned: a command that measures latency, or that has to start.
                if self.spent_ms >= self.plan.budget_ms as f64 {
                    self.stop(TuneEnd::BudgetSpent);
                }
            }
            None => {
                if let Some(experiment) = self.current() {
                    experiment.record(observation)?;
                }
                self.advance_confirmation();
            }
        }
        Ok(())
    }

    /// Takes the mode of the next slice out of the search, because it could not be set.
    pub fn not_settable(&mut self, reason: String) {
        match self.next_slice() {
            Some(next) if next.mode == self.plan.present => {
                self.ended = Some((TuneAnswer::None, TuneEnd::PresentNotSettable { reason }));
            }
            Some(_) => self.leave(ArmState::NotSettable { reason }),
            None => {}
        }
    }

    /// Ends the search without an answer.
    pub fn stop(&mut self, end: TuneEnd) {
        self.ended.get_or_insert((TuneAnswer::None, end));
    }

    /// What is known of each arm, with the present setting first.
    #[must_use]
    pub fn arms(&self) -> Vec<ArmReport> {
        self.race.reports(&self.plan)
    }

    /// Share of the budget that is spent, from 0 to 1.
    #[must_use]
    pub fn spent(&self) -> f64 {
        (self.spent_ms / self.plan.budget_ms as f64).min(1.0)
    }

    fn left_ms(&self) -> f64 {
        (self.plan.budget_ms as f64 - self.spent_ms).max(0.0)
    }

    /// Ends the search, and returns everything that it knows.
    #[must_use]
    pub fn finish(self) -> TuneResult {
        let (answer, end) = self.ended.unwrap_or((TuneAnswer::None, TuneEnd::Interrupted));
        TuneResult {
            schema: TUNE_SCHEMA.to_owned(),
            arms: self.race.reports(&self.plan),
            preferred: self.race.preferred(&self.plan),
            slices: self.race.slices,
            confirmations: self.confirmations,
            answer,
            end,
            spent_ms: self.spent_ms,
            plan: self.plan,
        }
    }

    fn answer(&mut self, answer: TuneAnswer) {
        self.ended = Some((answer, TuneEnd::Answered));
    }

    fn current(&mut self) -> Option<&mut Switchback<DeliveryMode>> {
        self.confirming.as_mut()?.experiments.last_mut()
    }

    /// Abandons the arm of the next slice.
    fn leave(&mut self, state: ArmState) {
        let Some(next) = self.next_slice() else { return };
        let arm = self.race.arms.iter().position(|(mode, _)| *mode == next.mode);
        if next.phase == TunePhase::Search {
            if let Some(arm) = arm
                && self.race.abandon(&self.plan, arm, state)
            {
                self.end_round();
            }
            return;
        }
        if let Some(arm) = arm {
            self.race.arms[arm].1 = state;
        }
        if self.confirming.as_ref().is_some_and(|confirming| confirming.mode == next.mode) {
            self.confirming = None;
            self.confirm_next();
        } else {
            let reason = "abandoned".to_owned();
            self.current().map(|experiment| experiment.drop_treatment(reason));
            self.advance_confirmation();
        }
    }

    fn end_round(&mut self) {
        if let Some(metric) = self.race.unreadable(&self.plan) {
            self.ended = Some((TuneAnswer::None, TuneEnd::MetricUnreadable { metric }));
            return;
        }
        let budget_ms = self.plan.budget_ms as f64 * self.plan.search_share();
        let slice_ms = self.spent_ms / self.race.slices.len().max(1) as f64;
        let round_ms = self.race.slices_of_round(&self.plan) as f64 * slice_ms;
        if self.race.is_decided() || self.spent_ms + round_ms > budget_ms {
            self.confirm_next();
        }
    }

    /// Begins to confirm the most promising arm that is left. If none is left, no setting is better. If no candidate was
    /// compared because the budget is spent, there is no answer.
    fn confirm_next(&mut self) {
        let tried: Vec<DeliveryMode> = self.confirmations.iter().map(|one| one.mode).collect();
        self.race.confirm_slices = self.plan.confirm_slices(self.left_ms(), tried.len());
        let is_possible = tried.len() < self.plan.confirmations_max();
        let finalist = if is_possible { self.race.finalist(&self.plan, &tried) } else { None };
        // Time is left for other candidates, which are needed if this one does not certainly hold a limit.
        let budget_ms = self.left_ms() * self.plan.confirm_share(tried.len()) / self.plan.loads.len() as f64;
        self.confirming = finalist.map(|arm| Confirming {
            mode: self.race.arms[arm].0,
            budget_ms: budget_ms as u64,
            experiments: Vec::new(),
        });
        let needs_time = self.confirming.is_some() && !self.next_experiment();
        if needs_time || self.confirming.is_none() {
            self.confirming = None;
            let is_compared = self.confirmations.iter().any(|one| self.is_compared(one));
            match is_compared || (self.confirmations.is_empty() && !needs_time) {
                true => self.answer(TuneAnswer::NoSettingBetter),
                false => self.stop(TuneEnd::BudgetSpent),
            }
        }
    }

    /// Whether a confirmation had the time for the blocks that a comparison needs, at all loads.
    fn is_compared(&self, confirmation: &Confirmation) -> bool {
        let has_blocks = |analysis: &SwitchbackAnalysis| u64::from(analysis.blocks) >= CONFIRM_BLOCKS_MIN;
        confirmation.analyses.len() == self.plan.loads.len() && confirmation.analyses.iter().all(has_blocks)
    }

    fn criterion(&self) -> Option<Criterion> {
        let goal = &self.plan.goal;
        self.race.slices.iter().find_map(|slice| goal.objective.criterion(goal.direction, &slice.observation))
    }

    /// Begins the experiment at the next load. Returns false if no time is left for it.
    fn next_experiment(&mut self) -> bool {
        let (Some(criterion), Some(confirming)) = (self.criterion(), &self.confirming) else { return false };
        let treatment = |mode: DeliveryMode| Treatment { name: mode.to_string(), setting: mode };
        let base = DeliveryMode::default();
        let is_usable =
            self.race.arms.iter().position(|(mode, _)| *mode == base).is_some_and(|arm| self.race.is_alive(arm));
        let mut treatments = vec![treatment(confirming.mode)];
        if is_usable && ![self.plan.present, confirming.mode].contains(&base) {
            treatments.push(treatment(base));
        }
        let load = confirming.experiments.len();
        // An early look would decide the gain, but not the limits.
        let has_limits = !self.plan.goal.limits.is_empty();
        let design = ExperimentDesign {
            slice_ms: self.plan.slice_ms,
            settle_ms: self.plan.settle_ms,
            budget_ms: confirming.budget_ms,
            error_rate: self.plan.error_rate / (self.plan.loads.len() * self.plan.confirmations_max()) as f64,
            looks: if has_limits { 1 } else { 5 },
            ..ExperimentDesign::new(
                treatment(self.plan.present),
                treatments,
                vec![criterion],
                self.plan.seed ^ (0x7475_6e65 + load as u64 + 16 * self.confirmations.len() as u64),
            )
        };
        match (Switchback::new(design), &mut self.confirming) {
            (Ok(experiment), Some(confirming)) => {
                confirming.experiments.push(experiment);
                true
            }
            _ => false,
        }
    }

    /// Goes on to the next load or to the answer when an experiment is complete.
    fn advance_confirmation(&mut self) {
        let is_running = |confirming: &Confirming| {
            confirming.experiments.last().is_some_and(|experiment| experiment.next_slice().is_some())
        };
        if self.ended.is_some() || self.confirming.as_ref().is_none_or(is_running) {
            return;
        }
        let observed = self.confirming.as_ref().map_or(0, |confirming| confirming.experiments.len());
        if observed < self.plan.loads.len() && self.next_experiment() {
            return;
        }
        if let Some(confirming) = self.confirming.take() {
            self.judge(confirming);
        }
    }

    fn judge(&mut self, confirming: Confirming) {
        let mode = confirming.mode;
        let (experiments, analyses): (Vec<_>, Vec<_>) =
            confirming.experiments.into_iter().map(Switchback::finish).unzip();
        let z = |arms: &'static [usize], limit: &TuneLimit| {
            let of_load = |record: &ExperimentRecord<DeliveryMode>| limit_z(beside_limit(record, arms, limit));
            experiments.iter().map(of_load).fold(f64::NEG_INFINITY, f64::max)
        };
        let goal = &self.plan.goal;
        let limits = &goal.limits;
        let is_flagged = |record: &ExperimentRecord<DeliveryMode>| {
            [SliceFlag::RequestsFailed, SliceFlag::Saturated]
                .into_iter()
                .any(|flag| record.is_flagged_more_often(CANDIDATE, flag))
        };
        let is_complete = experiments.len() == self.plan.loads.len();
        let holds_limits = is_complete
            && !experiments.iter().any(is_flagged)
            && limits.iter().all(|limit| z(&[CANDIDATE], limit) < -LIMIT_Z);
        let of_present = |limit: &TuneLimit| limit.z_of_present().unwrap_or_else(|| z(&PRESENT_ARMS, limit));
        // The statement is repeated for each limit, load and candidate.
        let statements = (limits.len() * self.plan.loads.len() * self.plan.confirmations_max()).max(1);
        let missed_z = upper_quantile(LIMIT_ERROR / statements as f64);
        let present_misses_limit = limits.iter().any(|limit| of_present(limit) > missed_z);
        let has_objective = |record: &ExperimentRecord<DeliveryMode>| {
            [&PRESENT_ARMS[..], &[CANDIDATE]]
                .into_iter()
                .all(|arms| !readable(record, arms, &goal.objective).is_empty())
        };
        let verdicts = |of: fn(&ContrastVerdict) -> bool| {
            analyses.iter().filter_map(|analysis| analysis.contrasts.first()).any(|one| of(&one.verdict))
        };
        let is_better = experiments.iter().all(has_objective)
            && verdicts(|verdict| *verdict == ContrastVerdict::Better)
            && !verdicts(|verdict| *verdict == ContrastVerdict::Worse);
        let gain = estimates(&analyses, &self.plan.present.to_string());
        for (load, experiment) in experiments.iter().enumerate() {
            self.race.learn(&self.plan, load, experiment);
        }
        let base = DeliveryMode::default();
        let against_base =
            if [self.plan.present, mode].contains(&base) { Vec::new() } else { against_base(&experiments) };
        self.confirmations.push(Confirmation { mode, experiments, analyses, holds_limits, present_misses_limit });
        match (holds_limits, present_misses_limit, is_better) {
            (true, _, true) => self.answer(TuneAnswer::Better { mode, gain, against_base }),
            (true, true, false) => self.answer(TuneAnswer::HoldsLimits { mode, gain, against_base }),
            _ => self.confirm_next(),
        }
    }
}

/// Arms of the present setting in a confirmation.
const PRESENT_ARMS: [usize; 2] = [0, 1];
/// Arm of the candidate in a confirmation.
const CANDIDATE: usize = 2;

/// Share of the slices of a confirmation that must have a value, so that those without one cannot hide a missed limit or
/// a cost.
const READABLE_MIN: f64 = 0.9;

/// Values of a metric under `arms`, each with its block. Empty if too few slices have a value.
fn readable(record: &ExperimentRecord<DeliveryMode>, arms: &[usize], metric: &TuneMetric) -> Vec<(u32, f64)> {
    let of_arms: Vec<&SliceRecord> = record.slices.iter().filter(|slice| arms.contains(&slice.arm)).collect();
    let values = of_arms.iter().filter_map(|slice| Some((slice.block, metric.value(&slice.observation)?)));
    let values: Vec<(u32, f64)> = values.collect();
    if values.len() as f64 >= READABLE_MIN * of_arms.len() as f64 { values } else { Vec::new() }
}

/// Mean value of a limited quantity under `arms` in each block, beside its bounds: those of the present setting in the same
/// block, for a relative limit. Empty if too few slices have a value.
fn beside_limit(record: &ExperimentRecord<DeliveryMode>, arms: &[usize], limit: &TuneLimit) -> Vec<(f64, Vec<f64>)> {
    let values = readable(record, arms, &limit.metric);
    let of_present = if limit.relative { readable(record, &PRESENT_ARMS, &limit.metric) } else { Vec::new() };
    let of_block = |block: &[(u32, f64)]| {
        let value = block.iter().map(|(_, value)| value).sum::<f64>() / block.len() as f64;
        let bounds = match limit.relative {
            true => {
                of_present.iter().filter(|(of, _)| *of == block[0].0).map(|(_, value)| limit.bound(*value)).collect()
            }
            false => vec![limit.at_most],
        };
        (value, bounds)
    };
    let blocks = values.chunk_by(|(a, _), (b, _)| a == b).map(of_block);
    blocks.filter(|(_, bounds)| !bounds.is_empty()).collect()
}

/// Statistic of values beside their bounds: below 0 if they are lower. Without values nothing is shown. If all values and
/// bounds are 0, the limit holds.
fn limit_z(blocks: Vec<(f64, Vec<f64>)>) -> f64 {
    if blocks.is_empty() { 0.0 } else { blocked_z(blocks).unwrap_or(f64::NEG_INFINITY) }
}

/// Ratio of the candidate, the first treatment, to `against` by load.
fn estimates(analyses: &[SwitchbackAnalysis], against: &str) -> Vec<Option<RatioEstimate>> {
    let of_load = |analysis: &SwitchbackAnalysis| {
        analysis.contrasts.iter().find(|contrast| contrast.against == against).and_then(|contrast| contrast.estimate)
    };
    analyses.iter().map(of_load).collect()
}

/// Ratio of the candidate to `base`, from the same slices with the roles exchanged. `None` if `base` was not observed.
fn against_base(experiments: &[ExperimentRecord<DeliveryMode>]) -> Vec<Option<RatioEstimate>> {
    let base = DeliveryMode::default().to_string();
    let of_load = |record: &ExperimentRecord<DeliveryMode>| {
        let all = ExperimentDesign { contrasts: ContrastSet::AllPairs, ..record.design.clone() };
        let record = ExperimentRecord { design: all, ..record.clone() };
        let analysis = analyse(&record);
        let pair = analysis
            .contrasts
            .into_iter()
            .find(|contrast| contrast.treatment == base && contrast.against != record.design.reference.name);
        pair.and_then(|contrast| contrast.estimate).map(inverse)
    };
    experiments.iter().map(of_load).collect()
}

fn inverse(of: RatioEstimate) -> RatioEstimate {
    RatioEstimate {
        ratio: 1.0 / of.ratio,
        low: of.high.map_or(0.0, |high| 1.0 / high),
        high: (of.low > 0.0).then(|| 1.0 / of.low),
        blocks: of.blocks,
    }
}
