//! Result of `quell tune`: the subject, and the search.

use quell_host::switching::ReportedSettings;
use quell_tune::TuneResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::experiment::{ExperimentResult, SubjectFacts};
use crate::facts::{HostFacts, OtherProgramFacts};

/// Result file: the subject, and the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneFile {
    /// `quell-tune/1`.
    pub schema: String,
    /// Version of Quell that made the search.
    pub quell_version: String,
    /// Start of the search, in seconds since 1970-01-01 UTC.
    pub started_unix_s: u64,
    pub host: HostFacts,
    /// Subject whose mode was switched.
    pub subject: SubjectFacts,
    /// Reason why the result is not a measurement. Absent if it is a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_a_measurement: Option<String>,
    /// Settings that another program changed during the search, and that were therefore not restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_alone: Vec<String>,
    /// Settings as the kernel reported them. Absent if another process set them (a command), if nothing was set (a
    /// model), and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<ReportedSettings>,
    /// Programs besides the server that may use its CPUs and used most CPU time during the measurement, at most three, the
    /// busiest one first. Absent if they were not observed (a model, a guest), and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_programs: Option<Vec<OtherProgramFacts>>,
    /// File for the mode that is found (`--profile`). Absent if none was asked for, and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The search and its answer.
    pub search: TuneResult,
}

impl TuneFile {
    /// A search on the subject of `begun`, a result without experiments that was made before the search.
    #[must_use]
    pub fn of(begun: ExperimentResult, search: TuneResult, left_alone: Vec<String>) -> Self {
        let ExperimentResult { quell_version, started_unix_s, host, subject, not_a_measurement, .. } = begun;
        let schema = Self::SCHEMA.to_owned();
        Self {
            schema,
            quell_version,
            started_unix_s,
            host,
            subject,
            not_a_measurement,
            left_alone,
            settings: None,
            other_programs: None,
            profile: None,
            search,
        }
    }
}

impl Document for TuneFile {
    const SCHEMA: &'static str = "quell-tune/1";
}
