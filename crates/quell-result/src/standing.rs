//! What modes change at each load, by the verdicts on them.

use quell_experiment::{ContrastResult, ContrastVerdict, Criterion, Goal, RatioEstimate, WhyUndecided};
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;

use crate::conclusion::{Conclusion, EstimatedGain, LoadSplit, OpenGain, Quantity, QuantityChange, UndecidedCost};

/// Largest factor by which a quantity may get worse under a mode that is recommended for others.
pub const COST_MAX: f64 = 1.25;
/// Least ratio of what a mode saves to what it costs, as sums of the logarithms of its changes.
const GAIN_PER_COST: f64 = 2.0;
/// Share of the most that a mode saves with which a less invasive one is as good.
const AS_GOOD: f64 = 0.8;

/// What a mode changes at one load, by the decided contrasts.
#[derive(Debug)]
pub(crate) struct AtLoad {
    load: Option<OfferedLoad>,
    /// The load as it was asked for, which tables have as its name.
    pub(crate) named: Option<OfferedLoad>,
    better: Vec<(Quantity, f64)>,
    worse: Vec<(Quantity, f64)>,
    /// What looks worse, has no estimate, or can be much worse, without a verdict. With the ratio if it looks worse.
    undecided: Vec<(Quantity, Option<f64>)>,
    /// What may be better by more than the margin, without a verdict, with the estimate if it is one of a gain.
    open: Vec<(Quantity, Option<f64>)>,
    is_unsettled: bool,
}

impl AtLoad {
    pub(crate) fn new<'a>(
        load: Option<OfferedLoad>,
        contrasts: impl Iterator<Item = &'a ContrastResult>,
        margin: f64,
        quantity: impl Fn(&Criterion) -> Quantity,
    ) -> Self {
        let mut at_load = Self {
            load,
            named: load,
            better: Vec::new(),
            worse: Vec::new(),
            undecided: Vec::new(),
            open: Vec::new(),
            is_unsettled: false,
        };
        for contrast in contrasts.filter(|contrast| !is_no_change(contrast)) {
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
                    } else if is_open && can_be_much_worse(contrast) {
                        at_load.undecided.push((quantity(&contrast.criterion), None));
                    }
                    if is_open && reason != WhyUndecided::ForeignCpu && can_be_better(contrast, margin) {
                        at_load.open.push((quantity(&contrast.criterion), ratio.filter(|_| !is_worse)));
                    }
                    continue;
                }
            };
            if let Some(RatioEstimate { ratio, .. }) = contrast.estimate {
                changes.push((quantity(&contrast.criterion), ratio));
            }
        }
        if !at_load.worse.is_empty() {
            // Only a gain that already shows can be worth what the mode costs, and of latencies only more than another costs.
            let size = |ratio: f64| ratio.ln().abs();
            let of_latencies = at_load.worse.iter().filter(|(of, _)| of.is_latency()).map(|(_, ratio)| size(*ratio));
            let latency_cost = of_latencies.fold(0.0, f64::max);
            let is_worth =
                |of: &Quantity, gain: f64| gain > margin.ln_1p() && (!of.is_latency() || gain > latency_cost);
            at_load.open.retain(|(of, ratio)| ratio.is_some_and(|ratio| is_worth(of, size(ratio))));
            at_load.is_unsettled &= !at_load.open.is_empty();
        }
        at_load
    }

    /// What the mode saves here less what its costs have to be worth. Below 0 if it does not pay.
    fn net_gain(&self) -> f64 {
        size(&self.better) - GAIN_PER_COST * size(&self.worse)
    }

    /// Whether the mode saves something here and costs nothing, or little compared with what it saves.
    fn pays(&self) -> bool {
        let is_little = |(_, ratio): &(Quantity, f64)| ratio.max(1.0 / ratio) <= COST_MAX;
        !self.better.is_empty() && self.worse.iter().all(is_little) && self.net_gain() >= 0.0
    }

    fn costs(&self) -> bool {
        !self.worse.is_empty() && !self.pays()
    }

    /// Whether more time can change nothing, or not that the mode is worse.
    fn is_decided(&self) -> bool {
        !self.is_unsettled || !self.worse.is_empty()
    }
}

/// Sum of the logarithms of changes, without their signs.
fn size(changes: &[(Quantity, f64)]) -> f64 {
    changes.iter().map(|(_, ratio)| ratio.ln().abs()).sum()
}

/// Change, as a share, below which it is 0 % in words.
const NO_CHANGE: f64 = 0.000_5;

/// Whether a contrast is decided by a change that rounds to 0 %.
pub(crate) fn is_no_change(contrast: &ContrastResult) -> bool {
    matches!(contrast.verdict, ContrastVerdict::Better | ContrastVerdict::Worse)
        && contrast.estimate.is_some_and(|estimate| (estimate.ratio - 1.0).abs() < NO_CHANGE)
}

/// Whether the interval of a contrast contains a gain of more than the margin.
fn can_be_better(contrast: &ContrastResult, margin: f64) -> bool {
    contrast.estimate.is_none_or(|estimate| match contrast.criterion.goal() {
        Goal::Lowest => estimate.low < 1.0 / (1.0 + margin),
        Goal::Highest => estimate.high.is_none_or(|high| high > 1.0 + margin),
    })
}

