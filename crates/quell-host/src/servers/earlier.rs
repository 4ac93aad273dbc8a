//! What earlier measurements say about a server.

use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

/// Largest factor between two loads at which the answer of one holds at the other.
const LOAD_FACTOR_MAX: u64 = 2;
/// Packets per second up to which the load of a measurement can be that of the judge that Quell advises.
const ADVISED_JUDGE_MAX: u64 = 5_000;
/// Packets per second below which a server has no load, but health checks.
const NO_LOAD: u64 = 200;

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
    /// Why others may decide otherwise: `although it costs p99 ×15.0` of a mode that is better by its goal, `unless p99
    /// −88 % under suspend200 is worth cpu +55 %` or `for the goal "lowest cpu"` of one that is kept; absent if nothing
    /// speaks against the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
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
    /// Whether it was measured at a load similar to this one, in packets per second, or one of the two is unknown.
    #[must_use]
    pub fn is_near(&self, packets_per_s: Option<u64>) -> bool {
        let is_at_most = |low: u64, high: u64| high <= low.saturating_mul(LOAD_FACTOR_MAX);
        self.packets_per_s.zip(packets_per_s).is_none_or(|(then, now)| is_at_most(then, now) && is_at_most(now, then))
    }

    /// Whether its answer holds at this load: it was measured at a similar one, or most of its load was its own and has
    /// ended. A small one can be that of the advised judge, beside which the live part is unknown.
    #[must_use]
    pub fn decides_at(&self, packets_per_s: Option<u64>) -> bool {
        // A judge can have doubled the load.
        let factor_max = LOAD_FACTOR_MAX * if self.own_load == Some(OwnLoad::Judge) { 2 } else { 1 };
        let outlives = |(then, now): (u64, u64)| {
            now <= then && (now < NO_LOAD || then <= ADVISED_JUDGE_MAX.max(now.saturating_mul(factor_max)))
        };
        let has_ended = self.own_load.is_some() && self.packets_per_s.zip(packets_per_s).is_some_and(outlives);
        has_ended || self.is_near(packets_per_s)
    }
}

/// What an earlier measurement says about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierAnswer {
    pub measured: EarlierMeasurement,
    pub verdict: EarlierVerdict,
    /// What it left open although it has a mode.
    pub open: Option<OpenQuestion>,
    /// Settings with which the others were compared, without attachments.
    pub reference: DeliveryMode,
    /// Modes that were compared, with the reference.
    pub compared: Vec<DeliveryMode>,
    /// Those that were found to cost something and to save nothing.
    pub worse: Vec<DeliveryMode>,
    /// Whether connections were steered to the queues of their workers.
    pub steered: bool,
    /// Mode that the goal of a search chose, and that costs so much otherwise that it is no answer for others.
    pub for_goal: Option<DeliveryMode>,
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

    /// Whether it compared the mode that an older answer chose, at the load of that one, and did not choose it.
    pub(super) fn refutes(&self, older: &Self) -> bool {
        let EarlierVerdict::Better(mode) = older.verdict else { return false };
        let is_other = self.mode().is_some_and(|chosen| chosen != mode) && self.compared.contains(&mode);
        is_other && self.measured.is_near(older.measured.packets_per_s)
    }

    pub(super) fn is_unsteered(&self) -> bool {
        matches!(self.verdict, EarlierVerdict::Undecided { unsteered: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_outlives_its_own_load_unless_there_is_another_one_now() {
        let decides = |(then, own_load), now| {
            let (result, started_unix_s, packets_per_s) = ("bench-1".to_owned(), 7, Some(then));
            let (problem, reservation) = (None, None);
            let measured = EarlierMeasurement { result, started_unix_s, packets_per_s, own_load, problem, reservation };
            measured.decides_at(Some(now))
        };
        for own in [Some(OwnLoad::Judge), Some(OwnLoad::Generator)] {
            assert!(decides((2_720, own), 620), "the judge that Quell advises");
            assert!(decides((102_163, own), 150) && decides((102_163, own), 60_000));
            assert!(!decides((102_163, own), 4_105), "the live load is another one");
            assert!(!decides((2_720, own), 6_000), "a higher load");
        }
        assert!(!decides((2_720, None), 620));
        assert!(decides((8_038, Some(OwnLoad::Judge)), 4_000), "the judge sent as much as the live load");
        assert!(!decides((8_038, Some(OwnLoad::Generator)), 4_000));
    }
}
