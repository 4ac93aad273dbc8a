//! Facts that result files record about the measured machine, the lab, the model, and the server under test.

use quell_linux::Pid;
use quell_linux::kernel::Kernel;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, SchedError};
use quell_mode::NapiSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuLayout;

/// Facts about the measured machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostFacts {
    /// Kernel release, as printed by `uname -r`.
    pub kernel_release: String,
    /// Kernel version, as printed by `uname -v`.
    pub kernel_version: String,
    /// Kernel command line.
    pub kernel_command_line: Option<String>,
    /// CPU model, as reported in `/proc/cpuinfo`.
    pub cpu_model: Option<String>,
    /// CPUs that this process may use.
    pub cpus: Vec<u32>,
    /// `net.core.busy_poll` in µs. If it is not 0, every mode busy polls.
    pub busy_poll_us: Option<u32>,
    /// `net.core.busy_read` in µs.
    pub busy_read_us: Option<u32>,
}

impl HostFacts {
    /// Reads the facts. Facts that the machine does not report are absent.
    ///
    /// # Errors
    /// Fails if the kernel does not report the CPUs that this process may use.
    pub fn read(proc: &ProcRoot) -> Result<Self, SchedError> {
        let kernel = Kernel::running();
        let cpus = sched::affinity(Pid::of_this_process())?;
        Ok(Self {
            kernel_release: kernel.release,
            kernel_version: kernel.version,
            kernel_command_line: proc.kernel_cmdline().ok(),
            cpu_model: proc.cpu_model_name().ok().flatten(),
            cpus: cpus.iter().collect(),
            busy_poll_us: proc.busy_poll_us().ok(),
            busy_read_us: proc.busy_read_us().ok(),
        })
    }
}

/// A modelled host and its server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ModelFacts {
    /// Profile name of the modelled host.
    pub profile: String,
    /// Description of the modelled host.
    pub description: String,
    /// Number of RX queues. The modelled server has one worker and one CPU per queue.
    pub queues: u32,
    /// Total number of connections.
    pub connections: u32,
}

impl ModelFacts {
    /// Describes the host and the server of a simulation.
    #[must_use]
    pub fn of(setup: &quell_sim::sweep::Setup) -> Self {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            profile: setup.host.name.clone(),
            description: setup.host.description.clone(),
            queues: count(setup.queues),
            connections: count(setup.connections),
        }
    }
}

/// Facts about the lab after its setup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LabFacts {
    /// Name of the lab. The names of its namespaces begin with it.
    pub name: String,
    /// Number of RX queues of the server's device and of the client's device.
    pub queues: u32,
    /// Whether a NAPI thread polls each queue in place of an interrupt.
    pub interrupt_stand_in: bool,
    /// CPUs of the server and of the generator.
    pub cpus: CpuLayout,
    /// Whether a server CPU and a client CPU are hardware threads of the same core, which slow each other down. Absent
    /// if the machine does not report its topology.
    pub shared_core: Option<bool>,
    /// NAPI IDs of the server's queues.
    pub server_napi_ids: Vec<u32>,
    /// NAPI IDs of the client's queues.
    pub client_napi_ids: Vec<u32>,
    /// NAPI settings of the client's queues. They are the same in every trial.
    pub client_napi: NapiSettings,
    /// Checks made before the measurement, with their observations.
    pub checks: Vec<Check>,
}

/// A precondition for valid results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Check {
    /// Condition that must hold.
    pub claim: String,
    /// Observed value or state.
    pub observed: String,
    /// Whether the condition holds.
    pub holds: bool,
}

impl Check {
    /// Describes a failed check: the required condition and the observation.
    #[must_use]
    pub fn violation(&self) -> String {
        format!("expected: {}; found: {}", self.claim, self.observed)
    }
}

/// Facts about the server under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerFacts {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Version that the server reports. Absent if the server reports no version.
    pub version: Option<String>,
    /// Workers of the server.
    pub workers: Vec<WorkerFacts>,
}

/// An epoll of the server that watches connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct WorkerFacts {
    /// ID of the thread that waits on the epoll. Absent if the thread is unknown.
    pub tid: Option<i32>,
    /// CPU that the thread is pinned to. Absent if the thread is unknown.
    pub cpu: Option<u32>,
    /// File descriptor number of the epoll in the server.
    pub epoll_fd: i32,
    /// Number of connections in the epoll.
    pub connections: u32,
    /// Number of connections in the epoll that bypass NAPI.
    pub connections_without_napi: u32,
    /// NAPI IDs of the connections in the epoll.
    pub napi_ids: Vec<u32>,
}
