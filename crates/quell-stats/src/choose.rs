//! Which mode is best by one figure, and which others cannot be told from it. Pure functions of
//! the repeats' values; what a figure means and how the answer reads is the caller's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::paired::{NotAMagnitude, PairedRatios};
use crate::spread::Spread;
use crate::verdict::{Verdict, compare};

/// Whether little or much of a figure is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Less is better: latency, CPU per request.
    Lowest,
    /// More is better: requests per second.
    Highest,
}

/// One mode's values of a figure, one for each repeat, in the order of the repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a, L> {
    /// What the mode is called.
    pub label: L,
    /// Its values; absent where one could not be had.
    pub values: &'a [Option<f64>],
}

/// The best by one figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Choice<L> {
    /// The one with the best median.
    pub winner: L,
    /// Those that paired comparison does not find to be worse than the winner, in the order given.
    pub not_distinguishable: Vec<L>,
    /// Those without any value, in the order given: nothing is said about them.
    pub without_value: Vec<L>,
}

/// The one of `series` with the best median, and those that [`compare`] cannot tell from it, with
/// `identical` as the pairs of identical runs. Of equal medians, the first given wins. Absent when
/// there is no value at all.
///
/// Each of the others is compared with the winner once, at `compare`'s 5 %, with no correction for
/// their number: the list of those that cannot be told from the winner can miss one that belongs
/// there.
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

/// The figure for the best compromise between two of which less is better: their product, repeat by
/// repeat. Against any one mode, the product's ratio is the product of both ratios, so that half
/// the latency makes up for twice the CPU time, and the units do not matter. It is one of many
/// possible compromises: equal weight to both. Absent where either is; to be compared against
/// identical runs' products.
#[must_use]
pub fn compromise(latency: &[Option<f64>], cpu: &[Option<f64>]) -> Vec<Option<f64>> {
    latency.iter().zip(cpu).map(|(latency, cpu)| Some((*latency)? * (*cpu)?)).collect()
}
