//! Goals and guards: their text, and their evaluation on the observation of a slice.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use quell_experiment::{Criterion, Goal, LatencyCounts, SliceFlag, SliceObservation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A quantity that a goal or a guard names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TuneMetric {
    /// `p50`, `p99`, `p99.9`: quantile of the latencies of a slice, in µs. Without latencies, the metric that is recorded
    /// as `p99-us` (as `quell load --figures` prints it).
    Latency {
        /// Level of the quantile, above 0 and below 1.
        quantile: f64,
    },
    /// `cpu`: CPU time per request, in µs. Per packet if requests are not counted.
    Cpu,
    /// `busy`: share of time in which the server's CPUs were not idle, 0 to 1.
    Busy,
    /// `requests`: answered requests per second. Packets per second if requests are not counted.
    Requests,
    /// `errors`: 1 if requests failed in the slice, otherwise 0. A command that measures latency can print the number.
    Errors,
    /// `saturated`: 1 if the server fell behind its load in the slice, otherwise 0.
    Saturated,
    /// Any other name: the metric that the subject records under this name, in its unit.
    Recorded {
        /// Name in [`SliceObservation::metrics`].
        name: String,
    },
}

const CPU: [&str; 2] = ["cpu-us-per-request", "cpu-us-per-packet"];
const BUSY: [&str; 1] = ["busy-share"];
const REQUESTS: [&str; 2] = ["requests-per-s", "packets-per-s"];

impl TuneMetric {
    fn recorded_names(&self) -> Vec<&str> {
        match self {
            Self::Cpu => CPU.to_vec(),
            Self::Busy => BUSY.to_vec(),
            Self::Requests => REQUESTS.to_vec(),
            Self::Recorded { name } => vec![name],
            Self::Latency { .. } | Self::Errors | Self::Saturated => Vec::new(),
        }
    }

    /// Name under which a command that measures latency prints this metric.
    fn printed_name(&self) -> String {
        format!("{self}-us")
    }

    /// Whether a subject that records metrics under the names for which `is_recorded` returns true has this metric.
    #[must_use]
    pub fn is_among(&self, is_recorded: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Latency { .. } => is_recorded(&self.printed_name()),
            Self::Errors => is_recorded("errors"),
            _ => self.recorded_names().into_iter().any(is_recorded),
        }
    }

    /// Whether a subject that measures the latency of each request has this metric without a recorded name.
    #[must_use]
    pub fn needs_latencies(&self) -> bool {
        matches!(self, Self::Latency { .. } | Self::Errors | Self::Saturated)
    }

    /// Number of requests without which a slice has no value of this quantile. `None` for other metrics, and if a command
    /// prints it.
    pub(crate) fn requests_needed(&self, slice: &SliceObservation) -> Option<u64> {
        slice.latency.as_ref()?;
        match self {
            Self::Latency { quantile } => Some(LatencyCounts::count_needed(*quantile)),
            _ => None,
        }
    }

    /// Value of the metric in a slice. `None` if it could not be read.
    #[must_use]
    pub fn value(&self, slice: &SliceObservation) -> Option<f64> {
        // Only a subject with its own generator knows latencies, and which requests failed or waited.
        let flag = |flag| slice.latency.as_ref().map(|_| f64::from(u8::from(slice.flags.contains(&flag))));
        match self {
            Self::Latency { quantile } => match &slice.latency {
                Some(latency) => Some(latency.quantile(*quantile)? as f64 / 1e3),
                None => slice.metric(&self.printed_name()),
            },
            Self::Errors => slice.metric("errors").or_else(|| flag(SliceFlag::RequestsFailed)),
            Self::Saturated => flag(SliceFlag::Saturated),
            _ => self.recorded_names().into_iter().find_map(|name| slice.metric(name)),
        }
    }

    /// Criterion of an experiment that compares this metric. `slice` is any slice of the subject, because the recorded
    /// name depends on what the subject can count.
    #[must_use]
    pub fn criterion(&self, direction: TuneDirection, slice: &SliceObservation) -> Option<Criterion> {
        let goal = match direction {
            TuneDirection::Lowest => Goal::Lowest,
            TuneDirection::Highest => Goal::Highest,
        };
        match self {
            Self::Latency { quantile } if slice.latency.is_some() => Some(Criterion::Latency { quantile: *quantile }),
            Self::Latency { .. } => {
                let name = Some(self.printed_name()).filter(|name| slice.metric(name).is_some())?;
                Some(Criterion::Metric { name, goal })
            }
            _ => {
                let name = self.recorded_names().into_iter().find(|name| slice.metric(name).is_some())?.to_owned();
                Some(Criterion::Metric { name, goal })
            }
        }
    }
}

