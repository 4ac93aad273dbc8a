//! The design of a switchback experiment, which is fixed before the first slice. The seed alone determines the order of
//! the slices.

use std::collections::BTreeMap;

use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting of the subject, and its name in the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Treatment<S> {
    /// Name of the treatment in the results, unique within a design.
    pub name: String,
    /// Value that [`ExperimentSubject::set`](crate::ExperimentSubject::set) receives.
    pub setting: S,
}

/// Whether low or high values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Less is better: latency, CPU per request.
    Lowest,
    /// More is better: requests per second.
    Highest,
}

/// A quantity by which treatments are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Criterion {
    /// A metric with one value per slice.
    Metric {
        /// Name of the metric in [`SliceObservation::metrics`](crate::SliceObservation::metrics).
        name: String,
        /// Whether low or high values are better.
        goal: Goal,
    },
    /// A quantile of the latencies in a typical slice. Lower values are better.
    Latency {
        /// Level of the quantile, above 0 and below 1.
        quantile: f64,
    },
}

impl Criterion {
    /// Whether low or high values are better.
    #[must_use]
    pub fn goal(&self) -> Goal {
        match self {
            Self::Metric { goal, .. } => *goal,
            Self::Latency { .. } => Goal::Lowest,
        }
    }
}

/// Pairs of treatments that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContrastSet {
    /// Each treatment with the reference.
    AgainstReference,
    /// Each treatment with the reference and with every other treatment.
    AllPairs,
}

/// Design of a switchback experiment. [`Switchback::new`](crate::Switchback::new) checks it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExperimentDesign<S> {
    /// Treatment with which the others are compared. It has two slices per block, and the second is the A/A control.
    pub reference: Treatment<S>,
    /// Other treatments. Each has one slice per block.
    pub treatments: Vec<Treatment<S>>,
    /// Criteria by which treatments are compared.
    pub criteria: Vec<Criterion>,
    /// Pairs of treatments that are compared.
    pub contrasts: ContrastSet,
    /// Time for which each slice is observed, in milliseconds.
    pub slice_ms: u32,
    /// Time between setting a treatment and observing it, in milliseconds.
    pub settle_ms: u32,
    /// Maximum time of the whole experiment, including setting and settling, in milliseconds.
    pub budget_ms: u64,
    /// Number of planned analyses. The experiment may stop after each of them.
    pub looks: u32,
    /// Maximum probability that at least one verdict of the experiment is wrong. If several experiments answer one
    /// question together, divide the rate among them.
    pub error_rate: f64,
    /// Relative difference that does not matter. A margin of 0.05 permits the verdict "no difference larger than 5 %".
    pub margin: f64,
    /// Maximum difference between the slices of a block in the CPU share of other programs. Blocks above it may be
    /// dropped, at most a quarter of all blocks. Those with the largest differences are dropped first.
    pub foreign_cpu_range_max: f64,
    /// Seed that determines the order of the slices.
    pub seed: u64,
    /// Resolution of metrics that have a coarse one, by name, in the unit of the metric. A difference of one step is not
    /// significant.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, f64>,
}

/// Why a design is invalid.
#[allow(missing_docs, reason = "the texts of the errors say it")]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DesignError {
    #[error("the treatment {0} is listed twice; list the reference only once")]
    RepeatedTreatment(String),
    #[error("{field} is {value}; it must be {expected}")]
    OutOfRange { field: &'static str, value: f64, expected: &'static str },
    #[error("the experiment has no criterion: name at least one metric or latency quantile")]
    NoCriterion,
    #[error("a criterion is listed twice: {0:?}")]
    RepeatedCriterion(Criterion),
    #[error(
        "the budget of {budget_ms} ms has time for {blocks} of {needed} blocks of {block_ms} ms; use {} ms, so that two \
         may be disturbed",
        u64::from(ENOUGH_BLOCKS) * block_ms
    )]
    BudgetTooShort { budget_ms: u64, block_ms: u64, blocks: u64, needed: u64 },
}

/// Minimum number of blocks in an experiment. With fewer blocks, a 95 % interval has no ends.
pub(crate) const MIN_BLOCKS: u32 = 6;
/// Number of blocks of which [`MIN_BLOCKS`] remain if other programs disturb as many as may be dropped, a quarter.
const ENOUGH_BLOCKS: u32 = 8;
/// Arm of the reference.
pub(crate) const REFERENCE: usize = 0;
/// Arm of the second reference, the A/A control.
pub(crate) const CONTROL: usize = 1;
/// Number of arms before that of the first treatment.
pub(crate) const TREATMENTS_FROM: usize = 2;