/// Whether the interval of a contrast contains a cost of more than [`COST_MAX`].
fn can_be_much_worse(contrast: &ContrastResult) -> bool {
    contrast.estimate.is_some_and(|estimate| match contrast.criterion.goal() {
        Goal::Lowest => estimate.high.is_none_or(|high| high > COST_MAX),
        Goal::Highest => estimate.low < 1.0 / COST_MAX,
    })
}

/// What a mode changes at all loads.
#[derive(Debug, Default)]
pub(crate) struct Standing(pub(crate) Vec<AtLoad>);

/// How a mode compares with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
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
    pub(crate) fn worth(&self) -> Worth {
        let (pays, costs) = (self.0.iter().any(AtLoad::pays), self.0.iter().any(AtLoad::costs));
        match (pays, costs) {
            (true, false) => Worth::Everybody,
            (true, true) => Worth::SomeLoads,
            _ if self.0.iter().any(|at| !at.better.is_empty()) => Worth::TradeOff,
            _ => Worth::Nothing,
        }
    }

    fn net_gain(&self) -> f64 {
        self.0.iter().map(AtLoad::net_gain).sum()
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.0.iter().any(|at| at.is_unsettled)
    }

    /// Whether the mode is worse at a load, and nothing is open at the others.
    pub(crate) fn is_worse(&self) -> bool {
        self.0.iter().any(|at| !at.worse.is_empty()) && self.0.iter().all(AtLoad::is_decided)
    }

    pub(crate) fn saves(&self, of: fn(&AtLoad) -> bool) -> Vec<QuantityChange> {
        merged(self.0.iter().filter(|at| of(at)).map(|at| (at.named, &at.better)))
    }

    pub(crate) fn costs(&self, of: fn(&AtLoad) -> bool) -> Vec<QuantityChange> {
        merged(self.0.iter().filter(|at| of(at)).map(|at| (at.named, &at.worse)))
    }

    /// By quantity, in the order of the loads.
    pub(crate) fn undecided(&self, of: fn(&AtLoad) -> bool) -> Vec<UndecidedCost> {
        let of_load = self
            .0
            .iter()
            .filter(|at| of(at))
            .flat_map(|at| at.undecided.iter().map(move |(of, ratio)| (of.clone(), *ratio, self.load_of(at))));
        let mut costs: Vec<UndecidedCost> = Vec::new();
        for (quantity, ratio, load) in of_load {
            let last = costs.iter().rposition(|cost| cost.quantity == quantity);
            costs.insert(last.map_or(costs.len(), |last| last + 1), UndecidedCost { quantity, ratio, load });
        }
        costs
    }

    /// The load by which a quantity is named.
    fn load_of(&self, at: &AtLoad) -> Option<OfferedLoad> {
        at.named.filter(|_| self.0.len() > 1)
    }

    /// The conclusion to use the mode, at the loads at which it pays.
    pub(crate) fn to_use(
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

/// The mode to use, if one has at least this worth. The modes are listed from the least to the most invasive: of those
/// with the highest worth, it is the first that saves most of what the best one does.
pub(crate) fn best<'a>(
    standings: impl Iterator<Item = (usize, &'a Standing)>,
    least: Worth,
) -> Option<(usize, &'a Standing)> {
    let mut worth_it: Vec<_> = standings.filter(|(_, standing)| standing.worth() >= least).collect();
    let worth = worth_it.iter().map(|(_, standing)| standing.worth()).max()?;
    worth_it.retain(|(_, standing)| standing.worth() == worth);
    let most = worth_it.iter().map(|(_, standing)| standing.net_gain()).fold(f64::NEG_INFINITY, f64::max);
    worth_it.into_iter().find(|(_, standing)| standing.net_gain() >= most - (1.0 - AS_GOOD) * most.abs())
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

/// Quantities that modes, with these names, may improve, each once: first those with the best estimates.
pub(crate) fn open_gains<'a>(standings: impl Iterator<Item = (&'a str, &'a Standing)>) -> Vec<OpenGain> {
    let size = |gain: &Option<EstimatedGain>| gain.as_ref().map_or(0.0, |gain| gain.ratio.ln().abs());
    let mut gains: Vec<OpenGain> = Vec::new();
    for (name, standing) in standings {
        for (at, (quantity, ratio)) in standing.0.iter().flat_map(|at| at.open.iter().map(move |one| (at, one))) {
            let of = |ratio: f64| EstimatedGain { mode: name.to_owned(), ratio, load: standing.load_of(at) };
            let best = ratio.map(of);
            match gains.iter_mut().find(|gain| gain.quantity == *quantity) {
                Some(gain) if size(&best) > size(&gain.best) => gain.best = best,
                Some(_) => {}
                None => gains.push(OpenGain { quantity: quantity.clone(), best }),
            }
        }
    }
    gains.sort_by(|one, other| size(&other.best).total_cmp(&size(&one.best)));
    gains
}

/// Whether more slices can decide a contrast that is undecided for this reason.
fn is_worth_time(reason: WhyUndecided) -> bool {
    !matches!(
        reason,
        WhyUndecided::TreatmentDropped
            | WhyUndecided::AllZero
            | WhyUndecided::TooCoarse { .. }
            | WhyUndecided::RequestsFail
            | WhyUndecided::Saturated
    )
}
