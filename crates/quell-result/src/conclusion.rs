//! What a result means for the reader: use another mode, keep the present one, or measure longer. Derived from the
//! verdicts, without a measurement.

use std::cmp::Reverse;

use quell_experiment::{
    ContrastResult, ContrastVerdict, Criterion, Goal, RatioEstimate, SwitchbackAnalysis, WhyUndecided,
};
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_tune::{Confirmation, TuneAnswer, TuneEnd, TuneMetric};

use crate::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use crate::facts::SteeredFacts;
use crate::figures;
use crate::tune::TuneFile;

/// What to do after reading a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    Use {
        mode: DeliveryMode,
        /// What it replaces.
        instead_of: DeliveryMode,
        /// What it saves, at the loads at which it pays.
        saves: Vec<QuantityChange>,
        /// What it costs at these loads.
        costs: Vec<QuantityChange>,
        /// What it may cost at these loads: nothing decided it.
        undecided: Vec<UndecidedCost>,
        /// Whether it holds limits that the other one does not.
        holds_limits: bool,
        /// Loads at which it pays and costs; absent if it costs too much at none.
        split: Option<LoadSplit>,
        /// Whether nothing that clients see was compared, such as latency.
        without_clients: bool,
    },
    Keep {
        mode: DeliveryMode,
        /// Why no other one is better.
        because: WhyKeep,
        /// Whether nothing that clients see was compared, such as latency.
        without_clients: bool,
    },
    /// Nothing is known yet.
    MeasureLonger {
        /// Why not.
        because: WhyLonger,
        /// Budget that is worth trying, in ms; absent if more time does not help.
        budget_ms: Option<u64>,
    },
}

/// Why the present mode stays.
#[derive(Debug, Clone, PartialEq)]
pub enum WhyKeep {
    /// No mode differs from it by more than the margin of the experiment.
    NothingToGain {
        /// The margin, as a share.
        margin: f64,
        /// Share of time in which the server's CPUs were not idle; absent if unknown.
        busy: Option<f64>,
    },
    /// Every mode is worse by one of these quantities.
    OthersAreWorse { by: Vec<Quantity> },
    /// The best of the others is better by some quantities and much worse by others.
    TradeOff { mode: String, saves: Vec<QuantityChange>, costs: Vec<QuantityChange> },
    /// A search found no better mode.
    NotBeaten,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub enum WhyLonger {
    /// Nothing was measured, or the subject failed.
    Incomplete,
    /// The reference differs from itself: something else changed during the experiment.
    Unsteady,
    /// The queues received no packets, or too few requests were measured.
    TooFewRequests,
    /// Other programs used most of the time of the server's CPUs, so CPU time or latency could not be compared.
    OtherPrograms {
        /// Whether latencies were not compared, and could be, because other programs do not distort them.
        latency_helps: bool,
    },
    /// Connections were to be steered, and no client has reconnected.
    NotSteered,
    /// The differences are smaller than what the slices can show.
    TooWide,
    /// The search ended for this reason.
    Search(TuneEnd),
}

/// A quantity that a mode changes, as ratios to the reference: the smallest and the largest of the decided loads.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantityChange {
    pub quantity: Quantity,
    pub low: f64,
    pub high: f64,
    /// Loads at which this was decided. Empty if Quell does not offer the load.
    pub loads: Vec<OfferedLoad>,
    /// Whether these are all loads that the conclusion is about.
    pub is_everywhere: bool,
}

/// A quantity that looks worse under a mode, or was not compared, at one load.
#[derive(Debug, Clone, PartialEq)]
pub struct UndecidedCost {
    pub quantity: Quantity,
    /// Ratio to the reference. Absent without an estimate.
    pub ratio: Option<f64>,
    /// Absent if the result has one load.
    pub load: Option<OfferedLoad>,
}

/// Loads at which a mode pays, and loads at which it costs too much.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSplit {
    pub pays: LoadRange,
    pub costs: LoadRange,
    /// What the mode costs there.
    pub there: Vec<QuantityChange>,
}

/// Loads of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadRange {
    /// This load and higher ones.
    From(OfferedLoad),
    /// This load and lower ones.
    UpTo(OfferedLoad),
    At(Vec<OfferedLoad>),
}

