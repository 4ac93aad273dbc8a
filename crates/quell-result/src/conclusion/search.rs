//! What follows from a search.

use std::cmp::Ordering;

use quell_experiment::{
    ContrastResult, Criterion, ExperimentDesign, ExperimentRecord, Goal, RatioEstimate, SliceFlag, SwitchbackAnalysis,
    analyse,
};
use quell_mode::DeliveryMode;
use quell_tune::{
    ArmReport, ArmState, Confirmation, Rival, TuneAnswer, TuneDirection, TuneEnd, TuneMetric, TuneResult,
};

use super::{Conclusion, EstimatedGain, OpenGain, Quantity, UndecidedCost, WhyKeep, WhyLonger, longer_ms};
use crate::experiment::is_mostly;
use crate::figures;
use crate::standing::{AtLoad, Standing, Worth};
use crate::tune::TuneFile;

/// Quantities that a mode can make worse although the goal does not name them.
pub(crate) const BESIDE_GOAL: [TuneMetric; 3] =
    [TuneMetric::Latency { quantile: 0.5 }, TuneMetric::Latency { quantile: 0.99 }, TuneMetric::Cpu];

impl TuneFile {
    /// What follows for the reader.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        self.beside_unplaced(self.of_modes())
    }

    /// What the modes show, all with the same filters and pins.
    fn of_modes(&self) -> Conclusion {
        let plan = &self.search.plan;
        let present = self.subject.present(plan.present);
        let standing = |confirmation: &Confirmation, mode: &DeliveryMode| {
            let of_mode = |contrast: &&ContrastResult| contrast.treatment == mode.to_string();
            let of_load = |(load, analysis): (&String, &SwitchbackAnalysis)| {
                let of_goal = |_: &Criterion| Quantity::Metric(plan.goal.objective.clone());
                // What rivals may save is known from all slices of the search.
                AtLoad::new(load.parse().ok(), analysis.contrasts.iter().filter(of_mode).take(1), 0.0, of_goal)
            };
            Standing(plan.loads.iter().zip(&confirmation.analyses).map(of_load).collect())
        };
        let without_clients = plan.goal.metrics().all(|metric| matches!(metric, TuneMetric::Cpu | TuneMetric::Busy));
        let confirmed = |mode: &DeliveryMode, holds_limits| {
            // `base` may be the answer of the confirmation of another mode.
            let of_mode = self.search.confirmations.iter().find(|one| one.mode == *mode);
            let confirmation = of_mode.or(self.search.confirmations.last());
            let of_goal = confirmation.map(|one| standing(one, mode)).unwrap_or_default();
            let beside = confirmation.map(|one| self.beside_goal(one, mode)).unwrap_or_default();
            // That a limit holds is decided.
            let is_limited = |cost: &UndecidedCost| {
                plan.goal.metrics().any(|metric| cost.quantity == Quantity::Metric(metric.clone()))
            };
            let mut undecided = beside.undecided(|_| true);
            undecided.retain(|cost| !is_limited(cost));
            let of_goal = of_goal.to_use(*mode, present, holds_limits, without_clients);
            of_goal.with_costs(beside.costs(|_| true), undecided)
        };
        if let Some(why) = self.why_withheld() {
            return why.without_figures();
        }
        match &self.search.answer {
            TuneAnswer::Better { mode, .. } => confirmed(mode, false),
            TuneAnswer::HoldsLimits { mode, .. } => confirmed(mode, true),
            TuneAnswer::NoSettingBetter => {
                let pays_at_a_load =
                    |one: &&Confirmation| one.meets_limits && standing(one, &one.mode).worth() == Worth::SomeLoads;
                match self.search.confirmations.iter().find(pays_at_a_load) {
                    Some(one) => confirmed(&one.mode, false),
                    None => self.not_beaten(present),
                }
            }
            TuneAnswer::None => {
                let end = self.search.end.clone();
                let is_spent = end == TuneEnd::BudgetSpent;
                let (because, worse, open) = (WhyLonger::Search(end), Vec::new(), Vec::new());
                match longer_ms(plan.budget_ms) {
                    None if is_spent => {
                        Conclusion::NotDecidable { mode: present, within_ms: plan.budget_ms, because, worse, open }
                    }
                    longer => {
                        Conclusion::MeasureLonger { because, worse, open, budget_ms: longer.filter(|_| is_spent) }
                    }
                }
            }
        }
    }

    /// What the mode changes besides the objective, on the fresh slices of a confirmation.
    fn beside_goal(&self, confirmation: &Confirmation, mode: &DeliveryMode) -> Standing {
        let plan = &self.search.plan;
        let of_load = |(load, record): (&String, &ExperimentRecord<DeliveryMode>)| {
            let slice = &record.slices.first()?.observation;
            let of_metric = |metric: TuneMetric| Some((metric.criterion(TuneDirection::Lowest, slice)?, metric));
            let others = BESIDE_GOAL.into_iter().filter(|metric| *metric != plan.goal.objective);
            let compared: Vec<(Criterion, TuneMetric)> = others.filter_map(of_metric).collect();
            if compared.is_empty() {
                return None;
            }
            let criteria = compared.iter().map(|(criterion, _)| criterion.clone()).collect();
            let design = ExperimentDesign { criteria, ..record.design.clone() };
            let analysis = analyse(&ExperimentRecord { design, ..record.clone() });
            let (mode, reference) = (mode.to_string(), &record.design.reference.name);
            let of_mode = |one: &&ContrastResult| one.treatment == mode && one.against == *reference;
            let quantity = |criterion: &Criterion| {
                let of_criterion = compared.iter().find(|(one, _)| one == criterion);
                of_criterion.map_or_else(
                    || Quantity::Criterion(criterion.clone()),
                    |(_, metric)| Quantity::Metric(metric.clone()),
                )
            };
            Some(AtLoad::new(load.parse().ok(), analysis.contrasts.iter().filter(of_mode), 0.0, quantity))
        };
        Standing(plan.loads.iter().zip(&confirmation.experiments).filter_map(of_load).collect())
    }

    /// The mode to use instead of the present one, if the answer of the search counts.
    #[must_use]
    pub fn found(&self) -> Option<DeliveryMode> {
        let found = self.search.answer.mode().filter(|_| self.why_withheld().is_none())?;
        let is_kept = |it: &Conclusion| matches!(it, Conclusion::Keep { because: WhyKeep::PlacementCosts { .. }, .. });
        (self.subject.unplaced().is_empty() || !is_kept(&self.conclusion())).then_some(found)
    }

    /// Whether the search has decided what to use: a mode, or the present setting, because no other one may be better.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        let TuneResult { answer, rivals, end, .. } = &self.search;
        let is_answered = *end == TuneEnd::Answered && self.why_withheld().is_none();
        is_answered && (answer.mode().is_some() || rivals.iter().all(|rival| rival.open_budget_ms().is_none()))
    }

    /// Budget of a repetition without what withholds the answer, in ms, if that of this search was spent before an answer.
    #[must_use]
    pub fn sufficient_budget_ms(&self) -> Option<u64> {
        longer_ms(self.search.plan.budget_ms).filter(|_| self.search.end == TuneEnd::BudgetSpent)
    }

    /// Why the answer of the search does not count, if so.
    #[must_use]
    pub fn why_withheld(&self) -> Option<WhyLonger> {
        match self.subject.is_not_steered() {
            true => Some(WhyLonger::NotSteered),
            false => self.shows_other_programs().then_some(WhyLonger::OtherPrograms { latency_helps: false }),
        }
    }

    /// Whether other programs used most of the time of the server's CPUs, and a quantity of the goal shows these programs.
    fn shows_other_programs(&self) -> bool {
        let TuneResult { plan, slices, confirmations, answer, end, .. } = &self.search;
        if *answer == TuneAnswer::None && *end != TuneEnd::BudgetSpent {
            return false;
        }
        let fresh = confirmations.iter().flat_map(|one| &one.experiments).flat_map(|one| &one.slices);
        let all = || {
            let fresh = fresh.clone().map(|slice| &slice.observation);
            slices.iter().map(|slice| &slice.observation).chain(fresh)
        };
        let [foreign, none_idle] = [SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]
            .map(|flag| is_mostly(all(), |slice| slice.flags.contains(&flag)));
        plan.goal.metrics().any(|metric| match metric {
            TuneMetric::Cpu | TuneMetric::Busy => foreign,
            TuneMetric::Recorded { name } if name.starts_with(figures::CPU) => foreign,
            TuneMetric::Recorded { name } => {
                let criterion = Criterion::Metric { name: name.clone(), goal: Goal::Lowest };
                none_idle && figures::is_of_clients(&criterion)
            }
            TuneMetric::Latency { .. } | TuneMetric::Requests => none_idle,
            TuneMetric::Errors | TuneMetric::Saturated => false,
        })
    }

    /// The conclusion to keep the present mode, with the rival that more time can decide and that looks best. Those within
    /// the limits come first, then those whose interval excludes no change.
    fn not_beaten(&self, present: DeliveryMode) -> Conclusion {
        let quantity = Quantity::Metric(self.search.plan.goal.objective.clone());
        let open = self.search.rivals.iter().filter_map(|rival| Some((rival, rival.open_budget_ms()?)));
        let size = |&(rival, budget_ms): &(&Rival, Option<u64>)| {
            let exceeds = self.search.limit_ratio(rival.mode).is_some_and(|ratio| ratio > 1.0);
            let excludes_one = |of: &RatioEstimate| of.high.is_some_and(|high| (of.low - 1.0) * (high - 1.0) > 0.0);
            (budget_ms.is_some(), !exceeds, rival.interval.as_ref().is_some_and(excludes_one), rival.ratio().ln().abs())
        };
        let best = open.max_by(|one, other| size(one).partial_cmp(&size(other)).unwrap_or(Ordering::Equal));
        let (best, budget_ms) = best.unzip();
        let best = best.map(|rival| EstimatedGain { mode: rival.mode.to_string(), ratio: rival.ratio(), load: None });
        let budget_ms = budget_ms.flatten().filter(|_| longer_ms(self.search.plan.budget_ms).is_some());
        let open = best.map(|best| OpenGain { quantity, best: Some(best) }).into_iter().collect();
        let has_failed = |arm: &&ArmReport| matches!(arm.state, ArmState::NotSettable { .. });
        let is_compared = |mode: &DeliveryMode| self.search.confirmations.iter().any(|one| one.mode == *mode);
        let fixed = [self.search.plan.present, DeliveryMode::default()];
        let is_left =
            |arm: &&ArmReport| arm.state == ArmState::Alive && !fixed.contains(&arm.mode) && !is_compared(&arm.mode);
        let arms = || self.search.arms.iter();
        let because =
            WhyKeep::NotBeaten { failed: arms().filter(has_failed).count(), left: arms().filter(is_left).count() };
        Conclusion::Keep { mode: present, because, open, budget_ms, without_clients: false }
    }
}
