//! What a result means for the reader: use another mode, keep the present one, or measure longer. Derived from the
//! verdicts, without a measurement.

use quell_experiment::{ContrastResult, ContrastVerdict, Criterion, SwitchbackAnalysis, Treatment, WhyUndecided};
use quell_host::attach::affected_processes::PacketDelay;
use quell_host::findings::WITHOUT_NAPI_ID;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_tune::{TuneEnd, TuneMetric};

use crate::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use crate::facts::{PRESENT, ProblemFacts};
use crate::figures;
pub use crate::standing::COST_MAX;
use crate::standing::{self, AtLoad, Standing, Worth, open_gains};

pub(crate) mod search;

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
        /// What other modes may save nevertheless.
        open: Vec<OpenGain>,
        /// Budget that is worth trying to decide that, in ms; absent if nothing is open, or more time does not help.
        budget_ms: Option<u64>,
        /// Whether nothing that clients see was compared, such as latency.
        without_clients: bool,
    },
    /// Nothing is known yet.
    MeasureLonger {
        /// Why not.
        because: WhyLonger,
        /// Modes that are worse by something that was decided.
        worse: Vec<WorseMode>,
        /// What modes may save.
        open: Vec<OpenGain>,
        /// Budget that is worth trying, in ms; absent if more time does not help.
        budget_ms: Option<u64>,
    },
    /// The measurement was long, and did not decide: the present mode stays.
    NotDecidable {
        mode: DeliveryMode,
        /// Budget of the measurement, in ms.
        within_ms: u64,
        /// Why nothing was decided.
        because: WhyLonger,
        /// Modes that are worse by something that was decided.
        worse: Vec<WorseMode>,
        /// What modes may save.
        open: Vec<OpenGain>,
    },
}

impl Conclusion {
    /// Modes that cost something and save nothing, or so much that nothing repays it.
    pub(crate) fn only_costs(&self) -> &[WorseMode] {
        match self {
            Self::MeasureLonger { worse, .. } | Self::NotDecidable { worse, .. } => worse,
            Self::Keep { because: WhyKeep::OthersAreWorse { modes, latency_withheld: false }, .. } => modes,
            _ => &[],
        }
    }

    /// Longest time for which the timer of the recommended mode can delay packets, in nanoseconds, if it is longer than that
    /// of the mode which it replaces, and no latency was measured. `None` for a search, whose goal the reader chose.
    #[must_use]
    pub fn unmeasured_delay_ns(&self) -> Option<u64> {
        let Self::Use { mode, instead_of, without_clients: true, .. } = self else { return None };
        let timer_ns = |mode: &DeliveryMode| PacketDelay::of_mode(mode).map(|delay| delay.gro_flush_timeout_ns);
        if self.is_of_search() {
            return None;
        }
        timer_ns(mode).filter(|ns| timer_ns(instead_of).is_none_or(|present| present < *ns))
    }

    /// Whether a search recommends a mode.
    #[must_use]
    pub fn is_of_search(&self) -> bool {
        matches!(self, Self::Use { saves, .. } if saves.iter().any(|it| matches!(it.quantity, Quantity::Metric(_))))
    }

    /// Whether a search recommends a mode that costs much of what its goal does not count.
    #[must_use]
    pub fn holds_for_its_goal_only(&self) -> bool {
        let costs_much = |costs: &[QuantityChange]| costs.iter().any(QuantityChange::is_much);
        self.is_of_search() && matches!(self, Self::Use { costs, .. } if costs_much(costs))
    }

    /// The same with what the recommended mode costs besides.
    fn with_costs(mut self, more: Vec<QuantityChange>, more_undecided: Vec<UndecidedCost>) -> Self {
        if let Self::Use { costs, undecided, .. } = &mut self {
            costs.extend(more);
            undecided.extend(more_undecided);
        }
        self
    }
}