impl LoadSplit {
    fn new(pays: &[OfferedLoad], costs: &[OfferedLoad], there: Vec<QuantityChange>) -> Self {
        let are_below =
            |some: &[OfferedLoad], others: &[OfferedLoad]| some.iter().all(|a| others.iter().all(|b| is_below(*a, *b)));
        let lowest = |loads: &[OfferedLoad]| loads.iter().copied().reduce(|a, b| if is_below(b, a) { b } else { a });
        let highest = |loads: &[OfferedLoad]| loads.iter().copied().reduce(|a, b| if is_below(a, b) { b } else { a });
        let ranges = if are_below(costs, pays) {
            lowest(pays).map(LoadRange::From).zip(highest(costs).map(LoadRange::UpTo))
        } else if are_below(pays, costs) {
            highest(pays).map(LoadRange::UpTo).zip(lowest(costs).map(LoadRange::From))
        } else {
            None
        };
        let (pays, costs) = ranges.unwrap_or_else(|| (LoadRange::At(pays.to_vec()), LoadRange::At(costs.to_vec())));
        Self { pays, costs, there }
    }
}

/// Whether a load is known to be below another one: a share and a rate cannot be compared.
pub(crate) fn is_below(a: OfferedLoad, b: OfferedLoad) -> bool {
    match (a, b) {
        (OfferedLoad::Rate(a), OfferedLoad::Rate(b)) | (OfferedLoad::Percent(a), OfferedLoad::Percent(b)) => a < b,
        (OfferedLoad::Rate(_) | OfferedLoad::Percent(_), OfferedLoad::Max) => true,
        _ => false,
    }
}

/// A quantity by which modes are compared.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantity {
    /// Of an experiment.
    Criterion(Criterion),
    /// Of a search.
    Metric(TuneMetric),
}

/// Largest factor by which a quantity may get worse under a mode that is recommended for others.
const COST_MAX: f64 = 1.25;
/// Least ratio of what a mode saves to what it costs, as sums of the logarithms of its changes.
const GAIN_PER_COST: f64 = 2.0;

/// What a mode changes at one load, by the decided contrasts.
#[derive(Debug)]
struct AtLoad {
    load: Option<OfferedLoad>,
    /// The load as it was asked for, which tables have as its name.
    named: Option<OfferedLoad>,
    better: Vec<(Quantity, f64)>,
    worse: Vec<(Quantity, f64)>,
    /// What looks worse, or has no estimate, without a verdict.
    undecided: Vec<(Quantity, Option<f64>)>,
    is_unsettled: bool,
}

impl AtLoad {
    fn new<'a>(
        load: Option<OfferedLoad>,
        contrasts: impl Iterator<Item = &'a ContrastResult>,
        quantity: impl Fn(&Criterion) -> Quantity,
    ) -> Self {
        let mut at_load = Self {
            load,
            named: load,
            better: Vec::new(),
            worse: Vec::new(),
            undecided: Vec::new(),
            is_unsettled: false,
        };
        for contrast in contrasts {
            let changes = match contrast.verdict {
                ContrastVerdict::Better => &mut at_load.better,
                ContrastVerdict::Worse => &mut at_load.worse,
                ContrastVerdict::NoDifferenceLargerThan { .. } => continue,
                ContrastVerdict::Undecided { reason } => {
                    let is_open = is_worth_time(reason);
                    at_load.is_unsettled |= is_open;
                    let ratio = contrast.estimate.map(|estimate| estimate.ratio);
                    let is_worse = match contrast.criterion.goal() {
                        Goal::Lowest => ratio.is_none_or(|ratio| ratio > 1.0),
                        Goal::Highest => ratio.is_none_or(|ratio| ratio < 1.0),
                    };
                    if is_worse && (is_open || ratio.is_some()) {
                        at_load.undecided.push((quantity(&contrast.criterion), ratio));
                    }
                    continue;
                }
            };
            if let Some(RatioEstimate { ratio, .. }) = contrast.estimate {
                changes.push((quantity(&contrast.criterion), ratio));
            }
        }
        at_load
    }

    /// Verdicts for the mode less those against it.
    fn score(&self) -> i64 {
        self.better.len() as i64 - self.worse.len() as i64
    }

    /// Whether the mode saves something here and costs nothing, or little compared with what it saves.
    fn pays(&self) -> bool {
        let is_little = |(_, ratio): &(Quantity, f64)| ratio.max(1.0 / ratio) <= COST_MAX;
        let sum = |changes: &[(Quantity, f64)]| changes.iter().map(|(_, ratio)| ratio.ln().abs()).sum::<f64>();
        !self.better.is_empty()
            && self.worse.iter().all(is_little)
            && sum(&self.better) >= GAIN_PER_COST * sum(&self.worse)
    }

    fn costs(&self) -> bool {
        !self.worse.is_empty() && !self.pays()
    }
}

