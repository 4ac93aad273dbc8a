//! Receive path inside a device: RX queue, its NAPI instance and its interrupt, each link with its source. TX queues
//! are included for XPS.

use quell_linux::ethtool::Coalescing;
use quell_linux::netdev::{NapiThreading, QueueCounters};
use quell_linux::{CpuList, NapiId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;
use super::process::Thread;

/// Key of a related object, and the source of the relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Linked<K> {
    /// Key of the other object.
    pub to: K,
    /// Source of the relation.
    pub said_by: SaidBy,
}

/// How a relation between two objects is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SaidBy {
    /// Reported by the kernel.
    Kernel,
    /// Inferred: the device has the same number of both, and its driver creates them in the same order.
    Order,
    /// Inferred from the interrupt name set by the driver.
    Name,
}

/// One receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RxQueue {
    /// Queue number on the device, from 0.
    pub id: u32,
    /// NAPI instance that polls it; null when the interface is down or receives without NAPI.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// CPUs that received packets are passed on to (RPS, `rps_cpus`). Empty: off, as a polled queue needs it.
    pub rps_cpus: Reading<CpuList>,
    /// Entries of its RFS flow table (`rps_flow_cnt`); 0: off.
    pub rps_flow_cnt: Reading<u32>,
    /// Coalescing of this queue, where the driver supports it per queue.
    pub coalescing: Reading<Coalescing>,
    /// Counters of the driver.
    pub counters: Reading<QueueCounters>,
}

/// One transmit queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TxQueue {
    /// Queue number on the device, from 0.
    pub id: u32,
    /// NAPI instance that handles its completions.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// CPUs that send through it (XPS, `xps_cpus`). Empty: not selected by CPU. Null: there is only one queue.
    pub xps_cpus: Reading<Option<CpuList>>,
    /// Receive queues whose sockets send through it (`xps_rxqs`), in ascending order. Empty: not selected by receive
    /// queue.
    pub xps_rxqs: Reading<Vec<u32>>,
    /// Counters of the driver.
    pub counters: Reading<QueueCounters>,
}

/// One NAPI instance (`napi-get` of the `netdev` netlink family).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Napi {
    /// NAPI ID, unique on the host. With most drivers it changes when the device goes down and up.
    pub id: NapiId,
    /// Interrupt that wakes it; null on devices without interrupts (veth).
    pub irq: Reading<Option<Linked<u32>>>,
    /// Number of consecutive empty polls during which the interrupt stays masked (Linux 6.13).
    pub defer_hard_irqs: Reading<u32>,
    /// Time until the next poll while the interrupt is masked, nanoseconds (Linux 6.13).
    pub gro_flush_timeout_ns: Reading<u64>,
    /// Longest time for which the interrupt stays suspended after an application received events, nanoseconds (Linux
    /// 6.13).
    pub irq_suspend_timeout_ns: Reading<u64>,
    /// Context that polls it when no application does.
    pub threading: Reading<NapiThreading>,
    /// NAPI kthread; null when it is not threaded.
    pub thread: Reading<Option<Thread>>,
}

/// One interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Irq {
    /// IRQ number, its key.
    pub number: u32,
    /// Its description in `/proc/interrupts`: chip and driver name, such as `eth0-TxRx-3`.
    pub line: Reading<String>,
    /// Configured affinity (`smp_affinity_list`).
    pub affinity: Reading<CpuList>,
    /// Effective affinity (`effective_affinity_list`).
    pub effective_affinity: Reading<CpuList>,
    /// Count per CPU number since boot; CPUs with a count of zero are omitted.
    pub counts: Reading<Vec<(u32, u64)>>,
}