/// Why the present mode stays.
#[derive(Debug, Clone, PartialEq)]
pub enum WhyKeep {
    /// No mode is better by more than the margin of the experiment.
    NothingToGain {
        /// The margin, as a share.
        margin: f64,
        /// Share of time in which the server's CPUs were not idle; absent if unknown.
        busy: Option<f64>,
    },
    /// Each of these, which are all others, is worse by a quantity.
    OthersAreWorse {
        modes: Vec<WorseMode>,
        /// Whether latencies were measured, and not compared, because the server waited for CPUs that other programs used.
        latency_withheld: bool,
    },
    /// The best of the others saves something, and causes a serious finding, which `quell attach` says, too.
    SeriousFinding { mode: String, saves: Vec<QuantityChange>, finding: String },
    /// The best of the others is better by some quantities and much worse by others.
    TradeOff {
        mode: String,
        saves: Vec<QuantityChange>,
        costs: Vec<QuantityChange>,
        /// What may get worse, too.
        undecided: Vec<UndecidedCost>,
    },
    /// The best of the others was measured with filters and pins, without which the server was better in this.
    PlacementCosts {
        /// Options for them.
        options: String,
        mode: DeliveryMode,
        /// What changed beside the settings from before, without filters and pins.
        saves: Vec<QuantityChange>,
        costs: Vec<QuantityChange>,
    },
    /// A search found no better mode among those that it measured.
    NotBeaten {
        /// Number of modes that could not be set or measured.
        failed: usize,
        /// Number of other modes that can still be better: they were not tried, or neither excluded nor compared on fresh
        /// slices.
        left: usize,
    },
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub enum WhyLonger {
    /// Nothing was measured, or the subject failed.
    Incomplete,
    /// The reference differs from itself: something else changed during the experiment.
    Unsteady,
    /// Too few blocks were complete and not disturbed by other programs.
    TooFewBlocks {
        /// Number of blocks that were disturbed.
        disturbed: u32,
    },
    /// Too few requests or packets were measured.
    TooFewRequests {
        /// Whether the clients sent as fast as the server answered, so that no other rate can be asked of them.
        closed_loop: bool,
    },
    /// Other programs used most of the time of the server's CPUs, so what was compared shows these programs.
    OtherPrograms {
        /// Whether latencies were not compared, and could be, because other programs do not distort them.
        latency_helps: bool,
    },
    /// Connections were to be steered, and those that were measured are from before the filter.
    NotSteered,
    /// The programs did next to nothing for each packet or request: these were for others.
    NotTheirs,
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

impl QuantityChange {
    /// Whether a mode with this cost is not recommended, whatever it saves.
    fn is_much(&self) -> bool {
        self.low > COST_MAX || self.high < 1.0 / COST_MAX
    }
}

/// A quantity that looks worse under a mode, can be much worse, or was not compared, at one load.
#[derive(Debug, Clone, PartialEq)]
pub struct UndecidedCost {
    pub quantity: Quantity,
    /// Ratio to the reference. Absent without an estimate, or if the estimate is a gain.
    pub ratio: Option<f64>,
    /// Absent if the result has one load.
    pub load: Option<OfferedLoad>,
}

/// A mode that is worse than the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct WorseMode {
    /// Name of the mode in the result.
    pub mode: String,
    /// By what, and by how much.
    pub costs: Vec<QuantityChange>,
}

/// A quantity that a mode may improve: nothing decided it, and more time can.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenGain {
    pub quantity: Quantity,
    /// Best estimate that is a gain.
    pub best: Option<EstimatedGain>,
}

