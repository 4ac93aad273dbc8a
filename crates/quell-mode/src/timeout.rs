//! Text form of durations: a number, which may have a fraction, followed by a unit.

use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;
/// Units of timeouts. Minutes have no unit here: `m` is too easily typed for `ms`.
const TIMEOUT_UNITS: &[(&str, u64)] = &[("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", SECOND_NS), ("", 1)];
const LONG_UNITS: &[(&str, u64)] = &[("s", SECOND_NS), ("m", 60 * SECOND_NS), ("", SECOND_NS)];

/// Why a text is not a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationError {
    /// The text is not a number with an optional unit, or not a whole number of ns.
    Malformed,
    /// The duration exceeds 2⁶⁴ − 1 ns.
    TooLarge,
}

/// Parses a timeout in ns: `5000000`, `5000us`, `5ms`, `1.5ms` or `2s`.
pub fn parse_timeout_ns(text: &str) -> Result<u64, DurationError> {
    parse_ns(text, TIMEOUT_UNITS)
}

/// Parses a number of µs without a unit, in ns: `20` or `0.5`.
pub(crate) fn parse_usecs_as_ns(text: &str) -> Result<u64, DurationError> {
    parse_ns(text, &[("", 1_000)])
}

/// Parses a time for which somebody waits: `60s`, `5m`, or seconds without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    parse_ns(text, LONG_UNITS).map(Duration::from_nanos)
}

/// `units` are suffixes with their lengths in ns, longer suffixes first.
fn parse_ns(text: &str, units: &[(&str, u64)]) -> Result<u64, DurationError> {
    let found = units.iter().find_map(|(suffix, ns)| Some((text.strip_suffix(suffix)?, *ns)));
    let (number, unit_ns) = found.ok_or(DurationError::Malformed)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return Err(DurationError::Malformed);
    }
    let whole_ns = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit_ns));
    let mut left_ns = unit_ns;
    let mut fraction_ns = 0;
    for digit in fraction.trim_end_matches('0').bytes() {
        if left_ns % 10 != 0 {
            return Err(DurationError::Malformed);
        }
        left_ns /= 10;
        fraction_ns += u64::from(digit - b'0') * left_ns;
    }
    whole_ns.and_then(|whole_ns| whole_ns.checked_add(fraction_ns)).ok_or(DurationError::TooLarge)
}

/// Formats a timeout with the largest unit that gives a whole number. `0` has no unit.
pub(crate) fn timeout_text(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        ns if ns.is_multiple_of(1_000_000_000) => format!("{}s", ns / 1_000_000_000),
        ns if ns.is_multiple_of(1_000_000) => format!("{}ms", ns / 1_000_000),
        ns if ns.is_multiple_of(1_000) => format!("{}us", ns / 1_000),
        ns => format!("{ns}ns"),
    }
}

/// A time for readers, in the largest unit that gives an integer: `20 µs`. It cannot be parsed.
#[must_use]
pub fn duration_text(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    let unit = units.into_iter().find(|(unit, _)| ns != 0 && ns.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ns} ns"), |(size, unit)| format!("{} {unit}", ns / size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_integers() {
        let shown = [20_000_000, 200_000, 1_500, 0].map(duration_text);
        assert_eq!(shown, ["20 ms", "200 µs", "1500 ns", "0 ns"]);
    }

    #[test]
    fn a_plain_number_is_nanoseconds() {
        assert_eq!(parse_timeout_ns("20000"), Ok(20_000));
    }

    #[test]
    fn units_are_ns_us_ms_and_s() {
        assert_eq!(parse_timeout_ns("7ns"), Ok(7));
        assert_eq!(parse_timeout_ns("7us"), Ok(7_000));
        assert_eq!(parse_timeout_ns("7ms"), Ok(7_000_000));
        assert_eq!(parse_timeout_ns("7s"), Ok(7_000_000_000));
    }

    #[test]
    fn a_fraction_is_a_whole_number_of_ns() {
        assert_eq!(parse_timeout_ns("30.72ms"), Ok(30_720_000));
        assert_eq!(parse_timeout_ns("1.50us"), Ok(1_500));
        assert_eq!(parse_timeout_ns("0.000000001s"), Ok(1));
        for text in ["1.5", "1.5ns", "1.0000000001s", "1.ms", ".5ms", "1.2.3s"] {
            assert_eq!(parse_timeout_ns(text), Err(DurationError::Malformed), "{text}");
        }
    }

    #[test]
    fn long_durations_are_seconds_or_minutes() {
        assert_eq!(parse_duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("5ms"), Err(DurationError::Malformed));
    }

    #[test]
    fn signs_and_bare_units_are_malformed() {
        for text in ["", "ms", "+5", "-5", "5 ms", "5m", "５"] {
            assert_eq!(parse_timeout_ns(text), Err(DurationError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_timeout_above_64_bits_is_too_large() {
        assert_eq!(parse_timeout_ns("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_timeout_ns("18446744073709551616"), Err(DurationError::TooLarge));
        assert_eq!(parse_timeout_ns("18446744074s"), Err(DurationError::TooLarge));
        assert_eq!(parse_timeout_ns("18446744073.8s"), Err(DurationError::TooLarge));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,20}|[0-9]{0,25}[.]?[0-9]{0,25}[mun]?[sm]?") {
            let _ = (parse_timeout_ns(&text), parse_duration(&text));
        }
    }
}
