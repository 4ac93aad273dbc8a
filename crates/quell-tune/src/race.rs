//! The race: which arms are in a block, what the beliefs expect of each arm, which arms are dropped, and which one is
//! worth a confirmation.

use libm::erfc;
use quell_experiment::{ExperimentRecord, SliceObservation, SliceRecord};
use quell_mode::DeliveryMode;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

use crate::belief::{Belief, CholeskyFactor, Estimate, Estimates, Normal};
use crate::confirm::LIMIT_Z;
use crate::goal::TuneMetric;
use crate::plan::TunePlan;
use crate::result::{ArmReport, ArmState, TuneSliceRecord};

/// One-sided critical value for dropping an arm. Each arm is tested after every round, so that the error probability of
/// one decision (0.13 %) adds up.
const DROP_Z: f64 = 3.0;
/// Critical value that the gain of a confirmed arm has to exceed, about that of the experiments of a confirmation.
pub(crate) const GAIN_Z: f64 = 2.5;
pub(crate) const PRESENT: usize = 0;
/// Number of arms in a block after the first round, besides the fixed ones.
const IN_BLOCK: usize = 6;
/// Number of draws from which the arms of a block are selected.
const DRAWS: usize = 60;
/// Smallest expected gain for which a confirmation is begun.
const WORTH_MIN: f64 = 0.001;
/// Variance of a ratio to the present setting, in variances of a slice: the present setting has two slices in a block of
/// a confirmation.
const OF_RATIO: f64 = 1.5;

#[derive(Debug, Clone)]
pub(crate) struct Race {
    pub(crate) arms: Vec<(DeliveryMode, ArmState)>,
    pub(crate) slices: Vec<TuneSliceRecord>,
    /// Values of each slice: the objective, and then the quantity of each limit. Computing a quantile takes long.
    values: Vec<Vec<Option<f64>>>,
    block: u32,
    /// Arms of the current round, besides the fixed ones.
    in_round: Vec<usize>,
    queue: Vec<usize>,
    /// Beliefs by quantity (the objective, and then that of each limit) and load.
    beliefs: Vec<Vec<Estimates>>,
    believed: usize,
    /// Number of slices of each arm in the next confirmation, which decides how far from a limit an arm must be.
    pub(crate) confirm_slices: f64,
}

/// Expected mean of a confirmation: what is believed of it, and the variance of one of its slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) value: Normal,
    pub(crate) slice_variance: f64,
}

impl Expected {
    /// Probability that `slices` slices show at `critical` standard errors that the value is below 0.
    pub(crate) fn probability_shown_below_0(&self, critical: f64, slices: f64) -> f64 {
        let error = self.slice_variance / slices;
        let distance = -self.value.mean - critical * error.sqrt();
        0.5 * erfc(-distance / (2.0 * (self.value.variance + error)).sqrt())
    }

    /// Value that must be below 0 so that `slices` slices probably show it.
    fn with_margin(&self, value: f64, slices: f64) -> f64 {
        value + LIMIT_Z * (self.slice_variance / slices).sqrt()
    }
}

