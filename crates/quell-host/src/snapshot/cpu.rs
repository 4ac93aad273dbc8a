//! CPUs: topology, isolation, idle states, and counters of packet processing.

use quell_linux::CpuList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// All CPUs, and the kernel's CPU sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cpus {
    /// CPUs that the kernel schedules on.
    pub online: Reading<CpuList>,
    /// CPUs without load balancing (`isolcpus=`, isolated cpuset partitions).
    pub isolated: Reading<CpuList>,
    /// CPUs whose tick stops (`nohz_full=`).
    pub nohz_full: Reading<CpuList>,
    /// Default affinity of interrupts (`/proc/irq/default_smp_affinity`).
    pub default_irq_affinity: Reading<CpuList>,
    /// Each online CPU, in ascending order.
    pub each: Vec<Cpu>,
}

/// One CPU, that is, one hardware thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cpu {
    /// CPU number.
    pub number: u32,
    /// Hardware threads of its core, including itself.
    pub smt_siblings: Reading<CpuList>,
    /// NUMA node; null on a kernel without NUMA.
    pub numa_node: Reading<Option<u32>>,
    /// Frequency governor (`scaling_governor`); absent if the kernel has none.
    pub governor: Reading<String>,
    /// Driver that sets its frequency (`scaling_driver`); absent if the kernel has none.
    pub scaling_driver: Reading<String>,
    /// Idle states, lightest first; absent without a cpuidle driver, as in most VMs.
    pub idle_states: Reading<Vec<CpuidleState>>,
    /// Counters since boot.
    pub counters: CpuCounters,
}

/// An idle state of a CPU (`/sys/devices/system/cpu/cpuN/cpuidle/stateM`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuidleState {
    /// Name set by the driver, such as `C6`.
    pub name: String,
    /// Exit latency in microseconds.
    pub exit_latency_us: u32,
    /// Whether the state is enabled.
    pub allowed: bool,
}

/// Counters of packet processing since boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuCounters {
    /// Receive softirqs (`NET_RX` in `/proc/softirqs`).
    pub net_rx_softirqs: Reading<u64>,
    /// Local timer interrupts (`LOC` in `/proc/interrupts`; x86).
    pub timer_interrupts: Reading<u64>,
    /// Packets processed by the stack (`/proc/net/softnet_stat`, column 1).
    pub softnet_processed: Reading<u64>,
    /// Packets dropped by the backlog (column 2).
    pub softnet_dropped: Reading<u64>,
    /// Receive softirq rounds that ended with packets left to process (column 3).
    pub softnet_time_squeeze: Reading<u64>,
}

impl Cpus {
    /// Online CPUs that are neither isolated nor tickless. `None` if the online CPUs are unknown.
    #[must_use]
    pub fn housekeeping(&self) -> Option<CpuList> {
        let mut cpus = self.online.known()?.clone();
        for kept in [&self.isolated, &self.nohz_full] {
            cpus = kept.known().map_or(cpus.clone(), |kept| cpus.without(kept));
        }
        Some(cpus)
    }
}
