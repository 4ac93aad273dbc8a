//! One report of `quell top` as data, for `--json` and the renderers.

use quell_host::attach::effect::ModeVerdict;
use quell_linux::{NapiId, Pid};
use quell_sampler::QueueSample;
use schemars::JsonSchema;
use serde::Serialize;

/// What happened on the queues during one interval.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TopReport {
    /// Always `quell-top/1`.
    pub(crate) schema: &'static str,
    /// End of the interval in wall-clock nanoseconds since 1970.
    pub(crate) unix_ns: u64,
    /// Length of the interval in nanoseconds.
    pub(crate) interval_ns: u64,
    /// Reason why polls cannot be sampled; null if they are.
    pub(crate) polls_unknown: Option<String>,
    /// NAPI instances of the devices, by device.
    pub(crate) queues: Vec<TopQueue>,
    /// Programs with sockets on these instances, in ascending order of process ID.
    pub(crate) programs: Vec<TopProgram>,
    /// Number of processes whose files the reader may not access, so that it is unknown whether they have sockets.
    pub(crate) hidden_processes: usize,
}

/// One NAPI instance.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TopQueue {
    /// Inode of the network namespace of its device.
    pub(crate) namespace: u64,
    /// Name of its device.
    pub(crate) device: String,
    /// Its receive queues, in ascending order.
    pub(crate) rx_queues: Vec<u32>,
    /// The instance.
    pub(crate) napi: NapiId,
    /// Interrupts during the interval; null if the instance has none, or it cannot be counted.
    pub(crate) interrupts: Option<u64>,
    /// Its polls during the interval; null if polls cannot be sampled.
    pub(crate) sample: Option<QueueSample>,
}

/// One program.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TopProgram {
    /// Process ID.
    pub(crate) pid: Pid,
    /// Name of its main thread.
    pub(crate) name: String,
    /// NAPI instances that its sockets last received packets from, in ascending order.
    pub(crate) napis: Vec<NapiId>,
    /// CPU time of its threads divided by wall-clock time, between the two latest snapshots; 1 is one CPU. Null before
    /// the second snapshot, and if a counter cannot be read.
    pub(crate) cpus: Option<f64>,
    /// Mode that `quell attach` or `quell run` applied; null without one, and if the journals cannot be read.
    pub(crate) mode: Option<String>,
    /// Whether that mode is in effect on the program's queues: "not in effect" if it is not on one of them. Null without
    /// a mode or without samples.
    pub(crate) effect: Option<ModeVerdict>,
}
