//! Filters and pins under which modes were compared: whether they reached the connections, and whether the server was better
//! without them.

use quell_experiment::{Criterion, Goal, SliceObservation};
use quell_mode::DeliveryMode;
use quell_tune::{TuneDirection, TuneMetric};

use crate::conclusion::search::BESIDE_GOAL;
use crate::conclusion::{Conclusion, Quantity, QuantityChange, WhyKeep};
use crate::experiment::{ExperimentResult, SubjectFacts, median};
use crate::facts::{ProblemFacts, SteeredFacts};
use crate::standing::COST_MAX;
use crate::tune::TuneFile;

/// Number of slices without filters and pins, half of them before the others and half after them. All beyond a quartile of
/// the slices with them: by luck in 1 of 256 cases.
pub const UNPLACED_SLICES: usize = 4;

/// A quantity in the slices of a mode, and in those without filters and pins.
struct Compared {
    quantity: Quantity,
    goal: Goal,
    placed: Vec<f64>,
    unplaced: Vec<f64>,
}

impl Compared {
    /// Ratio of the slices with filters and pins to those without, if they clearly differ by more than [`COST_MAX`].
    fn ratio(&self) -> Option<f64> {
        let (mut placed, unplaced) = (self.placed.clone(), &self.unplaced);
        if unplaced.len() < UNPLACED_SLICES || placed.len() < UNPLACED_SLICES {
            return None;
        }
        placed.sort_by(f64::total_cmp);
        let quartile = placed.len() / 4;
        let (low, high) = (placed[quartile], placed[placed.len() - 1 - quartile]);
        let is_apart = unplaced.iter().all(|value| *value < low) || unplaced.iter().all(|value| *value > high);
        let ratio = median(placed)? / median(unplaced.clone())?;
        (is_apart && ratio.is_finite() && ratio.max(1.0 / ratio) > COST_MAX).then_some(ratio)
    }

    fn change(&self) -> Option<(bool, QuantityChange)> {
        let ratio = self.ratio()?;
        let is_cost = (ratio > 1.0) == (self.goal == Goal::Lowest);
        let quantity = self.quantity.clone();
        Some((is_cost, QuantityChange { quantity, low: ratio, high: ratio, loads: Vec::new(), is_everywhere: true }))
    }
}

/// The conclusion to keep what the server has without filters and pins, in place of a mode that costs something with them.
/// `compared` has the slices of the mode.
fn beside_unplaced(
    conclusion: Conclusion,
    subject: &SubjectFacts,
    compared: impl FnOnce(DeliveryMode, &[SliceObservation]) -> Vec<Compared>,
) -> Conclusion {
    let Conclusion::Use { mode, instead_of, .. } = conclusion else { return conclusion };
    let Some((options, unplaced)) = subject.unplaced() else { return conclusion };
    let changes = compared(mode, unplaced).iter().filter_map(Compared::change).collect::<Vec<_>>();
    let (costs, saves): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(is_cost, _)| *is_cost);
    if costs.is_empty() {
        return conclusion;
    }
    let attached = match subject {
        SubjectFacts::Programs(programs) => programs.attached,
        _ => None,
    };
    let [saves, costs] = [saves, costs].map(|changes| changes.into_iter().map(|(_, change)| change).collect());
    let because = WhyKeep::PlacementCosts { options: options.join(" "), mode, saves, costs };
    let present = attached.unwrap_or(instead_of);
    Conclusion::Keep { mode: present, because, open: Vec::new(), budget_ms: None, without_clients: false }
}

impl SubjectFacts {
    /// Whether connections were to be steered, and the measured ones are those from before: all of them, or so many that
    /// epolls still receive from several queues.
    pub(crate) fn is_not_steered(&self) -> bool {
        let Self::Programs(programs) = self else { return false };
        let Some(placement) = &programs.placement else { return false };
        let steered = &placement.steered;
        // Those of judges alone are opened for each slice.
        let is_from_before =
            |steered: &SteeredFacts| steered.new_connections == Some(0) && steered.connections_before > 0;
        let is_unsorted = |steered: &SteeredFacts| steered.unsorted.is_some_and(|count| count > 0);
        // The filter of the attachment does not steer the other programs.
        let are_attached = placement.is_by_attachment() && programs.attached_in_part.is_empty();
        let stays_mixed = are_attached || steered.iter().any(is_unsorted);
        let is_mixed = programs.problems.iter().any(ProblemFacts::ends_when_steered);
        !steered.is_empty() && steered.iter().all(is_from_before) || stays_mixed && is_mixed
    }

