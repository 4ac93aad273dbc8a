//! Result of a published experiment that was played on this machine.

use quell_load::{OfferedLoad, ServeShape, Transport};
use quell_published::Experiment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::experiment::ExperimentResult;

/// Value of [`PublishedRun::ended`] after a signal.
pub const INTERRUPTED: &str = "interrupted";

/// Result file: the parts of a published experiment, each measured as an experiment of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PublishedRun {
    /// `quell-published/1`.
    pub schema: String,
    pub experiment: Experiment,
    /// Parts, in the order in which they were measured.
    pub parts: Vec<PublishedPart>,
    /// Reason why cycles and instructions are absent. Absent if this machine counts them, or if the experiment does not
    /// use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_hardware_counters: Option<String>,
    /// Reason why the experiment ended before its last part. Absent if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Document for PublishedRun {
    const SCHEMA: &'static str = "quell-published/1";
}

/// One server under several modes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PublishedPart {
    pub transport: Transport,
    /// How the server waits for requests.
    pub shape: ServeShape,
    /// Size of requests and responses, in bytes. Absent for memcached, which has the published distributions of sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_bytes: Option<u32>,
    /// Published load of memcached. Here, the same share of the throughput of `base` in a closed loop is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<OfferedLoad>,
    pub threads: u32,
    /// The measurement. Absent if the part is not possible here.
    pub result: Option<ExperimentResult>,
    /// Reason why the part is not possible here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_possible: Option<String>,
}

/// Name of a part: its server, and its load or message size.
#[must_use]
pub fn part_name(
    transport: Transport,
    shape: ServeShape,
    message_bytes: Option<u32>,
    load: Option<OfferedLoad>,
) -> String {
    match (message_bytes, load) {
        (Some(bytes), _) => format!("{}, {bytes} B", server_name(transport, shape)),
        (None, Some(load)) => format!("memcached, {load}"),
        (None, None) => "memcached".to_owned(),
    }
}

/// Name of a responder: its transport and how it waits.
#[must_use]
pub fn server_name(transport: Transport, shape: ServeShape) -> String {
    let transport = if transport == Transport::Tcp { "TCP" } else { "UDP" };
    let shape = if shape == ServeShape::Blocking { "recv" } else { "epoll" };
    format!("{transport} {shape}")
}
