//! The plan of a bench run, decided before anything is changed: modes, loads, repeats, durations and order. Pure.

use quell_mode::{DeliveryMode, ProgramWait};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::offered_load::OfferedLoad;

/// A matrix of modes and loads, with the measurement parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// Modes, in table order. `base` is listed twice: see [`ModeEntry::control`].
    pub modes: Vec<ModeEntry>,
    /// Loads, in table order.
    pub loads: Vec<OfferedLoad>,
    /// Number of measurements per cell.
    pub repeats: u32,
    /// Measured time of each trial, in milliseconds.
    pub measure_ms: u32,
    /// Warm-up time of each trial, in milliseconds.
    pub warm_up_ms: u32,
    /// Total number of disturbed trials that may be repeated.
    pub retries: u32,
    /// Seed of the trial order and of all random choices of the generator.
    pub seed: u64,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ModeEntry {
    /// Label in the table, unique within a plan.
    pub label: String,
    /// Delivery mode to set.
    pub mode: DeliveryMode,
    /// True for the second `base`. It is measured like any other mode. Differences between the two show the resolution
    /// of the measurement.
    pub control: bool,
    /// Deviation of the mode from its definition on this lab. Absent if it does not deviate.
    pub note: Option<String>,
}

/// A trial to run, as indices into the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TrialId {
    /// Index of the repeat, from 0.
    pub repeat: u32,
    /// Index into [`Plan::loads`].
    pub load: usize,
    /// Index into [`Plan::modes`].
    pub mode: usize,
}

/// Extent of a measurement: number of modes and loads, and duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Three modes, two loads: under a minute.
    Quick,
    /// Five modes, three loads: about two minutes.
    Standard,
    /// Every mode that can be set from outside, five loads.
    Full,
}

/// Why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A mode is listed twice.
    #[error("the mode {0} is listed twice")]
    TwiceTheSame(String),
    /// The plan measures nothing.
    #[error("a bench needs at least one mode, one load, one repeat and a measured time above zero")]
    Nothing,
}

/// Label of the second `base`.
pub const CONTROL_LABEL: &str = "base again";

impl Extent {
    /// Modes of this extent, without the second `base`.
    #[must_use]
    pub fn modes(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &["base", "napibusy", "suspend50"],
            Self::Standard => &["base", "defer200", "fullbusy", "suspend50", "suspend200"],
            Self::Full => &[
                "base",
                "defer10",
                "defer20",
                "defer50",
                "defer200",
                "napibusy",
                "fullbusy",
                "suspend10",
                "suspend20",
                "suspend50",
                "suspend200",
            ],
        }
    }

    /// Measured time of each trial, in milliseconds.
    #[must_use]
    pub fn measure_ms(self) -> u32 {
        match self {
            Self::Quick => 1_200,
            Self::Standard | Self::Full => 1_800,
        }
    }

    /// Loads of this extent.
    #[must_use]
    pub fn loads(self) -> Vec<OfferedLoad> {
        let percents: &[f64] = match self {
            Self::Quick => &[50.0],
            Self::Standard => &[50.0, 90.0],
            Self::Full => &[25.0, 50.0, 75.0, 90.0],
        };
        percents.iter().copied().map(OfferedLoad::Percent).chain([OfferedLoad::Max]).collect()
    }
}

