//! The race: which arms are in a block, what the slices so far say about each arm, and which arms are dropped.

use quell_experiment::{SliceObservation, paired_z};
use quell_mode::DeliveryMode;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

use crate::goal::TuneMetric;
use crate::result::{ArmReport, ArmState, TuneSliceRecord};
use crate::space::TuneSpace;
use crate::tuner::TunePlan;

/// One-sided critical value for dropping an arm. Each arm is tested after every round, so that the error probability of
/// one decision (0.13 %) adds up.
const DROP_Z: f64 = 3.0;
/// Index of the present setting.
pub(crate) const PRESENT: usize = 0;

/// Shares of the search's budget at which the slowest arms leave, and the number of arms that remain.
const CUTS: [(f64, usize); 3] = [(0.3, 4), (0.6, 5), (0.8, 3)];
/// Number of best arms whose neighbors join the race at the first cut, and at most how many neighbors.
const REFINED: (usize, usize) = (2, 6);

#[derive(Debug, Clone)]
pub(crate) struct Race {
    pub(crate) arms: Vec<(DeliveryMode, ArmState)>,
    pub(crate) slices: Vec<TuneSliceRecord>,
    /// Values of each slice: the objective, and then the quantity of each limit. Computing a quantile takes long.
    values: Vec<Vec<Option<f64>>>,
    block: u32,
    queue: Vec<usize>,
    cuts: usize,
}

/// What the slices say about an arm.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// Mean log ratio of the objective to the fixed arms, as a cost, by load.
    pub(crate) cost: Vec<Option<f64>>,
    /// Largest mean log ratio of a limited quantity to its limit.
    pub(crate) of_limit: Option<f64>,
    /// The same, increased by two standard errors. Arms far from a limit are more likely to be confirmed.
    of_limit_above: Option<f64>,
}

