//! Receive path within a device: RX queue, NAPI instance and interrupt, and the source of each relation. Includes TX
//! queues for XPS.

use quell_linux::ethtool::Coalescing;
use quell_linux::netdev::{NapiThreading, QueueCounters, QueueLease};
use quell_linux::{CpuList, NapiId};
use quell_mode::PartialNapiSettings;
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
    pub source: Provenance,
}

/// Source of a relation between two objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Provenance {
    /// Reported by the kernel.
    Kernel,
    /// Inferred: the device has equally many of both, and its driver creates them in the same order.
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
    /// NAPI instance that polls it; null if the interface is down or receives without NAPI.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// Virtual device to which the queue is leased, such as the netkit of a container; null if it is not leased.
    pub lease: Reading<Option<QueueLease>>,
    /// Whether an AF_XDP socket is reported to own the queue. Kernels before 6.15 never report it.
    pub xsk: bool,
    /// CPUs to which received packets are forwarded (RPS, `rps_cpus`). Empty: off, as required for a polled queue.
    pub rps_cpus: Reading<CpuList>,
    /// Entries of its RFS flow table (`rps_flow_cnt`); 0: off.
    pub rps_flow_cnt: Reading<u32>,
    /// Coalescing of this queue, if the driver supports it per queue.
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
    /// NAPI instance that processes its completions.
    pub napi: Reading<Option<Linked<NapiId>>>,
    /// CPUs that send through it (XPS, `xps_cpus`). Empty: not selected by CPU. Null: the device has a single queue.
    pub xps_cpus: Reading<Option<CpuList>>,
    /// Receive queues whose sockets send through it (`xps_rxqs`), in ascending order. Empty: not selected by receive
    /// queue.
    pub xps_rxqs: Reading<Vec<u32>>,
    /// Counters of the driver.
    pub counters: Reading<QueueCounters>,
}

impl RxQueue {
    pub(crate) fn napi_id(&self) -> Option<NapiId> {
        self.napi.known()?.as_ref().map(|napi| napi.to)
    }
}

/// One NAPI instance (`napi-get` of the `netdev` netlink family).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotNapi {
    /// NAPI ID, unique on the host. With most drivers it changes when the device goes down and comes up again.
    pub id: NapiId,
    /// Interrupt that wakes it; null on devices without interrupts (veth).
    pub irq: Reading<Option<Linked<u32>>>,
    /// Number of consecutive empty polls during which the interrupt stays masked (Linux 6.13).
    pub defer_hard_irqs: Reading<u32>,
    /// Time in nanoseconds until the next poll while the interrupt is masked (Linux 6.13).
    pub gro_flush_timeout_ns: Reading<u64>,
    /// Maximum time in nanoseconds for which the interrupt stays suspended after an application received events (Linux
    /// 6.13).
    pub irq_suspend_timeout_ns: Reading<u64>,
    /// Context that polls it when no application does.
    pub threading: Reading<NapiThreading>,
    /// NAPI kthread; null if the instance is not threaded.
    pub thread: Reading<Option<Thread>>,
}

impl SnapshotNapi {
    /// Whether it is known to allow suspension.
    pub(crate) fn suspends(&self) -> bool {
        self.irq_suspend_timeout_ns.known().is_some_and(|&timeout| timeout > 0)
    }

    /// Whether it is known to defer interrupts.
    pub(crate) fn defers(&self) -> bool {
        self.settings().defers()
    }

    /// `defer_hard_irqs` and `gro_flush_timeout_ns`, if both are known.
    pub(crate) fn deferral(&self) -> Option<(u32, u64)> {
        Some((*self.defer_hard_irqs.known()?, *self.gro_flush_timeout_ns.known()?))
    }

    /// IRQ number. `None` if the instance has none, or if it is unknown.
    #[must_use]
    pub fn irq_number(&self) -> Option<u32> {
        self.irq.known()?.as_ref().map(|irq| irq.to)
    }

    #[must_use]
    pub fn settings(&self) -> PartialNapiSettings {
        PartialNapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.known().copied(),
            gro_flush_timeout_ns: self.gro_flush_timeout_ns.known().copied(),
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns.known().copied(),
            threaded: self.threading.known().copied(),
        }
    }

    /// Replaces the settings that are present in `change`.
    pub fn set(&mut self, change: &PartialNapiSettings) {
        fn set<T>(reading: &mut Reading<T>, value: Option<T>) {
            if let Some(value) = value {
                *reading = Reading::Known(value);
            }
        }
        set(&mut self.defer_hard_irqs, change.defer_hard_irqs);
        set(&mut self.gro_flush_timeout_ns, change.gro_flush_timeout_ns);
        set(&mut self.irq_suspend_timeout_ns, change.irq_suspend_timeout_ns);
        set(&mut self.threading, change.threaded);
    }
}

/// One interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Irq {
    /// IRQ number, its key.
    pub number: u32,
    /// Its description in `/proc/interrupts`: chip and driver name, such as `eth0-TxRx-3`.
    pub description: Reading<String>,
    /// Configured affinity (`smp_affinity_list`).
    pub affinity: Reading<CpuList>,
    /// Effective affinity (`effective_affinity_list`).
    pub effective_affinity: Reading<CpuList>,
    /// Interrupt counts since boot by CPU number, without CPUs that have a count of zero.
    pub counts: Reading<Vec<(u32, u64)>>,
}
