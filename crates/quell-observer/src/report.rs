//! One report as data.

use quell_host::attach::effect::ModeVerdict;
use quell_linux::{NapiId, Pid};
use quell_sampler::QueueSample;
use schemars::JsonSchema;
use serde::Serialize;

/// What happened on the queues during one interval.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IntervalReport {
    /// Always `quell-top/1`.
    pub schema: &'static str,
    /// End of the interval in wall-clock nanoseconds since 1970.
    pub unix_ns: u64,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Reason why polls cannot be sampled; null if they are.
    pub polls_unknown: Option<String>,
    /// NAPI instances of the devices, by device.
    pub queues: Vec<ObservedQueue>,
    /// Programs with sockets on these instances, in ascending order of process ID.
    pub programs: Vec<ObservedProgram>,
    /// Idle states that the CPUs entered, from the lightest to the deepest. Empty without a cpuidle driver.
    pub idle_states: Vec<ObservedIdleState>,
    /// Number of processes whose files the reader may not access, so that it is unknown whether they have sockets.
    pub hidden_processes: usize,
}

/// An idle state, over all CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedIdleState {
    /// Name from the cpuidle driver.
    pub name: String,
    /// Number of times that CPUs entered it during the interval.
    pub entered: u64,
}

/// One NAPI instance.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedQueue {
    /// Inode of the network namespace of its device.
    pub namespace: u64,
    /// Name of its device.
    pub device: String,
    /// Its receive queues, in ascending order.
    pub rx_queues: Vec<u32>,
    /// The instance.
    pub napi: NapiId,
    /// Interrupts during the interval; null if the instance has none, or it cannot be counted.
    pub interrupts: Option<u64>,
    /// CPU time of its NAPI thread during the interval, in nanoseconds; null without such a thread.
    pub thread_ns: Option<u64>,
    /// Its polls during the interval; null if polls cannot be sampled.
    pub sample: Option<QueueSample>,
}

impl ObservedQueue {
    /// CPU time of the polls by softirqs and by the NAPI thread, in nanoseconds. Polls of programs are in the CPU time of
    /// the programs. Absent if a part is unknown.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<u64> {
        let sample = self.sample?;
        let thread_ns = if sample.polls.thread > 0 { self.thread_ns? } else { self.thread_ns.unwrap_or(0) };
        Some(sample.softirq_ns? + thread_ns)
    }
}

/// One program.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedProgram {
    /// Process ID.
    pub pid: Pid,
    /// Name of its main thread.
    pub name: String,
    /// Systemd service or scope that contains it; null without one, and if it cannot be read.
    pub unit: Option<String>,
    /// NAPI instances that its sockets last received packets from, in ascending order.
    pub napis: Vec<NapiId>,
    /// CPU time of its threads divided by wall-clock time, between the two latest snapshots; 1 is one CPU. Null before
    /// the second snapshot, and if a counter cannot be read.
    pub cpus: Option<f64>,
    /// Mode that `quell attach` or `quell run` applied; null without one, and if the journals cannot be read.
    pub mode: Option<String>,
    /// Whether that mode is in effect on the program's queues: "not in effect" if it is not on one of them. Null without
    /// a mode or without samples.
    pub effect: Option<ModeVerdict>,
    /// Number of settings of that mode that no longer have the applied value, at the latest snapshot. Null without a mode,
    /// and if a setting cannot be read.
    pub drifted: Option<usize>,
}
