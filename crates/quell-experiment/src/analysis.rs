//! Derives verdicts from the slices of an experiment. The record determines all results, so an analysis of a stored
//! record makes the same looks as the running experiment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alpha_spending::AlphaSpending;
use crate::blocks::{BEYOND_MIN, Blocks, FlaggedArm, Pair};
use crate::design::{CONTROL, Criterion, ExperimentDesign, Goal, MIN_BLOCKS, REFERENCE};
use crate::observation::SliceFlag;
use crate::permutation::{LogValues, invert};
use crate::switchback::ExperimentRecord;

/// Results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SwitchbackAnalysis {
    /// Result for each pair of treatments by each criterion, in the order of the design.
    pub contrasts: Vec<ContrastResult>,
    /// Result of comparing the reference with itself, by each criterion.
    pub controls: Vec<ControlResult>,
    /// Latencies of each treatment over all its slices, with the reference first. They are descriptive and have no
    /// verdict, because a single disturbance can determine a high quantile. Empty if no latencies were observed.
    pub pooled_latency: Vec<PooledLatency>,
    /// Looks that were made, in order.
    pub looks: Vec<Look>,
    /// Number of complete blocks, including dropped blocks.
    pub blocks: u32,
    /// Number of blocks that were dropped because other programs disturbed their slices unequally.
    pub blocks_dropped: u32,
}

/// One analysis during the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Look {
    /// Number of complete blocks at this look.
    pub blocks: u32,
    /// Share of the budget that was spent, from 0 to 1.
    pub time: f64,
    /// Two-sided critical value of each contrast's standardized statistic.
    pub critical: f64,
    /// Number of contrasts with a verdict after this look.
    pub decided: usize,
}

/// Latencies of a treatment over all its slices in the blocks that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PooledLatency {
    /// Name of the treatment.
    pub treatment: String,
    /// Number of requests with a latency.
    pub requests: u64,
    /// The quantiles 0.5, 0.99, 0.999 and 0.9999. A quantile that fewer than 5 requests exceed is omitted.
    pub quantiles: Vec<PooledQuantile>,
}

/// A quantile of a treatment's latencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PooledQuantile {
    /// Quantile, above 0 and below 1.
    pub quantile: f64,
    /// Latency at the quantile, in ns.
    pub ns: u64,
}

/// Comparison of a treatment with another one by one criterion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ContrastResult {
    /// Criterion of the comparison.
    pub criterion: Criterion,
    /// Name of the treatment.
    pub treatment: String,
    /// Name of the other treatment.
    pub against: String,
    /// Ratio of the treatment to the other one. Absent if there are too few values.
    pub estimate: Option<RatioEstimate>,
    /// Verdict about the treatment.
    pub verdict: ContrastVerdict,
    /// Index of the look that led to the verdict. Absent if there is no verdict.
    pub decided_at: Option<u32>,
}

/// A ratio with its confidence interval. With a probability of 1 minus the design's error rate, all intervals of an
/// experiment, at all looks, contain their true ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RatioEstimate {
    /// Estimated ratio; 0 if all values of the treatment are 0.
    pub ratio: f64,
    /// Lower end of the interval; 0 if there are too few blocks for a lower end, or all values of the treatment are 0.
    pub low: f64,
    /// Upper end of the interval. Absent if there are too few blocks for an upper end.
    pub high: Option<f64>,
    /// Number of blocks behind the estimate. If single slices have too few requests for a latency quantile, the
    /// estimate uses groups of blocks, and this is the number of groups.
    pub blocks: u32,
}

/// Verdict about a treatment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ContrastVerdict {
    /// The treatment is better than the other one.
    Better,
    /// The treatment is worse than the other one.
    Worse,
    /// The difference does not exceed the margin in either direction.
    NoDifferenceLargerThan {
        /// Margin of the design.
        margin: f64,
    },
    /// There is no verdict.
    Undecided {
        /// Reason why there is no verdict.
        reason: WhyUndecided,
    },
}