impl Race {
    pub(crate) fn new(plan: &TunePlan, confirm_slices: f64) -> Self {
        let mut modes = vec![plan.present];
        let grid = plan.space.iter().flat_map(|space| space.all());
        for mode in std::iter::once(DeliveryMode::default()).chain(plan.arms.iter().copied()).chain(grid) {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        let in_round = (0..modes.len()).filter(|arm| plan.arms.contains(&modes[*arm])).collect();
        let prior = |metric| Estimates::new(&Belief::new(metric, &modes, &plan.model_hosts));
        let beliefs = plan.goal.metrics().map(|metric| vec![prior(metric); plan.loads.len()]).collect();
        let arms = modes.into_iter().map(|mode| (mode, ArmState::Alive)).collect();
        let mut race = Self {
            arms,
            slices: Vec::new(),
            values: Vec::new(),
            block: 0,
            in_round,
            queue: Vec::new(),
            beliefs,
            believed: 0,
            confirm_slices,
        };
        race.begin_block(plan);
        race
    }

    pub(crate) fn load(&self, plan: &TunePlan) -> usize {
        self.block as usize % plan.loads.len()
    }

    pub(crate) fn next(&self) -> Option<usize> {
        self.queue.last().copied()
    }

    fn begin_block(&mut self, plan: &TunePlan) {
        let fixed = (0..self.arms.len()).filter(|arm| self.is_fixed(*arm));
        let others = self.in_round.iter().copied().filter(|arm| !self.is_fixed(*arm));
        self.queue = fixed.chain(others).filter(|arm| self.is_alive(*arm)).collect();
        self.queue.shuffle(&mut Pcg64::new(u128::from(plan.seed), u128::from(self.block)));
        // Relative guards protect the server from the first slice of another mode on.
        let is_first = (self.block as usize) < plan.loads.len();
        if is_first
            && plan.guards.iter().any(|guard| guard.relative)
            && let Some(at) = self.queue.iter().position(|arm| *arm == PRESENT)
        {
            let last = self.queue.len() - 1;
            self.queue.swap(at, last);
        }
    }

    pub(crate) fn is_alive(&self, arm: usize) -> bool {
        self.arms[arm].1 == ArmState::Alive
    }

    /// `base` and the present setting stay in every block, unless a guard or the subject forbids it.
    fn is_fixed(&self, arm: usize) -> bool {
        arm == PRESENT || self.arms[arm].0 == DeliveryMode::default()
    }

    /// Arms that can still be the best, without the fixed ones.
    fn candidates(&self) -> Vec<usize> {
        (0..self.arms.len()).filter(|arm| self.is_alive(*arm) && !self.is_fixed(*arm)).collect()
    }

    /// Records the slice of the next arm. Returns whether a round (a block at each load) is complete.
    pub(crate) fn record(&mut self, plan: &TunePlan, observation: SliceObservation) -> bool {
        let Some(arm) = self.queue.pop() else { return false };
        self.values.push(plan.goal.metrics().map(|metric| metric.value(&observation)).collect());
        self.slices.push(TuneSliceRecord { block: self.block, load: self.load(plan), arm, observation });
        self.end_block(plan)
    }

    pub(crate) fn abandon(&mut self, plan: &TunePlan, arm: usize, state: ArmState) -> bool {
        self.arms[arm].1 = state;
        self.queue.retain(|other| *other != arm);
        self.end_block(plan)
    }

    fn end_block(&mut self, plan: &TunePlan) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        // The slices of a block are taken in together, because they share its level, which is unknown.
        self.believe();
        self.block += 1;
        let is_round = self.load(plan) == 0;
        if is_round {
            self.drop_worse(plan);
            self.in_round = self.promising(plan);
        }
        self.begin_block(plan);
        is_round
    }

    /// Number of slices of the next round, which is a block at each load.
    pub(crate) fn slices_of_round(&self, plan: &TunePlan) -> usize {
        self.queue.len() * plan.loads.len()
    }

    fn believe(&mut self) {
        let slices = self.slices.iter().zip(&self.values).skip(self.believed);
        for (quantity, beliefs) in self.beliefs.iter_mut().enumerate() {
            let values: Vec<(usize, usize, f64)> = slices
                .clone()
                .filter_map(|(slice, values)| Some((slice.load, slice.arm, values[quantity]?.max(1e-12).ln())))
                .collect();
            for (load, belief) in beliefs.iter_mut().enumerate() {
                let of_load = values.iter().filter(|(of, ..)| *of == load).map(|(_, arm, log)| (*arm, *log));
                belief.observe_block(&of_load.collect::<Vec<_>>());
            }
        }
        self.believed = self.slices.len();
    }

    /// Updates the beliefs with the slices of a confirmation, so that the next one starts from them.
    pub(crate) fn learn(&mut self, plan: &TunePlan, load: usize, confirmed: &ExperimentRecord<DeliveryMode>) {
        let arm_of = |slice: &SliceRecord| self.arm_of(confirmed.design.treatment(slice.arm)?.setting);
        let slices: Vec<(&SliceRecord, Option<usize>)> =
            confirmed.slices.iter().map(|slice| (slice, arm_of(slice))).collect();
        for (metric, beliefs) in plan.goal.metrics().zip(&mut self.beliefs) {
            let log = |(slice, arm): &(&SliceRecord, Option<usize>)| {
                Some(((*arm)?, metric.value(&slice.observation)?.max(1e-12).ln()))
            };
            for block in slices.chunk_by(|(a, _), (b, _)| a.block == b.block) {
                beliefs[load].observe_block(&block.iter().filter_map(log).collect::<Vec<_>>());
            }
        }
    }

