//! The best mode by one metric, and the modes that do not differ significantly from it. Pure functions
//! of the measured values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::paired::{NotAMagnitude, PairedRatios};
use crate::spread::Spread;
use crate::verdict::{Verdict, compare};

/// Whether low or high values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Less is better: latency, CPU per request.
    Lowest,
    /// More is better: requests per second.
    Highest,
}

/// One mode's values of a metric, one per repeat, in the order of the repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a, L> {
    /// Identifies the mode.
    pub label: L,
    /// `None` for a repeat without a value.
    pub values: &'a [Option<f64>],
}

/// The best mode by one metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Choice<L> {
    /// The mode with the best median.
    pub winner: L,
    /// Modes that are not significantly worse than the winner, in the order given.
    pub not_distinguishable: Vec<L>,
    /// Modes without any value, in the order given. They are not compared.
    pub without_value: Vec<L>,
}

/// Finds the series with the best median, and those that do not differ significantly from it by
/// [`compare`], with `identical` as the pairs of identical runs. Of equal medians the first given wins.
/// `None` when no series has a value.
///
/// Each series is compared with the winner once, at the 5 % of `compare`, without correction for
/// multiple comparisons: `not_distinguishable` can miss a mode.
///
/// # Errors
///
/// A value below 0, infinite or not a number.
pub fn best<L: Clone>(
    goal: Goal,
    series: &[Series<'_, L>],
    identical: &PairedRatios,
) -> Result<Option<Choice<L>>, NotAMagnitude> {
    let median = |one: &Series<'_, L>| Spread::of(one.values.iter().copied()).map(|spread| spread.median);
    let rank = |median: f64| match goal {
        Goal::Lowest => median,
        Goal::Highest => -median,
    };
    let winner_at = series
        .iter()
        .enumerate()
        .filter_map(|(at, one)| Some((at, rank(median(one)?))))
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(at, _)| at);
    let Some(winner_at) = winner_at else {
        return Ok(None);
    };
    let winner = &series[winner_at];
    let mut choice =
        Choice { winner: winner.label.clone(), not_distinguishable: Vec::new(), without_value: Vec::new() };
    for (at, other) in series.iter().enumerate() {
        if at == winner_at {
            continue;
        }
        let verdict = compare(&PairedRatios::new(winner.values, other.values)?, identical);
        if median(other).is_none() {
            choice.without_value.push(other.label.clone());
        } else if !is_worse(goal, &verdict) {
            choice.not_distinguishable.push(other.label.clone());
        }
    }
    Ok(Some(choice))
}

fn is_worse(goal: Goal, verdict: &Verdict) -> bool {
    match goal {
        Goal::Lowest => matches!(verdict, Verdict::Higher(_)),
        Goal::Highest => matches!(verdict, Verdict::Lower(_)),
    }
}

/// One metric for the compromise between latency and CPU time: their product, repeat by repeat. Half
/// the latency makes up for twice the CPU time, in any units. `None` where either value is. Compare it
/// with the products of identical runs.
#[must_use]
pub fn compromise(latency: &[Option<f64>], cpu: &[Option<f64>]) -> Vec<Option<f64>> {
    latency.iter().zip(cpu).map(|(latency, cpu)| Some((*latency)? * (*cpu)?)).collect()
}
