//! Durations in scenario files: a number and a unit, such as `200us`, `20ms` or `30.72ms`, or `0`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// A duration, or a time since the start of a scenario, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

/// Longest duration in a scenario: one hour. Sums of a few such values cannot overflow.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Units. A suffix such as `s` is listed after the longer suffixes that end with it.
const UNITS: &[(&str, u64)] = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration `{0}`: expected 0, or a number with a unit (ns, us, ms, s) up to one hour, such as 20ms")]
pub struct NotADuration(String);

impl FromStr for Nanos {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        let wrong = || NotADuration(text.to_owned());
        if text == "0" {
            return Ok(Self(0));
        }
        let (number, unit_ns) =
            UNITS.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns))).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || (number.contains('.') && !digits(fraction)) || fraction.len() > 9 {
            return Err(wrong());
        }
        let whole_ns = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit_ns)).ok_or_else(wrong)?;
        let fraction_ns = match fraction {
            "" => 0,
            _ => fraction.parse::<u64>().map_err(|_| wrong())? * unit_ns / 10_u64.pow(fraction.len() as u32),
        };
        let ns = whole_ns.checked_add(fraction_ns).filter(|&ns| ns <= LONGEST_NS).ok_or_else(wrong)?;
        Ok(Self(ns))
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