impl<S> ExperimentDesign<S> {
    /// Creates a design with slices of 200 ms, a settling time of 10 ms, a budget of 2 minutes, and 10 looks. The error
    /// rate and the margin are 5 %. Every treatment is compared with the reference.
    #[must_use]
    pub fn new(reference: Treatment<S>, treatments: Vec<Treatment<S>>, criteria: Vec<Criterion>, seed: u64) -> Self {
        Self {
            reference,
            treatments,
            criteria,
            contrasts: ContrastSet::AgainstReference,
            slice_ms: 200,
            settle_ms: 10,
            budget_ms: 120_000,
            looks: 10,
            error_rate: 0.05,
            margin: 0.05,
            foreign_cpu_range_max: 0.1,
            seed,
            steps: BTreeMap::new(),
        }
    }

    /// Number of arms: two for the reference, and one for each treatment. Arm 0 is the reference, and arm 1 is its
    /// control.
    #[must_use]
    pub fn arms(&self) -> usize {
        TREATMENTS_FROM + self.treatments.len()
    }

    /// Treatment of an arm. `None` if there is no such arm.
    #[must_use]
    pub fn treatment(&self, arm: usize) -> Option<&Treatment<S>> {
        match arm {
            REFERENCE | CONTROL => Some(&self.reference),
            _ => self.treatments.get(arm - TREATMENTS_FROM),
        }
    }

    /// Arms of the treatment with this name.
    #[must_use]
    pub fn arms_of(&self, name: &str) -> Vec<usize> {
        (0..self.arms()).filter(|arm| self.treatment(*arm).is_some_and(|treatment| treatment.name == name)).collect()
    }

    /// Planned duration of a block, in milliseconds.
    #[must_use]
    pub fn block_ms(&self) -> u64 {
        self.arms() as u64 * (u64::from(self.slice_ms) + u64::from(self.settle_ms))
    }

    /// Budget with time for enough blocks, two of which may be disturbed, in milliseconds. Each slice takes
    /// `slice_takes_ms` with setting and settling, or as long as it is planned, if that is longer.
    #[must_use]
    pub fn enough_ms(&self, slice_takes_ms: f64) -> u64 {
        let planned_ms = f64::from(self.slice_ms) + f64::from(self.settle_ms);
        (f64::from(ENOUGH_BLOCKS) * self.arms() as f64 * slice_takes_ms.max(planned_ms)).round() as u64
    }

    /// Arms of a block in the order of their slices. Each block has a different random order.
    #[must_use]
    pub fn order(&self, block: u32) -> Vec<usize> {
        let mut arms: Vec<usize> = (0..self.arms()).collect();
        arms.shuffle(&mut Pcg64::new(u128::from(self.seed), u128::from(block)));
        arms
    }

    /// Pairs of arms that are compared: the treatment, and the arm with which it is compared.
    pub(crate) fn pairs(&self) -> Vec<(usize, usize)> {
        let treatments = TREATMENTS_FROM..self.arms();
        let with_reference = treatments.clone().map(|arm| (arm, REFERENCE));
        match self.contrasts {
            ContrastSet::AgainstReference => with_reference.collect(),
            ContrastSet::AllPairs => with_reference
                .chain(treatments.flat_map(|arm| (arm + 1..self.arms()).map(move |later| (later, arm))))
                .collect(),
        }
    }

    /// Error rate of one contrast by one criterion. All contrasts get an equal part (Bonferroni).
    pub(crate) fn error_rate_per_contrast(&self) -> f64 {
        let contrasts = (self.pairs().len() * self.criteria.len()).max(1);
        self.error_rate / contrasts as f64
    }