impl fmt::Display for TuneMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency { quantile } => write!(f, "p{}", (quantile * 1e8).round() / 1e6),
            Self::Cpu => f.write_str("cpu"),
            Self::Busy => f.write_str("busy"),
            Self::Requests => f.write_str("requests"),
            Self::Errors => f.write_str("errors"),
            Self::Saturated => f.write_str("saturated"),
            Self::Recorded { name } => f.write_str(name),
        }
    }
}

/// Whether low or high values of the objective are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TuneDirection {
    /// `least` or `lowest`.
    Lowest,
    /// `most` or `highest`.
    Highest,
}

/// A limit that the answer must hold at every load, in a typical slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneLimit {
    pub metric: TuneMetric,
    /// Largest permitted value, above 0: in the metric's unit, or if `relative`, as a multiple of the value under the
    /// present setting.
    pub at_most: f64,
    /// Whether the limit is a multiple of the value under the present setting. Changes of the machine that affect both
    /// settings then cancel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relative: bool,
}

impl TuneLimit {
    /// Largest permitted value in the metric's unit, if the present setting has the value `present`.
    #[must_use]
    pub fn bound(&self, present: f64) -> f64 {
        if self.relative { self.at_most * present } else { self.at_most }
    }

    /// Statistic of the present setting against a relative limit, which is certain without a slice: below 0 if the limit
    /// holds. `None` for an absolute limit.
    pub(crate) fn z_of_present(&self) -> Option<f64> {
        self.relative.then_some(if self.at_most >= 1.0 { f64::NEG_INFINITY } else { f64::INFINITY })
    }
}

impl fmt::Display for TuneLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.relative {
            true => write!(f, "{}<={}x", self.metric, self.at_most),
            false => write!(f, "{}<={}", self.metric, ValueText(&self.metric, self.at_most)),
        }
    }
}

/// What to optimize, and within which limits. Its text form is `p99<=300us, cpu<=1.1x, least cpu`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneGoal {
    /// Quantity to optimize.
    pub objective: TuneMetric,
    /// Whether low or high values of it are better.
    pub direction: TuneDirection,
    /// Limits of other quantities.
    pub limits: Vec<TuneLimit>,
}

impl TuneGoal {
    /// The objective, then the limited quantities.
    pub fn metrics(&self) -> impl Iterator<Item = &TuneMetric> {
        std::iter::once(&self.objective).chain(self.limits.iter().map(|limit| &limit.metric))
    }

    /// 1 if low values of the objective are better, otherwise -1.
    pub(crate) fn sign(&self) -> f64 {
        if self.direction == TuneDirection::Lowest { 1.0 } else { -1.0 }
    }
}

/// Condition under which an arm is abandoned at once: `p99>1ms`, `p99>2x`, `drops`, `errors`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneGuard {
    pub metric: TuneMetric,
    /// Largest permitted value: in the metric's unit, or if `relative`, as a multiple of the typical value under the present
    /// setting.
    pub above: f64,
    /// Whether the value is a multiple of the typical value under the present setting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relative: bool,
}

impl TuneGuard {
    /// Whether a slice violates the guard. `present` is the typical value under the present setting; without it, a relative
    /// guard is not violated. `None` if the metric could not be read.
    #[must_use]
    pub fn is_violated(&self, slice: &SliceObservation, present: Option<f64>) -> Option<bool> {
        let value = self.metric.value(slice)?;
        let bound = if self.relative { present.map(|present| self.above * present) } else { Some(self.above) };
        Some(bound.is_some_and(|bound| value > bound))
    }
}

