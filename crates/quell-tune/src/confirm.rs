//! What the fresh slices of a confirmation show: whether the candidate holds the limits, whether the present setting
//! misses one, and whether the candidate is better.

use quell_experiment::{
    ContrastSet, ContrastVerdict, ExperimentDesign, ExperimentRecord, RatioEstimate, SliceFlag, SliceRecord,
    SwitchbackAnalysis, analyse, blocked_z, upper_quantile,
};
use quell_mode::DeliveryMode;

use crate::goal::{TuneLimit, TuneMetric};
use crate::plan::{CONFIRM_BLOCKS_MIN, CONFIRMATIONS_MAX, TunePlan};
use crate::result::{Confirmation, TuneAnswer};

/// Error probability of the statement that a candidate holds a limit, or that the present setting misses one.
const LIMIT_ERROR: f64 = 0.05;
/// One-sided critical value for [`LIMIT_ERROR`].
pub(crate) const LIMIT_Z: f64 = 1.645;
/// Arms of the present setting in a confirmation.
const PRESENT_ARMS: [usize; 2] = [0, 1];
const CANDIDATE: usize = 2;

/// Share of the slices of a confirmation that must have a value, so that those without one cannot hide a missed limit or
/// a cost.
const READABLE_MIN: f64 = 0.9;

/// Values of a metric under `arms`, each with its block. Empty if too few slices have a value.
fn readable(record: &ExperimentRecord<DeliveryMode>, arms: &[usize], metric: &TuneMetric) -> Vec<(u32, f64)> {
    let of_arms: Vec<&SliceRecord> = record.slices.iter().filter(|slice| arms.contains(&slice.arm)).collect();
    let values = of_arms.iter().filter_map(|slice| Some((slice.block, metric.value(&slice.observation)?)));
    let values: Vec<(u32, f64)> = values.collect();
    if values.len() as f64 >= READABLE_MIN * of_arms.len() as f64 { values } else { Vec::new() }
}

/// Mean value of a limited quantity under `arms` in each block, beside its bounds: those of the present setting in the same
/// block, for a relative limit. Empty if too few slices have a value.
fn beside_limit(record: &ExperimentRecord<DeliveryMode>, arms: &[usize], limit: &TuneLimit) -> Vec<(f64, Vec<f64>)> {
    let values = readable(record, arms, &limit.metric);
    let of_present = if limit.relative { readable(record, &PRESENT_ARMS, &limit.metric) } else { Vec::new() };
    let of_block = |block: &[(u32, f64)]| {
        let value = block.iter().map(|(_, value)| value).sum::<f64>() / block.len() as f64;
        let bounds = match limit.relative {
            true => {
                of_present.iter().filter(|(of, _)| *of == block[0].0).map(|(_, value)| limit.bound(*value)).collect()
            }
            false => vec![limit.at_most],
        };
        (value, bounds)
    };
    let blocks = values.chunk_by(|(a, _), (b, _)| a == b).map(of_block);
    blocks.filter(|(_, bounds)| !bounds.is_empty()).collect()
}

/// Statistic of values beside their bounds: below 0 if they are lower. Without values nothing is shown. If all values and
/// bounds are 0, the limit holds.
fn limit_z(blocks: Vec<(f64, Vec<f64>)>) -> f64 {
    if blocks.is_empty() { 0.0 } else { blocked_z(blocks).unwrap_or(f64::NEG_INFINITY) }
}

