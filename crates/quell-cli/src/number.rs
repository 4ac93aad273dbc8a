//! Number formatting: significant digits.

use quell_linux::visible::thousands;

/// Placeholder for a missing value.
pub const ABSENT: &str = "–";

/// Formats with three significant digits, or all integer digits; [`ABSENT`] unless finite.
#[must_use]
pub fn short(value: f64) -> String {
    let decimals = match value.abs() {
        small if small < 10.0 => 2,
        medium if medium < 100.0 => 1,
        _ => 0,
    };
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    if value == 0.0 { "0".to_owned() } else { thousands(&format!("{value:.decimals$}")) }
}

#[must_use]
pub fn count(value: usize) -> String {
    thousands(&value.to_string())
}

/// Formats with up to three decimals, without trailing zeros.
#[must_use]
pub fn plain(value: f64) -> String {
    let decimals = format!("{value:.3}");
    decimals.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_separators_and_small_ones_three_digits() {
        let shown = [0.0, 0.123, 9.994, 12.34, 123.4, 1234.0, 1_234_567.0, -1234.0].map(short);
        assert_eq!(shown, ["0", "0.12", "9.99", "12.3", "123", "1,234", "1,234,567", "-1,234"]);
    }
}
