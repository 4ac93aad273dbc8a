//! Rivals: modes that look better than the answer. Which of them is compared with it next, and why each one lost.

use quell_experiment::{ContrastVerdict, RatioEstimate};
use quell_mode::DeliveryMode;

use crate::confirm::{LIMIT_Z, beside};
use crate::plan::{CONFIRM_BLOCKS_MIN, TunePlan};
use crate::race::{Expected, GAIN_Z, PRESENT, Race, limits_and_loads};
use crate::result::{ArmState, Confirmation, Rival, WhyNotChosen};

/// Smallest expected gain, as a logarithm, for which a mode is compared with the answer: 3 %.
const CHALLENGE_MIN: f64 = 0.03;
/// Two-sided critical value of 95 %.
const INTERVAL_Z: f64 = 1.96;
/// Time in times of the expected one, because other slices differ.
const RESERVE: f64 = 1.3;
/// Longest budget that is proposed, in ms.
const PROPOSED_MAX_MS: f64 = 3_600_000.0;

/// What a search has found.
pub(crate) struct Found<'a> {
    /// The answer, or the present setting if no mode is better.
    pub(crate) answer: DeliveryMode,
    pub(crate) confirmations: &'a [Confirmation],
    /// Time of all slices.
    pub(crate) spent_ms: f64,
}

impl Found<'_> {
    fn slices_of<'a>(confirmations: impl Iterator<Item = &'a Confirmation>) -> f64 {
        confirmations.flat_map(|one| &one.experiments).map(|record| record.slices.len()).sum::<usize>() as f64
    }
}

/// A mode that is compared with the answer, and the time that this needs at each load.
pub(crate) struct Challenger {
    pub(crate) mode: DeliveryMode,
    pub(crate) budget_ms: f64,
}

impl Race {
    /// The mode that is most worth a comparison with the answer in `left_ms`, of those that look better and probably hold
    /// the limits. `None` without such a mode, or with too little time.
    pub(crate) fn challenger(&self, plan: &TunePlan, found: &Found<'_>, left_ms: f64) -> Option<Challenger> {
        let to = self.arm_of(found.answer)?;
        let is_open = |arm: &usize| {
            let is_tried = found.confirmations.iter().any(|one| one.mode == self.arms[*arm].0);
            let is_new = *arm != to && self.is_alive(*arm) && !is_tried;
            is_new && self.has_slices(*arm) && self.limit_in_doubt(plan, *arm).is_none()
        };
        let (loads, block_ms) = (plan.loads.len() as f64, self.block_ms(plan, found));
        let slices = left_ms / loads / block_ms;
        let worth = |arm: usize| {
            let cost = self.cost_at_worst_load(plan, arm, to);
            let gain = -cost.value.mean;
            (gain > CHALLENGE_MIN).then(|| (arm, gain * cost.probability_shown_below_0(GAIN_Z, slices)))
        };
        let arms = (PRESENT + 1..self.arms.len()).filter(is_open).filter_map(worth);
        let (arm, _) = arms.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let budget_ms = (self.blocks_needed(plan, (arm, to), found) * block_ms).min(left_ms / loads);
        (budget_ms >= blocks_min(plan, found) * block_ms).then(|| Challenger { mode: self.arms[arm].0, budget_ms })
    }

    /// Modes that look better than the answer in the slices of the search, the best one first.
    pub(crate) fn rivals(&self, plan: &TunePlan, found: &Found<'_>) -> Vec<Rival> {
        let Some(to) = self.arm_of(found.answer) else { return Vec::new() };
        let arms = (PRESENT + 1..self.arms.len()).filter(|arm| *arm != to);
        let looks_better = |arm: usize| Some((self.typical_cost(plan, arm, to).filter(|cost| *cost < 0.0)?, arm));
        let mut better: Vec<(f64, usize)> = arms.filter_map(looks_better).collect();
        better.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let rival = |(cost, arm): (f64, usize)| {
            let (interval, why) = self.why_not_chosen(plan, (arm, to), found);
            Rival { mode: self.arms[arm].0, looks: (cost * plan.goal.sign()).exp(), interval, why }
        };
        better.into_iter().map(rival).collect()
    }

    fn why_not_chosen(
        &self,
        plan: &TunePlan,
        (arm, to): (usize, usize),
        found: &Found<'_>,
    ) -> (Option<RatioEstimate>, WhyNotChosen) {
        let (mode, state) = &self.arms[arm];
        if !matches!(state, ArmState::Alive | ArmState::Worse { .. }) {
            return (None, WhyNotChosen::Excluded { state: state.clone() });
        }
        if let Some(confirmation) = found.confirmations.iter().rev().find(|one| one.mode == *mode) {
            return self.why_not_confirmed(plan, (arm, to), confirmation, found);
        }
        if let Some(limit) = self.limit_in_doubt(plan, arm) {
            return (None, WhyNotChosen::LimitInDoubt { limit });
        }
        let Expected { value, .. } = self.cost_at_worst_load(plan, arm, to);
        let at = |deviations: f64| ((value.mean + deviations * value.variance.sqrt()) * plan.goal.sign()).exp();
        let (one, other) = (at(-INTERVAL_Z), at(INTERVAL_Z));
        let blocks = self.slices.iter().filter(|slice| slice.arm == arm).count() as u32;
        let interval = RatioEstimate { ratio: at(0.0), low: one.min(other), high: Some(one.max(other)), blocks };
        let is_better = *state == ArmState::Alive && value.mean < -CHALLENGE_MIN;
        let why = match is_better {
            true => WhyNotChosen::NotCompared { budget_ms: self.budget_ms_for(plan, (arm, to), found) },
            false => WhyNotChosen::NotBetter,
        };
        (Some(interval), why)
    }