/// Judges the experiments of a candidate, one for each load. The second value is the answer; `None` if the candidate is not
/// one, or not better than the answer `against`.
pub(crate) fn judge(
    plan: &TunePlan,
    (mode, against): (DeliveryMode, Option<DeliveryMode>),
    (experiments, analyses): (Vec<ExperimentRecord<DeliveryMode>>, Vec<SwitchbackAnalysis>),
) -> (Confirmation, Option<TuneAnswer>) {
    let limits = &plan.goal.limits;
    let z = |arms: &[usize], limit: &TuneLimit| {
        let of_load = |record: &ExperimentRecord<DeliveryMode>| limit_z(beside_limit(record, arms, limit));
        experiments.iter().map(of_load).fold(f64::NEG_INFINITY, f64::max)
    };
    let is_flagged = |record: &ExperimentRecord<DeliveryMode>| {
        let flags = [SliceFlag::RequestsFailed, SliceFlag::Saturated];
        flags.into_iter().any(|flag| record.is_flagged_more_often(CANDIDATE, flag))
    };
    let meets_limits = experiments.len() == plan.loads.len()
        && !experiments.iter().any(is_flagged)
        && limits.iter().all(|limit| z(&[CANDIDATE], limit) < -LIMIT_Z);
    let of_present = |limit: &TuneLimit| limit.z_of_present().unwrap_or_else(|| z(&PRESENT_ARMS, limit));
    // The statement is repeated for each limit, load and candidate.
    let statements = (limits.len() * plan.loads.len() * CONFIRMATIONS_MAX).max(1);
    let missed_z = upper_quantile(LIMIT_ERROR / statements as f64);
    let present_misses_limit = limits.iter().any(|limit| of_present(limit) > missed_z);
    let has_objective = |record: &ExperimentRecord<DeliveryMode>| {
        let arms = [&PRESENT_ARMS[..], &[CANDIDATE]];
        arms.into_iter().all(|arms| !readable(record, arms, &plan.goal.objective).is_empty())
    };
    let is_better = |mode: DeliveryMode, other: DeliveryMode| {
        let verdicts = analyses.iter().filter_map(|analysis| beside(analysis, mode, other)).map(|(_, verdict)| verdict);
        let verdicts: Vec<ContrastVerdict> = verdicts.collect();
        experiments.iter().all(has_objective)
            && verdicts.contains(&ContrastVerdict::Better)
            && !verdicts.contains(&ContrastVerdict::Worse)
    };
    let gain = |mode| estimates(&analyses, mode, plan.present);
    let base = DeliveryMode::default();
    let has_base = ![Some(plan.present), Some(mode), against].contains(&Some(base));
    let beside_base = if has_base { beside_base(&experiments) } else { Vec::new() };
    let against_base = beside_base.iter().map(|beside| beside.map(|(estimate, _)| estimate)).collect();
    let answer = match (meets_limits, present_misses_limit, is_better(mode, plan.present)) {
        (true, _, true) => Some(TuneAnswer::Better { mode, gain: gain(mode), against_base }),
        (true, true, false) => Some(TuneAnswer::HoldsLimits { mode, gain: gain(mode), against_base }),
        _ => None,
    };
    let answer = answer.filter(|_| against.is_none_or(|against| is_better(mode, against)));
    let is_better_than_base = beside_base.iter().flatten().any(|(_, verdict)| *verdict == ContrastVerdict::Better);
    let base_is_answer = || {
        let of_base = |record: &ExperimentRecord<DeliveryMode>| {
            record.design.treatments.iter().position(|treatment| treatment.setting == base).map(|at| CANDIDATE + at)
        };
        let holds = |limit: &TuneLimit| {
            let of_load = |record| of_base(record).map(|arm| limit_z(beside_limit(record, &[arm], limit)) < -LIMIT_Z);
            experiments.iter().all(|record| of_load(record) == Some(true))
        };
        is_better(base, plan.present) && limits.iter().all(holds)
    };
    let answer = match answer {
        // Of two modes that are as good, the one that sets nothing.
        Some(TuneAnswer::Better { .. }) if has_base && !is_better_than_base && base_is_answer() => {
            Some(TuneAnswer::Better { mode: base, gain: gain(base), against_base: Vec::new() })
        }
        answer => answer,
    };
    (Confirmation { mode, against, experiments, analyses, meets_limits, present_misses_limit }, answer)
}

/// Ratio of a mode to another one, and the verdict about it.
pub(crate) fn beside(
    analysis: &SwitchbackAnalysis,
    mode: DeliveryMode,
    other: DeliveryMode,
) -> Option<(RatioEstimate, ContrastVerdict)> {
    let (mode, other) = (mode.to_string(), other.to_string());
    let of = |treatment: &str, against: &str| {
        analysis.contrasts.iter().find(|one| one.treatment == treatment && one.against == against)
    };
    if let Some(contrast) = of(&mode, &other) {
        return Some((contrast.estimate?, contrast.verdict));
    }
    let contrast = of(&other, &mode)?;
    let verdict = match contrast.verdict {
        ContrastVerdict::Better => ContrastVerdict::Worse,
        ContrastVerdict::Worse => ContrastVerdict::Better,
        other => other,
    };
    Some((inverse(contrast.estimate?)?, verdict))
}

/// Whether a confirmation had the time for the blocks that a comparison needs, at all loads.
pub(crate) fn is_compared(plan: &TunePlan, confirmation: &Confirmation) -> bool {
    let has_blocks = |analysis: &SwitchbackAnalysis| u64::from(analysis.blocks) >= CONFIRM_BLOCKS_MIN;
    confirmation.analyses.len() == plan.loads.len() && confirmation.analyses.iter().all(has_blocks)
}

/// Ratio of a mode to `against` by load.
fn estimates(analyses: &[SwitchbackAnalysis], mode: DeliveryMode, against: DeliveryMode) -> Vec<Option<RatioEstimate>> {
    analyses.iter().map(|analysis| beside(analysis, mode, against).map(|(estimate, _)| estimate)).collect()
}

/// Ratio of the candidate to `base`, from the same slices with the roles exchanged, and the verdict about the candidate.
/// `None` if `base` was not observed.
fn beside_base(experiments: &[ExperimentRecord<DeliveryMode>]) -> Vec<Option<(RatioEstimate, ContrastVerdict)>> {
    let base = DeliveryMode::default();
    let of_load = |record: &ExperimentRecord<DeliveryMode>| {
        let candidate = record.design.treatments.first()?.setting;
        let all = ExperimentDesign { contrasts: ContrastSet::AllPairs, ..record.design.clone() };
        beside(&analyse(&ExperimentRecord { design: all, ..record.clone() }), candidate, base)
    };
    experiments.iter().map(of_load).collect()
}

/// `None` for a ratio of 0.
fn inverse(of: RatioEstimate) -> Option<RatioEstimate> {
    (of.ratio > 0.0).then(|| RatioEstimate {
        ratio: 1.0 / of.ratio,
        low: of.high.map_or(0.0, |high| 1.0 / high),
        high: (of.low > 0.0).then(|| 1.0 / of.low),
        blocks: of.blocks,
    })
}
