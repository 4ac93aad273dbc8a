//! Data of the whole host or of a namespace: time and privileges of the snapshot, kernel, sysctls of packet delivery,
//! namespaces, and services that override settings.

use quell_linux::Pid;
use quell_linux::capability::Capability;
use quell_linux::settings_files::{IrqBans, SettingsContent, SettingsOwner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Reading, Unknown};

/// Time of a snapshot. The difference of two `monotonic-ns` values is the interval between the snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Taken {
    /// Start of the snapshot in wall-clock seconds since 1970.
    pub unix_s: u64,
    /// Start of the snapshot, `CLOCK_MONOTONIC` in nanoseconds; comparable within one boot.
    pub monotonic_ns: u64,
    /// Duration of the snapshot in nanoseconds. The parts of a snapshot are read one after another.
    pub duration_ns: u64,
    /// Boot ID (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: Reading<String>,
}

/// Requested scope.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotScope {
    /// Name of the network namespace in `/run/netns`, also of `pids`; absent: the caller's, or those of `pids`.
    pub netns: Option<String>,
    /// Whether to read every network namespace that has a name or a process.
    pub whole_host: bool,
    /// Cookies of further namespaces to read, into which attachments reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_namespaces: Vec<u64>,
    /// PIDs to which the snapshot is restricted, with the devices of their namespaces; empty: all processes with
    /// sockets.
    pub pids: Vec<Pid>,
    /// Name of the device to which the snapshot is restricted; absent: all devices.
    pub device: Option<String>,
    /// Whether to read the files from which other programs set queues.
    pub configured_files: bool,
}

/// Identification of the kernel (`uname(2)`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotKernel {
    /// Release, for example `6.18.4-amd64`.
    pub release: String,
    /// Build number, options and date.
    pub version: String,
    /// Architecture, for example `x86_64`.
    pub machine: String,
    /// Whether NAPI kthreads can busy poll (`threaded` of 2, Linux 6.19), according to the attribute limits of
    /// `napi-set`.
    pub threaded_busy_poll: Reading<bool>,
}

/// Privileges of the process that took the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Privileges {
    /// Effective capabilities that Quell uses.
    pub capabilities: Reading<Vec<Capability>>,
    /// Whether the capabilities belong to the initial user namespace, as `napi-set` requires. In a container they
    /// usually do not.
    pub in_initial_user_namespace: Reading<bool>,
}

/// Host-wide sysctls of packet delivery (`net/core/sysctl_net_core.c`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sysctls {
    /// `net.core.busy_poll` in microseconds: busy polling of `poll`, `select` and epolls without their own setting; 0:
    /// off.
    pub busy_poll_us: Reading<u32>,
    /// `net.core.busy_read` in microseconds: `SO_BUSY_POLL` of new sockets; 0: off.
    pub busy_read_us: Reading<u32>,
    /// `net.core.netdev_budget`: maximum number of packets per softirq round.
    pub netdev_budget: Reading<u32>,
    /// `net.core.netdev_budget_usecs`: maximum duration of a softirq round in microseconds.
    pub netdev_budget_us: Reading<u32>,
    /// `net.core.dev_weight`: packets per poll of the per-CPU backlog.
    pub dev_weight: Reading<u32>,
    /// `net.core.netdev_max_backlog`: capacity of the per-CPU backlog (RPS, loopback) in packets.
    pub netdev_max_backlog: Reading<u32>,
    /// `net.core.rps_sock_flow_entries`: entries of the RFS flow table; 0: off.
    pub rps_sock_flow_entries: Reading<u32>,
}

/// A running program that sets interrupts, CPUs or sysctls by its own rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Service {
    /// Process name, for example `irqbalance` or `tuned`.
    pub name: String,
    /// Process ID.
    pub pid: Pid,
    /// Interrupts that irqbalance leaves alone; not asked for other programs.
    pub irq_bans: Reading<IrqBans>,
}

/// A file from which another program sets queues, interrupts or busy polling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ConfiguredFile {
    /// Program that applies the file.
    pub owner: SettingsOwner,
    /// Its path.
    pub path: String,
    /// Its relevant contents.
    pub content: Reading<SettingsContent>,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkNamespace {
    /// Key of the namespace: its nsfs inode, the number in `net:[…]`. The kernel reuses it after the namespace is gone.
    pub inode: u64,
    /// Cookie, unique within one boot.
    pub cookie: Reading<u64>,
    /// Its names in `/run/netns`.
    pub names: Vec<String>,
    /// Whether Quell runs in this namespace.
    pub is_current: bool,
    /// Why its devices could not be listed and are missing from the snapshot; null if they were listed.
    pub unlisted_devices: Option<Unknown>,
    /// Protocols whose sockets could not be listed and are missing from the snapshot.
    pub unlisted_sockets: Vec<Unknown>,
    /// `TcpExt BusyPollRxPackets`: packets received by busy polling, without the last poll of each busy poll.
    pub busy_poll_rx_packets: Reading<u64>,
    /// IP packets received by the stack, before GRO. A packet that only the device has counted is still in its queue,
    /// or was not an IP packet for this host.
    pub ip_rx_packets: Reading<u64>,
}

impl NetworkNamespace {
    /// Its first name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }

    /// Its name, or its inode.
    #[must_use]
    pub fn label(&self) -> String {
        self.name().map_or_else(|| format!("net:[{}]", self.inode), str::to_owned)
    }

    /// Whether a command about it enters it. Not every shell of a reader is in a named namespace in which Quell runs.
    pub(crate) fn is_entered(&self) -> bool {
        !self.is_current || self.name().is_some()
    }
}
