//! Modes, loads and time of a comparison where the user names none.

use std::time::Duration;

use crate::offered_load::OfferedLoad;

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

impl Extent {
    /// Modes of this extent, the reference first.
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

    /// Time of all experiments in the lab.
    #[must_use]
    pub fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Quick => 50,
            Self::Standard => 120,
            Self::Full => 360,
        })
    }

    /// Virtual time of all experiments on the model. A processor simulates some two seconds of it per second.
    #[must_use]
    pub fn virtual_budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Quick => 20,
            Self::Standard => 60,
            Self::Full => 180,
        })
    }
}
