//! The state machine of a search. It selects the next slice, records what was observed, and derives the answer. It has
//! no access to the subject or to a clock.

use quell_experiment::{
    ContrastSet, Criterion, ExperimentDesign, InvalidObservation, LatencyCounts, SliceObservation, Switchback,
    Treatment,
};
use quell_mode::DeliveryMode;

use crate::confirm::{is_compared, judge};
use crate::goal::TuneGuard;
use crate::load_watch::{LoadChange, LoadWatch};
use crate::plan::{CHALLENGES_MAX, CONFIRMATIONS_MAX, TunePlan, TunePlanError};
use crate::race::Race;
use crate::result::{ArmReport, ArmState, Confirmation, TuneAnswer, TuneEnd, TunePhase, TuneResult};
use crate::rivals::{Challenger, Found};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextTuneSlice {
    pub phase: TunePhase,
    pub mode: DeliveryMode,
    pub load: usize,
}

/// Number of requests of a slice that were answered. `None` if they are not counted.
fn answered(slice: &SliceObservation) -> Option<u64> {
    slice
        .latency
        .as_ref()
        .map(LatencyCounts::count)
        .or_else(|| slice.metric("requests").map(|requests| requests as u64))
}

#[derive(Debug, Clone)]
struct Confirming {
    mode: DeliveryMode,
    /// The answer so far, which it has to beat.
    against: Option<DeliveryMode>,
    budget_ms: u64,
    /// The experiments of the loads. The current one is the last.
    experiments: Vec<Switchback<DeliveryMode>>,
}

#[derive(Debug, Clone)]
pub struct Tuner {
    plan: TunePlan,
    race: Race,
    confirming: Option<Confirming>,
    confirmations: Vec<Confirmation>,
    load_watch: LoadWatch,
    spent_ms: f64,
    /// The answer so far. The time that is left is spent on modes that look better.
    found: Option<TuneAnswer>,
    ended: Option<(TuneAnswer, TuneEnd)>,
}

impl Tuner {
    pub fn new(plan: TunePlan) -> Result<Self, TunePlanError> {
        plan.check()?;
        let confirm_ms = plan.budget_ms as f64 * (1.0 - plan.search_share());
        let race = Race::new(&plan, plan.confirm_slices(confirm_ms, 0));
        let load_watch = LoadWatch::new(plan.loads.len());
        let (confirming, confirmations, found, ended) = (None, Vec::new(), None, None);
        let mut tuner = Self { plan, race, confirming, confirmations, load_watch, spent_ms: 0.0, found, ended };
        if tuner.race.is_decided() {
            tuner.answer(TuneAnswer::NoSettingBetter);
        }
        Ok(tuner)
    }

    #[must_use]
    pub fn plan(&self) -> &TunePlan {
        &self.plan
    }

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