/// Why a contrast is undecided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum WhyUndecided {
    /// The interval contains both 1 and ratios beyond the margin.
    #[error("the interval contains 1 and differences above the margin; a longer experiment narrows it")]
    IntervalTooWide,
    /// The treatment could not be set.
    #[error("a treatment of this pair could not be set")]
    TreatmentDropped,
    /// Too few blocks have a value for both treatments.
    #[error("too few blocks have a value for both treatments: {blocks} of {needed}")]
    TooFewBlocks {
        /// Number of blocks with a value for both treatments.
        blocks: u32,
        /// Minimum number of blocks.
        needed: u32,
    },
    /// Too few requests are slower than the quantile.
    #[error("too few requests of a treatment are slower than this quantile: {beyond} of {needed}")]
    TooFewRequests {
        /// Number of requests of one treatment beyond the quantile.
        beyond: u32,
        /// Minimum number of requests.
        needed: u32,
    },
    /// The values have steps that are too large for a verdict.
    #[error("the values have steps of {:.0} %, so smaller differences are not visible", share * 100.0)]
    TooCoarse {
        /// Step as a share of the smaller value.
        share: f64,
    },
    /// All values are 0, so there is no ratio.
    #[error("every value is 0, which has no ratio")]
    AllZero,
    /// By this criterion, the reference differs from itself. Something other than the treatments affects the
    /// measurement.
    #[error("the reference differs from itself, so something other than the treatments affects this value")]
    ControlDiffers,
    /// One treatment of the pair looks better, but more requests fail with it.
    #[error("one of the two looks better, but requests fail more often")]
    RequestsFail,
    /// One treatment of the pair looks better, but the server falls behind with it, so the latencies of its slowest requests
    /// are lower bounds.
    #[error("one of the two looks better, but the server falls behind, so its highest latencies are lower bounds")]
    Saturated,
    /// Most of the measured CPU time belongs to other programs. Set by those who know which metric is CPU time.
    #[error("other programs used most of the CPU time that this value contains")]
    ForeignCpu,
}

/// Comparison of the reference with itself: the A/A control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ControlResult {
    /// Criterion of the comparison.
    pub criterion: Criterion,
    /// Ratio of the second slice of a block to the first. Absent if there are too few values.
    pub estimate: Option<RatioEstimate>,
    /// Whether the interval contains 1.
    pub holds: bool,
}