    fn why_not_confirmed(
        &self,
        plan: &TunePlan,
        arms: (usize, usize),
        confirmation: &Confirmation,
        found: &Found<'_>,
    ) -> (Option<RatioEstimate>, WhyNotChosen) {
        if !confirmation.meets_limits {
            return (None, WhyNotChosen::LimitsNotShown);
        }
        let against = confirmation.against.unwrap_or(plan.present);
        let sign = plan.goal.sign();
        let cost = |estimate: &RatioEstimate| estimate.ratio.ln() * sign;
        let compared = confirmation.analyses.iter().filter_map(|analysis| beside(analysis, confirmation.mode, against));
        let worst = compared.max_by(|(a, _), (b, _)| cost(a).total_cmp(&cost(b)));
        let Some((estimate, verdict)) = worst else { return (None, WhyNotChosen::NotBetter) };
        let is_open = matches!(verdict, ContrastVerdict::Undecided { .. }) && cost(&estimate) < -CHALLENGE_MIN;
        if !is_open || against != found.answer {
            return ((against == found.answer).then_some(estimate), WhyNotChosen::NotBetter);
        }
        (Some(estimate), WhyNotChosen::Undecided { budget_ms: self.budget_ms_for(plan, arms, found) })
    }

    /// Number of blocks that probably show the gain and all limits.
    fn blocks_needed(&self, plan: &TunePlan, (arm, to): (usize, usize), found: &Found<'_>) -> f64 {
        let needed = |Expected { value, slice_variance }: Expected, z: f64| {
            if value.mean < 0.0 { slice_variance * (z / value.mean).powi(2) } else { f64::INFINITY }
        };
        let limits = limits_and_loads(plan).filter_map(|at| self.expected_excess(plan, arm, at));
        let of_limits = limits.map(|excess| needed(excess, LIMIT_Z));
        let of_gain = needed(self.cost_at_worst_load(plan, arm, to), GAIN_Z);
        (of_limits.fold(of_gain, f64::max) * RESERVE).max(blocks_min(plan, found))
    }

    /// Time of a block in which a mode is compared with the answer: twice the present setting, both modes, and `base`.
    fn block_ms(&self, plan: &TunePlan, found: &Found<'_>) -> f64 {
        let arms = if has_base(plan, found) { 5.0 } else { 4.0 };
        arms * found.spent_ms / (self.slices.len() as f64 + Found::slices_of(found.confirmations.iter())).max(1.0)
    }

    /// A budget in which the comparison of an arm with the answer fits. `None` if it is too long.
    fn budget_ms_for(&self, plan: &TunePlan, (arm, to): (usize, usize), found: &Found<'_>) -> Option<u64> {
        let block_ms = self.block_ms(plan, found);
        let first = found.confirmations.iter().filter(|one| one.against.is_none());
        let confirmed_ms = Found::slices_of(first) * block_ms / 4.0;
        let needed_ms = self.blocks_needed(plan, (arm, to), found) * block_ms * plan.loads.len() as f64;
        let budget_ms = plan.budget_ms_with(needed_ms, confirmed_ms, found.answer != plan.present);
        let budget_ms = budget_ms.max(plan.budget_ms as f64 * RESERVE);
        let step_ms = if budget_ms > 300_000.0 { 60_000.0 } else { 10_000.0 };
        let in_steps = (budget_ms / step_ms).ceil() * step_ms;
        (in_steps <= PROPOSED_MAX_MS).then_some(in_steps as u64)
    }

    /// The first limit that an arm probably does not hold.
    fn limit_in_doubt(&self, plan: &TunePlan, arm: usize) -> Option<String> {
        let is_above = |Expected { value, .. }: Expected| value.mean > value.variance.sqrt();
        let misses = |at: &(usize, usize)| self.expected_excess(plan, arm, *at).is_some_and(is_above);
        limits_and_loads(plan).find(misses).map(|(limit, _)| plan.goal.limits[limit].to_string())
    }

    fn cost_at_worst_load(&self, plan: &TunePlan, arm: usize, to: usize) -> Expected {
        let cost = |load| self.expected_cost(plan, arm, to, load);
        let worse = |a: Expected, b: Expected| if b.value.mean > a.value.mean { b } else { a };
        (1..plan.loads.len()).map(cost).fold(cost(0), worse)
    }

    /// Logarithm of the typical cost relative to another arm, as the table of a result shows it, at the worst load.
    fn typical_cost(&self, plan: &TunePlan, arm: usize, to: usize) -> Option<f64> {
        let cost = |load| Some((self.typical_ratio(arm, load)? - self.typical_ratio(to, load)?) * plan.goal.sign());
        (0..plan.loads.len()).map(cost).try_fold(f64::NEG_INFINITY, |worst, cost| Some(worst.max(cost?)))
    }
}

/// Whether `base` is compared, too, because it is neither the present setting nor the answer.
fn has_base(plan: &TunePlan, found: &Found<'_>) -> bool {
    ![plan.present, found.answer].contains(&DeliveryMode::default())
}

/// Minimum number of blocks of a comparison with the answer. With fewer, no order of the slices is so improbable that it
/// leads to a verdict.
fn blocks_min(plan: &TunePlan, found: &Found<'_>) -> f64 {
    let pairs = if has_base(plan, found) { 6.0 } else { 3.0 };
    let error = plan.challenge_error() / (pairs * plan.loads.len() as f64);
    (2.0 / error).log2().ceil().max(CONFIRM_BLOCKS_MIN as f64)
}
