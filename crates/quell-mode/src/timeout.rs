//! Text form of timeouts: a whole number of ns, or a whole number followed by a unit.

/// Units and their values in ns. The largest unit comes first.
const UNITS: [(&str, u64); 4] = [("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)];

/// Why a text is not a timeout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TimeoutError {
    /// The text is not a whole number with an optional unit.
    Malformed,
    /// The timeout exceeds 2⁶⁴ − 1 ns.
    TooLarge,
}

/// Parses `5000000`, `5000000ns`, `5000us`, `5ms` or `2s`.
pub(crate) fn parse_timeout_ns(text: &str) -> Result<u64, TimeoutError> {
    let (number, unit_ns) =
        UNITS.iter().find_map(|(suffix, ns)| Some((text.strip_suffix(suffix)?, *ns))).unwrap_or((text, 1));
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TimeoutError::Malformed);
    }
    number.parse::<u64>().ok().and_then(|count| count.checked_mul(unit_ns)).ok_or(TimeoutError::TooLarge)
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
    fn signs_fractions_and_bare_units_are_malformed() {
        for text in ["", "ms", "+5", "-5", "1.5ms", "5 ms", "5m", "５"] {
            assert_eq!(parse_timeout_ns(text), Err(TimeoutError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_timeout_above_64_bits_is_too_large() {
        assert_eq!(parse_timeout_ns("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_timeout_ns("18446744073709551616"), Err(TimeoutError::TooLarge));
        assert_eq!(parse_timeout_ns("18446744074s"), Err(TimeoutError::TooLarge));
    }
}