impl SwitchbackAnalysis {
    /// Treatments that no other compared treatment beats by `criterion`. Treatments can be separated from each other
    /// only with [`ContrastSet::AllPairs`](crate::ContrastSet::AllPairs).
    #[must_use]
    pub fn not_beaten(&self, criterion: &Criterion) -> Vec<&str> {
        let contrasts = || self.contrasts.iter().filter(|contrast| contrast.criterion == *criterion);
        let beaten: Vec<&str> = contrasts()
            .filter_map(|contrast| match contrast.verdict {
                ContrastVerdict::Better => Some(&*contrast.against),
                ContrastVerdict::Worse => Some(&*contrast.treatment),
                _ => None,
            })
            .collect();
        let mut names: Vec<&str> = Vec::new();
        for name in contrasts().flat_map(|contrast| [&*contrast.against, &*contrast.treatment]) {
            if !names.contains(&name) && !beaten.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Analyzes a record. It makes each look that the running experiment made, and a final look at all complete blocks.
#[must_use]
pub fn analyse<S>(record: &ExperimentRecord<S>) -> SwitchbackAnalysis {
    let mut looks = Looks::new(&record.design);
    let spent = record.spent_ms_after_each_block();
    for (at, spent_ms) in spent.iter().enumerate() {
        let blocks = at as u32 + 1;
        if let Some(time) = looks.due(&record.design, blocks, *spent_ms) {
            looks.look(record, blocks, time);
        }
    }
    looks.finish(record, spent.len() as u32, spent.last().copied().unwrap_or(0.0))
}

/// The looks of an experiment in progress.
#[derive(Debug, Clone)]
pub(crate) struct Looks {
    spending: AlphaSpending,
    looks: Vec<Look>,
    /// For each decided contrast: its verdict, the index of the look, and the interval.
    decided: Vec<Option<(ContrastVerdict, u32, RatioEstimate)>>,
}

impl Looks {
    pub(crate) fn new<S>(design: &ExperimentDesign<S>) -> Self {
        let contrasts = contrasts(design).count();
        Self {
            spending: AlphaSpending::new(design.error_rate_per_contrast()),
            looks: Vec::new(),
            decided: vec![None; contrasts],
        }
    }

    /// Time of the look that is due after `blocks` complete blocks, as a share of the budget. The time is 1 if no
    /// further block fits the budget. `None` if no look is due.
    pub(crate) fn due<S>(&self, design: &ExperimentDesign<S>, blocks: u32, spent_ms: f64) -> Option<f64> {
        let budget_ms = design.budget_ms as f64;
        if spent_ms + spent_ms / f64::from(blocks.max(1)) > budget_ms {
            return Some(1.0);
        }
        let intervals = |time: f64| (time * f64::from(design.looks)).floor();
        let time = spent_ms / budget_ms;
        let last = self.looks.last().map_or(0.0, |look| look.time);
        (intervals(time) > intervals(last) && blocks >= MIN_BLOCKS).then_some(time)
    }

    /// Makes a look at the first `blocks` blocks.
    pub(crate) fn look<S>(&mut self, record: &ExperimentRecord<S>, blocks: u32, time: f64) -> &Look {
        let design = &record.design;
        let critical = self.spending.next(time);
        let data = Blocks::new(&record.slices, blocks, design.foreign_cpu_range_max);
        let control_differs = control_differs(record, &data, critical);
        let look = self.looks.len() as u32;
        for (at, (pair, criterion)) in contrasts(design).enumerate() {
            if self.decided[at].is_some() || control_differs[criterion] {
                continue;
            }
            let Ok(statistic) = Statistic::new(record, &data, pair, &design.criteria[criterion]) else { continue };
            let verdict = statistic.verdict(design, &data, critical);
            if !matches!(verdict, ContrastVerdict::Undecided { .. }) {
                self.decided[at] = Some((verdict, look, statistic.estimate(critical)));
            }
        }
        let decided = self.decided.iter().flatten().count();
        self.looks.push(Look { blocks, time, critical, decided });
        &self.looks[look as usize]
    }

    /// Whether every contrast that can still get a verdict has one.
    pub(crate) fn all_decided<S>(&self, record: &ExperimentRecord<S>) -> bool {
        let open =
            |(decided, (pair, _)): (&Option<_>, (Pair, usize))| decided.is_none() && !record.has_dropped_either(pair);
        !self.decided.is_empty() && !self.decided.iter().zip(contrasts(&record.design)).any(open)
    }

    /// Returns the results. If there are blocks that no look included, it makes a final look first.
    pub(crate) fn finish<S>(mut self, record: &ExperimentRecord<S>, blocks: u32, spent_ms: f64) -> SwitchbackAnalysis {
        let design = &record.design;
        if blocks > self.looks.last().map_or(0, |look| look.blocks) {
            self.look(record, blocks, (spent_ms / design.budget_ms as f64).min(1.0));
        }
        let critical = self.looks.last().map_or(f64::INFINITY, |look| look.critical);
        let data = Blocks::new(&record.slices, blocks, design.foreign_cpu_range_max);
        let control_differs = control_differs(record, &data, critical);
        let contrast = |(at, (pair, criterion)): (usize, (Pair, usize))| {
            let statistic = Statistic::new(record, &data, pair, &design.criteria[criterion]);
            let last = statistic.as_ref().ok().map(|statistic| statistic.estimate(critical));
            let decided = self.decided[at];
            let verdict = match (decided, &statistic) {
                // The control can differ at the last look only; it then withdraws verdicts of earlier looks.
                _ if control_differs[criterion] => WhyUndecided::ControlDiffers.into(),
                (Some((verdict, ..)), _) => verdict,
                (None, Err(reason)) => (*reason).into(),
                (None, Ok(statistic)) => statistic.verdict(design, &data, critical),
            };
            let still_decided = !matches!(verdict, ContrastVerdict::Undecided { .. });
            ContrastResult {
                criterion: design.criteria[criterion].clone(),
                treatment: design.arm_name(pair.treatment).to_owned(),
                against: design.arm_name(pair.against).to_owned(),
                estimate: match (decided, last) {
                    (Some((_, _, then)), Some(last)) => Some(last.within(then)),
                    (decided, last) => last.or(decided.map(|(_, _, then)| then)),
                },
                verdict,
                decided_at: decided.filter(|_| still_decided).map(|(_, look, _)| look),
            }
        };
        let control = |criterion: &Criterion| {
            let statistic = Statistic::new(record, &data, Pair::CONTROL, criterion).ok();
            ControlResult {
                criterion: criterion.clone(),
                estimate: statistic.as_ref().map(|statistic| statistic.estimate(critical)),
                holds: statistic.is_none_or(|statistic| statistic.z(0.0).abs() <= critical),
            }
        };
        SwitchbackAnalysis {
            contrasts: contrasts(design).enumerate().map(contrast).collect(),
            controls: design.criteria.iter().map(control).collect(),
            pooled_latency: pooled_latency(design, &data),
            blocks,
            blocks_dropped: data.dropped.len() as u32,
            looks: self.looks,
        }
    }
}

impl RatioEstimate {
    /// Restricts this estimate's interval to an earlier interval, because both contain the true ratio. If they do not
    /// overlap, the ratio changed during the experiment. The earlier interval, which led to the verdict, is then
    /// returned.
    fn within(self, then: Self) -> Self {
        let low = self.low.max(then.low);
        let high = [self.high, then.high].into_iter().flatten().min_by(f64::total_cmp);
        if high.is_some_and(|high| high < low) {
            return then;
        }
        let ratio = self.ratio.clamp(low, high.unwrap_or(f64::INFINITY));
        Self { ratio, low, high, ..self }
    }
}

impl From<WhyUndecided> for ContrastVerdict {
    fn from(reason: WhyUndecided) -> Self {
        Self::Undecided { reason }
    }
}

/// Iterates over every pair by every criterion, as the pair and the index of the criterion.
fn contrasts<S>(design: &ExperimentDesign<S>) -> impl Iterator<Item = (Pair, usize)> + use<'_, S> {
    let pairs = design.pairs();
    (0..design.criteria.len()).flat_map(move |criterion| {
        pairs.clone().into_iter().map(move |(treatment, against)| (Pair { treatment, against }, criterion))
    })
}

/// Whether the reference differs from itself, for each criterion.
fn control_differs<S>(record: &ExperimentRecord<S>, data: &Blocks<'_>, critical: f64) -> Vec<bool> {
    let differs = |criterion| {
        Statistic::new(record, data, Pair::CONTROL, criterion).is_ok_and(|statistic| statistic.z(0.0).abs() > critical)
    };
    record.design.criteria.iter().map(differs).collect()
}

fn pooled_latency<S>(design: &ExperimentDesign<S>, data: &Blocks<'_>) -> Vec<PooledLatency> {
    let of_arm = |arm: usize| {
        let arms: &[usize] = if arm == REFERENCE { &[REFERENCE, CONTROL] } else { &[arm] };
        let pooled = data.pooled_latency(arms);
        let requests = pooled.count();
        let quantiles = [0.5, 0.99, 0.999, 0.9999].into_iter().filter_map(|quantile| {
            let ns = pooled.quantile(quantile).filter(|_| requests as f64 * (1.0 - quantile) >= BEYOND_MIN)?;
            Some(PooledQuantile { quantile, ns: u64::try_from(ns.as_nanos()).unwrap_or(u64::MAX) })
        });
        PooledLatency { treatment: design.arm_name(arm).to_owned(), requests, quantiles: quantiles.collect() }
    };
    (0..design.arms()).filter(|arm| *arm != CONTROL).map(of_arm).filter(|pooled| pooled.requests > 0).collect()
}

/// Test statistic of a pair by one criterion.
struct Statistic {
    pair: Pair,
    goal: Goal,
    blocks: u32,
    is_latency: bool,
    values: LogValues,
    /// Log ratio up to which the values do not show a difference, because they are measured in steps.
    blur: f64,
}

impl Statistic {
    fn new<S>(
        record: &ExperimentRecord<S>,
        data: &Blocks<'_>,
        pair: Pair,
        criterion: &Criterion,
    ) -> Result<Self, WhyUndecided> {
        if record.has_dropped_either(pair) {
            return Err(WhyUndecided::TreatmentDropped);
        }
        let values = match criterion {
            Criterion::Metric { name, .. } => data.metric(pair, name),
            Criterion::Latency { quantile } => data.latency_quantile(pair, *quantile)?,
        };
        let (blocks, needed) = (values.len() as u32, MIN_BLOCKS);
        if blocks < needed {
            return Err(WhyUndecided::TooFewBlocks { blocks, needed });
        }
        let values = LogValues::new(values).ok_or(WhyUndecided::AllZero)?;
        let is_latency = matches!(criterion, Criterion::Latency { .. });
        let step = match criterion {
            Criterion::Metric { name, .. } => record.design.steps.get(name).copied(),
            Criterion::Latency { .. } => None,
        };
        let blur = step.map_or(0.0, |step| (step / values.smaller_level()).ln_1p());
        Ok(Self { pair, goal: criterion.goal(), blocks, is_latency, values, blur })
    }

    /// Standardized statistic for the hypothesis that the log ratio is `shift`.
    fn z(&self, shift: f64) -> f64 {
        self.values.z(shift)
    }

    /// Determines the verdict by testing three hypotheses: no difference, and a difference equal to the margin in
    /// either direction, each less what the steps of the values hide. The result agrees with the interval of
    /// [`Self::estimate`], which takes longer to compute.
    fn verdict<S>(&self, design: &ExperimentDesign<S>, data: &Blocks<'_>, critical: f64) -> ContrastVerdict {
        let is_lower = self.z(-self.blur) < -critical;
        if is_lower || self.z(self.blur) > critical {
            return self.unless_flagged(is_lower == (self.goal == Goal::Lowest), data);
        }
        let margin = design.margin.ln_1p();
        let is_within = |margin: f64| self.z(margin) < -critical && self.z(-margin) > critical;
        if self.blur < margin && is_within(margin - self.blur) {
            return ContrastVerdict::NoDifferenceLargerThan { margin: design.margin };
        }
        if self.z(0.0).abs() > critical || is_within(margin) {
            return WhyUndecided::TooCoarse { share: self.blur.exp_m1() }.into();
        }
        WhyUndecided::IntervalTooWide.into()
    }

    /// The verdict, which is withheld if the one that looks better fails or falls behind more often.
    fn unless_flagged(&self, is_better: bool, data: &Blocks<'_>) -> ContrastVerdict {
        let better = if is_better { FlaggedArm::Treatment } else { FlaggedArm::Against };
        let is_flagged = |flag| data.flagged_more_often(self.pair, flag) == Some(better);
        if is_flagged(SliceFlag::RequestsFailed) {
            return WhyUndecided::RequestsFail.into();
        }
        if self.is_latency && is_flagged(SliceFlag::Saturated) {
            return WhyUndecided::Saturated.into();
        }
        if is_better { ContrastVerdict::Better } else { ContrastVerdict::Worse }
    }

    fn estimate(&self, critical: f64) -> RatioEstimate {
        let log_ratio = self.values.estimate();
        let (low, high) = invert(log_ratio, critical, |shift| self.z(shift));
        let is_0 = self.values.treatment_is_0();
        RatioEstimate {
            ratio: if is_0 { 0.0 } else { log_ratio.exp() },
            low: low.filter(|_| !is_0).map_or(0.0, |low| (low - self.blur).exp()),
            high: high.map(|high| (high + self.blur).exp()),
            blocks: self.blocks,
        }
    }
}

impl<S> ExperimentDesign<S> {
    pub(crate) fn arm_name(&self, arm: usize) -> &str {
        self.treatment(arm).map_or("", |treatment| &treatment.name)
    }
}

impl<S> ExperimentRecord<S> {
    fn has_dropped_either(&self, pair: Pair) -> bool {
        self.dropped.contains_key(&pair.treatment) || self.dropped.contains_key(&pair.against)
    }

    /// Whether the slices of a treatment have a flag more often than those of the reference and chance explain: a
    /// one-sided test at 5 %.
    #[must_use]
    pub fn is_flagged_more_often(&self, treatment: usize, flag: SliceFlag) -> bool {
        let data = Blocks::new(&self.slices, u32::MAX, self.design.foreign_cpu_range_max);
        data.flagged_more_often(Pair { treatment, against: REFERENCE }, flag) == Some(FlaggedArm::Treatment)
    }

    /// Whether no treatment remains to compare with the reference.
    pub(crate) fn has_dropped_every_treatment(&self) -> bool {
        let mut treatments = self.design.pairs().into_iter().filter(|(_, against)| *against == REFERENCE).peekable();
        treatments.peek().is_some() && treatments.all(|(treatment, _)| self.dropped.contains_key(&treatment))
    }
}
