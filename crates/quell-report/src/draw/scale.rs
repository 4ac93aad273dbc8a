//! Axes: from values to pixels, and the values that have a line.

use quell_cli::number;
use quell_linux::visible::thousands;

/// Ratio of the largest to the smallest value above which an axis is logarithmic.
const LOG_FROM: f64 = 6.0;

/// A linear or logarithmic axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    min: f64,
    max: f64,
    is_log: bool,
    from_px: f64,
    to_px: f64,
}

impl Scale {
    /// An axis with room for all finite values, from `from_px` to `to_px`. `None` without values.
    pub(crate) fn over(values: impl Iterator<Item = f64>, from_px: f64, to_px: f64) -> Option<Self> {
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && *value < 1e15) {
            (min, max) = (min.min(value), max.max(value));
        }
        if min > max {
            return None;
        }
        let is_log = min > 0.0 && max / min > LOG_FROM;
        let (min, max) = match is_log {
            true => (min / 1.15, max * 1.15),
            false => {
                let room = ((max - min) * 0.08).max(max.abs() * 0.02).max(1e-9);
                ((min - room).max(if min >= 0.0 { 0.0 } else { f64::NEG_INFINITY }), max + room)
            }
        };
        Some(Self { min, max, is_log, from_px, to_px })
    }

    /// A linear axis from 0.
    pub(crate) fn from_zero(max: f64, from_px: f64, to_px: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        Self { min: 0.0, max, is_log: false, from_px, to_px }
    }

    /// A logarithmic axis of ratios around 1.
    pub(crate) fn of_ratios(min: f64, max: f64, from_px: f64, to_px: f64) -> Self {
        Self { min, max, is_log: true, from_px, to_px }
    }

    /// Pixel of a value; values outside are at the ends.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value / self.min).ln() / (self.max / self.min).ln(),
            false => (value - self.min) / (self.max - self.min),
        };
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.from_px + (self.to_px - self.from_px) * share
    }

    pub(crate) fn has(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    pub(crate) fn ends(&self) -> (f64, f64) {
        (self.min, self.max)
    }

    pub(crate) fn word(&self) -> &'static str {
        if self.is_log { "logarithmic" } else { "linear" }
    }

    /// At most `count` round values within the axis.
    pub(crate) fn ticks(&self, count: usize) -> Vec<f64> {
        let within = |values: Vec<f64>| -> Vec<f64> { values.into_iter().filter(|value| self.has(*value)).collect() };
        if self.is_log {
            let decades = || (-9..15).map(|decade| 10f64.powi(decade));
            let of = |digits: &[f64]| within(decades().flat_map(|unit| digits.iter().map(move |d| d * unit)).collect());
            let finer = [of(&[1.0, 2.0, 3.0, 5.0, 7.0]), of(&[1.0, 2.0, 5.0]), of(&[1.0, 3.0]), of(&[1.0])];
            return finer.into_iter().find(|ticks| ticks.len() <= count).unwrap_or_default();
        }
        let rough = (self.max - self.min) / count as f64;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * unit).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(unit * 10.0);
        let first = (self.min / step).ceil();
        within((0..=count).map(|index| (first + index as f64) * step).collect())
    }
}

/// Number at an axis.
pub(crate) fn tick(value: f64) -> String {
    if value >= 100_000.0 { compact(value) } else { thousands(&number::plain(value)) }
}

/// A large number with its unit prefix: `150K`.
pub(crate) fn compact(value: f64) -> String {
    let three = |value: f64| {
        let rounded = if value < 10.0 { (value * 100.0).round() / 100.0 } else { (value * 10.0).round() / 10.0 };
        number::plain(rounded)
    };
    match value {
        small if small < 1e3 => three(small),
        thousands if thousands < 1e6 => format!("{}K", three(thousands / 1e3)),
        millions => format!("{}M", three(millions / 1e6)),
    }
}

/// The axis of nines, 1/(1−p): each nine of the quantile has the same width.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nines {
    nines: f64,
    from_px: f64,
    to_px: f64,
}

/// Quantiles with a line, and their names.
const MARKED: [(f64, &str); 7] = [
    (0.5, "50"),
    (0.9, "90"),
    (0.99, "99"),
    (0.999, "99.9"),
    (0.9999, "99.99"),
    (0.99999, "99.999"),
    (0.999_999, "99.9999"),
];

impl Nines {
    /// An axis from 0 to this quantile.
    pub(crate) fn to(last: f64, from_px: f64, to_px: f64) -> Self {
        Self { nines: nines(last).max(0.5), from_px, to_px }
    }

    pub(crate) fn at(&self, quantile: f64) -> f64 {
        self.from_px + (self.to_px - self.from_px) * (nines(quantile) / self.nines).clamp(0.0, 1.0)
    }

    /// Marked quantiles within the axis, with their names in percent.
    pub(crate) fn marked(&self) -> impl Iterator<Item = (f64, &'static str)> + use<> {
        let nines_max = self.nines + 1e-9;
        MARKED.into_iter().filter(move |(quantile, _)| nines(*quantile) <= nines_max)
    }
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_values_and_not_too_many() {
        let ticks = |min: f64, max: f64| Scale::over([min, max].into_iter(), 0.0, 100.0).unwrap().ticks(6);
        assert_eq!(ticks(0.0, 97.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(20.0, 2_000.0), [30.0, 100.0, 300.0, 1_000.0]);
        for (min, max) in [(1.0, 1.0), (0.0, 0.0), (1e-9, 1e9), (5.0, 5.001)] {
            assert!(ticks(min, max).len() <= 7, "{min} to {max}: {:?}", ticks(min, max));
        }
    }

    #[test]
    fn an_axis_without_a_finite_value_does_not_exist() {
        assert!(Scale::over([f64::NAN, f64::INFINITY].into_iter(), 0.0, 1.0).is_none());
    }

    #[test]
    fn each_nine_has_the_same_width() {
        let axis = Nines::to(0.999, 0.0, 300.0);
        let at: Vec<f64> = [0.0, 0.9, 0.99, 0.999].map(|quantile| axis.at(quantile).round()).to_vec();
        assert_eq!(at, [0.0, 100.0, 200.0, 300.0]);
        assert_eq!(axis.marked().last(), Some((0.999, "99.9")));
    }

    #[test]
    fn large_numbers_at_an_axis_have_a_prefix() {
        assert_eq!([tick(0.5), tick(2_000.0), tick(150_000.0), compact(2.5e6)], ["0.5", "2,000", "150K", "2.5M"]);
    }
}
