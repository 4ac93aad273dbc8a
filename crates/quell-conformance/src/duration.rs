//! Durations in scenario files: a number and a unit, such as `200us`, `20ms` or `30.72ms`, or `0`.

use std::fmt;
use std::str::FromStr;

use quell_mode::parse_timeout_ns;
use serde::{Deserialize, Deserializer};

/// A duration, or a time since the start of a scenario, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

/// Longest duration in a scenario: one hour. Sums of a few such values cannot overflow.
const LONGEST_NS: u64 = 3_600_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration `{0}`: expected 0, or a number with a unit (ns, us, ms, s) up to one hour, such as 20ms")]
pub struct NotADuration(String);

impl FromStr for Nanos {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        let has_unit = text == "0" || text.ends_with('s');
        let ns = parse_timeout_ns(text).ok().filter(|&ns| has_unit && ns <= LONGEST_NS);
        ns.map(Self).ok_or_else(|| NotADuration(text.to_owned()))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns @ 0..10_000 => write!(f, "{ns} ns"),
            ns @ 10_000..1_000_000 => write!(f, "{:.0} us", ns as f64 / 1e3),
            ns => write!(f, "{:.2} ms", ns as f64 / 1e6),
        }
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_and_a_unit_are_a_duration() {
        for (text, ns) in [("0", 0), ("7ns", 7), ("200us", 200_000), ("30.72ms", 30_720_000), ("1.5s", 1_500_000_000)] {
            assert_eq!(text.parse(), Ok(Nanos(ns)), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_and_quoted() {
        for text in ["", "5", "ms", "-1ms", "1,5ms", ".5ms", "5.ms", "5 ms", "2h", "9999999s", "1.0000000001s"] {
            let error = text.parse::<Nanos>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = text.parse::<Nanos>();
        }
    }
}