    /// Median of a metric under the present setting.
    pub(crate) fn typical_of_present(&self, metric: &TuneMetric, load: usize) -> Option<f64> {
        let slices = self.slices.iter().filter(|slice| slice.arm == PRESENT && slice.load == load);
        let mut values: Vec<f64> = slices.filter_map(|slice| metric.value(&slice.observation)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    fn values(&self, metric: usize, arm: usize, load: usize) -> Vec<(u32, f64)> {
        let slices = self.slices.iter().zip(&self.values);
        let of_arm = slices.filter(|(slice, _)| slice.arm == arm && slice.load == load);
        of_arm.filter_map(|(slice, values)| Some((slice.block, values[metric]?))).collect()
    }

    /// Values of two arms in the blocks that have both.
    fn pairs(&self, metric: usize, arms: [usize; 2], load: usize) -> Vec<(f64, f64)> {
        let [first, second] = arms.map(|arm| self.values(metric, arm, load));
        let other = |block: u32| second.iter().find(|(at, _)| *at == block).map(|(_, value)| *value);
        first.into_iter().filter_map(|(block, value)| Some((value, other(block)?))).collect()
    }

    /// Values of a limited quantity, each with its bound.
    fn beside_limit(&self, plan: &TunePlan, arm: usize, at: usize, load: usize) -> Vec<(f64, f64)> {
        let limit = &plan.goal.limits[at];
        match limit.relative {
            true => {
                let pairs = self.pairs(of_limit(at), [arm, PRESENT], load).into_iter();
                pairs.map(|(value, present)| (value, limit.bound(present))).collect()
            }
            false => {
                self.values(of_limit(at), arm, load).into_iter().map(|(_, value)| (value, limit.at_most)).collect()
            }
        }
    }

    /// Expected cost of an arm at a load: the logarithm of its ratio to another arm, negative if it is better.
    pub(crate) fn expected_cost(&self, plan: &TunePlan, arm: usize, to: usize, load: usize) -> Expected {
        let Estimate { belief, noise, .. } = self.beliefs[OBJECTIVE][load].best();
        let ratio = belief.ratio(arm, to);
        let value = Normal { mean: ratio.mean * plan.goal.sign(), ..ratio };
        Expected { value, slice_variance: OF_RATIO * noise.powi(2) }
    }

    /// Expected logarithm of the ratio of a limited quantity to its limit. `None` before the second block.
    pub(crate) fn expected_excess(&self, plan: &TunePlan, arm: usize, (at, load): (usize, usize)) -> Option<Expected> {
        let limit = &plan.goal.limits[at];
        let Estimate { belief, noise, .. } = self.beliefs[of_limit(at)][load].best();
        if limit.relative {
            let ratio = belief.ratio(arm, PRESENT);
            let value = Normal { mean: ratio.mean - limit.at_most.ln(), ..ratio };
            return Some(Expected { value, slice_variance: OF_RATIO * noise.powi(2) });
        }
        let (ratio, (level, between)) = (belief.ratio(arm, self.base()?), belief.level()?);
        let value =
            Normal { mean: ratio.mean + level.mean - limit.at_most.ln(), variance: ratio.variance + level.variance };
        Some(Expected { value, slice_variance: noise.powi(2) + between })
    }

    /// Arms of the next round: in each of several draws from the beliefs the best one (Thompson sampling), so that arms
    /// get slices as often as they can be the best.
    fn promising(&self, plan: &TunePlan) -> Vec<usize> {
        let candidates = self.candidates();
        let mut random = Pcg64::new(u128::from(plan.seed), u128::from(self.block) | 1 << 64);
        let estimates: Vec<Vec<(&Estimate, CholeskyFactor)>> = self
            .beliefs
            .iter()
            .map(|of_load| of_load.iter().map(|of| (of.best(), of.best().belief.factor())).collect())
            .collect();
        let mut chosen = Vec::new();
        for _ in 0..DRAWS {
            let drawn: Vec<Vec<Vec<f64>>> = estimates
                .iter()
                .map(|of_load| of_load.iter().map(|(of, factor)| of.belief.draw(factor, &mut random)).collect())
                .collect();
            let of_arm = |arm: &usize| (*arm, self.drawn(plan, *arm, &drawn));
            let best =
                candidates.iter().map(of_arm).min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            if let Some((arm, _)) = best.filter(|(arm, _)| !chosen.contains(arm)) {
                chosen.push(arm);
            }
            if chosen.len() == IN_BLOCK {
                break;
            }
        }
        chosen
    }

    /// Excess over a limit, with the margin that a confirmation needs, and cost, of an arm in a draw by quantity and load.
    fn drawn(&self, plan: &TunePlan, arm: usize, drawn: &[Vec<Vec<f64>>]) -> (f64, f64) {
        let excess = |(limit, load): (usize, usize)| {
            let expected = self.expected_excess(plan, arm, (limit, load))?;
            let belief = &self.beliefs[of_limit(limit)][load].best().belief;
            let draw = &drawn[of_limit(limit)][load];
            let to = if plan.goal.limits[limit].relative { PRESENT } else { self.base()? };
            // Everything that is not drawn is taken at its mean.
            let deviation = draw[arm] - draw[to] - belief.ratio(arm, to).mean;
            Some(expected.with_margin(expected.value.mean + deviation, self.confirm_slices))
        };
        let excess = limits_and_loads(plan).filter_map(excess).fold(0.0, f64::max);
        let cost = |load: usize| {
            let draw = &drawn[OBJECTIVE][load];
            (draw[arm] - draw[PRESENT]) * plan.goal.sign()
        };
        (excess, (0..plan.loads.len()).map(cost).fold(f64::NEG_INFINITY, f64::max))
    }

    fn base(&self) -> Option<usize> {
        self.arm_of(DeliveryMode::default())
    }

    pub(crate) fn arm_of(&self, mode: DeliveryMode) -> Option<usize> {
        self.arms.iter().position(|(other, _)| *other == mode)
    }

    /// The arm whose confirmation is worth most: its expected gain, times the probability that the confirmation shows
    /// the gain and all limits. `None` if no arm promises a gain.
    pub(crate) fn finalist(&self, plan: &TunePlan, tried: &[DeliveryMode]) -> Option<usize> {
        let is_open = |arm: &usize| self.is_alive(*arm) && !tried.contains(&self.arms[*arm].0);
        let arms = (PRESENT + 1..self.arms.len()).filter(is_open).filter(|arm| self.has_slices(*arm));
        let worth = arms.map(|arm| (arm, self.worth(plan, arm))).filter(|(_, worth)| *worth > WORTH_MIN);
        worth.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(arm, _)| arm)
    }

    fn worth(&self, plan: &TunePlan, arm: usize) -> f64 {
        let slices = self.confirm_slices;
        let expected = limits_and_loads(plan).filter_map(|at| self.expected_excess(plan, arm, at));
        let of_limits: f64 = expected.map(|one| one.probability_shown_below_0(LIMIT_Z, slices)).product();
        let costs: Vec<Expected> =
            (0..plan.loads.len()).map(|load| self.expected_cost(plan, arm, PRESENT, load)).collect();
        let gain = -costs.iter().map(|cost| cost.value.mean).fold(f64::NEG_INFINITY, f64::max);
        // A mode that holds limits which the present setting misses is an answer, whatever it costs.
        let is_missed = |(limit, load): (usize, usize)| match plan.goal.limits[limit].z_of_present() {
            Some(z) => z > 0.0,
            None => self
                .expected_excess(plan, PRESENT, (limit, load))
                .is_some_and(|excess| excess.probability_shown_below_0(0.0, slices) < 0.5),
        };
        if limits_and_loads(plan).any(is_missed) {
            return of_limits * gain.exp();
        }
        let shown: f64 = costs.iter().map(|cost| cost.probability_shown_below_0(GAIN_Z, slices)).fold(0.0, f64::max);
        of_limits * shown * gain.max(0.0)
    }

    pub(crate) fn has_slices(&self, arm: usize) -> bool {
        self.slices.iter().any(|slice| slice.arm == arm)
    }

    /// Drops arms that are worse than the best one, or that miss a limit, beyond doubt.
    fn drop_worse(&mut self, plan: &TunePlan) {
        let z = |of: Normal| of.mean / of.variance.max(1e-12).sqrt();
        for arm in self.candidates() {
            let missed = limits_and_loads(plan)
                .find(|at| self.expected_excess(plan, arm, *at).is_some_and(|excess| z(excess.value) > DROP_Z));
            if let Some((limit, _)) = missed {
                self.arms[arm].1 = ArmState::MissesLimit { limit: plan.goal.limits[limit].to_string() };
            }
        }
        let shows = |excess: Expected| {
            let mean = excess.with_margin(excess.value.mean, self.confirm_slices);
            z(Normal { mean, ..excess.value }) < -DROP_Z
        };
        let holds =
            |arm: &usize| limits_and_loads(plan).all(|at| self.expected_excess(plan, *arm, at).is_some_and(shows));
        let cost = |arm: usize| {
            let at = |load: usize| self.expected_cost(plan, arm, PRESENT, load).value.mean;
            (0..plan.loads.len()).map(at).fold(f64::NEG_INFINITY, f64::max)
        };
        // While it is not known that a confirmation shows the limits for the leader, a more costly arm may have to replace it.
        let sure = (0..self.arms.len()).filter(|arm| self.is_alive(*arm) && self.has_slices(*arm)).filter(holds);
        let Some(leader) = sure.min_by(|a, b| cost(*a).total_cmp(&cost(*b))) else { return };
        let is_worse = |arm: &usize| {
            let z = |load: usize| z(self.expected_cost(plan, *arm, leader, load).value);
            (0..plan.loads.len()).any(|load| z(load) > DROP_Z) && cost(*arm) > cost(leader)
        };
        let others = self.candidates().into_iter().filter(|arm| *arm != leader);
        for arm in others.filter(is_worse).collect::<Vec<_>>() {
            self.arms[arm].1 = ArmState::Worse { than: self.arms[leader].0 };
        }
    }

    /// Whether at most one arm is left that can be better than the present setting, and was tried.
    pub(crate) fn is_decided(&self) -> bool {
        let left = self.candidates();
        left.len() <= 1 && left.iter().all(|arm| self.has_slices(*arm))
    }

    /// Metric of the goal that no slice has, once every arm of a round was observed.
    pub(crate) fn unreadable(&self, plan: &TunePlan) -> Option<String> {
        let is_absent = |(at, _): &(usize, &TuneMetric)| self.values.iter().all(|values| values[*at].is_none());
        plan.goal.metrics().enumerate().find(is_absent).map(|(_, metric)| metric.to_string())
    }

    pub(crate) fn reports(&self, plan: &TunePlan) -> Vec<ArmReport> {
        let report = |(at, (mode, state)): (usize, &(DeliveryMode, ArmState))| ArmReport {
            mode: *mode,
            state: state.clone(),
            slices: self.slices.iter().filter(|slice| slice.arm == at).count() as u32,
            ratio: (0..plan.loads.len()).map(|load| self.typical_ratio(at, load).map(f64::exp)).collect(),
            limit_ratio: self.typical_excess(plan, at).map(f64::exp),
        };
        self.arms.iter().enumerate().map(report).collect()
    }

    /// Logarithm of the typical ratio of the objective to the present setting in the same blocks.
    pub(crate) fn typical_ratio(&self, arm: usize, load: usize) -> Option<f64> {
        let ratio = |(value, of): (f64, f64)| (value.max(1e-12) / of.max(1e-12)).ln();
        mean(self.pairs(OBJECTIVE, [arm, PRESENT], load).into_iter().map(ratio))
    }

    /// Logarithm of the largest typical ratio of a limited quantity to its limit.
    fn typical_excess(&self, plan: &TunePlan, arm: usize) -> Option<f64> {
        let of_limit = |(at, load): (usize, usize)| {
            let pairs = self.beside_limit(plan, arm, at, load).into_iter();
            mean(pairs.map(|(value, bound)| (value.max(1e-12) / bound.max(1e-12)).ln()))
        };
        limits_and_loads(plan).filter_map(of_limit).reduce(f64::max)
    }

    /// Best arm at each load alone: among those that probably hold the limits, the one with the lowest expected cost.
    pub(crate) fn preferred(&self, plan: &TunePlan) -> Vec<Option<DeliveryMode>> {
        let is_possible =
            |arm: &usize| !matches!(self.arms[*arm].1, ArmState::ViolatedGuard { .. } | ArmState::NotSettable { .. });
        let holds = |arm: &usize, load: usize| {
            (0..plan.goal.limits.len()).all(|limit| {
                self.expected_excess(plan, *arm, (limit, load)).is_none_or(|excess| excess.value.mean <= 0.0)
            })
        };
        let best = |load: usize| {
            let arms = (0..self.arms.len()).filter(is_possible).filter(|arm| self.has_slices(*arm));
            let cost = |arm: &usize| self.expected_cost(plan, *arm, PRESENT, load).value.mean;
            arms.filter(|arm| holds(arm, load)).min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|arm| self.arms[arm].0)
        };
        (0..plan.loads.len()).map(best).collect()
    }
}

/// Index of the objective in the values of a slice.
const OBJECTIVE: usize = 0;

/// Index of a limit's quantity in the values of a slice.
fn of_limit(limit: usize) -> usize {
    limit + 1
}

pub(crate) fn limits_and_loads(plan: &TunePlan) -> impl Iterator<Item = (usize, usize)> + use<> {
    let loads = plan.loads.len();
    (0..plan.goal.limits.len()).flat_map(move |limit| (0..loads).map(move |load| (limit, load)))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
