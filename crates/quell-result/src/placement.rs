//! Filters and pins under which modes were compared: whether they reached the connections, and whether the server was better
//! without them.

use quell_experiment::{Criterion, ExperimentRecord, Goal, SliceObservation};
use quell_mode::DeliveryMode;
use quell_tune::{TuneDirection, TuneMetric, TuneSliceRecord};

use crate::conclusion::search::BESIDE_GOAL;
use crate::conclusion::{Conclusion, Quantity, QuantityChange, WhyKeep};
use crate::experiment::{ExperimentResult, SubjectFacts, median};
use crate::facts::{PlacementFacts, ProblemFacts, SteeredFacts};
use crate::standing::COST_MAX;
use crate::tune::TuneFile;

/// Number of slices without filters and pins, half of them before the others and half after them. All beyond a quartile of
/// the slices with them: by luck in 1 of 256 cases.
pub const UNPLACED_SLICES: usize = 4;

/// The slices of a mode with filters and pins, and what is compared with the slices without.
struct Placed<'a> {
    slices: Vec<&'a SliceObservation>,
    quantities: Vec<(Quantity, Criterion)>,
}

/// Ratio of the values with filters and pins to those without, if they clearly differ by more than [`COST_MAX`].
fn clear_ratio(mut placed: Vec<f64>, unplaced: Vec<f64>) -> Option<f64> {
    if unplaced.len() < UNPLACED_SLICES || placed.len() < UNPLACED_SLICES {
        return None;
    }
    placed.sort_by(f64::total_cmp);
    let quartile = placed.len() / 4;
    let (low, high) = (placed[quartile], placed[placed.len() - 1 - quartile]);
    let is_apart = unplaced.iter().all(|value| *value < low) || unplaced.iter().all(|value| *value > high);
    let ratio = median(placed)? / median(unplaced)?;
    (is_apart && ratio.is_finite() && ratio.max(1.0 / ratio) > COST_MAX).then_some(ratio)
}

/// The conclusion to keep what the server has without filters and pins, in place of a mode that costs something with them.
fn beside_unplaced<'a>(
    conclusion: Conclusion,
    subject: &SubjectFacts,
    placed: impl FnOnce(DeliveryMode) -> Placed<'a>,
) -> Conclusion {
    let Conclusion::Use { mode, instead_of, .. } = conclusion else { return conclusion };
    let unplaced = subject.unplaced();
    if unplaced.is_empty() {
        return conclusion;
    }
    let Placed { slices, quantities } = placed(mode);
    let (mut saves, mut costs) = (Vec::new(), Vec::new());
    for (quantity, criterion) in quantities {
        // Latencies of Quell's own generator are not those of a judge.
        let Criterion::Metric { name, goal } = criterion else { continue };
        let values = |slice: &SliceObservation| slice.metric(&name);
        let placed = slices.iter().filter_map(|slice| values(slice)).collect();
        let Some(ratio) = clear_ratio(placed, unplaced.iter().filter_map(values).collect()) else { continue };
        let change = QuantityChange { quantity, low: ratio, high: ratio, loads: Vec::new(), is_everywhere: true };
        if (ratio > 1.0) == (goal == Goal::Lowest) { costs.push(change) } else { saves.push(change) }
    }
    if costs.is_empty() {
        return conclusion;
    }
    let attached = match subject {
        SubjectFacts::Programs(programs) => programs.attached,
        _ => None,
    };
    // The filter of an attachment stays.
    let was_made = |option: &&String| !(subject.is_steered_by_attachment() && option.starts_with("--steer"));
    let options: Vec<&str> = subject.placement().iter().filter(was_made).map(String::as_str).collect();
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

    /// Options of the filters and pins that all modes had.
    #[must_use]
    pub fn placement(&self) -> &[String] {
        match self {
            Self::Programs(programs) => programs.placement.as_ref().map_or(&[], |placement| &placement.options),
            Self::Command(command) => &command.placement,
            _ => &[],
        }
    }

    /// Whether connections were steered.
    pub(crate) fn steers(&self) -> bool {
        self.placement().iter().any(|option| option.starts_with("--steer"))
    }

    /// Slices without these filters and pins.
    pub(crate) fn unplaced(&self) -> &[SliceObservation] {
        match self {
            Self::Programs(programs) => programs.placement.as_ref().map_or(&[], |placement| &placement.unplaced),
            Self::Command(command) => &command.unplaced,
            _ => &[],
        }
    }

    /// Whether the measurement made filters and pins, and no slice shows what these change.
    #[must_use]
    pub fn has_unmeasured_placement(&self) -> bool {
        let was_made = match self {
            Self::Programs(programs) => {
                programs.placement.as_ref().is_some_and(|made| !made.steered.is_empty() || made.pinned > 0)
            }
            _ => !self.placement().is_empty(),
        };
        was_made && self.unplaced().is_empty()
    }

    /// Whether an attachment of the programs steers their connections, also without the modes of the measurement.
    fn is_steered_by_attachment(&self) -> bool {
        matches!(self, Self::Programs(programs) if programs.placement.as_ref().is_some_and(PlacementFacts::is_by_attachment))
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
        beside_unplaced(conclusion, &self.subject, |mode| {
            let record = self.experiments.first().map(|experiment| &experiment.record);
            let criteria = record.into_iter().flat_map(|record| record.design.criteria.iter().cloned());
            let quantities = criteria.map(|criterion| (Quantity::Criterion(criterion.clone()), criterion)).collect();
            Placed { slices: record.map(|record| slices_of(record, mode)).unwrap_or_default(), quantities }
        })
    }
}

impl TuneFile {
    pub(crate) fn beside_unplaced(&self, conclusion: Conclusion) -> Conclusion {
        beside_unplaced(conclusion, &self.subject, |mode| {
            let (search, goal) = (&self.search, &self.search.plan.goal);
            let is_of_mode = |slice: &&TuneSliceRecord| {
                slice.load == 0 && search.arms.get(slice.arm).is_some_and(|arm| arm.mode == mode)
            };
            let confirmed = search.confirmations.iter().find(|one| one.mode == mode);
            let fresh = confirmed.and_then(|one| one.experiments.first()).map(|record| slices_of(record, mode));
            let of_search = search.slices.iter().filter(is_of_mode).map(|slice| &slice.observation);
            let slices: Vec<&SliceObservation> = of_search.chain(fresh.into_iter().flatten()).collect();
            let others = BESIDE_GOAL.into_iter().filter(|metric| *metric != goal.objective);
            let metrics = others.map(|metric| (metric, TuneDirection::Lowest));
            let compared = [(goal.objective.clone(), goal.direction)].into_iter().chain(metrics);
            let quantity = |(metric, direction): (TuneMetric, TuneDirection)| {
                let criterion = metric.criterion(direction, slices.first()?)?;
                Some((Quantity::Metric(metric), criterion))
            };
            let quantities = compared.filter_map(quantity).collect();
            Placed { slices, quantities }
        })
    }
}

/// Slices of a mode.
fn slices_of(record: &ExperimentRecord<DeliveryMode>, mode: DeliveryMode) -> Vec<&SliceObservation> {
    let of_mode = record.design.treatments.iter().find(|treatment| treatment.setting == mode);
    let arms = of_mode.map(|treatment| record.design.arms_of(&treatment.name)).unwrap_or_default();
    arms.into_iter().flat_map(|arm| record.of_arm(arm)).collect()
}
