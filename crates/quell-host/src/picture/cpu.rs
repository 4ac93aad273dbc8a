//! The CPUs: where they are, what the kernel keeps off them, how deep they may sleep, and their counters of packet work.

use quell_linux::CpuList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// All CPUs, and the sets that the kernel keeps of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cpus {
    /// Those that the kernel schedules on.
    pub online: Reading<CpuList>,
    /// Those taken out of load balancing (`isolcpus=`, isolated cpuset partitions).
    pub isolated: Reading<CpuList>,
    /// Those whose tick stops (`nohz_full=`).
    pub nohz_full: Reading<CpuList>,
    /// Where interrupts go that nobody has placed (`/proc/irq/default_smp_affinity`).
    pub default_irq_affinity: Reading<CpuList>,
    /// Each online CPU, in ascending order.
    pub each: Vec<Cpu>,
}

/// One CPU, that is one hardware thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// The hardware threads of its core, itself among them.
    pub smt_siblings: Reading<CpuList>,
    /// Its NUMA node; none on a kernel without NUMA.
    pub numa_node: Reading<Option<u32>>,
    /// Who chooses its frequency (`scaling_governor`); absent where the kernel does not.
    pub governor: Reading<String>,
    /// The idle states that it knows, lightest first; absent where there is no cpuidle driver, as in most VMs.
    pub idle_states: Reading<Vec<IdleState>>,
    /// What it counted since boot.
    pub counters: CpuCounters,
}

/// One way for a CPU to sleep (`/sys/devices/system/cpu/cpuN/cpuidle/stateM`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct IdleState {
    /// The driver's name for it, like `C6`.
    pub name: String,
    /// How long waking up takes, µs.
    pub exit_latency_us: u32,
    /// Whether it may be entered.
    pub allowed: bool,
}

/// Counters of packet work, each since boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuCounters {
    /// Softirqs of receiving (`NET_RX` of `/proc/softirqs`).
    pub net_rx_softirqs: Reading<u64>,
    /// Local timer interrupts (`LOC` of `/proc/interrupts`; x86).
    pub timer_interrupts: Reading<u64>,
    /// Packets that the stack took in on it (`/proc/net/softnet_stat`, column 1).
    pub softnet_processed: Reading<u64>,
    /// Packets that its backlog dropped (column 2).
    pub softnet_dropped: Reading<u64>,
    /// Rounds of the receiving softirq that ended with work left (column 3).
    pub softnet_time_squeeze: Reading<u64>,
}

impl Cpus {
    /// The CPUs for everything that is not placed elsewhere: online, neither isolated nor without tick. `None` when what
    /// is online is not known.
    #[must_use]
    pub fn housekeeping(&self) -> Option<CpuList> {
        let mut cpus = self.online.known()?.clone();
        for kept in [&self.isolated, &self.nohz_full] {
            cpus = kept.known().map_or(cpus.clone(), |kept| cpus.without(kept));
        }
        Some(cpus)
    }
}
