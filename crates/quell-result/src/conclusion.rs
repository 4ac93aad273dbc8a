//! What a result means for the reader: use another mode, keep the present one, or measure longer. Derived from the
//! verdicts, without a measurement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quell_experiment::{ContrastResult, ContrastVerdict, Criterion, RatioEstimate, SwitchbackAnalysis, WhyUndecided};
use quell_host::servers::EarlierAnswer;
use quell_linux::kernel::Kernel;
use quell_mode::DeliveryMode;
use quell_tune::{TuneAnswer, TuneDirection, TuneEnd, TuneMetric};

use crate::ResultDocument;
use crate::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use crate::figures;
use crate::tune::TuneFile;

/// What to do after reading a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    Use {
        mode: DeliveryMode,
        /// What it replaces.
        instead_of: DeliveryMode,
        saves: Vec<QuantityChange>,
        costs: Vec<QuantityChange>,
        /// Whether it holds limits that the other one does not.
        holds_limits: bool,
    },
    Keep {
        mode: DeliveryMode,
        /// Why no other one is better.
        because: WhyKeep,
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
    /// Every mode that differs is worse.
    OthersAreWorse,
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
    /// Other programs used most of the time of the server's CPUs.
    OtherPrograms,
    /// The differences are smaller than what the slices can show.
    TooWide,
    /// The search ended for this reason.
    Search(TuneEnd),
}

/// A quantity that a mode changes, as ratios to the reference: the smallest and the largest of all loads.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantityChange {
    pub quantity: Quantity,
    pub low: f64,
    pub high: f64,
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

/// What a mode changes at all loads.
#[derive(Debug, Default)]
struct Standing {
    better: Vec<QuantityChange>,
    worse: Vec<QuantityChange>,
    /// Verdicts for it less those against it.
    score: i32,
    is_unsettled: bool,
}

impl Standing {
    /// Whether the mode is recommended: it costs nothing, or little compared with what it saves.
    fn is_clear(&self) -> bool {
        let factor = |change: &QuantityChange| [change.low, change.high].map(|ratio| ratio.max(1.0 / ratio));
        let dearest = self.worse.iter().flat_map(factor).fold(1.0, f64::max);
        self.worse.is_empty() || (self.score > 0 && dearest <= COST_MAX)
    }

    fn add(&mut self, contrast: &ContrastResult) {
        let (changes, score) = match contrast.verdict {
            ContrastVerdict::Better => (&mut self.better, 1),
            ContrastVerdict::Worse => (&mut self.worse, -1),
            ContrastVerdict::NoDifferenceLargerThan { .. } => return,
            ContrastVerdict::Undecided { reason } => {
                self.is_unsettled |= is_worth_time(reason);
                return;
            }
        };
        let Some(RatioEstimate { ratio, .. }) = contrast.estimate else { return };
        self.score += score;
        add(changes, Quantity::Criterion(contrast.criterion.clone()), ratio);
    }
}

