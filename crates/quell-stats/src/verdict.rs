//! The decision whether two modes differ, from a handful of interleaved repeats. Careful by
//! construction: what identical runs differ by on this machine is never called a difference.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::paired::{Interval, PairedRatios, Resolution};

/// Fewer pairs than this, of the compared modes or of identical runs, support no verdict.
pub const MIN_PAIRS: usize = 3;

/// By how much `b` differs from `a`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// The median of `b / a` over the pairs.
    pub ratio: f64,
    /// Where the true median ratio lies.
    pub interval: Interval,
    /// How many pairs that is from.
    pub pairs: usize,
}

impl Effect {
    fn of(ratios: &PairedRatios) -> Option<Self> {
        Some(Self { ratio: ratios.median()?, interval: ratios.interval()?, pairs: ratios.pairs() })
    }
}

/// Why two modes cannot be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Doubt {
    /// Too few repeats in which both have a value.
    #[error("{pairs} pairs, at least {MIN_PAIRS} are needed")]
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// Too few pairs of identical runs to know what this machine can tell apart.
    #[error("{pairs} pairs of identical runs, at least {MIN_PAIRS} are needed")]
    ResolutionUnknown {
        /// How many there are.
        pairs: usize,
    },
    /// Repeats in which one of the two is 0: they have no ratio, and to judge by the others alone
    /// would be to choose among the repeats.
    #[error("{repeats} repeats with a value of 0, which has no ratio")]
    ZeroValues {
        /// How many.
        repeats: usize,
    },
    /// Some pairs say lower, some say higher, or equal.
    #[error("the repeats disagree about which is lower")]
    PairsDisagree,
    /// The difference is no larger than between identical runs.
    #[error("the difference is within what identical runs differ by, a ratio of {resolution:.3}")]
    WithinResolution {
        /// The [`Resolution`]'s ratio.
        resolution: f64,
    },
}

/// Whether `b` differs from `a`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// `b` is lower.
    Lower(Effect),
    /// `b` is higher.
    Higher(Effect),
    /// Neither can be said.
    CannotTell {
        /// Why.
        reason: Doubt,
        /// What was seen all the same; absent without pairs.
        seen: Option<Effect>,
    },
}

/// Compares `b` with `a` from the ratios of pairs measured in the same repeat, and from pairs of
/// identical runs (A/A) measured among them.
///
/// `b` is called lower or higher when both hold:
///
/// 1. **The pairs agree**: the interval of the median ratio leaves out 1, which is the exact
///    two-sided sign test: all pairs of up to eight, eight of nine, nine of ten.
/// 2. **It is more than noise**: the median ratio is farther from 1 than the [`Resolution`], which
///    is what *any* pair of identical runs shows, or from five compared pairs on, four of five.
///
/// Why both: with three pairs, all agree by chance in one case of four. That the median of three
/// is then also beyond the farthest of three identical pairs has, when nothing differs, a chance
/// of one in five (the two farthest of six equals must be of one group), independent of the signs:
/// together 5 %. This needs no normal distribution and no known variance, only that a pair is as
/// likely to err up as down and that identical pairs are as noisy as the compared ones. With four
/// pairs the chance is under 3.6 %, with five under 3.2 % (1 in 16 for agreement, at most half for
/// the distance), and from six on the sign test alone is under 5 %. With fewer than [`MIN_PAIRS`]
/// no rule would do. The bound is for one comparison: who makes twenty has to expect one to be
/// wrong.
#[must_use]
pub fn compare(ratios: &PairedRatios, identical: &PairedRatios) -> Verdict {
    let seen = Effect::of(ratios);
    match decide(ratios, identical) {
        Err(reason) => Verdict::CannotTell { reason, seen },
        Ok(effect) if effect.ratio < 1.0 => Verdict::Lower(effect),
        Ok(effect) => Verdict::Higher(effect),
    }
}

fn decide(ratios: &PairedRatios, identical: &PairedRatios) -> Result<Effect, Doubt> {
    if ratios.zero() > 0 {
        return Err(Doubt::ZeroValues { repeats: ratios.zero() });
    }
    let too_few = Doubt::TooFewPairs { pairs: ratios.pairs() };
    if ratios.pairs() < MIN_PAIRS {
        return Err(too_few);
    }
    let resolution = Resolution::of(identical, ratios.pairs())
        .filter(|resolution| resolution.pairs >= MIN_PAIRS)
        .ok_or(Doubt::ResolutionUnknown { pairs: identical.pairs() })?;
    let effect = Effect::of(ratios).ok_or(too_few)?;
    if effect.interval.low <= 1.0 && effect.interval.high >= 1.0 {
        return Err(Doubt::PairsDisagree);
    }
    let distance = ratios.median_log().ok_or(too_few)?.abs();
    if distance <= resolution.ratio.ln() {
        return Err(Doubt::WithinResolution { resolution: resolution.ratio });
    }
    Ok(effect)
}
