//! The result file of a bench run. It holds everything needed to reproduce the run: machine, lab, settings as reported
//! by the kernel, seeds, and the counters and raw histograms of every trial. A counter that could not be read is
//! absent, never zero. `docs/schema/` contains the JSON Schema.

use std::collections::BTreeMap;

use quell_load::{LoadReport, LoadSpec};
use quell_mode::{EpollParams, NapiSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuLayout;
use crate::plan::{Plan, TrialId};

/// Value of the `schema` field that this version writes and reads.
pub const SCHEMA: &str = "quell-bench/1";

/// One bench run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BenchResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of Quell that made the measurement.
    pub quell_version: String,
    /// Start of the run: wall-clock seconds since 1970.
    pub began_unix_s: u64,
    /// Measured machine.
    pub host: HostFacts,
    /// Lab or model that the results come from.
    pub lab: Lab,
    /// Server under test. Absent on the model, which has its own server.
    pub server: Option<ServerFacts>,
    /// Generator configuration without the rate of each trial. Absent on the model.
    pub load: Option<LoadSpec>,
    /// Planned measurements and their order.
    pub plan: Plan,
    /// Throughput of `base` before each block of trials whose load is a share of it.
    pub base_reaches: Vec<BaseReach>,
    /// Every trial, in execution order.
    pub trials: Vec<Trial>,
    /// Modes of the plan that could not be set here, with the reason. They have no trials.
    pub refused: BTreeMap<String, String>,
    /// Why the results are not a measurement. Absent if they are.
    pub not_a_measurement: Option<String>,
    /// Whether the run ended before its last trial.
    pub interrupted: bool,
}

/// Closed-loop throughput of `base` just before the trials of one load in one repeat. The speed of a shared machine
/// drifts, so an older value could be wrong by a factor of two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BaseReach {
    /// Index of the repeat, from 0.
    pub repeat: u32,
    /// Index into the plan's loads.
    pub load: usize,
    /// Requests per second.
    pub per_s: f64,
}

