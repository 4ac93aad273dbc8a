//! What holds for the whole host or for a whole namespace: when the picture was taken and by whom, the kernel, the
//! sysctls of packet delivery, the namespaces, and the programs that set again what others set.

use quell_linux::Pid;
use quell_linux::capability::Capability;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Reading, Unknown, Why};

/// When a picture was taken. The difference of two `monotonic-ns` is the time between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Taken {
    /// Wall-clock seconds since 1970, when reading began.
    pub unix_s: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds, when reading began: comparable within one boot.
    pub monotonic_ns: u64,
    /// How long reading took, nanoseconds: what is in the picture need not have been so at one instant.
    pub took_ns: u64,
    /// The boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: Reading<String>,
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scope {
    /// The name of the network namespace in `/run/netns`; absent: the caller's, or those of `pids`.
    pub netns: Option<String>,
    /// Every network namespace that has a name or a process.
    pub whole_host: bool,
    /// These processes only, and the devices of their namespaces; empty: all processes with sockets.
    pub pids: Vec<Pid>,
    /// This device only, by name; absent: all.
    pub device: Option<String>,
}

/// The kernel's words about itself (`uname(2)`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Kernel {
    /// Like `6.18.4-amd64`.
    pub release: String,
    /// Build number, options and date.
    pub version: String,
    /// The architecture, like `x86_64`.
    pub machine: String,
    /// Whether a NAPI can be polled by a thread without end (`threaded` of 2, Linux 6.19), by the limits of `napi-set`.
    #[serde(default = "not_asked")]
    pub threaded_busy_poll: Reading<bool>,
}

/// What a picture of an earlier version of this program says.
fn not_asked() -> Reading<bool> {
    Reading::unknown(Why::NotAsked, "not asked by the version that took the picture")
}

/// What the reader of the picture was allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Privileges {
    /// Those effective capabilities that matter to Quell.
    pub capabilities: Reading<Vec<Capability>>,
    /// Whether they are those of the initial user namespace, which `napi-set` asks for; a container's root mostly has
    /// them in another.
    pub in_initial_user_namespace: Reading<bool>,
}

/// Sysctls of packet delivery that hold for the whole host (`net/core/sysctl_net_core.c`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sysctls {
    /// `net.core.busy_poll`: busy polling of `poll`, `select` and every epoll that says nothing else, µs; 0: none.
    pub busy_poll_us: Reading<u32>,
    /// `net.core.busy_read`: `SO_BUSY_POLL` of new sockets, µs; 0: none.
    pub busy_read_us: Reading<u32>,
    /// `net.core.netdev_budget`: packets that one round of the softirq takes at most.
    pub netdev_budget: Reading<u32>,
    /// `net.core.netdev_budget_usecs`: how long one such round takes at most, µs.
    pub netdev_budget_us: Reading<u32>,
    /// `net.core.dev_weight`: packets a poll of the per-CPU backlog.
    pub dev_weight: Reading<u32>,
    /// `net.core.netdev_max_backlog`: packets that the per-CPU backlog (RPS, loopback) holds at most.
    pub netdev_max_backlog: Reading<u32>,
    /// `net.core.rps_sock_flow_entries`: the size of the flow table of RFS; 0: off.
    pub rps_sock_flow_entries: Reading<u32>,
}

/// A program that runs and is known to set interrupts, CPUs or sysctls by its own rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Service {
    /// `irqbalance`, `tuned`, …: the name of its process.
    pub name: String,
    /// Its process.
    pub pid: Pid,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkNamespace {
    /// Its key in this picture: the inode of nsfs, the number in `net:[…]`. Given out again once it is gone.
    pub inode: u64,
    /// Its cookie, which no other namespace of this boot had or will have.
    pub cookie: Reading<u64>,
    /// Its names in `/run/netns`.
    pub names: Vec<String>,
    /// It is the one that the reader was in.
    pub is_readers: bool,
    /// Protocols whose sockets could not be listed, so that the picture lacks them.
    pub unlisted_sockets: Vec<Unknown>,
    /// `TcpExt BusyPollRxPackets`: packets that busy polling received, without those of the final poll of each.
    pub busy_poll_rx_packets: Reading<u64>,
    /// IP packets that its stack took in, as many as there were on the wire: what a device received and this does not
    /// count lies in the queue, or was none for this host.
    pub ip_rx_packets: Reading<u64>,
}