impl Plan {
    /// Creates a plan over `modes` and `loads`. If `base` is among the modes, it is added a second time as control.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn new(modes: Vec<DeliveryMode>, loads: Vec<OfferedLoad>, repeats: u32, seed: u64) -> Result<Self, PlanError> {
        let mut entries: Vec<ModeEntry> = Vec::new();
        for mode in modes {
            let label = mode.to_string();
            if entries.iter().any(|entry| entry.label == label) {
                return Err(PlanError::TwiceTheSame(label));
            }
            let is_base = label == "base";
            entries.push(ModeEntry { label, mode, control: false, note: note(&mode) });
            if is_base {
                entries.push(ModeEntry { label: CONTROL_LABEL.to_owned(), mode, control: true, note: None });
            }
        }
        let plan = Self {
            modes: entries,
            loads,
            repeats,
            measure_ms: Extent::Standard.measure_ms(),
            warm_up_ms: 200,
            retries: 6,
            seed,
        };
        if plan.modes.is_empty() || plan.loads.is_empty() || repeats == 0 {
            return Err(PlanError::Nothing);
        }
        Ok(plan)
    }

    /// Every trial, in execution order. Repeats run one after another, and within a repeat the loads. Trials that are
    /// compared with each other therefore run close together in time. The order of the loads in a repeat and of the
    /// modes in a load is random, determined by the seed.
    #[must_use]
    pub fn order(&self) -> Vec<TrialId> {
        let mut random = rand_pcg::Pcg64::seed_from_u64(self.seed);
        let mut trials = Vec::new();
        for repeat in 0..self.repeats {
            let mut loads: Vec<usize> = (0..self.loads.len()).collect();
            loads.shuffle(&mut random);
            for load in loads {
                let mut modes: Vec<usize> = (0..self.modes.len()).collect();
                modes.shuffle(&mut random);
                trials.extend(modes.into_iter().map(|mode| TrialId { repeat, load, mode }));
            }
        }
        trials
    }

    /// Index of the first `base`, the reference of all comparisons. Absent if `base` is not measured.
    #[must_use]
    pub fn base(&self) -> Option<usize> {
        self.modes.iter().position(|entry| entry.label == "base")
    }

    /// Index of the second `base`.
    #[must_use]
    pub fn control(&self) -> Option<usize> {
        self.modes.iter().position(|entry| entry.control)
    }
}

/// Note for modes that require shorter waits: a server that is only attached to keeps its own timeouts.
fn note(mode: &DeliveryMode) -> Option<String> {
    match mode.program_wait() {
        ProgramWait::AtMost(at_most) => Some(format!(
            "the server's waits stay as it was written and do not become at most {at_most:?}: when no packet comes for \
             the busy-poll time it sleeps, and the next packet can wait for gro-flush-timeout"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(extent: Extent, repeats: u32, seed: u64) -> Plan {
        let modes = extent.modes().iter().map(|mode| mode.parse().unwrap()).collect();
        Plan::new(modes, extent.loads(), repeats, seed).unwrap()
    }

    #[test]
    fn base_is_measured_twice_as_two_modes() {
        let plan = plan(Extent::Standard, 3, 1);
        assert_eq!((plan.base(), plan.control()), (Some(0), Some(1)));
        assert_eq!(plan.modes.len(), 6);
    }

    #[test]
    fn every_cell_is_measured_once_per_repeat() {
        let plan = plan(Extent::Full, 3, 1);
        let order = plan.order();
        assert_eq!(order.len(), 12 * 5 * 3);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), order.len());
    }

    #[test]
    fn compared_trials_are_adjacent() {
        let plan = plan(Extent::Standard, 3, 9);
        for block in plan.order().chunks(plan.modes.len()) {
            assert!(block.iter().all(|trial| (trial.repeat, trial.load) == (block[0].repeat, block[0].load)));
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(plan(Extent::Standard, 3, 7).order(), plan(Extent::Standard, 3, 7).order());
        assert_ne!(plan(Extent::Standard, 3, 7).order(), plan(Extent::Standard, 3, 8).order());
    }

    #[test]
    fn a_mode_listed_twice_is_refused() {
        let modes = ["base", "base"].map(|mode| mode.parse().unwrap()).to_vec();
        assert_eq!(Plan::new(modes, vec![OfferedLoad::Max], 1, 0), Err(PlanError::TwiceTheSame("base".into())));
    }

    #[test]
    fn an_empty_plan_is_refused() {
        assert_eq!(Plan::new(vec![], vec![OfferedLoad::Max], 1, 0), Err(PlanError::Nothing));
    }
}