impl fmt::Display for TuneGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.above {
            above if self.relative => write!(f, "{}>{above}x", self.metric),
            0.0 => write!(f, "{}", self.metric),
            above => write!(f, "{}>{}", self.metric, ValueText(&self.metric, above)),
        }
    }
}

impl fmt::Display for TuneGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for limit in &self.limits {
            write!(f, "{limit}, ")?;
        }
        match self.direction {
            TuneDirection::Lowest => match self.objective {
                TuneMetric::Latency { .. } => write!(f, "lowest {}", self.objective),
                _ => write!(f, "least {}", self.objective),
            },
            TuneDirection::Highest => write!(f, "most {}", self.objective),
        }
    }
}

struct ValueText<'a>(&'a TuneMetric, f64);

impl fmt::Display for ValueText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TuneMetric::Latency { .. } => write!(f, "{}us", self.1),
            _ => write!(f, "{}", self.1),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}, at `{}` in `{text}`", &text[place.clone()])]
pub struct TuneTextError {
    pub text: String,
    pub place: Range<usize>,
    pub why: &'static str,
}

const EMPTY: &str = "nothing to optimize: name one objective, such as `least cpu`, `lowest p99` or `most requests`";
const TWICE: &str = "a second objective: name one, and limit the others as in `p99<=300us`";
const UNKNOWN: &str = "expected a limit such as `p99<=300us` or `cpu<=1.1x`, or an objective such as `least cpu`";
const METRIC: &str =
    "expected cpu, busy, requests, p50, p99, p99.9, drops, stalls, wait-p99-us, or the name of a recorded metric";
const LATENCY: &str = "expected a latency above 0 with its unit, such as 300us or 1ms";
const NUMBER: &str = "expected a number of at least 0 (cpu: us per request; busy: a share up to 1 or a percentage)";

const BELOW_1: &str = "the present setting itself violates this guard: use a multiple of at least 1";
const MULTIPLE: &str = "expected a multiple of the value under the present setting, such as 1.1x";

/// Parts of a list, without surrounding spaces, each with its place in the text.
fn parts(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut from = 0;
    text.split(',').map(move |part| {
        let start = from + (part.len() - part.trim_start().len());
        from += part.len() + 1;
        (start..start + part.trim().len(), part.trim())
    })
}

fn metric(text: &str) -> Option<TuneMetric> {
    let is_quantile = |text: &str| text.starts_with('p') && text[1..].starts_with(|c: char| c.is_ascii_digit());
    Some(match text {
        "cpu" => TuneMetric::Cpu,
        "busy" => TuneMetric::Busy,
        "requests" => TuneMetric::Requests,
        "errors" => TuneMetric::Errors,
        "saturated" => TuneMetric::Saturated,
        text if is_quantile(text) && !text.contains('-') => {
            let percent: f64 = text[1..].parse().ok().filter(|percent| *percent > 0.0 && *percent < 100.0)?;
            TuneMetric::Latency { quantile: percent / 100.0 }
        }
        name if name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./ ".contains(c);
            name.chars().all(is_name).then(|| TuneMetric::Recorded { name: name.to_owned() })?
        }
        _ => return None,
    })
}

fn value(metric: &TuneMetric, text: &str) -> Result<f64, &'static str> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text[..split].parse::<f64>(), text[split..].trim());
    let is_latency = matches!(metric, TuneMetric::Latency { .. });
    let factor = match (unit, metric) {
        ("ns", TuneMetric::Latency { .. } | TuneMetric::Cpu) => 1e-3,
        ("us" | "µs", TuneMetric::Latency { .. } | TuneMetric::Cpu) => 1.0,
        ("ms", TuneMetric::Latency { .. } | TuneMetric::Cpu) => 1e3,
        ("s", TuneMetric::Latency { .. } | TuneMetric::Cpu) => 1e6,
        ("%", TuneMetric::Busy) => 0.01,
        ("K", TuneMetric::Requests) => 1e3,
        ("M", TuneMetric::Requests) => 1e6,
        ("", _) if !is_latency => 1.0,
        _ => return Err(if is_latency { LATENCY } else { NUMBER }),
    };
    let value = number.ok().map(|number| number * factor).filter(|value| value.is_finite());
    let is_possible = |value: &f64| match metric {
        TuneMetric::Latency { .. } => *value > 0.0,
        TuneMetric::Busy => *value <= 1.0,
        _ => true,
    };
    value.filter(is_possible).ok_or(if is_latency { LATENCY } else { NUMBER })
}

