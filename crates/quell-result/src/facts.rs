//! Facts that documents record about the measured machine and the subject: programs, command, lab, model, guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_experiment::SliceObservation;
use quell_host::findings::{EPOLL_MIXES_NAPIS, Finding, stays_when_steered};
use quell_host::snapshot::Provenance;
use quell_linux::Pid;
use quell_linux::kernel::Kernel;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, SchedError};
use quell_linux::visible;
use quell_load::LoadSpec;
use quell_load::clients::{ClientFacts, ClockOffset};
use quell_mode::{DeliveryMode, NapiSettings, Nearest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Facts about the measured machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostFacts {
    /// Kernel release, as printed by `uname -r`.
    pub kernel_release: String,
    /// Kernel version, as printed by `uname -v`.
    pub kernel_version: String,
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
    pub description: String,
    /// Number of RX queues. The modelled server has one worker and one CPU per queue.
    pub queues: u32,
    /// Whether each queue has an additional CPU for its interrupt, NAPI thread or polling thread.
    #[serde(default)]
    pub irqs_apart: bool,
    pub connections: u32,
}

impl ModelFacts {
    #[must_use]
    pub fn of(setup: &quell_sim::sweep::Setup) -> Self {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            profile: setup.host.name.clone(),
            description: setup.host.description.clone(),
            queues: count(setup.queues),
            irqs_apart: setup.irqs_apart,
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
    pub server_napi_ids: Vec<u32>,
    pub client_napi_ids: Vec<u32>,
    /// NAPI settings of the client's queues. They are the same in every trial.
    pub client_napi: NapiSettings,
    /// Whether filters steered the connections of each queue to its own worker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steered: bool,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerFacts {
    pub command: Vec<String>,
    /// Version that the server reports. Absent if the server reports no version.
    pub version: Option<String>,
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
    pub connections: u32,
    /// Number of connections in the epoll that bypass NAPI.
    pub connections_without_napi: u32,
    /// NAPI IDs of the connections in the epoll.
    pub napi_ids: Vec<u32>,
}

/// Name of an attached mode in the result of a comparison that has no other row for it.
pub const PRESENT: &str = "present";

/// Programs of this host, and the commands that generated the load and measured them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProgramsFacts {
    /// Processes that were measured.
    pub processes: Vec<ProcessFacts>,
    /// Queues whose settings were switched.
    pub queues: Vec<QueueFacts>,
    /// Number of epolls whose parameters were switched.
    pub epolls: usize,
    /// CPUs whose time was counted.
    pub cpus: Vec<u32>,
    /// Command that generated the load. Absent if the programs had only their live traffic.
    pub load: Option<Vec<String>>,
    /// Judge that printed figures of each slice. Absent if only the server was measured.
    pub latency: Option<Vec<String>>,
    /// Judge that printed figures of another program on the same queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Vec<String>>,
    /// Clients on other machines that generated and measured the load. Absent without `--clients`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<RemoteClientsFacts>,
    /// Mode that was attached to the programs before and after the measurement. Absent if they were not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<DeliveryMode>,
    /// PIDs of the programs that have it, if others were measured, too. Empty if all have it, and without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached_in_part: Vec<u32>,
    /// Mode that the queues have under `base`, because modes without NAPI threads leave those of the administrator.
    /// Absent if it is `base` itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_is: Option<DeliveryMode>,
    /// Placement of connections and workers. Absent without `--steer` and `--pin`, and without an attachment that steers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementFacts>,
    /// Options that would give each worker the connections of one queue. Empty if the epolls that modes poll have these,
    /// if connections were steered, and if steering is impossible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub helpful_placement: Vec<String>,
    /// Problems that `quell doctor` would find under some of the modes: serious ones, and connections without a queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ProblemFacts>,
}

/// Steered connections and pinned workers, which are the same under all modes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlacementFacts {
    /// Options of `quell bench`, `attach` and `run` for it: `--steer`, `--pin`.
    pub options: Vec<String>,
    /// Groups of listening sockets whose connections were steered.
    pub steered: Vec<SteeredFacts>,
    /// Number of threads that were pinned to the CPUs of their queue, or were there already.
    pub pinned: usize,
    /// Workers that were not pinned, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_pinned: Vec<String>,
    /// Slices under the settings from before without filters and pins, half of them before the first slice with them, half
    /// after the last one. Empty without a judge, and in older results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<SliceObservation>,
}

