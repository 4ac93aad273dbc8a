//! Rows of `quell sim run`: one JSON object, or lines of JSON that a longer sweep adds to. Rows of `--server xsk` have
//! a document of their own.

use quell_sim::sweep::{Setup, SweepRow};
use quell_sim::{XskFigures, XskPolling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::document::header_and_lines;

/// What all rows have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SimulationSetup {
    /// Name of the simulated host.
    pub host: String,
    /// Number of receive queues. There are as many workers, each with a CPU.
    pub queues: usize,
    /// Whether each queue has an additional CPU for its interrupt, NAPI thread or polling thread.
    pub irqs_apart: bool,
    pub connections: usize,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: u64,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: u64,
}

impl From<&Setup> for SimulationSetup {
    fn from(setup: &Setup) -> Self {
        Self {
            host: setup.host.name.clone(),
            queues: setup.queues,
            irqs_apart: setup.irqs_apart,
            connections: setup.connections,
            warm_up_ns: setup.warm_up_ns,
            measured_ns: setup.measured_ns,
        }
    }
}

/// Rows of `quell sim run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SimulationRun {
    /// `quell-sim-run/1`.
    pub schema: String,
    #[serde(flatten)]
    pub setup: SimulationSetup,
    /// One row for each mode, load and seed.
    pub rows: Vec<SweepRow>,
}

impl Document for SimulationRun {
    const SCHEMA: &'static str = "quell-sim-run/1";
}

impl SimulationRun {
    #[must_use]
    pub fn new(setup: &Setup, rows: Vec<SweepRow>) -> Self {
        Self { schema: Self::SCHEMA.to_owned(), setup: setup.into(), rows }
    }
}

/// First line of the output of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SweepHeader {
    /// `quell-sim-sweep/1`.
    pub schema: String,
    /// Changes with the model and with the constants of the host.
    pub model: String,
    #[serde(flatten)]
    pub setup: SimulationSetup,
}

impl SweepHeader {
    /// Describes the sweep of a setup whose fingerprint is `model`.
    #[must_use]
    pub fn new(setup: &Setup, model: String) -> Self {
        Self { schema: SweepRows::SCHEMA.to_owned(), model, setup: setup.into() }
    }
}

/// Output of a sweep: lines of JSON, first the header, then one row on each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SweepRows {
    /// The first line.
    #[serde(flatten)]
    pub header: SweepHeader,
    /// The other lines. A line that was written in part is not a row.
    #[serde(default)]
    pub rows: Vec<SweepRow>,
}

impl Document for SweepRows {
    const SCHEMA: &'static str = "quell-sim-sweep/1";

    fn from_json(text: &str) -> serde_json::Result<Self> {
        let (mut sweep, rows): (Self, Vec<SweepRow>) = header_and_lines(text)?;
        sweep.rows.extend(rows);
        Ok(sweep)
    }
}

/// Rows of `quell sim run --server xsk`: two hosts that exchange packets over AF_XDP sockets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct XskSimulationRun {
    /// `quell-sim-xsk/1`.
    pub schema: String,
    /// Name of the profile of each of the two hosts.
    pub host: String,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: u64,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: u64,
    /// One row for each way to poll, period and delay.
    pub rows: Vec<XskRow>,
}

impl Document for XskSimulationRun {
    const SCHEMA: &'static str = "quell-sim-xsk/1";
}

/// One way to poll at one period and delay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct XskRow {
    /// Who polls the queues of both hosts.
    pub mode: XskPolling,
    /// Time between two packets of the client, in ns.
    pub period_ns: u64,
    /// CPU time that the client spends on each reply, in ns.
    pub delay_ns: u64,
    /// Metrics of the run.
    pub figures: XskFigures,
}
