//! Median and range of repeated measurements. A few repeats do not support an assumption about their distribution.

/// Median and range of repeated measurements of a metric, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median of the values. For an even number of values, it is the mean of the middle two.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Number of values.
    pub n: usize,
    /// Number of repeats whose value is absent or not finite.
    pub absent: usize,
}

impl Spread {
    /// Computes the spread of `values`. Returns `None` if no value is present.
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

/// Median of values in ascending order; `None` if there are none.
fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
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
    fn without_values_there_is_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([None, Some(f64::NAN)]), None);
    }

    #[test]
    fn an_absent_value_is_counted_as_absent_not_as_zero() {
        let spread = Spread::of([Some(3.0), None, Some(1.0), Some(2.0)]);
        assert_eq!(spread, Some(Spread { median: 2.0, min: 1.0, max: 3.0, n: 3, absent: 1 }));
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        let spread = Spread::of([Some(4.0), Some(1.0), Some(2.0), Some(100.0)]);
        assert_eq!(spread.map(|spread| spread.median), Some(3.0));
    }
}