    /// Checks the conditions that the type does not enforce.
    pub fn check(&self) -> Result<(), DesignError> {
        let names: Vec<&str> = std::iter::once(&self.reference).chain(&self.treatments).map(|one| &*one.name).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(DesignError::RepeatedTreatment((*name).to_owned()));
        }
        if self.criteria.is_empty() {
            return Err(DesignError::NoCriterion);
        }
        let repeated = |(at, criterion): &(usize, &Criterion)| self.criteria[..*at].contains(criterion);
        if let Some((_, criterion)) = self.criteria.iter().enumerate().find(repeated) {
            return Err(DesignError::RepeatedCriterion(criterion.clone()));
        }
        let quantiles = self.criteria.iter().filter_map(|criterion| match criterion {
            Criterion::Latency { quantile } => Some(("quantile", *quantile)),
            Criterion::Metric { .. } => None,
        });
        let shares = [("error-rate", self.error_rate), ("margin", self.margin)];
        let is_share = |share: f64| share > 0.0 && share < 1.0;
        if let Some((field, value)) = shares.into_iter().chain(quantiles).find(|(_, share)| !is_share(*share)) {
            return Err(DesignError::OutOfRange { field, value, expected: "above 0 and below 1" });
        }
        if !(0.0..=1.0).contains(&self.foreign_cpu_range_max) {
            let value = self.foreign_cpu_range_max;
            return Err(DesignError::OutOfRange { field: "foreign-cpu-range-max", value, expected: "from 0 to 1" });
        }
        let counts = [("slice-ms", self.slice_ms), ("looks", self.looks)];
        if let Some((field, value)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(DesignError::OutOfRange { field, value: f64::from(value), expected: "above 0" });
        }
        let (block_ms, needed) = (self.block_ms(), u64::from(MIN_BLOCKS));
        match self.budget_ms / block_ms {
            blocks if blocks < needed => {
                Err(DesignError::BudgetTooShort { budget_ms: self.budget_ms, block_ms, blocks, needed })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn named(name: &str) -> Treatment<()> {
        Treatment { name: name.to_owned(), setting: () }
    }

    fn design() -> ExperimentDesign<()> {
        let treatments = ["defer200", "suspend200"].map(named).to_vec();
        ExperimentDesign::new(named("base"), treatments, vec![Criterion::Latency { quantile: 0.99 }], 7)
    }

    #[test]
    fn every_block_contains_each_treatment_once_and_the_reference_twice() {
        for block in 0..50 {
            let mut order = design().order(block);
            order.sort_unstable();
            assert_eq!(order, [REFERENCE, CONTROL, 2, 3]);
        }
    }

    #[test]
    fn every_order_occurs_and_the_seed_decides_which() {
        let orders: BTreeSet<_> = (0..400).map(|block| design().order(block)).collect();
        assert_eq!(orders.len(), 24);
        let other = ExperimentDesign { seed: 8, ..design() };
        assert_eq!(design().order(3), design().order(3));
        assert!((0..20).any(|block| design().order(block) != other.order(block)));
    }

    #[test]
    fn the_error_rate_is_divided_among_all_contrasts() {
        let all = ExperimentDesign { contrasts: ContrastSet::AllPairs, ..design() };
        assert_eq!(design().pairs(), [(2, REFERENCE), (3, REFERENCE)]);
        assert_eq!(all.pairs(), [(2, REFERENCE), (3, REFERENCE), (3, 2)]);
        assert!((all.error_rate_per_contrast() - 0.05 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_treatment_listed_twice_is_refused() {
        let twice = ExperimentDesign { treatments: vec![named("base")], ..design() };
        assert_eq!(twice.check(), Err(DesignError::RepeatedTreatment("base".to_owned())));
    }

    #[test]
    fn values_outside_their_range_are_refused_by_name() {
        let field = |design: ExperimentDesign<()>| match design.check() {
            Err(DesignError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(ExperimentDesign { error_rate: 0.0, ..design() }), "error-rate");
        assert_eq!(field(ExperimentDesign { margin: f64::NAN, ..design() }), "margin");
        assert_eq!(field(ExperimentDesign { looks: 0, ..design() }), "looks");
        let quantile = vec![Criterion::Latency { quantile: 1.0 }];
        assert_eq!(field(ExperimentDesign { criteria: quantile, ..design() }), "quantile");
        assert_eq!(ExperimentDesign { criteria: vec![], ..design() }.check(), Err(DesignError::NoCriterion));
    }

    #[test]
    fn a_budget_without_time_for_six_blocks_is_refused() {
        let short = ExperimentDesign { budget_ms: 5_000, ..design() };
        let error = DesignError::BudgetTooShort { budget_ms: 5_000, block_ms: 840, blocks: 5, needed: 6 };
        assert!(error.to_string().contains("use 6720 ms"), "{error}");
        assert_eq!(short.check(), Err(error));
        assert_eq!(design().check(), Ok(()));
    }

    #[test]
    fn enough_time_leaves_the_fewest_blocks_if_two_are_disturbed_and_slices_take_as_long_as_they_did() {
        let blocks = |slice_takes_ms: f64| design().enough_ms(slice_takes_ms) as f64 / (4.0 * slice_takes_ms);
        assert_eq!((blocks(210.0), blocks(1_200.0)), (8.0, 8.0));
        assert_eq!(design().enough_ms(0.0), design().enough_ms(210.0), "as planned");
    }
}