    /// Options of filters and pins, and slices without them. Absent if all slices were the same in this.
    pub(crate) fn unplaced(&self) -> Option<(&[String], &[SliceObservation])> {
        let (options, slices) = match self {
            Self::Programs(programs) => {
                let placement = programs.placement.as_ref()?;
                (&placement.options, &placement.unplaced)
            }
            Self::Command(command) => (&command.placement, &command.unplaced),
            _ => return None,
        };
        (!slices.is_empty()).then_some((options, slices))
    }

    /// Options of filters and pins that all slices had, so that what these change is unknown. Absent without them.
    #[must_use]
    pub fn unmeasured_placement(&self) -> Option<String> {
        let options = match self {
            Self::Programs(programs) => &programs.placement.as_ref().filter(|it| !it.is_by_attachment())?.options,
            Self::Command(command) => &command.placement,
            _ => return None,
        };
        (!options.is_empty() && self.unplaced().is_none()).then(|| options.join(" "))
    }

    /// Adds slices without filters and pins.
    pub fn add_unplaced(&mut self, slices: Vec<SliceObservation>) {
        match self {
            Self::Programs(programs) => programs.placement.iter_mut().for_each(|it| it.unplaced.extend(slices.clone())),
            Self::Command(command) => command.unplaced.extend(slices),
            _ => {}
        }
    }
}

impl ExperimentResult {
    pub(crate) fn beside_unplaced(&self, conclusion: Conclusion) -> Conclusion {
        beside_unplaced(conclusion, &self.subject, |mode, unplaced| {
            let Some(experiment) = self.experiments.first() else { return Vec::new() };
            let design = &experiment.record.design;
            let of_mode = design.treatments.iter().find(|treatment| treatment.setting == mode);
            let arms = of_mode.map(|treatment| experiment.arms_of(&treatment.name)).unwrap_or_default();
            let compared = |criterion: &Criterion| {
                let Criterion::Metric { name, goal } = criterion else { return None };
                let placed = arms.iter().flat_map(|arm| experiment.record.values(*arm, name)).flatten().collect();
                let unplaced = unplaced.iter().filter_map(|slice| slice.metric(name)).collect();
                Some(Compared { quantity: Quantity::Criterion(criterion.clone()), goal: *goal, placed, unplaced })
            };
            design.criteria.iter().filter_map(compared).collect()
        })
    }
}

impl TuneFile {
    pub(crate) fn beside_unplaced(&self, conclusion: Conclusion) -> Conclusion {
        beside_unplaced(conclusion, &self.subject, |mode, unplaced| {
            let (search, goal) = (&self.search, &self.search.plan.goal);
            let is_of_mode = |arm: usize| search.arms.get(arm).is_some_and(|arm| arm.mode == mode);
            let of_search = || search.slices.iter().filter(|slice| slice.load == 0 && is_of_mode(slice.arm));
            let confirmed = search.confirmations.iter().find(|one| one.mode == mode);
            let fresh: Vec<&SliceObservation> = confirmed
                .and_then(|one| one.experiments.first())
                .into_iter()
                .flat_map(|record| {
                    let arms = record.design.arms_of(&mode.to_string());
                    arms.into_iter().flat_map(|arm| record.of_arm(arm))
                })
                .collect();
            let slices = || of_search().map(|slice| &slice.observation).chain(fresh.iter().copied());
            let compared = |metric: TuneMetric, direction: TuneDirection| {
                let placed = slices().filter_map(|slice| metric.value(slice)).collect();
                let unplaced = unplaced.iter().filter_map(|slice| metric.value(slice)).collect();
                let goal = match direction {
                    TuneDirection::Lowest => Goal::Lowest,
                    TuneDirection::Highest => Goal::Highest,
                };
                Compared { quantity: Quantity::Metric(metric), goal, placed, unplaced }
            };
            let others = BESIDE_GOAL.into_iter().filter(|metric| *metric != goal.objective);
            let others = others.map(|metric| compared(metric, TuneDirection::Lowest));
            std::iter::once(compared(goal.objective.clone(), goal.direction)).chain(others).collect()
        })
    }
}
