//! Report of `quell load`.

use quell_load::{LoadReport, LoadSpec, RunSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;

/// A load, and what became of its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LoadRun {
    /// `quell-load/1`.
    pub schema: String,
    /// Configuration of the generator.
    pub spec: LoadSpec,
    /// Schedule and durations.
    pub run: RunSpec,
    /// Outcome of the requests.
    pub report: LoadReport,
}

impl Document for LoadRun {
    const SCHEMA: &'static str = "quell-load/1";
}

impl LoadRun {
    #[must_use]
    pub fn new(spec: LoadSpec, run: RunSpec, report: LoadReport) -> Self {
        Self { schema: Self::SCHEMA.to_owned(), spec, run, report }
    }
}