/// What a mode changes at all loads.
#[derive(Debug, Default)]
struct Standing(Vec<AtLoad>);

/// How a mode compares with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Saves nothing.
    Nothing,
    /// Saves one quantity at the cost of another.
    TradeOff,
    /// Pays at some loads, and costs at others.
    SomeLoads,
    /// Pays at a load, and costs at none.
    Everybody,
}

impl Standing {
    fn worth(&self) -> Worth {
        let (pays, costs) = (self.0.iter().any(AtLoad::pays), self.0.iter().any(AtLoad::costs));
        match (pays, costs) {
            (true, false) => Worth::Everybody,
            (true, true) => Worth::SomeLoads,
            _ if self.0.iter().any(|at| !at.better.is_empty()) => Worth::TradeOff,
            _ => Worth::Nothing,
        }
    }

    fn score(&self) -> i64 {
        self.0.iter().map(AtLoad::score).sum()
    }

    fn is_unsettled(&self) -> bool {
        self.0.iter().any(|at| at.is_unsettled)
    }

    fn is_worse(&self) -> bool {
        self.0.iter().any(|at| !at.worse.is_empty())
    }

    fn saves(&self, of: fn(&AtLoad) -> bool) -> Vec<QuantityChange> {
        merged(self.0.iter().filter(|at| of(at)).map(|at| (at.named, &at.better)))
    }

    fn costs(&self, of: fn(&AtLoad) -> bool) -> Vec<QuantityChange> {
        merged(self.0.iter().filter(|at| of(at)).map(|at| (at.named, &at.worse)))
    }

    /// By quantity, in the order of the loads.
    fn undecided(&self, of: fn(&AtLoad) -> bool) -> Vec<UndecidedCost> {
        let load_of = |at: &AtLoad| at.named.filter(|_| self.0.len() > 1);
        let of_load = self
            .0
            .iter()
            .filter(|at| of(at))
            .flat_map(|at| at.undecided.iter().map(move |(of, ratio)| (of.clone(), *ratio, load_of(at))));
        let mut costs: Vec<UndecidedCost> = Vec::new();
        for (quantity, ratio, load) in of_load {
            let last = costs.iter().rposition(|cost| cost.quantity == quantity);
            costs.insert(last.map_or(costs.len(), |last| last + 1), UndecidedCost { quantity, ratio, load });
        }
        costs
    }

    /// The conclusion to use the mode, at the loads at which it pays.
    fn to_use(
        &self,
        mode: DeliveryMode,
        instead_of: DeliveryMode,
        holds_limits: bool,
        without_clients: bool,
    ) -> Conclusion {
        let loads = |of: fn(&AtLoad) -> bool| -> Vec<OfferedLoad> {
            self.0.iter().filter(|at| of(at)).filter_map(|at| at.load).collect()
        };
        let is_split = self.worth() == Worth::SomeLoads && !holds_limits;
        let of: fn(&AtLoad) -> bool = if is_split { AtLoad::pays } else { |_| true };
        let split =
            is_split.then(|| LoadSplit::new(&loads(AtLoad::pays), &loads(AtLoad::costs), self.costs(AtLoad::costs)));
        let (saves, costs, undecided) = (self.saves(of), self.costs(of), self.undecided(of));
        Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients }
    }
}

