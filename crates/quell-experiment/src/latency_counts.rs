//! Latencies of one slice, in a fraction of the memory of a [`LatencyHistogram`]. An experiment stores hundreds of
//! them.

use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::blocks::BEYOND_MIN;

/// The slots of a [`LatencyHistogram`] that are not empty. The conversion is lossless, and the value is serialized as a
/// histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Upper end of each slot in ns, and the number of latencies in it, in ascending order.
    slots: Box<[(u64, u32)]>,
}

impl LatencyCounts {
    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.slots.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Slots that are not empty, in ascending order: the upper end in ns, and the number of latencies.
    #[must_use]
    pub fn slots(&self) -> &[(u64, u32)] {
        &self.slots
    }

    /// Number of latencies without which [`Self::quantile`] is `None`.
    #[must_use]
    pub fn count_needed(quantile: f64) -> u64 {
        // The tolerance keeps 500 from becoming 501.
        (BEYOND_MIN / (1.0 - quantile) - 1e-6).ceil() as u64
    }

    /// Quantile of the latencies in ns. `None` if fewer than 5 latencies are expected above it.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        Self::quantile_of(std::iter::once(self), quantile, BEYOND_MIN)
    }

    /// Quantile of the latencies of all `parts` together, in ns; see [`LatencyHistogram::quantile`]. `None` if fewer
    /// than `beyond` latencies are expected above it.
    pub(crate) fn quantile_of<'a>(parts: impl Iterator<Item = &'a Self>, quantile: f64, beyond: f64) -> Option<u64> {
        let mut slots: Vec<(u64, u32)> = parts.flat_map(|part| part.slots()).copied().collect();
        slots.sort_unstable_by_key(|(ns, _)| *ns);
        let count: u64 = slots.iter().map(|(_, count)| u64::from(*count)).sum();
        if count == 0 || count as f64 * (1.0 - quantile) < beyond {
            return None;
        }
        let rank = ((count as f64 * quantile).ceil() as u64).max(1);
        let mut up_to = 0;
        let reaches = |(_, count): &&(u64, u32)| {
            up_to += u64::from(*count);
            up_to >= rank
        };
        slots.iter().find(reaches).map(|(ns, _)| *ns)
    }

    /// Adds all latencies to `histogram`.
    pub fn add_to(&self, histogram: &mut LatencyHistogram) {
        for (ns, count) in &self.slots {
            histogram.record_n(*ns, *count);
        }
    }
}

impl From<&LatencyHistogram> for LatencyCounts {
    fn from(histogram: &LatencyHistogram) -> Self {
        Self { slots: histogram.slots().collect() }
    }
}

impl Serialize for LatencyCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut histogram = LatencyHistogram::new();
        self.add_to(&mut histogram);
        histogram.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LatencyCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&LatencyHistogram::deserialize(deserializer)?))
    }
}

impl JsonSchema for LatencyCounts {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        LatencyHistogram::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LatencyHistogram::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quantile_with_too_few_latencies_above_it_is_absent() {
        let mut histogram = LatencyHistogram::new();
        (1..=500).for_each(|ns| histogram.record(ns));
        let counts = LatencyCounts::from(&histogram);
        assert_eq!(LatencyCounts::quantile_of([&counts].into_iter(), 0.99, 5.0), Some(495));
        assert_eq!(LatencyCounts::quantile_of([&counts].into_iter(), 0.995, 5.0), None);
        assert_eq!(LatencyCounts::quantile_of([&counts; 2].into_iter(), 0.995, 5.0), Some(498));
        assert_eq!(LatencyCounts::quantile_of([].into_iter(), 0.5, 0.0), None);
    }

    proptest! {
        #[test]
        fn counts_hold_everything_that_the_histogram_holds(ns in prop::collection::vec(0_u64..1 << 40, 0..50)) {
            let mut histogram = LatencyHistogram::new();
            ns.iter().for_each(|ns| histogram.record(*ns));
            let counts = LatencyCounts::from(&histogram);
            let mut again = LatencyHistogram::new();
            counts.add_to(&mut again);
            prop_assert_eq!(&again, &histogram);
            for quantile in [0.3, 0.5, 0.99] {
                let of_counts = LatencyCounts::quantile_of([&counts].into_iter(), quantile, 0.0);
                prop_assert_eq!(of_counts.map(std::time::Duration::from_nanos), histogram.quantile(quantile));
            }
            let text = serde_json::to_string(&counts).unwrap();
            prop_assert_eq!(serde_json::from_str::<LatencyCounts>(&text).unwrap(), counts);
        }
    }
}
