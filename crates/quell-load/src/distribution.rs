//! Named distributions of sizes and inter-arrival times, defined by their quantile functions. The presets describe the
//! "ETC" pool in Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store", SIGMETRICS 2012, section 5.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A distribution of a non-negative quantity (bytes, or a gap whose mean is scaled to the rate).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Distribution(Shape);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Fixed { value: f64 },
    Uniform { low: f64, high: f64 },
    Exponential { mean: f64 },
    GeneralizedExtremeValue { location: f64, scale: f64, shape: f64 },
    GeneralizedPareto { location: f64, scale: f64, shape: f64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("distribution '{text}': {problem}")]
pub struct DistributionError {
    text: String,
    problem: &'static str,
}

const FORMS: &str = "expected fixed:VALUE, uniform:LOW,HIGH, exponential:MEAN, gev:LOCATION,SCALE,SHAPE, \
                     gpd:LOCATION,SCALE,SHAPE, facebook-keys, facebook-values or facebook-gaps";

impl Distribution {
    /// Key sizes of the published experiment, bytes: `gev:30.7984,8.20449,0.078688`.
    pub const FACEBOOK_KEYS: Self =
        Self(Shape::GeneralizedExtremeValue { location: 30.7984, scale: 8.204_49, shape: 0.078_688 });
    /// Value sizes of the published experiment, bytes: `gpd:15,214.476,0.348238`. The paper's separate table for values
    /// of up to 15 bytes is not included.
    pub const FACEBOOK_VALUES: Self =
        Self(Shape::GeneralizedPareto { location: 15.0, scale: 214.476, shape: 0.348_238 });
    /// Gaps between requests of the published experiment, scaled to the rate: `gpd:0,16.0292,0.154971`.
    pub const FACEBOOK_GAPS: Self = Self(Shape::GeneralizedPareto { location: 0.0, scale: 16.0292, shape: 0.154_971 });
    /// Gaps of a Poisson process, scaled to the rate.
    pub const POISSON_GAPS: Self = Self(Shape::Exponential { mean: 1.0 });

    #[must_use]
    pub fn fixed(value: u32) -> Self {
        Self(Shape::Fixed { value: value.into() })
    }

    /// Quantile at `p` (0 < `p` < 1), before clamping. The two generalised families can be negative at their lower end.
    #[inline]
    #[must_use]
    pub fn quantile(&self, p: f64) -> f64 {
        match self.0 {
            Shape::Fixed { value } => value,
            Shape::Uniform { low, high } => low + p * (high - low),
            Shape::Exponential { mean } => -mean * (-p).ln_1p(),
            Shape::GeneralizedExtremeValue { location, scale, shape } => {
                location + scale * stretched(-(-p.ln()).ln(), shape)
            }
            Shape::GeneralizedPareto { location, scale, shape } => location + scale * stretched(-(-p).ln_1p(), shape),
        }
    }

    /// The mean. `None` if it is infinite (shape 1 and above).
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        const EULER_MASCHERONI: f64 = 0.577_215_664_901_532_9;
        match self.0 {
            Shape::Fixed { value } => Some(value),
            Shape::Uniform { low, high } => Some((low + high) / 2.0),
            Shape::Exponential { mean } => Some(mean),
            Shape::GeneralizedExtremeValue { shape, .. } | Shape::GeneralizedPareto { shape, .. } if shape >= 1.0 => {
                None
            }
            Shape::GeneralizedExtremeValue { location, scale, shape: 0.0 } => Some(location + scale * EULER_MASCHERONI),
            Shape::GeneralizedExtremeValue { location, scale, shape } => {
                Some(location + scale * (libm::tgamma(1.0 - shape) - 1.0) / shape)
            }
            Shape::GeneralizedPareto { location, scale, shape } => Some(location + scale / (1.0 - shape)),
        }
    }

    /// Quantile at `p`, rounded to whole bytes and clamped to `low..=high`.
    #[must_use]
    pub fn size_at(&self, p: f64, low: u32, high: u32) -> u32 {
        self.quantile(p).round().clamp(f64::from(low), f64::from(high)) as u32
    }
}