/// A group of listening sockets whose connections were steered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SteeredFacts {
    /// Protocol and local address, such as `tcp 0.0.0.0:80`.
    pub group: String,
    /// Number of listening sockets.
    pub sockets: u32,
    /// Number of connections before the filter. They stayed with their workers.
    pub connections_before: usize,
    /// Those among them that shared the queue of their worker.
    pub aligned_before: usize,
    /// Number of connections that arrived through the filter before the first slice. Absent if this was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_connections: Option<usize>,
    /// Number of connections at the first slice that did not share the queue of their worker, because they are from
    /// before the filter. Absent if this was not checked, and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsorted: Option<usize>,
}

impl PlacementFacts {
    #[must_use]
    pub fn steers(&self) -> bool {
        self.options.iter().any(|option| option.starts_with("--steer"))
    }

    #[must_use]
    pub fn pins(&self) -> bool {
        self.options.iter().any(|option| option == "--pin")
    }

    /// Whether the filters are those of an attachment.
    #[must_use]
    pub fn is_by_attachment(&self) -> bool {
        self.steered.is_empty() && self.steers()
    }
}

/// A program besides the server that used its CPUs, or all commands together that the measurement started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OtherProgramFacts {
    /// Process ID. Of a program that has exited, that of its parent; of commands that the measurement started, that of Quell.
    pub pid: u32,
    /// Name of the main thread of this process.
    pub name: String,
    /// CPU time divided by elapsed time: 1 is one CPU, always.
    pub cpus: f64,
    /// Whether it exited during the measurement. All programs of one parent that did are one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_exited: bool,
    /// Whether these are the commands that the measurement started to load and to measure. They are named if no other program
    /// used more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_measurement: bool,
}

impl OtherProgramFacts {
    /// Which programs these are: `stress 812: 98 % of a CPU`, or what shows them if none is known.
    #[must_use]
    pub fn which(programs: &[Self]) -> String {
        let one = |program: &Self| {
            let named = format!("{} {}", visible::name(&program.name), program.pid);
            let of = match (program.is_of_measurement, program.has_exited) {
                (true, _) => "the commands that load and measure".to_owned(),
                (false, true) => format!("a program of {named} that has exited"),
                (false, false) => named,
            };
            format!("{of}: {:.0} % of a CPU", program.cpus * 100.0)
        };
        match programs {
            [] => "`top` shows them".to_owned(),
            programs => programs.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }
}

/// A problem under some modes, by the rules of `quell doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProblemFacts {
    /// Rule, for `quell doctor --explain`.
    pub id: String,
    /// Observed facts.
    pub observed: String,
    /// Modes that cause it.
    pub modes: Vec<DeliveryMode>,
    /// Whether it is an epoll with connections of several queues that `--steer` alone cannot change, as those that the
    /// program opened. Absent if not, and in older results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays_when_steered: bool,
}

/// A command that was started for each slice, and what generated the load and measured it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommandFacts {
    pub command: Vec<String>,
    /// Working directory in which it was started. Absent in a private lab and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Name of the network namespace in which it was started; absent without one, and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Devices in Quell's network namespace, whose queues the modes set. Absent in a private lab and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// Mode that these queues have under `base`; see [`ProgramsFacts::base_is`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_is: Option<DeliveryMode>,
    /// Command that generated the load. Absent if the judge or live traffic was the load.
    pub load: Option<Vec<String>>,
    /// Judge that printed figures of each slice. Absent if only the server was measured.
    pub latency: Option<Vec<String>>,
    /// Judge that printed figures of another program on the same queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Vec<String>>,
    /// Configuration of Quell's generator, which sent in a closed loop in a private lab. Absent outside of a lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Box<LoadSpec>>,
    /// Options of `quell run` that steered its connections and pinned its workers. Empty without `--steer` and `--pin`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<String>,
    /// Slices under `base` without these options, half of them before the others and half after them. Empty without a judge,
    /// and in older results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<SliceObservation>,
    /// The same problems as of running programs, seen during the first slice of each mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ProblemFacts>,
}

impl CommandFacts {
    /// Whether a process with these arguments in this directory runs the command. The path of its file, another command such
    /// as `ip netns exec`, an interpreter, or the title of an nginx master can be before the arguments of either.
    #[must_use]
    pub fn is_run_as(&self, arguments: &[String], directory: &Path) -> bool {
        let (line, command) = (arguments.join(" "), self.command.join(" "));
        let line = line.trim_end();
        let ends_with = |all: &str, end: &str| {
            all.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with([' ', '/']))
        };
        let is_same = ends_with(line, &command) || ends_with(&command, line);
        !line.is_empty() && is_same && self.directory.as_deref() == Some(directory)
    }
}