impl Standing {
    /// Cost at the load in which the arm is worst. Infinite if a load has no values.
    fn worst(&self) -> f64 {
        self.cost.iter().map(|cost| cost.unwrap_or(f64::INFINITY)).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Sorts the best arm first: by the excess over a limit, then by the cost.
    fn key(&self) -> (f64, f64) {
        (self.of_limit_above.map_or(0.0, |excess| excess.max(0.0)), self.worst())
    }
}

impl Race {
    pub(crate) fn new(plan: &TunePlan) -> Self {
        let mut modes = vec![plan.present];
        for mode in std::iter::once(DeliveryMode::default()).chain(plan.arms.iter().copied()) {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        let arms = modes.into_iter().map(|mode| (mode, ArmState::Alive)).collect();
        let mut race = Self { arms, slices: Vec::new(), values: Vec::new(), block: 0, queue: Vec::new(), cuts: 0 };
        race.begin_block(plan);
        race
    }

    pub(crate) fn load(&self, plan: &TunePlan) -> usize {
        self.block as usize % plan.loads.len()
    }

    pub(crate) fn next(&self) -> Option<usize> {
        self.queue.last().copied()
    }

    pub(crate) fn block(&self) -> u32 {
        self.block
    }

    fn begin_block(&mut self, plan: &TunePlan) {
        self.queue = (0..self.arms.len()).filter(|arm| self.is_alive(*arm)).collect();
        self.queue.shuffle(&mut Pcg64::new(u128::from(plan.seed), u128::from(self.block)));
    }

    pub(crate) fn is_alive(&self, arm: usize) -> bool {
        self.arms[arm].1 == ArmState::Alive
    }

    /// `base` and the present setting stay in every block, unless a guard or the subject forbids it.
    fn is_fixed(&self, arm: usize) -> bool {
        arm == PRESENT || self.arms[arm].0 == DeliveryMode::default()
    }

    pub(crate) fn candidates(&self) -> Vec<usize> {
        (PRESENT + 1..self.arms.len()).filter(|arm| self.is_alive(*arm)).collect()
    }

    /// Records the slice of the next arm. Returns whether a round (a block at each load) is complete.
    pub(crate) fn record(&mut self, plan: &TunePlan, observation: SliceObservation) -> bool {
        let Some(arm) = self.queue.pop() else { return false };
        self.values.push(metrics(plan).map(|metric| metric.value(&observation)).collect());
        self.slices.push(TuneSliceRecord { block: self.block, load: self.load(plan), arm, observation });
        self.end_block(plan)
    }

    /// Takes the next arm out of the race.
    pub(crate) fn abandon(&mut self, plan: &TunePlan, arm: usize, state: ArmState) -> bool {
        self.arms[arm].1 = state;
        self.queue.retain(|other| *other != arm);
        self.end_block(plan)
    }

    fn end_block(&mut self, plan: &TunePlan) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        self.block += 1;
        self.begin_block(plan);
        self.load(plan) == 0
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

    /// Whether the first of two values tends to be larger (above 0) or smaller, as a standardized statistic.
    fn z(pairs: Vec<(f64, f64)>) -> f64 {
        paired_z(pairs).unwrap_or(0.0)
    }

    pub(crate) fn standing(&self, plan: &TunePlan, arm: usize) -> Standing {
        let goal = &plan.goal;
        let fixed: Vec<usize> = (0..self.arms.len()).filter(|arm| self.is_fixed(*arm) && self.is_alive(*arm)).collect();
        let cost = |load: usize| {
            let logs = |reference: &usize| {
                let ratio = |(value, of): &(f64, f64)| (value.max(1e-12) / of.max(1e-12)).ln() * goal.sign();
                mean(self.pairs(OBJECTIVE, [arm, *reference], load).iter().map(ratio))
            };
            mean(fixed.iter().filter_map(logs))
        };
        let logs = |(at, load): (usize, usize)| {
            let pairs = self.beside_limit(plan, arm, at, load);
            pairs.into_iter().map(|(value, bound)| (value.max(1e-12) / bound.max(1e-12)).ln()).collect::<Vec<f64>>()
        };
        let logs: Vec<Vec<f64>> = limits_and_loads(plan).map(logs).filter(|logs| !logs.is_empty()).collect();
        Standing {
            cost: (0..plan.loads.len()).map(cost).collect(),
            of_limit: logs.iter().filter_map(|logs| mean(logs.iter().copied())).reduce(f64::max),
            of_limit_above: logs
                .iter()
                .filter_map(|logs| Some(mean(logs.iter().copied())? + 2.0 * standard_error(logs)?))
                .reduce(f64::max),
        }
    }

    /// Alive candidates, and the present setting, with the best first.
    pub(crate) fn ranked(&self, plan: &TunePlan) -> Vec<usize> {
        self.sorted(plan, (0..self.arms.len()).filter(|arm| self.is_alive(*arm)))
    }

    /// Arms that may be confirmed, the best first: also those that left the race only because others were better.
    pub(crate) fn finalists(&self, plan: &TunePlan) -> Vec<usize> {
        self.sorted(plan, (0..self.arms.len()).filter(|arm| self.is_finalist(*arm)))
    }

    pub(crate) fn is_finalist(&self, arm: usize) -> bool {
        matches!(self.arms[arm].1, ArmState::Alive | ArmState::Outpaced)
    }

    fn sorted(&self, plan: &TunePlan, arms: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut ranked: Vec<(usize, (f64, f64))> = arms.map(|arm| (arm, self.standing(plan, arm).key())).collect();
        ranked.sort_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        ranked.into_iter().map(|(arm, _)| arm).collect()
    }

    /// Statistic of an arm against each limit at each load, with the index of the limit. It is above 0 if the arm tends
    /// to miss the limit.
    fn limit_z(&self, plan: &TunePlan, arm: usize) -> impl Iterator<Item = (usize, f64)> {
        limits_and_loads(plan).map(move |(at, load)| {
            let of_present = plan.goal.limits[at].z_of_present().filter(|_| arm == PRESENT);
            (at, of_present.unwrap_or_else(|| Self::z(self.beside_limit(plan, arm, at, load))))
        })
    }

    /// Drops arms that are worse than the best one, or that miss a limit, beyond doubt.
    pub(crate) fn drop_worse(&mut self, plan: &TunePlan) {
        for arm in self.candidates().into_iter().filter(|arm| !self.is_fixed(*arm)).collect::<Vec<_>>() {
            let missed = self.limit_z(plan, arm).find(|(_, z)| *z > DROP_Z);
            if let Some((limit, _)) = missed {
                let limit = &plan.goal.limits[limit];
                self.arms[arm].1 = ArmState::MissesLimit { limit: limit.to_string() };
            }
        }
        let Some(leader) = self.ranked(plan).first().copied() else { return };
        // While it is not known that the leader holds the limits, a more costly arm may have to replace it.
        if self.limit_z(plan, leader).any(|(_, z)| z > -DROP_Z) {
            return;
        }
        for arm in
            self.candidates().into_iter().filter(|arm| *arm != leader && !self.is_fixed(*arm)).collect::<Vec<_>>()
        {
            let cost = self.standing(plan, arm).cost;
            let worst = |a: &usize, b: &usize| cost[*a].unwrap_or(0.0).total_cmp(&cost[*b].unwrap_or(0.0));
            let Some(load) = (0..plan.loads.len()).max_by(worst) else { continue };
            let z = Self::z(self.pairs(OBJECTIVE, [arm, leader], load)) * plan.goal.sign();
            if z > DROP_Z {
                self.arms[arm].1 = ArmState::Worse { than: self.arms[leader].0 };
            }
        }
    }

    /// Leaves only the best arms when a part of the search's time is spent. At the first cut, their neighbors join.
    pub(crate) fn cut(&mut self, plan: &TunePlan, spent: f64) {
        while let Some((_, remain)) = CUTS.get(self.cuts).filter(|(share, _)| spent >= *share) {
            let ranked: Vec<usize> = self.ranked(plan).into_iter().filter(|arm| !self.is_fixed(*arm)).collect();
            for arm in ranked.iter().skip(*remain) {
                self.arms[*arm].1 = ArmState::Outpaced;
            }
            if let Some(space) = plan.space.as_ref().filter(|_| self.cuts < 2) {
                self.refine(space, &ranked);
            }
            self.cuts += 1;
        }
    }

    fn refine(&mut self, space: &TuneSpace, ranked: &[usize]) {
        let (best, at_most) = REFINED;
        let neighbors = ranked.iter().take(best).flat_map(|arm| space.neighbors(&self.arms[*arm].0));
        let mut joining: Vec<DeliveryMode> = Vec::new();
        for mode in neighbors.collect::<Vec<_>>() {
            if !joining.contains(&mode) && self.arms.iter().all(|(other, _)| *other != mode) {
                joining.push(mode);
            }
        }
        self.arms.extend(joining.into_iter().take(at_most).map(|mode| (mode, ArmState::Alive)));
    }

    /// Whether no arm is left that could be better than the present setting.
    pub(crate) fn is_decided(&self) -> bool {
        self.cuts == CUTS.len() && self.candidates().len() <= 1 || self.candidates().is_empty()
    }

    /// Metric of the goal that no slice has, once every arm of a round was observed.
    pub(crate) fn unreadable(&self, plan: &TunePlan) -> Option<String> {
        let is_absent = |(at, _): &(usize, &TuneMetric)| self.values.iter().all(|values| values[*at].is_none());
        metrics(plan).enumerate().find(is_absent).map(|(_, metric)| metric.to_string())
    }

    pub(crate) fn reports(&self, plan: &TunePlan) -> Vec<ArmReport> {
        let report = |(at, (mode, state)): (usize, &(DeliveryMode, ArmState))| {
            let present = |load: usize| {
                let ratio = |(value, of): &(f64, f64)| (value.max(1e-12) / of.max(1e-12)).ln();
                mean(self.pairs(OBJECTIVE, [at, PRESENT], load).iter().map(ratio)).map(f64::exp)
            };
            ArmReport {
                mode: *mode,
                state: state.clone(),
                slices: self.slices.iter().filter(|slice| slice.arm == at).count() as u32,
                ratio: (0..plan.loads.len()).map(present).collect(),
                of_limit: self.standing(plan, at).of_limit.map(f64::exp),
            }
        };
        self.arms.iter().enumerate().map(report).collect()
    }

    /// Best arm at each load alone: among those that hold the limits in a typical slice, the one with the lowest cost.
    pub(crate) fn preferred(&self, plan: &TunePlan) -> Vec<Option<DeliveryMode>> {
        let observed = (0..self.arms.len())
            .filter(|arm| !matches!(self.arms[*arm].1, ArmState::ViolatedGuard { .. } | ArmState::NotSettable { .. }));
        let standings: Vec<(usize, Standing)> = observed.map(|arm| (arm, self.standing(plan, arm))).collect();
        let best = |load: usize| {
            let holds = standings.iter().filter(|(_, standing)| standing.of_limit.is_none_or(|excess| excess <= 0.0));
            let of_load = holds.filter_map(|(arm, standing)| Some((*arm, standing.cost[load]?)));
            of_load.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(arm, _)| self.arms[arm].0)
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

fn metrics(plan: &TunePlan) -> impl Iterator<Item = &TuneMetric> {
    std::iter::once(&plan.goal.objective).chain(plan.goal.limits.iter().map(|limit| &limit.metric))
}

fn limits_and_loads(plan: &TunePlan) -> impl Iterator<Item = (usize, usize)> + use<> {
    let loads = plan.loads.len();
    (0..plan.goal.limits.len()).flat_map(move |limit| (0..loads).map(move |load| (limit, load)))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Standard error of a mean. `None` for fewer than two values.
fn standard_error(values: &[f64]) -> Option<f64> {
    let mean = mean(values.iter().copied())?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let count = values.len() as f64;
    (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt())
}
