//! The observation of one slice.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency_counts::LatencyCounts;

/// Values that were observed in one slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SliceObservation {
    /// Total time of the slice, including setting and settling, in milliseconds. It counts against the budget.
    pub spent_ms: f64,
    /// Metrics by name, for example the CPU time per request. A metric that could not be read has no entry.
    pub metrics: BTreeMap<String, f64>,
    /// Latencies of the requests in this slice. Absent if they were not measured.
    pub latency: Option<LatencyCounts>,
    /// Share of the CPU time that other programs used or the hypervisor stole, from 0 to 1. Absent if it is unknown.
    pub foreign_cpu: Option<f64>,
    /// Events that limit the validity of the slice.
    pub flags: BTreeSet<SliceFlag>,
}

/// An event that limits the validity of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SliceFlag {
    /// The server was slower than the offered rate, so the slowest latencies are missing. A treatment with more such
    /// slices than the other one is never better by latency.
    Saturated,
    /// Requests failed. A treatment with more such slices than the other one is never better.
    RequestsFailed,
    /// The load generator sent requests late. This alone prevents no verdict.
    LoadWasLate,
    /// Other programs used more than half of the time in which the server's CPUs were not idle. This alone prevents no
    /// verdict: it concerns only metrics of these CPUs.
    ForeignCpu,
    /// Other programs used most of the busy time of the server's CPUs, which were hardly ever idle, and the server waited
    /// for a CPU. This alone prevents no verdict: it concerns latencies and rates that clients see.
    NoIdleCpu,
}

/// An observed value that is negative, infinite or not a number.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the subject reported {value} for {name}; expected a finite value of at least 0")]
pub struct InvalidObservation {
    /// Name of the metric or field.
    pub name: String,
    /// Reported value.
    pub value: f64,
}

impl SliceObservation {
    /// Adds a metric if it has a value.
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

    /// Checks that every value is finite and not negative.
    pub fn check(&self) -> Result<(), InvalidObservation> {
        let fields = [("spent-ms", Some(self.spent_ms)), ("foreign-cpu", self.foreign_cpu)];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let metrics = self.metrics.iter().map(|(name, value)| (&**name, *value));
        match fields.chain(metrics).find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, value)) => Err(InvalidObservation { name: name.to_owned(), value }),
            None => Ok(()),
        }
    }
}

/// A slice and its position in the experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SliceRecord {
    /// Number of the block, from 0.
    pub block: u32,
    /// Number of the arm. 0 is the reference, 1 is its control, and the others are the treatments in the order of the
    /// design.
    pub arm: usize,
    /// Observed values of the slice.
    pub observation: SliceObservation,
}