    /// Records the observation of the next slice. An arm that violates a guard is abandoned. If a guard cannot be read
    /// or the load has changed, the search ends. Fails if a value is below 0, infinite or not a number. The slice then
    /// remains the next one.
    pub fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation> {
        let Some(next) = self.next_slice() else { return Ok(()) };
        observation.check()?;
        self.spent_ms += observation.spent_ms;
        let mut violated = None;
        for guard in &self.plan.guards {
            let present = self.race.typical_of_present(&guard.metric, next.load);
            match guard.is_violated(&observation, present) {
                None => {
                    let (requests, requests_needed) =
                        (answered(&observation), guard.metric.requests_needed(&observation));
                    self.stop(TuneEnd::GuardUnreadable { guard: guard.to_string(), requests, requests_needed });
                    return Ok(());
                }
                Some(true) => violated = Some(guard.to_string()),
                Some(false) => {}
            }
        }
        if let Some(change) = self.load_watch.record(next.load, next.mode == self.plan.present, &observation) {
            let LoadChange { from_per_s, to_per_s } = change;
            self.stop(TuneEnd::LoadChanged { from_per_s, to_per_s });
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
                self.stop(TuneEnd::PresentNotSettable { reason });
            }
            Some(_) => self.leave(ArmState::NotSettable { reason }),
            None => {}
        }
    }

    /// Ends the search. An answer that was found stays.
    pub fn stop(&mut self, end: TuneEnd) {
        let answer = self.found.clone().unwrap_or(TuneAnswer::None);
        self.ended.get_or_insert((answer, end));
    }

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

    #[must_use]
    pub fn finish(self) -> TuneResult {
        let (answer, end) = self
            .ended
            .clone()
            .unwrap_or_else(|| (self.found.clone().unwrap_or(TuneAnswer::None), TuneEnd::Interrupted));
        let rivals = match &answer {
            TuneAnswer::None => Vec::new(),
            answer => self.race.rivals(&self.plan, &self.known(answer)),
        };
        TuneResult {
            rivals,
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

    fn leave(&mut self, state: ArmState) {
        let Some(next) = self.next_slice() else { return };
        let arm = self.race.arm_of(next.mode);
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
        if self.found.as_ref().and_then(TuneAnswer::mode) == Some(next.mode) {
            self.found = None;
            self.confirming = None;
            self.confirm_next();
        } else if self.confirming.as_ref().is_some_and(|confirming| confirming.mode == next.mode) {
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
            return self.stop(TuneEnd::MetricUnreadable { metric });
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
        if let Some(found) = self.found.clone() {
            return self.challenge(found);
        }
        self.race.confirm_slices = self.plan.confirm_slices(self.left_ms(), tried.len());
        let is_possible = tried.len() < CONFIRMATIONS_MAX;
        let finalist = if is_possible { self.race.finalist(&self.plan, &tried) } else { None };
        // Time is left for other candidates, which are needed if this one does not certainly hold a limit.
        let budget_ms = self.plan.confirm_ms(self.left_ms(), tried.len()) / self.plan.loads.len() as f64;
        self.confirming = finalist.map(|arm| Confirming {
            mode: self.race.arms[arm].0,
            against: None,
            budget_ms: budget_ms as u64,
            experiments: Vec::new(),
        });
        let needs_time = self.confirming.is_some() && !self.next_experiment();
        if needs_time || self.confirming.is_none() {
            self.confirming = None;
            if let Some(end) = self.guard_that_present_violates() {
                return self.stop(end);
            }
            let is_compared = self.confirmations.iter().any(|one| is_compared(&self.plan, one));
            match is_compared || (self.confirmations.is_empty() && !needs_time) {
                true if !self.was_compared() => self.stop(TuneEnd::NoModeLeft),
                true => self.answer(TuneAnswer::NoSettingBetter),
                false => self.stop(TuneEnd::BudgetSpent),
            }
        }
    }

    /// Begins to compare the answer with a mode that looks better. If none does, or no time is left, the answer stands.
    fn challenge(&mut self, found: TuneAnswer) {
        let is_challenge = |one: &&Confirmation| one.against.is_some();
        let is_possible = self.confirmations.iter().filter(is_challenge).count() < CHALLENGES_MAX;
        let known = self.known(&found);
        let against = known.answer;
        let challenger = if is_possible { self.race.challenger(&self.plan, &known, self.left_ms()) } else { None };
        self.confirming = challenger.map(|Challenger { mode, budget_ms }| Confirming {
            mode,
            against: Some(against),
            budget_ms: budget_ms as u64,
            experiments: Vec::new(),
        });
        if self.confirming.is_none() || !self.next_experiment() {
            self.confirming = None;
            self.answer(found);
        }
    }

    fn known(&self, answer: &TuneAnswer) -> Found<'_> {
        let answer = answer.mode().unwrap_or(self.plan.present);
        Found { answer, confirmations: &self.confirmations, spent_ms: self.spent_ms }
    }

    /// A guard for which modes were abandoned, although the present setting violates it in a typical slice.
    fn guard_that_present_violates(&self) -> Option<TuneEnd> {
        let abandoned = |guard: &str| {
            let is_left = |state: &ArmState| matches!(state, ArmState::ViolatedGuard { guard: of } if of == guard);
            self.race.arms.iter().filter(|(_, state)| is_left(state)).count()
        };
        let of_load = |guard: &TuneGuard, load| {
            self.race.typical_of_present(&guard.metric, load).filter(|value| *value > guard.above)
        };
        self.plan.guards.iter().filter(|guard| !guard.relative).find_map(|guard| {
            let present = (0..self.plan.loads.len()).find_map(|load| of_load(guard, load))?;
            let (metric, guard) = (guard.metric.clone(), guard.to_string());
            let modes = abandoned(&guard);
            (modes > 0).then_some(TuneEnd::PresentViolatesGuard { guard, metric, present, modes })
        })
    }

    /// Whether a mode besides the present setting and `base` stayed in the race long enough to be compared.
    fn was_compared(&self) -> bool {
        let fixed = [self.plan.present, DeliveryMode::default()];
        let mut others = self.race.arms.iter().filter(|(mode, _)| !fixed.contains(mode)).peekable();
        let is_out = |state: &ArmState| matches!(state, ArmState::ViolatedGuard { .. } | ArmState::NotSettable { .. });
        others.peek().is_none() || others.any(|(_, state)| !is_out(state))
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
        let is_usable = self.race.arm_of(base).is_some_and(|arm| self.race.is_alive(arm));
        let compared: Vec<DeliveryMode> = std::iter::once(confirming.mode).chain(confirming.against).collect();
        let with_base = is_usable && self.plan.present != base && !compared.contains(&base);
        let treatments = compared.into_iter().chain(with_base.then_some(base)).map(treatment).collect();
        let (contrasts, error_rate) = match confirming.against {
            Some(_) => (ContrastSet::AllPairs, self.plan.challenge_error()),
            None => (ContrastSet::AgainstReference, self.plan.confirm_error(self.confirmations.len())),
        };
        let load = confirming.experiments.len();
        // An early look would decide the gain, but not the limits.
        let has_limits = !self.plan.goal.limits.is_empty();
        let design = ExperimentDesign {
            slice_ms: self.plan.slice_ms,
            settle_ms: self.plan.settle_ms,
            budget_ms: confirming.budget_ms,
            contrasts,
            error_rate: error_rate / self.plan.loads.len() as f64,
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
        let finished = confirming.experiments.into_iter().map(Switchback::finish).unzip();
        let (confirmation, answer) = judge(&self.plan, (confirming.mode, confirming.against), finished);
        for (load, experiment) in confirmation.experiments.iter().enumerate() {
            self.race.learn(&self.plan, load, experiment);
        }
        self.confirmations.push(confirmation);
        self.found = answer.or(self.found.take());
        self.confirm_next();
    }
}
