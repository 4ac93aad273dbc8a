//! Loads under which modes are compared: as they are requested, and as they are offered once `base`'s maximum is known.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Offered load, written as `50%`, `200K` or `max`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum OfferedLoad {
    /// Open loop with this percentage of `base`'s closed-loop throughput in this lab.
    Percent(f64),
    /// Open loop with this rate, in requests per second.
    Rate(f64),
    /// Closed loop: each connection sends its next request as soon as the previous one is answered.
    Max,
}

/// A text that is not a load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid load `{0}`: expected requests per second (200K, 1.2M, 35000), max, or, where base is measured, a share of its maximum throughput (50%)"
)]
pub struct InvalidLoad(String);

/// Load that is offered, in requests per second over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Load {
    /// Open loop with this rate.
    Qps(f64),
    /// Closed loop: each connection sends its next request as soon as the previous one is answered.
    Max,
}

impl From<Load> for OfferedLoad {
    fn from(load: Load) -> Self {
        match load {
            Load::Qps(rate) => Self::Rate(rate),
            Load::Max => Self::Max,
        }
    }
}

impl OfferedLoad {
    /// Returns the offered rate in requests per second, given `base`'s maximum throughput. `None` for a closed loop.
    #[must_use]
    pub fn rate_per_s(self, base_reaches_per_s: f64) -> Option<f64> {
        match self {
            Self::Percent(percent) => Some(base_reaches_per_s * percent / 100.0),
            Self::Rate(rate) => Some(rate),
            Self::Max => None,
        }
    }
}

impl FromStr for OfferedLoad {
    type Err = InvalidLoad;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || InvalidLoad(text.to_owned());
        let number = |digits: &str| {
            let number: f64 = digits.parse().map_err(|_| fail())?;
            if number.is_finite() && number > 0.0 { Ok(number) } else { Err(fail()) }
        };
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        if let Some(percent) = text.strip_suffix('%') {
            return Ok(Self::Percent(number(percent)?));
        }
        let (digits, factor) = match text.strip_suffix(['K', 'k']).map(|digits| (digits, 1e3)) {
            Some(thousands) => thousands,
            None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
        };
        Ok(Self::Rate(number(digits)? * factor))
    }
}

impl fmt::Display for OfferedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => f.pad(&format!("{percent}%")),
            Self::Rate(rate) if *rate >= 1e3 && (rate / 1e3).fract() == 0.0 => f.pad(&format!("{}K", rate / 1e3)),
            Self::Rate(rate) => f.pad(&rate.to_string()),
            Self::Max => f.pad("max"),
        }
    }
}

impl TryFrom<String> for OfferedLoad {
    type Error = InvalidLoad;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<OfferedLoad> for String {
    fn from(load: OfferedLoad) -> Self {
        load.to_string()
    }
}

impl FromStr for Load {
    type Err = InvalidLoad;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse()? {
            OfferedLoad::Rate(rate) => Ok(Self::Qps(rate)),
            OfferedLoad::Max => Ok(Self::Max),
            OfferedLoad::Percent(_) => Err(InvalidLoad(text.to_owned())),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OfferedLoad::from(*self).fmt(f)
    }
}

impl TryFrom<String> for Load {
    type Error = InvalidLoad;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Load> for String {
    fn from(load: Load) -> Self {
        load.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_rates_and_max_are_distinguished() {
        assert_eq!("50%".parse(), Ok(OfferedLoad::Percent(50.0)));
        assert_eq!("200K".parse(), Ok(OfferedLoad::Rate(200_000.0)));
        assert_eq!("1.5M".parse(), Ok(OfferedLoad::Rate(1_500_000.0)));
        assert_eq!("35000".parse(), Ok(OfferedLoad::Rate(35_000.0)));
        assert_eq!("MAX".parse(), Ok(OfferedLoad::Max));
    }

    #[test]
    fn a_share_is_no_load_that_is_offered() {
        assert_eq!("600K".parse(), Ok(Load::Qps(600e3)));
        assert_eq!(format!("{:>5}|{}", Load::Max, Load::Qps(250.0)), "  max|250");
        assert!("50%".parse::<Load>().is_err());
    }

    #[test]
    fn an_invalid_load_is_refused() {
        for text in ["", "%", "0%", "-5", "NaN", "inf", "K", "50 %", "1e400"] {
            assert!(text.parse::<OfferedLoad>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_percentage_is_a_share_of_the_maximum_throughput_of_base() {
        assert_eq!(OfferedLoad::Percent(50.0).rate_per_s(80_000.0), Some(40_000.0));
        assert_eq!(OfferedLoad::Max.rate_per_s(80_000.0), None);
    }

    proptest! {
        #[test]
        fn a_load_that_is_displayed_parses_back(rate in 0.001f64..1e9) {
            for load in [OfferedLoad::Percent(rate), OfferedLoad::Rate(rate), OfferedLoad::Rate(rate.ceil() * 1e3), OfferedLoad::Max] {
                let back: OfferedLoad = load.to_string().parse().unwrap();
                let close = match (load, back) {
                    (OfferedLoad::Rate(a), OfferedLoad::Rate(b)) | (OfferedLoad::Percent(a), OfferedLoad::Percent(b)) => (a - b).abs() <= a * 1e-12,
                    (a, b) => a == b,
                };
                prop_assert!(close, "{load:?} {back:?}");
            }
        }

        #[test]
        fn no_text_makes_the_load_parser_panic(text in ".{0,20}") {
            let _ = text.parse::<OfferedLoad>();
        }
    }
}