/// Facts about the measured machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostFacts {
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`.
    pub kernel_version: String,
    /// Kernel command line.
    pub kernel_command_line: Option<String>,
    /// CPU model, as reported in `/proc/cpuinfo`.
    pub cpu_model: Option<String>,
    /// CPUs that this process may use.
    pub cpus: Vec<u32>,
    /// `net.core.busy_poll`, µs. If it is not 0, every mode busy polls.
    pub busy_poll_us: Option<u32>,
    /// `net.core.busy_read`, µs.
    pub busy_read_us: Option<u32>,
}

/// Source of the results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Lab {
    /// Measured on a private lab of two network namespaces and a veth pair.
    Veth(LabFacts),
    /// Simulated on the model.
    Sim(SimFacts),
}

impl Lab {
    /// The veth lab. Absent if the results have another source.
    #[must_use]
    pub fn veth(&self) -> Option<&LabFacts> {
        match self {
            Self::Veth(facts) => Some(facts),
            Self::Sim(_) => None,
        }
    }
}

/// Description of the simulated system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SimFacts {
    /// Profile name of the modelled host.
    pub profile: String,
    /// Description of the modelled host.
    pub description: String,
    /// Number of RX queues. Workers and CPUs have the same number.
    pub queues: u32,
    /// Total number of connections.
    pub connections: u32,
    /// How values were obtained that mean something else on the model than on a lab, by field name in the trials.
    pub obtained: BTreeMap<String, String>,
}

/// Facts about the lab after its setup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LabFacts {
    /// Name of the lab and prefix of its namespaces.
    pub name: String,
    /// Number of RX queues of the server's device. The client's device has the same number.
    pub queues: u32,
    /// Whether each queue's NAPI thread stands in for its interrupt.
    pub interrupt_stand_in: bool,
    /// CPU assignment.
    pub cpus: CpuLayout,
    /// Whether a server CPU and a client CPU are hardware threads of one core and slow each other down. Absent if the
    /// machine does not report it.
    pub shared_core: Option<bool>,
    /// NAPI IDs of the server's queues.
    pub server_napi_ids: Vec<u32>,
    /// NAPI IDs of the client's queues.
    pub client_napi_ids: Vec<u32>,
    /// Settings of the client's queues, the same in every trial.
    pub client_napi: NapiSettings,
    /// Checks made before the measurement, each with the observation.
    pub checks: Vec<Check>,
}

/// A precondition for valid results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Check {
    /// Required condition.
    pub claim: String,
    /// Observation.
    pub seen: String,
    /// Whether the condition holds.
    pub holds: bool,
}

impl Check {
    /// Description of a failed check: the required condition and the observation.
    #[must_use]
    pub fn violation(&self) -> String {
        format!("expected: {}; found: {}", self.claim, self.seen)
    }
}

/// Facts about the server under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerFacts {
    /// Command with its arguments.
    pub command: Vec<String>,
    /// Version that the server reports. Absent if it reports none.
    pub version: Option<String>,
    /// Workers of the server.
    pub workers: Vec<WorkerFacts>,
}

/// One epoll of the server that carries connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WorkerFacts {
    /// Thread that waits on the epoll. Absent if it is unknown.
    pub tid: Option<i32>,
    /// CPU that the thread is pinned to. Absent if the thread is unknown.
    pub cpu: Option<u32>,
    /// Number of the epoll's file descriptor in the server.
    pub epoll_fd: i32,
    /// Number of connections in the epoll.
    pub connections: u32,
    /// Number of these connections that bypass NAPI.
    pub connections_without_napi: u32,
    /// NAPI IDs of the connections in the epoll.
    pub napi_ids: Vec<u32>,
}

/// One trial: one mode under one load in one repeat.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Trial {
    /// Mode, load and repeat.
    pub id: TrialId,
    /// 0 for the first attempt. A disturbed attempt may be followed by another; [`BenchResult::trial`] selects the one
    /// that counts.
    pub attempt: u32,
    /// Start of the measured time, in milliseconds since the start of the run.
    pub began_ms: u64,
    /// Settings that the kernel reported after the mode was set.
    pub settings: SettingsReadBack,
    /// Requested rate in requests per second. Absent in a closed loop.
    pub offered_per_s: Option<f64>,
    /// The generator's report: counts, latencies, its lateness and CPU cost.
    pub load: LoadReport,
    /// Kernel counters over the measured time.
    pub counters: TrialCounters,
    /// Reasons to distrust this trial. Empty if there are none.
    pub disturbances: Vec<Disturbance>,
}

/// Settings as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsReadBack {
    /// Settings of each of the server's queues.
    pub napi: Vec<NapiSettings>,
    /// Busy-poll parameters of each worker's epoll.
    pub epoll: Vec<EpollParams>,
}

/// Kernel counters over the measured time of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrialCounters {
    /// Run time of the server's threads (`/proc/PID/task/TID/schedstat`), in nanoseconds.
    pub server_run_ns: Option<u64>,
    /// Run time of the NAPI threads of the server's queues, in nanoseconds. Absent if softirqs poll the queues, because
    /// no thread is charged for their time.
    pub napi_run_ns: Option<u64>,
    /// Time of the server's CPUs.
    pub server_cpus: Option<CpuUse>,
    /// Time of the client's CPUs.
    pub client_cpus: Option<CpuUse>,
    /// Number of wake-ups of the NAPI threads of the server's queues, counted as voluntary context switches.
    pub napi_wakeups: Option<u64>,
    /// Number of times that a thread of the server slept, counted as voluntary context switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_sleeps: Option<u64>,
    /// Device interrupts of the server's queues. Absent on a veth, which has no interrupts.
    pub irqs: Option<u64>,
    /// Polls of the server's queues by any thread or softirq (tracepoint `napi:napi_poll`).
    pub polls: Option<u64>,
    /// Polls that found no packet.
    pub empty_polls: Option<u64>,
    /// Packets found by these polls.
    pub polled_packets: Option<u64>,
    /// `TcpExt BusyPollRxPackets` of the server's namespace. A lower bound, because the final poll is not counted.
    pub busy_poll_rx_packets: Option<u64>,
    /// Number of the server's successful waits for events, in a sample after the measured time.
    pub epoll_waits: Option<u64>,
    /// Number of events returned by these waits.
    pub epoll_events: Option<u64>,
    /// Packets dropped in either direction.
    pub drops: Option<u64>,
    /// TCP segments retransmitted by either side.
    pub retransmits: Option<u64>,
}

/// Time accounting of a set of CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuUse {
    /// Measured time multiplied by the number of CPUs, in nanoseconds.
    pub capacity_ns: u64,
    /// Idle and I/O wait time from `/proc/stat`, in nanoseconds.
    pub idle_ns: u64,
    /// Time stolen by the hypervisor, in nanoseconds.
    pub steal_ns: u64,
    /// Run time of the lab's threads: server or generator, and NAPI threads. In nanoseconds.
    pub lab_ns: u64,
}

impl CpuUse {
    /// Time spent outside the lab or stolen by the hypervisor, as a share of the capacity. It includes interrupts,
    /// which no thread is charged for.
    #[must_use]
    pub fn foreign_share(&self) -> Option<f64> {
        let used = self.capacity_ns.saturating_sub(self.idle_ns);
        share(used.saturating_sub(self.lab_ns), self.capacity_ns)
    }

    /// Busy time as a share of the capacity.
    #[must_use]
    pub fn busy_share(&self) -> Option<f64> {
        share(self.capacity_ns.saturating_sub(self.idle_ns), self.capacity_ns)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trial are far below 2^53")]
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A reason to distrust a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Disturbance {
    /// Other programs ran on the server's CPUs.
    ForeignOnServer {
        /// Share of the CPU time.
        share: f64,
    },
    /// Other programs ran on the client's CPUs.
    ForeignOnClient {
        /// Share of the CPU time.
        share: f64,
    },
    /// The generator sent requests late.
    GeneratorLate {
        /// 99th percentile of its lateness, in nanoseconds.
        p99_ns: u64,
    },
    /// The server was slower than the rate, so some due requests were never sent. The remaining latencies mean little.
    /// This is a property of the mode, so the trial is not repeated.
    Saturated {
        /// Number of requests never sent.
        never_sent: u64,
    },
    /// Packets were dropped.
    Drops {
        /// Number of dropped packets.
        packets: u64,
    },
    /// Requests failed.
    Errors {
        /// Number of failed requests.
        requests: u64,
    },
}

impl BenchResult {
    /// JSON Schema of result files.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}