impl ProblemFacts {
    #[must_use]
    pub fn new(finding: &Finding, observed: String, mode: DeliveryMode) -> Self {
        let stays_when_steered = stays_when_steered(finding);
        Self { id: finding.id.to_owned(), observed, modes: vec![mode], stays_when_steered }
    }

    /// Whether it is an epoll with connections of several queues, which `--steer` can change.
    #[must_use]
    pub fn ends_when_steered(&self) -> bool {
        self.id == EPOLL_MIXES_NAPIS && !self.stays_when_steered
    }
}

impl ProgramsFacts {
    /// PIDs that name all measured processes, because a command means the children of each, too. Workers may be replaced
    /// by others, as on a reload.
    pub fn named_pids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().filter(|process| !process.is_child).map(|process| process.pid)
    }

    /// The same for those that have the attached mode.
    #[must_use]
    pub fn attached_pids(&self) -> Vec<u32> {
        if self.attached_in_part.is_empty() { self.named_pids().collect() } else { self.attached_in_part.clone() }
    }
}

/// A measured process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProcessFacts {
    pub pid: u32,
    /// Name of the main thread (`/proc/PID/comm`).
    pub name: String,
    /// Whether its parent was measured, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_child: bool,
}

/// A queue whose settings were switched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QueueFacts {
    pub device: String,
    /// RX queue numbers of the NAPI instance. Empty if they are unknown.
    pub queues: Vec<u32>,
    pub napi: u32,
    /// IRQ number of the queue. Absent if the queue has no interrupt or the kernel does not report it.
    pub irq: Option<u32>,
    /// Name of the network namespace of the device; absent without one. In older results also absent if Quell ran in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

/// Clients on other machines that generated the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RemoteClientsFacts {
    pub command: Vec<String>,
    /// All clients, by rank, with the offsets of their clocks to that of rank 0.
    pub clients: Vec<ClientFacts>,
    /// Clock of rank 0 relative to that of the server's machine, at the start.
    pub clock: ClockOffset,
    /// Configuration of the whole load, except for the rate.
    pub load: Box<LoadSpec>,
}

impl RemoteClientsFacts {
    /// Maximum error with which a request is attributed to a slice, ns: the errors of both comparisons of clocks.
    #[must_use]
    pub fn attribution_error_ns(&self) -> u64 {
        let of_client = self.clients.iter().map(|client| client.clock.error_ns).max();
        self.clock.error_ns.saturating_add(of_client.unwrap_or(0))
    }
}

/// CPU assignment of one lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CpuLayout {
    /// CPU of each server worker, in queue order. The queue's NAPI thread runs on the same CPU.
    pub server: Vec<u32>,
    /// CPU of each generator thread. The client's NAPI threads run on the same CPUs.
    pub client: Vec<u32>,
    /// Reason why results of this layout are not a measurement. Absent if no CPU is shared.
    pub overcommitted: Option<String>,
}

impl CpuLayout {
    /// CPUs of the server, ascending, without duplicates.
    #[must_use]
    pub fn server_cpus(&self) -> Vec<u32> {
        each_once(&self.server)
    }

    /// CPUs of the client, ascending, without duplicates.
    #[must_use]
    pub fn client_cpus(&self) -> Vec<u32> {
        each_once(&self.client)
    }
}

fn each_once(cpus: &[u32]) -> Vec<u32> {
    let unique: std::collections::BTreeSet<u32> = cpus.iter().copied().collect();
    unique.into_iter().collect()
}

/// A server in a guest, on an emulated NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFacts {
    /// Driver of the guest's NICs. Absent if the kernel does not report it.
    pub driver: Option<String>,
    /// IRQ number of the server's receive queue.
    pub rx_irq: u32,
    /// Source of the IRQ number.
    pub rx_irq_source: Provenance,
    /// Availability of features in this kernel and driver.
    pub features: Vec<Feature>,
    /// Description of the generated load.
    pub load: String,
    /// Nearest alternative that this kernel accepts, for each mode that cannot be set. Each alternative was set,
    /// verified and undone.
    pub nearest: BTreeMap<String, Nearest>,
}

/// Availability of one feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Feature {
    /// Name of the feature in kernel terminology.
    pub name: String,
    /// `yes`, or the reason why the feature is unavailable.
    pub state: String,
}
