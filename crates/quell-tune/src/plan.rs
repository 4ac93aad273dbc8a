//! The plan of a search: goal, guards, modes, loads, and how its time is divided.

use quell_mode::DeliveryMode;
use quell_sim::HostProfile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goal::{TuneGoal, TuneGuard};
use crate::space::TuneSpace;

/// Share of the budget for the search; the rest is for the confirmation, which needs more slices to show that limits hold.
const SEARCH_SHARE: f64 = 0.7;
const SEARCH_SHARE_WITH_LIMITS: f64 = 0.5;
/// Share of the time that is left for the confirmation of one candidate at all loads, if others may have to be confirmed
/// after it.
const CONFIRM_SHARE: f64 = 0.6;
/// Maximum number of candidates that are compared with the present setting, one after another.
pub(crate) const CONFIRMATIONS_MAX: usize = 4;
/// Share of the error rate for the first of them, if there are no limits. It then gets all the time that it needs.
const FIRST_ERROR_SHARE: f64 = 0.7;
/// Maximum number of modes that are compared with the answer, one after another.
pub(crate) const CHALLENGES_MAX: usize = 3;
/// Minimum number of slices of each arm in a confirmation, which is the minimum number of blocks of an experiment.
pub(crate) const CONFIRM_BLOCKS_MIN: u64 = 6;

/// Plan of a search, which is fixed before the first slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TunePlan {
    /// What to optimize.
    pub goal: TuneGoal,
    /// Conditions under which an arm is abandoned.
    pub guards: Vec<TuneGuard>,
    /// Setting that the server has now. It is compared with every arm.
    pub present: DeliveryMode,
    /// Mode that `base` leaves set, because it changes no NAPI threads. Absent if it is `base` itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_is: Option<DeliveryMode>,
    /// Modes of the first round, besides `base` and the present setting.
    pub arms: Vec<DeliveryMode>,
    /// Grid from which the modes of the other rounds are selected. Without it, only `arms` are tried.
    pub space: Option<TuneSpace>,
    /// Hosts of the model whose responses to modes are the search's first belief.
    pub model_hosts: Vec<String>,
    /// Names of the loads, at least one. Blocks take turns.
    pub loads: Vec<String>,
    /// Time for which each slice is observed, in ms. An arm that violates a guard is left after at most one slice.
    pub slice_ms: u32,
    /// Time between setting a mode and observing it, in ms.
    pub settle_ms: u32,
    /// Time that a slice with setting and settling takes, in ms, as a first run of the commands showed. Absent if that is
    /// as long as planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_takes_ms: Option<u64>,
    /// Maximum total time of all slices, in ms.
    pub budget_ms: u64,
    /// Seed of the order of the slices.
    pub seed: u64,
    /// Maximum probability that a confirmation reports a gain that does not exist. The comparisons of other modes with the
    /// answer have the same one.
    pub error_rate: f64,
}

impl TunePlan {
    /// Name of a mode in the search. That of `base` says what is set.
    #[must_use]
    pub fn name(&self, mode: DeliveryMode) -> String {
        match self.base_is.filter(|_| mode == DeliveryMode::default()) {
            Some(set) => format!("{mode} ({set})"),
            None => mode.to_string(),
        }
    }

    /// Creates a plan with slices of 200 ms, a settling time of 10 ms, one load, a budget of 3 minutes and an error rate
    /// of 5 %. It begins with the coarse grid of `space`.
    #[must_use]
    pub fn new(goal: TuneGoal, present: DeliveryMode, space: TuneSpace, seed: u64) -> Self {
        Self {
            goal,
            guards: Vec::new(),
            present,
            base_is: None,
            arms: space.coarse(),
            space: Some(space),
            model_hosts: HostProfile::shipped_names().map(str::to_owned).collect(),
            loads: vec!["present".to_owned()],
            slice_ms: 200,
            settle_ms: 10,
            slice_takes_ms: None,
            budget_ms: 180_000,
            seed,
            error_rate: 0.05,
        }
    }

    /// Time of a slice with setting and settling, in ms.
    #[must_use]
    pub fn slice_and_settle_ms(&self) -> u64 {
        self.slice_takes_ms.unwrap_or(u64::from(self.slice_ms) + u64::from(self.settle_ms))
    }