fn add(changes: &mut Vec<QuantityChange>, quantity: Quantity, ratio: f64) {
    match changes.iter_mut().find(|change| change.quantity == quantity) {
        Some(known) => (known.low, known.high) = (known.low.min(ratio), known.high.max(ratio)),
        None => changes.push(QuantityChange { quantity, low: ratio, high: ratio }),
    }
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
        let mut standings: BTreeMap<usize, Standing> = BTreeMap::new();
        let design = &first.record.design;
        let longer =
            |because| Conclusion::MeasureLonger { because, budget_ms: Some(design.budget_ms.saturating_mul(2)) };
        for contrast in analyses.iter().flat_map(|analysis| &analysis.contrasts) {
            let of_treatment = |treatment: &quell_experiment::Treatment<_>| treatment.name == contrast.treatment;
            if let Some(index) = design.treatments.iter().position(of_treatment) {
                standings.entry(index).or_default().add(contrast);
            }
        }
        let best = standings.iter().filter(|(_, standing)| !standing.better.is_empty());
        // Of equal ones the first: modes are listed from the least to the most invasive.
        let best = best.max_by_key(|(index, standing)| (standing.is_clear(), standing.score, Reverse(**index)));
        let reference = design.reference.setting;
        if let Some((&index, standing)) = best {
            let mode = design.treatments[index].setting;
            let (saves, costs) = (standing.better.clone(), standing.worse.clone());
            return Some(match standing.is_clear() {
                true => Conclusion::Use { mode, instead_of: reference, saves, costs, holds_limits: false },
                false => {
                    let because = WhyKeep::TradeOff { mode: mode.to_string(), saves, costs };
                    Conclusion::Keep { mode: reference, because }
                }
            });
        }
        if self.failure().is_some() || self.was_interrupted() {
            return Some(Conclusion::MeasureLonger { because: WhyLonger::Incomplete, budget_ms: None });
        }
        if analyses.iter().flat_map(|analysis| &analysis.controls).any(|control| !control.holds) {
            return Some(longer(WhyLonger::Unsteady));
        }
        if standings.values().any(|standing| standing.is_unsettled) {
            let has_few = |contrast: &ContrastResult| {
                let too_few =
                    |reason| matches!(reason, WhyUndecided::TooFewBlocks { .. } | WhyUndecided::TooFewRequests { .. });
                matches!(contrast.verdict, ContrastVerdict::Undecided { reason } if too_few(reason))
            };
            let few = analyses.iter().flat_map(|analysis| &analysis.contrasts).any(has_few);
            let is_foreign = self.experiments.iter().any(LoadExperiment::has_foreign_cpu);
            return Some(match (few, is_foreign) {
                (true, _) => longer(WhyLonger::TooFewRequests),
                (false, true) => Conclusion::MeasureLonger { because: WhyLonger::OtherPrograms, budget_ms: None },
                (false, false) => longer(WhyLonger::TooWide),
            });
        }
        let is_worse = |standing: &Standing| !standing.worse.is_empty();
        let because = match !standings.is_empty() && standings.values().all(is_worse) {
            true => WhyKeep::OthersAreWorse,
            false => WhyKeep::NothingToGain {
                margin: design.margin,
                busy: first.median(&design.reference.name, figures::BUSY),
            },
        };
        Some(Conclusion::Keep { mode: reference, because })
    }
}

impl TuneFile {
    /// What follows for the reader.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let plan = &self.search.plan;
        let changes = |gain: &[Option<RatioEstimate>], is_gain: bool| {
            let mut changes = Vec::new();
            let is_lower_better = plan.goal.direction == TuneDirection::Lowest;
            let wanted = |ratio: &f64| ((*ratio < 1.0) == is_lower_better) == is_gain;
            for ratio in gain.iter().flatten().map(|estimate| estimate.ratio).filter(wanted) {
                add(&mut changes, Quantity::Metric(plan.goal.objective.clone()), ratio);
            }
            changes
        };
        let of = |mode: &DeliveryMode, gain: &[Option<RatioEstimate>], holds_limits| Conclusion::Use {
            mode: *mode,
            instead_of: plan.present,
            saves: changes(gain, true),
            costs: changes(gain, false),
            holds_limits,
        };
        match &self.search.answer {
            TuneAnswer::Better { mode, gain, .. } => of(mode, gain, false),
            TuneAnswer::HoldsLimits { mode, gain, .. } => of(mode, gain, true),
            TuneAnswer::NoSettingBetter => Conclusion::Keep { mode: plan.present, because: WhyKeep::NotBeaten },
            TuneAnswer::None => {
                let end = self.search.end.clone();
                let budget_ms = (end == TuneEnd::BudgetSpent).then_some(plan.budget_ms.saturating_mul(2));
                Conclusion::MeasureLonger { because: WhyLonger::Search(end), budget_ms }
            }
        }
    }
}

impl ResultDocument {
    /// Names of the running programs that were measured on this kernel, and the answer for them. Absent without an
    /// answer.
    #[must_use]
    pub fn answer_for_programs(&self) -> Option<(BTreeSet<String>, EarlierAnswer)> {
        let (host, subject) = match self {
            Self::Experiment(result) => (&result.host, &result.subject),
            Self::Tune(file) => (&file.host, &file.subject),
            _ => return None,
        };
        let SubjectFacts::Programs(programs) = subject else { return None };
        if host.kernel_release != Kernel::running().release {
            return None;
        }
        let conclusion = match self {
            Self::Experiment(result) => result.conclusion()?,
            Self::Tune(file) => file.conclusion(),
            _ => return None,
        };
        let answer = match conclusion {
            Conclusion::Use { mode, .. } => EarlierAnswer::Use(mode),
            Conclusion::Keep { .. } => EarlierAnswer::Keep,
            Conclusion::MeasureLonger { .. } => return None,
        };
        Some((programs.processes.iter().map(|process| process.name.clone()).collect(), answer))
    }
}
