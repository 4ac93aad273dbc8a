//! Report of `quell load`.

use quell_load::{LoadReport, LoadSpec, RunSpec};
use quell_xdp::{XdpLoadReport, XdpLoadSpec};
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

/// A load through an AF_XDP socket, and what became of its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpLoadRun {
    /// `quell-load-xdp/1`.
    pub schema: String,
    /// Configuration of the load.
    pub spec: XdpLoadSpec,
    /// Outcome of the requests.
    pub report: XdpLoadReport,
}

impl Document for XdpLoadRun {
    const SCHEMA: &'static str = "quell-load-xdp/1";
}

impl XdpLoadRun {
    #[must_use]
    pub fn new(spec: XdpLoadSpec, report: XdpLoadReport) -> Self {
        Self { schema: Self::SCHEMA.to_owned(), spec, report }
    }
}