fn merged<'a>(at_loads: impl Iterator<Item = (Option<OfferedLoad>, &'a Vec<(Quantity, f64)>)>) -> Vec<QuantityChange> {
    let mut changes: Vec<QuantityChange> = Vec::new();
    let at_loads: Vec<_> = at_loads.collect();
    let count = at_loads.len();
    for (load, (quantity, ratio)) in at_loads.into_iter().flat_map(|(load, of)| of.iter().map(move |one| (load, one))) {
        match changes.iter_mut().find(|change| change.quantity == *quantity) {
            Some(known) => {
                (known.low, known.high) = (known.low.min(*ratio), known.high.max(*ratio));
                known.loads.extend(load);
            }
            None => changes.push(QuantityChange {
                quantity: quantity.clone(),
                low: *ratio,
                high: *ratio,
                loads: load.into_iter().collect(),
                is_everywhere: false,
            }),
        }
    }
    for change in &mut changes {
        change.is_everywhere = change.loads.is_empty() || change.loads.len() == count;
    }
    changes
}

/// Whether more slices can decide a contrast that is undecided for this reason.
fn is_worth_time(reason: WhyUndecided) -> bool {
    !matches!(
        reason,
        WhyUndecided::TreatmentDropped | WhyUndecided::AllZero | WhyUndecided::RequestsFail | WhyUndecided::Saturated
    )
}

impl ExperimentResult {
    /// What follows for the reader. Absent for counts in a guest, which measure no times, and without an experiment.
    #[must_use]
    pub fn conclusion(&self) -> Option<Conclusion> {
        let first = self.experiments.first()?;
        if matches!(self.subject, SubjectFacts::Guest(_)) {
            return None;
        }
        let analyses: Vec<SwitchbackAnalysis> = self.experiments.iter().map(LoadExperiment::analyse).collect();
        let design = &first.record.design;
        let longer =
            |because| Conclusion::MeasureLonger { because, budget_ms: Some(design.budget_ms.saturating_mul(2)) };
        let other_programs = |latency_helps| Conclusion::MeasureLonger {
            because: WhyLonger::OtherPrograms { latency_helps },
            budget_ms: None,
        };
        let without_clients = !design.criteria.iter().any(figures::is_of_clients);
        if self.subject.is_not_steered() {
            return Some(Conclusion::MeasureLonger { because: WhyLonger::NotSteered, budget_ms: None });
        }
        if self.experiments.iter().any(LoadExperiment::has_no_idle_cpu) {
            return Some(other_programs(false));
        }
        let standing = |name: &str| {
            let of_load = |(experiment, analysis): (&LoadExperiment, &SwitchbackAnalysis)| {
                let load = experiment.offered();
                let contrasts = analysis.contrasts.iter().filter(|contrast| contrast.treatment == name);
                let at_load = AtLoad::new(load, contrasts, |of| Quantity::Criterion(of.clone()));
                AtLoad { named: experiment.load.or(load), ..at_load }
            };
            Standing(self.experiments.iter().zip(&analyses).map(of_load).collect())
        };
        let standings: Vec<Standing> = design.treatments.iter().map(|one| standing(&one.name)).collect();
        let best = standings.iter().enumerate().filter(|(_, standing)| standing.worth() > Worth::Nothing);
        // Of equal ones the first: modes are listed from the least to the most invasive.
        let best = best.max_by_key(|(index, standing)| (standing.worth(), standing.score(), Reverse(*index)));
        let reference = self.subject.present(design.reference.setting);
        if let Some((index, standing)) = best {
            let mode = design.treatments[index].setting;
            return Some(match standing.worth() {
                Worth::Nothing | Worth::TradeOff => {
                    let (saves, costs) = (standing.saves(|_| true), standing.costs(|_| true));
                    let because = WhyKeep::TradeOff { mode: mode.to_string(), saves, costs };
                    Conclusion::Keep { mode: reference, because, without_clients }
                }
                Worth::SomeLoads | Worth::Everybody => standing.to_use(mode, reference, false, without_clients),
            });
        }
        if self.failure().is_some() || self.was_interrupted() {
            return Some(Conclusion::MeasureLonger { because: WhyLonger::Incomplete, budget_ms: None });
        }
        if analyses.iter().flat_map(|analysis| &analysis.controls).any(|control| !control.holds) {
            return Some(longer(WhyLonger::Unsteady));
        }
        if standings.iter().any(Standing::is_unsettled) {
            let has_few = |contrast: &ContrastResult| {
                let too_few =
                    |reason| matches!(reason, WhyUndecided::TooFewBlocks { .. } | WhyUndecided::TooFewRequests { .. });
                matches!(contrast.verdict, ContrastVerdict::Undecided { reason } if too_few(reason))
            };
            let few = analyses.iter().flat_map(|analysis| &analysis.contrasts).any(has_few);
            let is_foreign = self.experiments.iter().any(LoadExperiment::has_foreign_cpu);
            let is_compared = |contrast: &ContrastResult| {
                !matches!(contrast.verdict, ContrastVerdict::Undecided { reason: WhyUndecided::ForeignCpu })
            };
            let others_compared = analyses.iter().flat_map(|analysis| &analysis.contrasts).any(is_compared);
            return Some(match (few, is_foreign) {
                (true, _) => longer(WhyLonger::TooFewRequests),
                (false, true) => other_programs(!others_compared),
                (false, false) => longer(WhyLonger::TooWide),
            });
        }
        let because = match !standings.is_empty() && standings.iter().all(Standing::is_worse) {
            true => {
                let mut by: Vec<Quantity> = Vec::new();
                for change in standings.iter().flat_map(|standing| standing.costs(|_| true)) {
                    if !by.contains(&change.quantity) {
                        by.push(change.quantity);
                    }
                }
                WhyKeep::OthersAreWorse { by }
            }
            false => WhyKeep::NothingToGain {
                margin: design.margin,
                busy: first.median(&design.reference.name, figures::BUSY),
            },
        };
        Some(Conclusion::Keep { mode: reference, because, without_clients })
    }
}

