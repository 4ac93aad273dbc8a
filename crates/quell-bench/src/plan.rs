//! What a bench run will do, decided before anything is touched: which modes under which loads, how often, how long,
//! in which order. Pure.

use quell_mode::{DeliveryMode, ProgramWait};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::offered_load::OfferedLoad;

/// A matrix of modes and loads, and how it is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The modes, in the order of the table. `base` is among them twice: see [`ModeEntry::control`].
    pub modes: Vec<ModeEntry>,
    /// The loads, in the order of the table.
    pub loads: Vec<OfferedLoad>,
    /// How often every cell is measured.
    pub repeats: u32,
    /// How long each trial is measured, in milliseconds.
    pub measure_ms: u32,
    /// How long each trial runs before it is measured, in milliseconds.
    pub warm_up_ms: u32,
    /// How many disturbed trials may be measured again, in all.
    pub retries: u32,
    /// What decides the order of the trials and every random choice of the generator.
    pub seed: u64,
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ModeEntry {
    /// What the table calls it; unique within a plan.
    pub label: String,
    /// What is set.
    pub mode: DeliveryMode,
    /// It is the second `base`: measured as if it were another mode, so that what differs between the two shows what
    /// cannot be told apart today.
    pub control: bool,
    /// How it differs here from what it is meant to be; absent when it does not.
    pub note: Option<String>,
}

/// One trial to be run: indices into the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TrialId {
    /// Which repeat, counted from 0.
    pub repeat: u32,
    /// Which of [`Plan::loads`].
    pub load: usize,
    /// Which of [`Plan::modes`].
    pub mode: usize,
}

/// How much is measured: how many of the modes and loads, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Three modes, two loads: under a minute.
    Quick,
    /// Five modes, three loads: about two minutes.
    Standard,
    /// Every mode that can be set from outside, five loads.
    Full,
}

/// Why a plan cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A mode is asked for twice.
    #[error("the mode {0} is listed twice")]
    TwiceTheSame(String),
    /// Nothing would be measured.
    #[error("a bench needs at least one mode, one load, one repeat and a measured time above zero")]
    Nothing,
}

/// The label of the second `base`.
pub const CONTROL_LABEL: &str = "base again";

impl Extent {
    /// The modes of this extent, without the second `base`.
    #[must_use]
    pub fn modes(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &["base", "fullbusy", "suspend50"],
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

    /// How long each of its trials is measured, in milliseconds.
    #[must_use]
    pub fn measure_ms(self) -> u32 {
        match self {
            Self::Quick => 1_200,
            Self::Standard | Self::Full => 1_800,
        }
    }

    /// The loads of this extent.
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
    /// A plan over `modes` and `loads`; when `base` is among the modes it is entered a second time, as control.
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

    /// Every trial, in the order in which they are run: repeat by repeat; within a repeat load by load, so that the
    /// trials which are compared with each other stand close together in time; the loads of a repeat and the modes of
    /// a load in a random order that the seed decides.
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

    /// The index of the first `base`, which the others are compared with; absent when it is not measured.
    #[must_use]
    pub fn base(&self) -> Option<usize> {
        self.modes.iter().position(|entry| entry.label == "base")
    }

    /// The index of the second `base`.
    #[must_use]
    pub fn control(&self) -> Option<usize> {
        self.modes.iter().position(|entry| entry.control)
    }
}

/// A server that is only attached to waits as it was written to.
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
    fn every_cell_is_measured_once_a_repeat() {
        let plan = plan(Extent::Full, 3, 1);
        let order = plan.order();
        assert_eq!(order.len(), 12 * 5 * 3);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), order.len());
    }

    #[test]
    fn trials_that_are_compared_stand_next_to_each_other() {
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
    fn nothing_to_measure_is_refused() {
        assert_eq!(Plan::new(vec![], vec![OfferedLoad::Max], 1, 0), Err(PlanError::Nothing));
    }
}