/// An undecided estimate in favour of a mode.
#[derive(Debug, Clone, PartialEq)]
pub struct EstimatedGain {
    /// Name of the mode in the result.
    pub mode: String,
    /// Ratio to the reference.
    pub ratio: f64,
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
    pub(crate) fn new(pays: &[OfferedLoad], costs: &[OfferedLoad], there: Vec<QuantityChange>) -> Self {
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

/// Budget from which a measurement that decides nothing is not repeated, in ms.
const LONG_MS: u64 = 480_000;
/// Least budget of a repetition, in ms.
const AGAIN_MIN_MS: u64 = 120_000;

/// Budget of a repetition, in ms: four times as long, so that intervals are half as wide. Absent from [`LONG_MS`] on, which
/// at most two repetitions reach.
fn longer_ms(budget_ms: u64) -> Option<u64> {
    let longer_ms = budget_ms.saturating_mul(4).min(budget_ms.saturating_mul(2).max(LONG_MS));
    (budget_ms < LONG_MS).then(|| longer_ms.max(AGAIN_MIN_MS))
}

/// How much longer than those of a result slices may take.
const SLICES_VARY: f64 = 1.1;
/// Longest budget that is suggested for more requests, in ms.
const BUDGET_MAX_MS: u64 = 3_600_000;

impl ExperimentResult {
    /// What follows for the reader. Absent for counts in a guest, which measure no times, and without an experiment.
    #[must_use]
    pub fn conclusion(&self) -> Option<Conclusion> {
        Some(self.beside_unplaced(self.of_modes()?))
    }

    /// What the modes show, all with the same filters and pins.
    fn of_modes(&self) -> Option<Conclusion> {
        let first = self.experiments.first()?;
        if matches!(self.subject, SubjectFacts::Guest(_)) {
            return None;
        }
        let analyses: Vec<SwitchbackAnalysis> = self.experiments.iter().map(LoadExperiment::analyse).collect();
        let design = &first.record.design;
        let without_clients = !design.criteria.iter().any(figures::is_of_clients);
        if self.subject.is_not_steered() {
            return Some(WhyLonger::NotSteered.without_figures());
        }
        if self.experiments.iter().any(|one| one.shows_others(&self.subject)) {
            return Some(WhyLonger::NotTheirs.without_figures());
        }
        let standing = |name: &str| {
            let of_load = |(experiment, analysis): (&LoadExperiment, &SwitchbackAnalysis)| {
                let load = experiment.offered();
                let contrasts = analysis.contrasts.iter().filter(|contrast| contrast.treatment == name);
                let mut at_load = AtLoad::new(load, contrasts, design.margin, |of| Quantity::Criterion(of.clone()));
                at_load.named = experiment.load.or(load);
                at_load
            };
            Standing(self.experiments.iter().zip(&analyses).map(of_load).collect())
        };
        let treatments: Vec<&Treatment<DeliveryMode>> =
            design.treatments.iter().filter(|treatment| !self.has_dropped(&treatment.name)).collect();
        let standings: Vec<Standing> = treatments.iter().map(|one| standing(&one.name)).collect();
        let name = |treatment: &&Treatment<DeliveryMode>| match treatment.name.as_str() {
            PRESENT => self.subject.present(treatment.setting).to_string(),
            name => name.to_owned(),
        };
        let names: Vec<String> = treatments.iter().map(name).collect();
        let names = || names.iter().map(String::as_str);
        let next_ms = self.next_budget_ms(&analyses);
        let finding = |index: usize| self.subject.serious_finding(treatments[index].setting);
        let best_of = |has_finding: bool, least: Worth| {
            let all = standings.iter().enumerate();
            standing::best(all.filter(|(index, _)| finding(*index).is_some() == has_finding), least)
        };
        let best = best_of(false, Worth::TradeOff);
        let mode = self.subject.present(design.reference.setting);
        let keep = |because, open: Vec<OpenGain>| {
            let budget_ms = next_ms.filter(|_| !open.is_empty());
            Some(Conclusion::Keep { mode, because, open, budget_ms, without_clients })
        };
        let worse = || -> Vec<WorseMode> {
            let of_mode = |(name, standing): (&str, &Standing)| {
                let costs = standing.costs(|_| true);
                (!costs.is_empty()).then(|| WorseMode { mode: name.to_owned(), costs })
            };
            names().zip(&standings).filter_map(of_mode).collect()
        };
        let all_are_worse = !standings.is_empty() && standings.iter().all(Standing::is_worse);
        let latency_withheld = !without_clients && self.experiments.iter().any(LoadExperiment::has_no_idle_cpu);
        let others_are_worse = || {
            let open = if latency_withheld { Vec::new() } else { open_gains(names().zip(&standings)) };
            keep(WhyKeep::OthersAreWorse { modes: worse(), latency_withheld }, open)
        };
        // What is withheld may repay other costs.
        let withheld = |latency_helps| {
            let mut worse = worse();
            worse.retain(|one| one.costs.iter().any(QuantityChange::is_much));
            let because = WhyLonger::OtherPrograms { latency_helps };
            Some(Conclusion::MeasureLonger { because, worse, open: Vec::new(), budget_ms: None })
        };
        // Less CPU time is no reason for a mode whose latencies are unknown, although they were asked for.
        if latency_withheld {
            if all_are_worse {
                return others_are_worse();
            }
            return withheld(false);
        }
        let pays = best.is_some_and(|(_, standing)| standing.worth() >= Worth::SomeLoads);
        if let Some((index, standing)) = best_of(true, Worth::SomeLoads).filter(|_| !pays) {
            let (mode, saves) = (name(&treatments[index]), standing.saves(|_| true));
            let finding = finding(index).unwrap_or_default().to_owned();
            return keep(WhyKeep::SeriousFinding { mode, saves, finding }, Vec::new());
        }
        if let Some((index, standing)) = best {
            let treatment = treatments[index];
            return match standing.worth() {
                Worth::Nothing | Worth::TradeOff => {
                    let (saves, costs) = (standing.saves(|_| true), standing.costs(|_| true));
                    let (mode, undecided) = (treatment.setting.to_string(), standing.undecided(|_| true));
                    let because = WhyKeep::TradeOff { mode, saves, costs, undecided };
                    keep(because, open_gains(names().zip(&standings)))
                }
                Worth::SomeLoads | Worth::Everybody => {
                    Some(standing.to_use(treatment.setting, mode, false, without_clients))
                }
            };
        }
        if all_are_worse {
            return others_are_worse();
        }
        let longer = |because| {
            let (worse, open) = (worse(), open_gains(names().zip(&standings)));
            Some(match next_ms {
                Some(_) => Conclusion::MeasureLonger { because, worse, open, budget_ms: next_ms },
                None => Conclusion::NotDecidable { mode, within_ms: self.budget_ms(), because, worse, open },
            })
        };
        if self.failure().is_some() || self.was_interrupted() {
            return Some(WhyLonger::Incomplete.without_figures());
        }
        let is_unsteady = analyses.iter().flat_map(|analysis| &analysis.controls).any(|control| !control.holds);
        if is_unsteady || standings.iter().any(Standing::is_unsettled) {
            let is_idle = |one: &LoadExperiment| {
                one.median(&design.reference.name, figures::PACKETS).is_some_and(|per_s| per_s == 0.0)
            };
            if self.experiments.iter().all(is_idle) {
                return longer(WhyLonger::TooFewRequests { closed_loop: false });
            }
            // The cause of noise and of disturbed blocks, which more time does not remove.
            if self.experiments.iter().any(LoadExperiment::has_other_programs) {
                let latency_helps = without_clients && !self.experiments.iter().any(LoadExperiment::has_no_idle_cpu);
                return withheld(latency_helps);
            }
            let because = if is_unsteady { Some(WhyLonger::Unsteady) } else { self.too_little(&analyses) };
            return longer(because.unwrap_or(WhyLonger::TooWide));
        }
        let busy = first.median(&design.reference.name, figures::BUSY);
        keep(WhyKeep::NothingToGain { margin: design.margin, busy }, Vec::new())
    }

    /// Why too little was measured for a verdict, if it was.
    fn too_little(&self, analyses: &[SwitchbackAnalysis]) -> Option<WhyLonger> {
        let mut few_requests = false;
        for analysis in analyses {
            for contrast in &analysis.contrasts {
                match contrast.verdict {
                    ContrastVerdict::Undecided { reason: WhyUndecided::TooFewBlocks { needed, .. } }
                        if analysis.blocks.saturating_sub(analysis.blocks_dropped) < needed =>
                    {
                        return Some(WhyLonger::TooFewBlocks { disturbed: analysis.blocks_dropped });
                    }
                    ContrastVerdict::Undecided {
                        reason: WhyUndecided::TooFewBlocks { .. } | WhyUndecided::TooFewRequests { .. },
                    } => few_requests = true,
                    _ => {}
                }
            }
        }
        let closed_loop = self.experiments.iter().all(|experiment| self.subject.is_closed_loop(experiment));
        few_requests.then_some(WhyLonger::TooFewRequests { closed_loop })
    }

    /// Budget of all experiments, in ms.
    #[must_use]
    pub fn budget_ms(&self) -> u64 {
        self.experiments.iter().map(|one| one.record.design.budget_ms).fold(0, u64::saturating_add)
    }

    /// Budget of a repetition that probably decides more, in ms: a longer one that suffices. Absent after a long measurement.
    fn next_budget_ms(&self, analyses: &[SwitchbackAnalysis]) -> Option<u64> {
        longer_ms(self.budget_ms()).map(|longer_ms| longer_ms.max(self.sufficient_ms(analyses)))
    }

    /// Budget of a repetition without what prevented an answer, in ms, if that of this result is too short for one.
    #[must_use]
    pub fn sufficient_budget_ms(&self) -> Option<u64> {
        let analyses: Vec<SwitchbackAnalysis> = self.experiments.iter().map(LoadExperiment::analyse).collect();
        Some(self.sufficient_ms(&analyses)).filter(|sufficient_ms| *sufficient_ms > self.budget_ms())
    }

    /// Budget with time for enough blocks of slices that take as long as these, although other programs disturb some, and for
    /// enough requests, in ms.
    fn sufficient_ms(&self, analyses: &[SwitchbackAnalysis]) -> u64 {
        let enough = |one: &LoadExperiment| one.record.design.enough_ms(one.record.slice_takes_ms() * SLICES_VARY);
        let enough_ms = self.experiments.iter().map(enough).max().unwrap_or(0);
        let enough_ms = enough_ms.saturating_mul(self.experiments.len() as u64);
        let lacking = |contrast: &ContrastResult| match contrast.verdict {
            ContrastVerdict::Undecided { reason: WhyUndecided::TooFewRequests { beyond, needed } } => {
                Some(f64::from(needed) / f64::from(beyond.max(1)))
            }
            _ => None,
        };
        let lacking = analyses.iter().flat_map(|analysis| &analysis.contrasts).filter_map(lacking).fold(0.0, f64::max);
        let for_requests_ms = ((self.budget_ms() as f64 * lacking * SLICES_VARY) as u64).min(BUDGET_MAX_MS);
        enough_ms.max(for_requests_ms)
    }
}

impl WhyLonger {
    /// The conclusion where nothing that was measured counts, and more time does not help.
    fn without_figures(self) -> Conclusion {
        Conclusion::MeasureLonger { because: self, worse: Vec::new(), open: Vec::new(), budget_ms: None }
    }
}

impl SubjectFacts {
    /// The mode that the programs have where a result names `mode` as the present one.
    #[must_use]
    pub fn present(&self, mode: DeliveryMode) -> DeliveryMode {
        match self {
            _ if mode != DeliveryMode::default() => mode,
            Self::Programs(programs) => programs.base_is.unwrap_or(mode),
            Self::Command(command) => command.base_is.unwrap_or(mode),
            _ => mode,
        }
    }

    /// Problems under some of the modes.
    #[must_use]
    pub fn problems(&self) -> &[ProblemFacts] {
        match self {
            Self::Programs(programs) => &programs.problems,
            Self::Command(command) => &command.problems,
            _ => &[],
        }
    }

    /// Records what was seen of a command while it was measured.
    pub fn set_problems(&mut self, problems: Vec<ProblemFacts>) {
        if let Self::Command(command) = self {
            command.problems = problems;
        }
    }

    /// ID of a serious finding that a mode causes in the programs.
    pub fn serious_finding(&self, mode: DeliveryMode) -> Option<&str> {
        let causes = |problem: &&ProblemFacts| problem.id != WITHOUT_NAPI_ID && problem.modes.contains(&mode);
        self.problems().iter().find(causes).map(|problem| problem.id.as_str())
    }

    /// Whether the clients sent as fast as the server answered: in a closed loop of Quell's generator, or by a command that
    /// is known to do so.
    fn is_closed_loop(&self, experiment: &LoadExperiment) -> bool {
        experiment.load == Some(OfferedLoad::Max) || self.has_command_in_closed_loop()
    }

    /// Whether the command that measured, or else the load, is known to send as fast as the server answers.
    #[must_use]
    pub fn has_command_in_closed_loop(&self) -> bool {
        let command = match self {
            Self::Programs(facts) => facts.latency.as_ref().or(facts.load.as_ref()),
            Self::Command(facts) => facts.latency.as_ref().or(facts.load.as_ref()),
            _ => None,
        };
        command.is_some_and(|words| sends_in_closed_loop(words))
    }
}

/// Load generators that send in a closed loop, except with this option.
const CLOSED_LOOPS: [(&str, &str); 7] = [
    ("quell", "--rate"),
    ("wrk", "-R"),
    ("oha", "-q"),
    ("hey", "-q"),
    ("h2load", "--rps"),
    ("redis-benchmark", "--rps"),
    ("memtier_benchmark", "--rate-limiting"),
];

/// Whether a command, which another one such as ssh may start, is known to send in a closed loop.
fn sends_in_closed_loop(words: &[String]) -> bool {
    let is_named = |word: &String, name: &str| word.rsplit('/').next() == Some(name);
    let option = CLOSED_LOOPS.iter().find(|(name, _)| words.iter().any(|word| is_named(word, name)));
    let is_max = words.windows(2).any(|pair| pair[0] == "--rate" && pair[1] == "max");
    option.is_some_and(|(_, rate)| is_max || !words.iter().any(|word| word.starts_with(rate)))
}
