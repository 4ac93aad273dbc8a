//! What a bench run found, as one file with everything needed to redo it: the machine, the lab, the settings as the
//! kernel read them back, the seeds, and of every trial the counters and the raw histograms. A counter that could not
//! be read is absent, never zero. The JSON Schema of this file is published in `docs/schema/`.

use std::collections::BTreeMap;

use quell_load::{LoadReport, LoadSpec};
use quell_mode::{EpollSettings, NapiSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuLayout;
use crate::plan::{Plan, TrialId};

/// The `schema` field of the files that this version writes and reads.
pub const SCHEMA: &str = "quell-bench/1";

/// One bench run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BenchResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// When the run began: wall-clock seconds since 1970.
    pub began_unix_s: u64,
    /// The machine.
    pub host: HostFacts,
    /// What it was measured on, or simulated.
    pub lab: Lab,
    /// The server; absent on the model, which has one of its own.
    pub server: Option<ServerFacts>,
    /// What the generator was told, but for the rate of each trial; absent on the model.
    pub load: Option<LoadSpec>,
    /// What was to be measured, and in which order.
    pub plan: Plan,
    /// What `base` reached before each block of trials whose load is a share of it.
    pub base_reaches: Vec<BaseReach>,
    /// Every trial, in the order in which they were run.
    pub trials: Vec<Trial>,
    /// Modes of the plan that could not be set here, with the reason; they have no trials.
    pub refused: BTreeMap<String, String>,
    /// Why the figures are not a measurement; absent when they are.
    pub not_a_measurement: Option<String>,
    /// The run was ended before its last trial.
    pub interrupted: bool,
}