    /// Shortest budget in ms: three rounds of all arms, and a confirmation at each load.
    #[must_use]
    pub fn budget_min_ms(&self) -> u64 {
        let loads = self.loads.len() as u64;
        let search = 3 * (self.arms.len() as u64 + 2) * loads * self.slice_and_settle_ms();
        let confirm = 4 * CONFIRM_BLOCKS_MIN * loads * self.slice_and_settle_ms();
        let share = self.search_share();
        ((search as f64 / share) as u64).max((confirm as f64 / (1.0 - share) / self.confirm_share(0)) as u64) + 1
    }

    #[must_use]
    pub fn search_share(&self) -> f64 {
        if self.goal.limits.is_empty() { SEARCH_SHARE } else { SEARCH_SHARE_WITH_LIMITS }
    }

    /// Share of the time that is left for a confirmation after `done` others.
    pub(crate) fn confirm_share(&self, done: usize) -> f64 {
        if done + 1 < CONFIRMATIONS_MAX && !self.goal.limits.is_empty() { CONFIRM_SHARE } else { 1.0 }
    }

    /// Maximum probability that a confirmation after `done` others reports a gain that does not exist.
    pub(crate) fn confirm_error(&self, done: usize) -> f64 {
        let others = (CONFIRMATIONS_MAX - 1) as f64;
        match (self.goal.limits.is_empty(), done) {
            (false, _) => self.error_rate / CONFIRMATIONS_MAX as f64,
            (true, 0) => self.error_rate * FIRST_ERROR_SHARE,
            (true, _) => self.error_rate * (1.0 - FIRST_ERROR_SHARE) / others,
        }
    }

    /// Maximum probability that a comparison with the answer reports a gain that does not exist.
    pub(crate) fn challenge_error(&self) -> f64 {
        self.error_rate / CHALLENGES_MAX as f64
    }

    /// The budget of which `needed_ms` are left for the next comparison, if the confirmations before it take
    /// `confirmed_ms`: one with an answer, or with the present setting.
    pub(crate) fn budget_ms_with(&self, needed_ms: f64, confirmed_ms: f64, with_answer: bool) -> f64 {
        let share = 1.0 - self.search_share();
        match (with_answer, self.goal.limits.is_empty()) {
            (true, true) => (confirmed_ms + needed_ms) / share,
            (true, false) => needed_ms / (share * (1.0 - CONFIRM_SHARE)),
            (false, _) => needed_ms / (share * self.confirm_share(0)),
        }
    }

    /// Time for a confirmation at all loads if `left_ms` is left after `done` others: all of it, if the rest would be too
    /// short for another one. The first one always leaves time to compare its answer with others.
    pub(crate) fn confirm_ms(&self, left_ms: f64, done: usize) -> f64 {
        let share_ms = left_ms * self.confirm_share(done);
        let another_ms = CONFIRM_BLOCKS_MIN as f64 * self.confirm_block_ms() / CONFIRM_SHARE;
        if done > 0 && left_ms - share_ms < another_ms { left_ms } else { share_ms }
    }

    /// Number of slices of each arm in a confirmation if `left_ms` is left after `done` others.
    pub(crate) fn confirm_slices(&self, left_ms: f64, done: usize) -> f64 {
        self.confirm_ms(left_ms, done) / self.confirm_block_ms()
    }

    /// Time of a block of a confirmation, at each load.
    fn confirm_block_ms(&self) -> f64 {
        let arms = if self.present == DeliveryMode::default() { 3 } else { 4 };
        (arms * self.loads.len() as u64 * self.slice_and_settle_ms()) as f64
    }

    pub fn check(&self) -> Result<(), TunePlanError> {
        let needed_ms = self.budget_min_ms();
        if self.loads.is_empty() {
            return Err(TunePlanError::NoLoad);
        }
        if self.slice_ms == 0 {
            return Err(TunePlanError::NoSlice);
        }
        if !(self.error_rate > 0.0 && self.error_rate < 1.0) {
            return Err(TunePlanError::ErrorRate(self.error_rate));
        }
        if self.budget_ms < needed_ms {
            return Err(TunePlanError::BudgetTooShort { budget_ms: self.budget_ms, arms: self.arms.len(), needed_ms });
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TunePlanError {
    #[error("the plan has no load: name at least one")]
    NoLoad,
    #[error("slices of 0 ms observe nothing: use at least 1 ms")]
    NoSlice,
    #[error("the error rate is {0}; it must be above 0 and below 1")]
    ErrorRate(f64),
    #[error(
        "the budget of {budget_ms} ms is too short for {arms} arms: use at least {needed_ms} ms, or fewer arms or loads"
    )]
    BudgetTooShort { budget_ms: u64, arms: usize, needed_ms: u64 },
}