impl SubjectFacts {
    /// The mode that the programs have where a result names `mode` as the present one.
    pub(crate) fn present(&self, mode: DeliveryMode) -> DeliveryMode {
        match self {
            Self::Programs(programs) if mode == DeliveryMode::default() => programs.base_is.unwrap_or(mode),
            _ => mode,
        }
    }

    /// Whether connections were to be steered, and the measured ones are those from before.
    fn is_not_steered(&self) -> bool {
        let Self::Programs(programs) = self else { return false };
        let steered = programs.placement.as_ref().map_or(&[][..], |placement| &placement.steered);
        let is_from_before = |steered: &SteeredFacts| steered.new_connections == Some(0);
        !steered.is_empty() && steered.iter().all(is_from_before)
    }
}

impl TuneFile {
    /// What follows for the reader.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let plan = &self.search.plan;
        let present = self.subject.present(plan.present);
        let standing = |confirmation: &Confirmation| {
            let of_load = |(load, analysis): (&String, &SwitchbackAnalysis)| {
                let of_goal = |_: &Criterion| Quantity::Metric(plan.goal.objective.clone());
                AtLoad::new(load.parse().ok(), analysis.contrasts.iter().take(1), of_goal)
            };
            Standing(plan.loads.iter().zip(&confirmation.analyses).map(of_load).collect())
        };
        let confirmed = |mode: &DeliveryMode, holds_limits| {
            let confirmation = self.search.confirmations.iter().find(|one| one.mode == *mode);
            confirmation.map(standing).unwrap_or_default().to_use(*mode, present, holds_limits, false)
        };
        if self.subject.is_not_steered() {
            return Conclusion::MeasureLonger { because: WhyLonger::NotSteered, budget_ms: None };
        }
        match &self.search.answer {
            TuneAnswer::Better { mode, .. } => confirmed(mode, false),
            TuneAnswer::HoldsLimits { mode, .. } => confirmed(mode, true),
            TuneAnswer::NoSettingBetter => {
                let pays_at_a_load =
                    |one: &&Confirmation| one.meets_limits && standing(one).worth() == Worth::SomeLoads;
                match self.search.confirmations.iter().find(pays_at_a_load) {
                    Some(one) => confirmed(&one.mode, false),
                    None => Conclusion::Keep { mode: present, because: WhyKeep::NotBeaten, without_clients: false },
                }
            }
            TuneAnswer::None => {
                let end = self.search.end.clone();
                let budget_ms = (end == TuneEnd::BudgetSpent).then_some(plan.budget_ms.saturating_mul(2));
                Conclusion::MeasureLonger { because: WhyLonger::Search(end), budget_ms }
            }
        }
    }
}
