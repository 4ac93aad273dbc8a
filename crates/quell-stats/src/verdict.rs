//! Decides whether two modes differ, from a handful of interleaved repeats. A difference that is no
//! larger than between identical runs on this machine is never reported as one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::paired::{Interval, PairedRatios, Resolution};

/// Fewest pairs, of the compared modes and of identical runs, that support a verdict.
pub const MIN_PAIRS: usize = 3;

/// Difference between `b` and `a`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Median of `b / a` over the pairs.
    pub ratio: f64,
    /// Confidence interval of the median ratio.
    pub interval: Interval,
    /// Number of pairs.
    pub pairs: usize,
}

impl Effect {
    fn of(ratios: &PairedRatios) -> Option<Self> {
        Some(Self { ratio: ratios.median()?, interval: ratios.interval()?, pairs: ratios.pairs() })
    }
}

/// Why a comparison has no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Doubt {
    /// Too few repeats in which both have a value.
    #[error("{pairs} pairs; at least {MIN_PAIRS} are needed")]
    TooFewPairs {
        /// Number of pairs.
        pairs: usize,
    },
    /// Too few pairs of identical runs to know the noise floor of this machine.
    #[error("{pairs} pairs of identical runs, at least {MIN_PAIRS} are needed")]
    ResolutionUnknown {
        /// Number of pairs.
        pairs: usize,
    },
    /// Repeats in which a value is 0 have no ratio. Judging by the others alone would select among the
    /// repeats.
    #[error("{repeats} repeats with a value of 0, which has no ratio")]
    ZeroValues {
        /// Number of such repeats.
        repeats: usize,
    },
    /// Some pairs are lower, some are higher or equal.
    #[error("the repeats disagree about which is lower")]
    PairsDisagree,
    /// The difference is within the noise floor.
    #[error("the difference is within what identical runs differ by, a ratio of {resolution:.3}")]
    WithinResolution {
        /// [`Resolution::ratio`].
        resolution: f64,
    },
}

/// Whether `b` differs from `a`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// `b` is significantly lower.
    Lower(Effect),
    /// `b` is significantly higher.
    Higher(Effect),
    /// No significant difference.
    CannotTell {
        /// Why there is no verdict.
        reason: Doubt,
        /// Observed difference; absent without pairs.
        seen: Option<Effect>,
    },
}

/// Compares `b` with `a`: `ratios` are pairs from the same repeat, `identical` pairs of identical runs
/// (A/A) measured among them.
///
/// `b` is lower or higher when both hold:
///
/// 1. **The pairs agree.** The interval of the median ratio excludes 1. This is the exact two-sided
///    sign test: all of up to eight pairs, eight of nine, nine of ten.
/// 2. **The difference exceeds the noise.** The median ratio is farther from 1 than the [`Resolution`]:
///    than *every* pair of identical runs, or with five or more compared pairs, than four in five.
///
/// Together they keep the probability of a false verdict at 5 % or less. Three pairs agree by chance
/// in one case of four. If nothing differs, their median is also beyond the farthest of three
/// identical pairs with probability 1/5, independent of the signs (the two farthest of six equals must
/// belong to one group): 1/4 × 1/5 = 5 %. Four pairs give less than 3.6 %, five less than 3.2 % (1/16
/// for agreement, at most 1/2 for the distance). From six pairs on the sign test alone is below 5 %.
///
/// The argument needs neither a normal distribution nor a known variance. It needs pairs that err
/// upwards as often as downwards, and identical pairs that are as noisy as the compared ones. The bound
/// is for one comparison: of twenty comparisons without a difference, expect one false verdict.
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
