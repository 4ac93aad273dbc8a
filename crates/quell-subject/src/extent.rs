//! Default modes, loads and durations of `quell bench`.

use std::time::Duration;

use quell_load::OfferedLoad;

/// Size of a measurement: number of modes and loads, and duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// `--quick`: three modes and two loads, in less than a minute.
    Quick,
    /// The default: five modes and three loads, in about two minutes.
    Standard,
    /// `--full`: all modes that can be set without starting the server, and five loads.
    Full,
}

impl Extent {
    /// Modes of this extent. The first one is the reference.
    #[must_use]
    pub fn modes(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &["base", "suspend200", "defer200"],
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

    /// Duration of all experiments in the lab.
    #[must_use]
    pub fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Quick => 50,
            Self::Standard => 120,
            Self::Full => 360,
        })
    }

    /// Virtual duration of all experiments on the model. One CPU simulates about two virtual seconds per second.
    #[must_use]
    pub fn virtual_budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Quick => 20,
            Self::Standard => 60,
            Self::Full => 180,
        })
    }
}
