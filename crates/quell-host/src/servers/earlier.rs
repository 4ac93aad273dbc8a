//! What earlier measurements say about a server.

use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

/// Largest factor between two loads at which the answer of one holds at the other.
const LOAD_FACTOR_MAX: u64 = 2;

/// An earlier measurement of a program at one load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EarlierMeasurement {
    /// Its result, as `quell results show` finds it.
    pub result: String,
    /// Its start, in seconds since 1970-01-01 UTC.
    pub started_unix_s: u64,
    /// Packets per second from the queues of the program; absent if they were not counted.
    pub packets_per_s: Option<u64>,
    /// Load that ended with the measurement, whose packets are counted, too; absent if there was live traffic only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_load: Option<OwnLoad>,
    /// Rule of a serious finding under the modes on which its answer rests; absent without one.
    pub problem: Option<String>,
}

/// Load of a measurement itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OwnLoad {
    /// Requests of a judge.
    Judge,
    /// `--load` or `--clients`.
    Generator,
}

impl EarlierMeasurement {
    /// Whether its answer holds at this load, in packets per second: it was measured at a similar one, or one of the
    /// two is unknown. A measurement with a load of its own answers for lower ones, too: the live part of its load is
    /// unknown.
    #[must_use]
    pub fn decides_at(&self, packets_per_s: Option<u64>) -> bool {
        self.packets_per_s.zip(packets_per_s).is_none_or(|(then, now)| {
            let is_at_most = |low: u64, high: u64| high <= low.saturating_mul(LOAD_FACTOR_MAX);
            is_at_most(then, now) && (self.own_load.is_some() || is_at_most(now, then))
        })
    }
}

/// What an earlier measurement says about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierAnswer {
    pub measured: EarlierMeasurement,
    pub verdict: EarlierVerdict,
    /// What it left open although it has a mode.
    pub open: Option<OpenQuestion>,
    /// Settings of the queues, without attachments, for which it answers, as modes: the reference, and those from before
    /// the measurement.
    pub settings: Vec<DeliveryMode>,
    /// Modes that were compared.
    pub compared: Vec<DeliveryMode>,
    /// Whether connections were steered to the queues of their workers.
    pub steered: bool,
}

/// Which mode an earlier measurement chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlierVerdict {
    /// This one was better than the present one.
    Better(DeliveryMode),
    /// None was better than this one, which was the present one.
    Keep(DeliveryMode),
    /// None: what the result advises.
    Undecided {
        advice: String,
        command: String,
        /// Whether connections were to be steered, and no client had reconnected.
        unsteered: bool,
    },
}

/// What a measurement left open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OpenQuestion {
    /// Its answer, and what is open.
    pub advice: String,
    /// Command that measures longer.
    pub command: String,
}

impl EarlierAnswer {
    /// The mode that it chose.
    pub(super) fn mode(&self) -> Option<DeliveryMode> {
        match self.verdict {
            EarlierVerdict::Better(mode) | EarlierVerdict::Keep(mode) => Some(mode),
            EarlierVerdict::Undecided { .. } => None,
        }
    }

    pub(super) fn is_decided(&self) -> bool {
        !matches!(self.verdict, EarlierVerdict::Undecided { .. })
    }

    pub(super) fn is_unsteered(&self) -> bool {
        matches!(self.verdict, EarlierVerdict::Undecided { unsteered: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_measured_with_a_load_of_its_own_decides_at_lower_loads_too() {
        let at = |own_load, now| {
            let (result, started_unix_s, packets_per_s, problem) = ("bench-1".to_owned(), 7, Some(2_720), None);
            let measured = EarlierMeasurement { result, started_unix_s, packets_per_s, own_load, problem };
            measured.decides_at(Some(now))
        };
        for own in [OwnLoad::Judge, OwnLoad::Generator] {
            assert!(at(Some(own), 620) && at(Some(own), 2_720), "the load of then is over");
            assert!(!at(Some(own), 6_000), "a higher load");
        }
        assert!(!at(None, 620));
    }
}
