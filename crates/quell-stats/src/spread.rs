//! What repeats of one figure came to: the middle one and the range. No assumption about their
//! distribution, which a handful of repeats could not support.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Median and range of a figure that was measured several times, in the figure's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// The middle value; of an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// How many values there are.
    pub n: usize,
    /// How many repeats had no value: it could not be read, or was not a finite number.
    pub absent: usize,
}

impl Spread {
    /// The spread of `values`; absent when none is present.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut absent = 0;
        let mut present: Vec<f64> = values
            .into_iter()
            .filter_map(|value| {
                let finite = value.filter(|value| value.is_finite());
                absent += usize::from(finite.is_none());
                finite
            })
            .collect();
        present.sort_by(f64::total_cmp);
        Some(Self {
            median: median_of_sorted(&present)?,
            min: *present.first()?,
            max: *present.last()?,
            n: present.len(),
            absent,
        })
    }
}

/// The median of ascending `sorted`; absent when empty.
pub(crate) fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(lower / 2.0 + upper / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([None, Some(f64::NAN)]), None);
    }

    #[test]
    fn an_absent_value_is_counted_and_is_not_zero() {
        let spread = Spread::of([Some(3.0), None, Some(1.0), Some(2.0)]);
        assert_eq!(spread, Some(Spread { median: 2.0, min: 1.0, max: 3.0, n: 3, absent: 1 }));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([Some(4.0), Some(1.0), Some(2.0), Some(100.0)]);
        assert_eq!(spread.map(|spread| spread.median), Some(3.0));
    }
}