/// (e^(shape·x) − 1) / shape, whose limit at shape 0 is x. `exp_m1` keeps it exact near 0.
#[inline]
fn stretched(x: f64, shape: f64) -> f64 {
    if shape == 0.0 { x } else { (shape * x).exp_m1() / shape }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Shape::Fixed { value } => write!(f, "fixed:{value}"),
            Shape::Uniform { low, high } => write!(f, "uniform:{low},{high}"),
            Shape::Exponential { mean } => write!(f, "exponential:{mean}"),
            Shape::GeneralizedExtremeValue { location, scale, shape } => write!(f, "gev:{location},{scale},{shape}"),
            Shape::GeneralizedPareto { location, scale, shape } => write!(f, "gpd:{location},{scale},{shape}"),
        }
    }
}

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        let refuse = |problem| DistributionError { text: text.to_owned(), problem };
        match text {
            "facebook-keys" => return Ok(Self::FACEBOOK_KEYS),
            "facebook-values" => return Ok(Self::FACEBOOK_VALUES),
            "facebook-gaps" => return Ok(Self::FACEBOOK_GAPS),
            _ => {}
        }
        let (name, numbers) = text.split_once(':').ok_or_else(|| refuse(FORMS))?;
        let numbers: Vec<f64> = numbers
            .split([',', ':'])
            .map(f64::from_str)
            .collect::<Result<_, _>>()
            .map_err(|_| refuse("a parameter is not a number"))?;
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(refuse("a parameter is not finite"));
        }
        let shape = match (name, numbers[..].as_ref()) {
            ("fixed", &[value]) => Shape::Fixed { value },
            ("uniform", &[low, high]) => Shape::Uniform { low, high },
            ("exponential", &[mean]) => Shape::Exponential { mean },
            ("gev", &[location, scale, shape]) => Shape::GeneralizedExtremeValue { location, scale, shape },
            ("gpd" | "pareto", &[location, scale, shape]) => Shape::GeneralizedPareto { location, scale, shape },
            _ => return Err(refuse(FORMS)),
        };
        shape.check().map_err(refuse)?;
        Ok(Self(shape))
    }
}

impl Shape {
    fn check(self) -> Result<(), &'static str> {
        match self {
            Self::Fixed { value } if value < 0.0 => Err("the value must not be below 0"),
            Self::Uniform { low, high } if low < 0.0 || high < low => Err("needs 0 ≤ LOW ≤ HIGH"),
            Self::Exponential { mean } if mean <= 0.0 => Err("the mean must be above 0"),
            Self::GeneralizedExtremeValue { scale, .. } | Self::GeneralizedPareto { scale, .. } if scale <= 0.0 => {
                Err("the scale must be above 0")
            }
            _ => Ok(()),
        }
    }
}

impl TryFrom<String> for Distribution {
    type Error = DistributionError;

    fn try_from(text: String) -> Result<Self, DistributionError> {
        text.parse()
    }
}