type Misplaced = (Range<usize>, &'static str);

/// Parses the name and the value on both sides of `operator`. The error has the place within `part`.
fn comparison(part: &str, operator: &str) -> Option<Result<(TuneMetric, f64), Misplaced>> {
    let at = part.find(operator)?;
    let (name, text) = (part[..at].trim(), part[at + operator.len()..].trim());
    let Some(metric) = metric(name) else { return Some(Err((0..name.len(), METRIC))) };
    Some(value(&metric, text).map(|value| (metric, value)).map_err(|why| (part.len() - text.len()..part.len(), why)))
}

/// Parses the name and the number of a multiple of the present setting, which `operator` separates. The error has the
/// place within the part.
fn relative((name, number): (&str, &str), operator: &str) -> Result<(TuneMetric, f64), Misplaced> {
    let from = name.len() + operator.len();
    let metric = metric(name.trim()).ok_or((0..name.len(), METRIC))?;
    let times = number.trim().parse().ok().filter(|times: &f64| times.is_finite() && *times >= 0.0);
    Ok((metric, times.ok_or((from..from + number.len(), MULTIPLE))?))
}

impl FromStr for TuneGoal {
    type Err = TuneTextError;

    fn from_str(text: &str) -> Result<Self, TuneTextError> {
        let error = |place: Range<usize>, why| TuneTextError { text: text.to_owned(), place, why };
        let (mut objective, mut limits) = (None, Vec::new());
        for (place, part) in parts(text) {
            let of_part = |range: Range<usize>| place.start + range.start..place.start + range.end;
            let multiple = part.strip_suffix('x').and_then(|part| part.split_once("<="));
            if let Some(limit) = multiple.map(|parts| relative(parts, "<=")).or_else(|| comparison(part, "<=")) {
                let (metric, at_most) = limit.map_err(|(range, why)| error(of_part(range), why))?;
                if at_most == 0.0 {
                    return Err(error(place, "a limit must be above 0; to forbid a value, use a guard"));
                }
                limits.push(TuneLimit { metric, at_most, relative: multiple.is_some() });
                continue;
            }
            let (word, name) = part.split_once(' ').unwrap_or((part, ""));
            let direction = match word {
                "least" | "lowest" => TuneDirection::Lowest,
                "most" | "highest" => TuneDirection::Highest,
                _ => return Err(error(place, UNKNOWN)),
            };
            let of_name = of_part(part.len() - name.len()..part.len());
            let metric = metric(name.trim()).filter(|one| !matches!(one, TuneMetric::Errors | TuneMetric::Saturated));
            let metric = metric.ok_or_else(|| error(of_name, METRIC))?;
            if objective.replace((metric, direction)).is_some() {
                return Err(error(place, TWICE));
            }
        }
        let (objective, direction) = objective.ok_or_else(|| error(0..text.len(), EMPTY))?;
        Ok(Self { objective, direction, limits })
    }
}

impl FromStr for TuneGuard {
    type Err = TuneTextError;

    /// Parses `METRIC>VALUE`, `METRIC>Nx`, or a name alone, which forbids every value above 0.
    fn from_str(text: &str) -> Result<Self, TuneTextError> {
        let text = text.trim();
        let error = |place: Range<usize>, why| TuneTextError { text: text.to_owned(), place, why };
        let multiple = text.strip_suffix('x').and_then(|text| text.split_once('>'));
        match multiple.map(|parts| relative(parts, ">")).or_else(|| comparison(text, ">")) {
            Some(Ok((_, above))) if multiple.is_some() && above < 1.0 => Err(error(0..text.len(), BELOW_1)),
            Some(guard) => {
                let (metric, above) = guard.map_err(|(range, why)| error(range, why))?;
                Ok(Self { metric, above, relative: multiple.is_some() })
            }
            None => {
                let metric = metric(text).filter(|metric| !matches!(metric, TuneMetric::Latency { .. }));
                let metric = metric.ok_or_else(|| error(0..text.len(), METRIC))?;
                Ok(Self { metric, above: 0.0, relative: false })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_parsed_and_printed() {
        for text in [
            "p99<=300us, least cpu",
            "p99<=1.1x, least cpu",
            "cpu<=2, lowest p99",
            "most requests",
            "p99.9<=1000us, busy<=0.5, lowest p50",
        ] {
            assert_eq!(text.parse::<TuneGoal>().unwrap_or_else(|why| panic!("{why}")).to_string(), text);
        }
        assert_eq!("p99<=1ms,lowest cpu".parse::<TuneGoal>().map(|goal| goal.limits[0].at_most), Ok(1000.0));
    }

    #[test]
    fn an_invalid_goal_is_refused_with_its_place() {
        let place = |text: &str| match text.parse::<TuneGoal>() {
            Err(TuneTextError { place, .. }) => text[place].to_owned(),
            Ok(goal) => panic!("{goal} was accepted"),
        };
        assert_eq!(place("p99<=300, least cpu"), "300");
        assert_eq!(place("p99<=twox, least cpu"), "two");
        assert_eq!(place("p101<=2x, least cpu"), "p101");
        assert_eq!(place("p99<=300us, least cpu, most requests"), "most requests");
        assert_eq!(place("p99<=300us"), "p99<=300us");
        assert_eq!(place("p101<=300us, least cpu"), "p101");
        assert_eq!(place("fast"), "fast");
        assert_eq!(place("least §"), "§");
    }

    #[test]
    fn a_latency_is_read_from_the_figure_of_a_command_if_there_are_no_latencies() {
        let goal: TuneGoal = "lowest p99".parse().unwrap_or_else(|why| panic!("{why}"));
        let slice = SliceObservation::default();
        assert_eq!(goal.objective.value(&slice), None);
        let slice = slice.with_metric("p99-us", Some(17.0));
        assert_eq!(goal.objective.value(&slice), Some(17.0));
        let criterion = Criterion::Metric { name: "p99-us".to_owned(), goal: Goal::Lowest };
        assert_eq!(goal.objective.criterion(goal.direction, &slice), Some(criterion));
    }

    #[test]
    fn a_guard_without_a_reading_says_so() {
        let guard: TuneGuard = "drops".parse().unwrap_or_else(|why| panic!("{why}"));
        let slice = SliceObservation::default();
        assert_eq!(guard.is_violated(&slice, None), None);
        assert_eq!(guard.is_violated(&slice.clone().with_metric("drops", Some(0.0)), None), Some(false));
        assert_eq!(guard.is_violated(&slice.with_metric("drops", Some(1.0)), None), Some(true));
        assert!("p99".parse::<TuneGuard>().is_err() && "p99>1".parse::<TuneGuard>().is_err());
    }

    #[test]
    fn a_guard_can_be_a_multiple_of_the_present_value() {
        let guard: TuneGuard = "p99>2x".parse().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(guard.to_string(), "p99>2x");
        let violated =
            |p99, present| guard.is_violated(&SliceObservation::default().with_metric("p99-us", Some(p99)), present);
        assert_eq!(violated(200.0, Some(100.0)), Some(false));
        assert_eq!(violated(201.0, Some(100.0)), Some(true));
        assert_eq!(violated(201.0, None), Some(false));
        assert!("p99>0.9x".parse::<TuneGuard>().is_err() && "p99>twox".parse::<TuneGuard>().is_err());
    }

    #[test]
    fn an_invalid_guard_is_refused_with_its_place_whatever_surrounds_it() {
        for (text, at) in [("p99>1\u{3000}", "`1`"), ("\u{3000}p101>1ms", "`p101`"), ("busy>90", "`90`")] {
            let error = text.parse::<TuneGuard>().unwrap_err().to_string();
            assert!(error.contains(&format!("at {at} in")), "{error}");
        }
    }
}
