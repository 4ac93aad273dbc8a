//! The stored form of a search: plan, arms, slices, confirmations and answer.

use quell_experiment::{ExperimentRecord, RatioEstimate, SliceObservation, SwitchbackAnalysis};
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goal::TuneMetric;
use crate::plan::TunePlan;

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneResult {
    /// The plan, which with the observations determines everything else.
    pub plan: TunePlan,
    /// Every arm of the search, tried or not, with the present setting first.
    pub arms: Vec<ArmReport>,
    /// Slices of the search, in order. Those of the confirmation are in the confirmations.
    pub slices: Vec<TuneSliceRecord>,
    /// Experiments on fresh slices, in order: at most four against the present setting, then at most three against the
    /// answer.
    pub confirmations: Vec<Confirmation>,
    pub answer: TuneAnswer,
    /// Modes that look better than the answer in the slices of the search, the best one first, and why they are not the
    /// answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<Rival>,
    /// Best arm of the search at each load alone, in the order of the plan. It was not confirmed.
    pub preferred: Vec<Option<DeliveryMode>>,
    /// Why the search ended.
    pub end: TuneEnd,
    /// Total time of all slices, in ms.
    pub spent_ms: f64,
}

impl TuneResult {
    /// See [`ArmReport::limit_ratio`].
    #[must_use]
    pub fn limit_ratio(&self, mode: DeliveryMode) -> Option<f64> {
        self.arms.iter().find(|arm| arm.mode == mode)?.limit_ratio
    }
}

/// An arm of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ArmReport {
    pub mode: DeliveryMode,
    /// What has become of it.
    pub state: ArmState,
    /// Number of slices in the search.
    pub slices: u32,
    /// Typical ratio of the objective to the present setting, at each load. Absent without values.
    pub ratio: Vec<Option<f64>>,
    /// Largest typical ratio of a limited quantity to its limit, over limits and loads. Absent without limits or values.
    pub limit_ratio: Option<f64>,
}

/// State of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ArmState {
    /// In the race: it can be the best.
    Alive,
    /// Dropped: worse than `than` beyond doubt, at the load in which it looks worst.
    Worse {
        /// Mode that is better.
        than: DeliveryMode,
    },
    /// Dropped: misses a limit beyond doubt.
    MissesLimit {
        /// The limit, as in the text of the goal.
        limit: String,
    },
    /// Abandoned at once, because a slice violated a guard.
    ViolatedGuard { guard: String },
    /// Could not be set or measured.
    NotSettable { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TunePhase {
    /// Arms race.
    Search,
    /// The winner is compared with the present setting and `base` on fresh slices.
    Confirm,
}

/// A slice of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneSliceRecord {
    /// Number of the block, from 0.
    pub block: u32,
    /// Index of the load in the plan.
    pub load: usize,
    /// Index of the arm in [`TuneResult::arms`].
    pub arm: usize,
    pub observation: SliceObservation,
}

/// A mode that looks better than the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rival {
    pub mode: DeliveryMode,
    /// Typical ratio of the objective to that under the answer, or under the present setting if no mode is better, at the
    /// load at which it is worst.
    pub looks: f64,
    /// The same with its 95 % interval, from fresh slices; without fresh slices, estimated from the slices of all
    /// modes. Absent if the mode is excluded for another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<RatioEstimate>,
    pub why: WhyNotChosen,
}

impl Rival {
    /// Ratio of the objective, from fresh slices if there are some; see [`looks`](Self::looks).
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.interval.map_or(self.looks, |interval| interval.ratio)
    }

    /// Budget that probably decides whether the mode is better, in ms, which is absent if it is too long. `None` if that is
    /// decided.
    #[must_use]
    pub fn open_budget_ms(&self) -> Option<Option<u64>> {
        match self.why {
            WhyNotChosen::Undecided { budget_ms } | WhyNotChosen::NotCompared { budget_ms } => Some(budget_ms),
            _ => None,
        }
    }
}