impl From<Distribution> for String {
    fn from(distribution: Distribution) -> Self {
        distribution.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{Purpose, Stream};

    const DRAWS: usize = 200_000;

    fn sorted_draws(distribution: Distribution) -> Vec<f64> {
        let mut stream = Stream::new(11, Purpose::Arrivals, 0);
        let mut draws: Vec<f64> = (0..DRAWS).map(|_| distribution.quantile(stream.unit())).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }

    /// Checks the Kolmogorov–Smirnov distance between the sample and the distribution function. A distance above 1.95 /
    /// √n occurs once in a thousand samples.
    fn assert_follows(distribution: Distribution, cdf: impl Fn(f64) -> f64) {
        let draws = sorted_draws(distribution);
        let n = draws.len() as f64;
        let distance =
            draws.iter().enumerate().map(|(i, &x)| (cdf(x) - (i as f64 + 0.5) / n).abs()).fold(0.0, f64::max);
        assert!(distance < 1.95 / n.sqrt(), "{distribution}: {distance}");
    }

    #[test]
    fn drawn_key_sizes_follow_the_generalised_extreme_value_formula() {
        assert_follows(Distribution::FACEBOOK_KEYS, |x| {
            (-(1.0 + 0.078_688 * (x - 30.7984) / 8.204_49).max(0.0).powf(-1.0 / 0.078_688)).exp()
        });
    }

    #[test]
    fn drawn_value_sizes_follow_the_generalised_pareto_formula() {
        assert_follows(Distribution::FACEBOOK_VALUES, |x| {
            1.0 - (1.0 + 0.348_238 * (x - 15.0) / 214.476).powf(-1.0 / 0.348_238)
        });
    }

    #[test]
    fn drawn_gaps_follow_their_formulas() {
        assert_follows(Distribution::FACEBOOK_GAPS, |x| 1.0 - (1.0 + 0.154_971 * x / 16.0292).powf(-1.0 / 0.154_971));
        assert_follows(Distribution::POISSON_GAPS, |x| 1.0 - (-x).exp());
        assert_follows("uniform:1,100".parse().unwrap(), |x| (x - 1.0) / 99.0);
    }

    #[test]
    fn the_mean_matches_many_draws() {
        let named =
            ["uniform:1,100", "exponential:3", "fixed:200", "facebook-keys", "facebook-values", "facebook-gaps"];
        for text in named {
            let distribution: Distribution = text.parse().unwrap();
            let mean = sorted_draws(distribution).iter().sum::<f64>() / DRAWS as f64;
            let ratio = mean / distribution.mean().unwrap();
            assert!((ratio - 1.0).abs() < 0.02, "{text}: {ratio}");
        }
    }

    #[test]
    fn a_shape_of_zero_is_the_limit_of_small_shapes() {
        for p in [0.01, 0.5, 0.99] {
            for family in ["gev", "gpd"] {
                let at = |shape: &str| format!("{family}:1,2,{shape}").parse::<Distribution>().unwrap().quantile(p);
                assert!((at("0") - at("1e-9")).abs() < 1e-6, "{family} {p}");
            }
        }
    }

    #[test]
    fn a_pareto_tail_of_shape_one_has_no_mean() {
        assert_eq!("gpd:0,1,1".parse::<Distribution>().unwrap().mean(), None);
    }

    #[test]
    fn presets_have_names_and_sizes_are_clamped() {
        let keys: Distribution = "facebook-keys".parse().unwrap();
        assert_eq!(keys, Distribution::FACEBOOK_KEYS);
        assert_eq!(keys.size_at(1e-15, 10, 250), 10);
        assert_eq!(keys.size_at(1.0 - 1e-15, 4, 250), 250);
    }

    #[test]
    fn an_invalid_text_is_refused_and_quoted_in_the_message() {
        for text in
            ["", "fixed", "fixed:", "fixed:-1", "uniform:5,1", "gev:1,0,0", "exponential:0", "gpd:1,nan,0", "zipf:1"]
        {
            let error = text.parse::<Distribution>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("distribution '{text}': ")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_back(location in -1e3..1e3_f64, scale in 1e-3..1e3_f64, shape in -1.0..2.0_f64) {
            for family in ["gev", "gpd"] {
                let distribution: Distribution = format!("{family}:{location},{scale},{shape}").parse().unwrap();
                prop_assert_eq!(distribution.to_string().parse::<Distribution>().unwrap(), distribution);
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<Distribution>();
        }

        #[test]
        fn quantiles_rise(p in 0.001..0.998_f64) {
            for text in ["uniform:1,9", "exponential:2", "gev:1,2,0.3", "gev:1,2,-0.3", "gpd:1,2,0.3", "gpd:1,2,-0.3"] {
                let distribution: Distribution = text.parse().unwrap();
                prop_assert!(distribution.quantile(p) < distribution.quantile(p + 0.001));
            }
        }
    }
}
