//! The observation of one slice.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency_counts::LatencyCounts;

/// Observation of one slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SliceObservation {
    /// Time that the slice took with setting and settling, in milliseconds. It counts against the budget.
    pub spent_ms: f64,
    /// Values by name, such as CPU time per request. A value that could not be read has no entry.
    pub metrics: BTreeMap<String, f64>,
    /// Latencies of the requests of this slice. Absent if nobody measured them.
    pub latency: Option<LatencyCounts>,
    /// Share of the CPU time that other programs used or the hypervisor stole, 0 to 1. Absent if it is unknown.
    pub foreign_cpu: Option<f64>,
    /// Events that limit what the slice shows.
    pub flags: BTreeSet<SliceFlag>,
}

/// An event that limits what a slice shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SliceFlag {
    /// The server was slower than the offered rate: the slowest latencies are missing. A treatment with more such slices
    /// than its counterpart is never better by latency.
    Saturated,
    /// Requests failed. A treatment with more such slices than its counterpart is never better.
    RequestsFailed,
    /// The load generator sent late. It limits no verdict by itself.
    LoadWasLate,
}

/// A value that cannot be compared by ratio.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the subject reported {value} for {name}: a value is finite and 0 or more, and an absent value has no entry")]
pub struct InvalidObservation {
    /// Metric or field.
    pub name: String,
    /// Value.
    pub value: f64,
}

impl SliceObservation {
    /// Adds a metric, unless its value is absent.
    #[must_use]
    pub fn with_metric(mut self, name: &str, value: Option<f64>) -> Self {
        if let Some(value) = value {
            self.metrics.insert(name.to_owned(), value);
        }
        self
    }

    /// Value of a metric. `None` if it could not be read.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }

    pub(crate) fn check(&self) -> Result<(), InvalidObservation> {
        let fields = [("spent-ms", Some(self.spent_ms)), ("foreign-cpu", self.foreign_cpu)];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let metrics = self.metrics.iter().map(|(name, value)| (&**name, *value));
        match fields.chain(metrics).find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, value)) => Err(InvalidObservation { name: name.to_owned(), value }),
            None => Ok(()),
        }
    }
}

/// A slice with its place in the experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SliceRecord {
    /// Block, from 0.
    pub block: u32,
    /// Arm: 0 is the reference, 1 its control, the others are the treatments in the order of the design.
    pub arm: usize,
    /// Observation.
    pub observation: SliceObservation,
}
