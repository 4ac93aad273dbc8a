//! The path of a received packet inside a device: RX queue, the NAPI instance that polls it, the interrupt that wakes
//! that, and who said that they belong together. TX queues are here for what decides which one is used (XPS).

use quell_linux::ethtool::Coalescing;
use quell_linux::netdev::{NapiThreading, QueueCounters};
use quell_linux::{CpuList, NapiId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;
use super::process::Thread;

/// The key of another object, and how it is known that this one belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Linked<K> {
    /// The other object's key.
    pub to: K,
    /// Who said so.
    pub said_by: SaidBy,
}

/// How it is known that two objects belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SaidBy {
    /// The kernel reports it.
    Kernel,
    /// Concluded: the device has as many of the one as of the other, and its driver makes them in the same order.
    Order,
    /// Concluded from the name that the driver gave to the interrupt.
    Name,
}

/// One receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RxQueue {
    /// Its number on its device, from 0.
    pub id: u32,
    /// The NAPI that polls it; known to be none when the interface is down or polls without NAPI.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// CPUs that received packets are handed on to (RPS, `rps_cpus`); empty: none, which is right for a polled queue.
    pub rps_cpus: Reading<CpuList>,
    /// Entries of its flow table for RFS (`rps_flow_cnt`); 0: off.
    pub rps_flow_cnt: Reading<u32>,
    /// Interrupt moderation of this queue alone, where the driver has it by queue.
    pub coalescing: Reading<Coalescing>,
    /// What the driver counted.
    pub counters: Reading<QueueCounters>,
}

/// One transmit queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TxQueue {
    /// Its number on its device, from 0.
    pub id: u32,
    /// The NAPI that handles its completions.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// CPUs that send by it (XPS, `xps_cpus`); empty: not chosen by CPU; known to be none where there is only one queue
    /// and thus no choice.
    pub xps_cpus: Reading<Option<CpuList>>,
    /// Receive queues whose sockets send by it (`xps_rxqs`), ascending; empty: not chosen by receive queue.
    pub xps_rxqs: Reading<Vec<u32>>,
    /// What the driver counted.
    pub counters: Reading<QueueCounters>,
}

/// One NAPI instance (`napi-get` of the netlink family `netdev`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Napi {
    /// Its key: unique in the whole host, and new when the device goes down and up, on most drivers.
    pub id: NapiId,
    /// The interrupt that wakes it; known to be none on devices without one (veth).
    pub irq: Reading<Option<Linked<u32>>>,
    /// How many empty polls keep the interrupt masked (Linux 6.13).
    pub defer_hard_irqs: Reading<u32>,
    /// Nanoseconds until the next poll while the interrupt is masked (Linux 6.13).
    pub gro_flush_timeout_ns: Reading<u64>,
    /// Nanoseconds that the interrupt stays masked after an application got events (Linux 6.13).
    pub irq_suspend_timeout_ns: Reading<u64>,
    /// Who polls it when no application does.
    pub threading: Reading<NapiThreading>,
    /// Its kernel thread; known to be none when it is not threaded.
    pub thread: Reading<Option<Thread>>,
}

/// One interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Irq {
    /// Its key: its number.
    pub number: u32,
    /// What drivers call it, like `eth0-TxRx-3`, and the chip before that: its line in `/proc/interrupts`.
    pub line: Reading<String>,
    /// Where it may go (`smp_affinity_list`).
    pub affinity: Reading<CpuList>,
    /// Where it goes (`effective_affinity_list`).
    pub effective_affinity: Reading<CpuList>,
    /// How often it came, by CPU number, since boot. CPUs on which it never came are left out.
    pub counts: Reading<Vec<(u32, u64)>>,
}