/// Why a mode that looks better is not the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum WhyNotChosen {
    /// It misses a limit, violated a guard, or could not be set.
    Excluded { state: ArmState },
    /// It probably exceeds this limit, but not beyond doubt.
    LimitInDoubt { limit: String },
    /// Fresh slices did not show that it holds all limits.
    LimitsNotShown,
    /// All slices together show no gain, or less than 3 %.
    NotBetter,
    /// Fresh slices did not decide whether it is better.
    Undecided {
        /// Budget that would probably decide it, in ms. Absent if it is longer than an hour.
        budget_ms: Option<u64>,
    },
    /// No time was left to compare it on fresh slices.
    NotCompared {
        /// Budget that would probably decide it, in ms. Absent if it is longer than an hour.
        budget_ms: Option<u64>,
    },
}

/// Experiments that compare one candidate with the present setting and `base`, one for each load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Confirmation {
    pub mode: DeliveryMode,
    /// The answer so far, with which it is compared, too. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<DeliveryMode>,
    /// Designs and slices, by load. The reference is the present setting.
    pub experiments: Vec<ExperimentRecord<DeliveryMode>>,
    /// Results of the experiments, in the same order.
    pub analyses: Vec<SwitchbackAnalysis>,
    /// Whether the candidate was shown to hold all limits at all loads. False if requests fail, or the server falls behind
    /// its load, more often than under the present setting.
    pub meets_limits: bool,
    /// Whether the present setting misses a limit beyond doubt.
    pub present_misses_limit: bool,
}

/// Answer of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum TuneAnswer {
    /// The mode is better than the present setting by the objective and holds the limits.
    Better {
        mode: DeliveryMode,
        /// Ratio of the objective to the present setting, by load.
        gain: Vec<Option<RatioEstimate>>,
        /// Ratio of the objective to `base`, by load. Empty if `base` is the present setting.
        against_base: Vec<Option<RatioEstimate>>,
    },
    /// The mode holds the limits, and the present setting does not. Its objective may be worse.
    HoldsLimits {
        mode: DeliveryMode,
        /// Ratio of the objective to the present setting, by load.
        gain: Vec<Option<RatioEstimate>>,
        /// Ratio of the objective to `base`, by load. Empty if `base` is the present setting.
        against_base: Vec<Option<RatioEstimate>>,
    },
    /// No setting was found that is better than the present one.
    NoSettingBetter,
    /// The search ended early, so there is no answer.
    None,
}

impl TuneAnswer {
    /// The mode to use. `None` if the present setting should stay.
    #[must_use]
    pub fn mode(&self) -> Option<DeliveryMode> {
        match self {
            Self::Better { mode, .. } | Self::HoldsLimits { mode, .. } => Some(*mode),
            Self::NoSettingBetter | Self::None => None,
        }
    }
}

/// Why a search ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum TuneEnd {
    /// The answer is complete.
    Answered,
    /// The caller or the subject was asked to stop.
    Interrupted,
    /// The metric of a guard could not be read, so nothing protects the server.
    GuardUnreadable {
        guard: String,
        /// Number of answered requests in the slice without a value. Absent if they are not counted, and in older results.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests: Option<u64>,
        /// Number of requests that a slice needs for the guarded quantile. Absent for other quantities,
        /// for printed ones, and in older results.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests_needed: Option<u64>,
    },
    /// The objective or a limited quantity was never read.
    MetricUnreadable {
        metric: String,
    },
    /// The load has vanished, or its rate under the present setting is below 0.3 or above 1.75 times the first rate.
    LoadChanged {
        /// Rate in the first slices, per second: requests, or packets if requests are not counted. Absent if no slice had
        /// a request or packet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_per_s: Option<f64>,
        /// Rate in the last slices.
        to_per_s: f64,
    },
    /// The budget was spent before a mode could be compared with the present setting on fresh slices.
    BudgetSpent,
    /// Every mode besides the present setting and `base` violated a guard or could not be set, so none was compared.
    NoModeLeft,
    /// No answer was found, and modes were abandoned because of a guard that the present setting violates, too.
    PresentViolatesGuard {
        /// The guard.
        guard: String,
        /// Guarded quantity.
        metric: TuneMetric,
        /// Value of a typical slice under the present setting, in the metric's unit.
        present: f64,
        /// Number of modes that were abandoned because of it.
        modes: usize,
    },
    /// The present setting could not be set.
    PresentNotSettable {
        reason: String,
    },
    SubjectFailed {
        reason: String,
    },
}