/// What `base` reached in a closed loop just before the trials of one load in one repeat: the speed of a shared machine
/// drifts, and half of what it could do a minute ago may be all of what it can do now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BaseReach {
    /// Which repeat, counted from 0.
    pub repeat: u32,
    /// Which of the plan's loads.
    pub load: usize,
    /// Requests per second.
    pub per_s: f64,
}

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostFacts {
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`.
    pub kernel_version: String,
    /// The kernel's command line.
    pub kernel_command_line: Option<String>,
    /// The processor's name for itself.
    pub cpu_model: Option<String>,
    /// The CPUs that this process may use.
    pub cpus: Vec<u32>,
    /// `net.core.busy_poll`, µs: not 0, and every mode busy polls.
    pub busy_poll_us: Option<u32>,
    /// `net.core.busy_read`, µs.
    pub busy_read_us: Option<u32>,
}

/// Where the figures come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Lab {
    /// Measured on a private lab: two network namespaces and a veth pair.
    Veth(LabFacts),
    /// Simulated on the model; nothing was measured.
    Sim(SimFacts),
}

impl Lab {
    /// The veth lab; absent when the figures come from somewhere else.
    #[must_use]
    pub fn veth(&self) -> Option<&LabFacts> {
        match self {
            Self::Veth(facts) => Some(facts),
            Self::Sim(_) => None,
        }
    }
}

/// What was simulated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SimFacts {
    /// The name of the modelled host's profile.
    pub profile: String,
    /// The modelled host in words.
    pub description: String,
    /// RX queues, and as many workers and CPUs.
    pub queues: u32,
    /// Connections in all.
    pub connections: u32,
    /// How figures were obtained that have another meaning on the model than on a lab, by their name in the trials.
    pub obtained: BTreeMap<String, String>,
}

/// The lab as it was found to be after it was set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LabFacts {
    /// The name of this lab; its namespaces are called after it.
    pub name: String,
    /// RX queues of the server's device, and as many of the client's.
    pub queues: u32,
    /// Each queue's NAPI thread stands in for its interrupt.
    pub interrupt_stand_in: bool,
    /// Which CPU does what.
    pub cpus: CpuLayout,
    /// A server's and a client's CPU are hardware threads of one core, so that one slows the other; absent where the
    /// machine does not tell.
    pub shared_core: Option<bool>,
    /// The NAPI ids of the server's queues.
    pub server_napi_ids: Vec<u32>,
    /// The NAPI ids of the client's queues.
    pub client_napi_ids: Vec<u32>,
    /// Settings of the client's queues, the same in every trial.
    pub client_napi: NapiSettings,
    /// What was checked before measuring, each with what was seen.
    pub checks: Vec<Check>,
}

/// Something that has to be so for the figures to mean what they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Check {
    /// What has to be so.
    pub claim: String,
    /// What was seen.
    pub seen: String,
    /// It is so.
    pub holds: bool,
}

impl Check {
    /// What is said where it does not hold: what should be so, and what is.
    #[must_use]
    pub fn violation(&self) -> String {
        format!("expected: {}; found: {}", self.claim, self.seen)
    }
}

/// The server that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerFacts {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// What it says of its version; absent when it does not tell.
    pub version: Option<String>,
    /// Its workers.
    pub workers: Vec<WorkerFacts>,
}

/// One epoll of the server that carries connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WorkerFacts {
    /// The thread that waits on it; absent when it could not be told.
    pub tid: Option<i32>,
    /// The CPU that the thread is pinned to; absent when the thread could not be told.
    pub cpu: Option<u32>,
    /// The number of the epoll's file descriptor in the server.
    pub epoll_fd: i32,
    /// Connections in it.
    pub connections: u32,
    /// Those of them that do not arrive by a NAPI instance.
    pub connections_without_napi: u32,
    /// The NAPI instances that its connections arrive by.
    pub napi_ids: Vec<u32>,
}

/// One mode under one load, once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Trial {
    /// Which mode, load and repeat.
    pub id: TrialId,
    /// 0 for the first attempt. Only the last attempt of a trial counts; a disturbed one may be followed by another.
    pub attempt: u32,
    /// When its measured time began, in milliseconds since the run began.
    pub began_ms: u64,
    /// What the kernel read back after the mode was set.
    pub settings: SettingsReadBack,
    /// Requests per second asked for; absent in a closed loop.
    pub offered_per_s: Option<f64>,
    /// What the generator saw: counts, latencies, its own lateness and cost.
    pub load: LoadReport,
    /// What the kernel counted during the measured time.
    pub counters: TrialCounters,
    /// What speaks against trusting this trial; empty when nothing does.
    pub disturbances: Vec<Disturbance>,
}

/// Settings as read back from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsReadBack {
    /// Of each of the server's queues.
    pub napi: Vec<NapiSettings>,
    /// Of each worker's epoll.
    pub epoll: Vec<EpollSettings>,
}

/// What the kernel counted during the measured time of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrialCounters {
    /// Run time of the server's threads (`/proc/PID/task/TID/schedstat`), in nanoseconds.
    pub server_run_ns: Option<u64>,
    /// Run time of the NAPI threads of the server's queues, in nanoseconds; absent where softirqs poll them, whose time
    /// is charged to nobody.
    pub napi_run_ns: Option<u64>,
    /// The server's CPUs.
    pub server_cpus: Option<CpuUse>,
    /// The client's CPUs.
    pub client_cpus: Option<CpuUse>,
    /// How often the NAPI threads of the server's queues went to sleep and were woken: their voluntary context
    /// switches.
    pub napi_wakeups: Option<u64>,
    /// Device interrupts of the server's queues; absent on a veth, which has none.
    pub irqs: Option<u64>,
    /// Polls of the server's queues (tracepoint `napi:napi_poll`), whoever made them.
    pub polls: Option<u64>,
    /// Those of them that found no packet.
    pub empty_polls: Option<u64>,
    /// Packets that they found.
    pub polled_packets: Option<u64>,
    /// `TcpExt BusyPollRxPackets` of the server's namespace: a lower bound, for the final poll is not counted.
    pub busy_poll_rx_packets: Option<u64>,
    /// Successful waits of the server for events, in a sample after the measured time.
    pub epoll_waits: Option<u64>,
    /// Events that these waits returned.
    pub epoll_events: Option<u64>,
    /// Packets dropped on either side's way to the other.
    pub drops: Option<u64>,
    /// TCP segments sent again by either side.
    pub retransmits: Option<u64>,
}

/// Where the time of a set of CPUs went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuUse {
    /// Measured time times the number of CPUs, in nanoseconds.
    pub capacity_ns: u64,
    /// Idle and waiting for I/O, as accounted by `/proc/stat`.
    pub idle_ns: u64,
    /// Taken by the hypervisor.
    pub steal_ns: u64,
    /// Run by the threads of the lab: server or generator, and NAPI threads.
    pub lab_ns: u64,
}

impl CpuUse {
    /// What ran besides the lab and what the hypervisor took, as a share of the capacity. Interrupts that are charged
    /// to nobody are in it.
    #[must_use]
    pub fn foreign_share(&self) -> Option<f64> {
        let used = self.capacity_ns.saturating_sub(self.idle_ns);
        share(used.saturating_sub(self.lab_ns), self.capacity_ns)
    }

    /// What was not idle, as a share of the capacity.
    #[must_use]
    pub fn busy_share(&self) -> Option<f64> {
        share(self.capacity_ns.saturating_sub(self.idle_ns), self.capacity_ns)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trial are far below 2^53")]
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Something that speaks against trusting a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Disturbance {
    /// Something else ran on the server's CPUs.
    ForeignOnServer {
        /// Its share of their time.
        share: f64,
    },
    /// Something else ran on the client's CPUs.
    ForeignOnClient {
        /// Its share of their time.
        share: f64,
    },
    /// The generator was late.
    GeneratorLate {
        /// 99th percentile of its lateness, in nanoseconds.
        p99_ns: u64,
    },
    /// The server was slower than the rate: requests that were due were never sent, so that what latency there is says
    /// little. A property of the mode, not of the moment: such a trial is not measured again.
    Saturated {
        /// How many.
        never_sent: u64,
    },
    /// Packets were dropped.
    Drops {
        /// How many.
        packets: u64,
    },
    /// Requests failed.
    Errors {
        /// How many.
        requests: u64,
    },
}

impl BenchResult {
    /// The JSON Schema of result files.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}
