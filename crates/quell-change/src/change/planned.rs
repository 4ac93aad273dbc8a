//! Changes of a plan: object, old value and new value. Each has an inverse and a rank in the order that the kernel
//! requires.

use std::fmt;

use quell_linux::ethtool::{Coalescing, FlowMatch, RssContextId};
use quell_linux::sched::Scheduling;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use quell_mode::PartialNapiSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::QueueInPlan;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DeviceId {
    /// Inode of its network namespace.
    pub namespace: u64,
    pub ifindex: Ifindex,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Diff<T> {
    /// Current value. `None` if the object does not exist, or if an earlier change creates it with the kernel's default
    /// (queues of a channel, kthread of a queue).
    pub old: Option<T>,
    /// Value after the change. `None` if this change or an earlier one removes the object; in the second case, this
    /// change does nothing.
    pub new: Option<T>,
}

impl<T> Diff<T> {
    fn swap(&mut self) {
        std::mem::swap(&mut self.old, &mut self.new);
    }
}

/// Channel counts; `None`: unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ChannelCounts {
    /// Channels with one receive and one transmit queue.
    pub combined: Option<u32>,
    pub rx: Option<u32>,
    pub tx: Option<u32>,
}

/// Ring sizes in descriptors; `None`: unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingSizes {
    pub rx: Option<u32>,
    pub tx: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextRef {
    Existing(RssContextId),
    /// Name in the plan; the ID is known once the context exists.
    Planned(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    Queue(u32),
    Context(ContextRef),
    Discard,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlannedQueue {
    pub device: DeviceId,
    pub queue: u32,
    /// NAPI ID; `None` until an earlier change creates the instance.
    pub napi: Option<NapiId>,
    pub values: Diff<PartialNapiSettings>,
    /// What earlier changes do to the queue.
    pub in_plan: QueueInPlan,
}

/// Rank of the settings of queues, see [`PlannedChange::rank`].
pub(crate) const RANK_OF_QUEUES: u8 = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "setting", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum PlannedChange {
    /// A flow rule: added (no old action) or deleted (no new action). The driver assigns the location.
    FlowRule {
        device: DeviceId,
        matches: FlowMatch,
        action: Diff<RuleAction>,
    },
    /// An additional RSS context: created (no old table) or deleted (no new table).
    RssContext {
        device: DeviceId,
        context: ContextRef,
        /// Indirection table: the queue for each hash bucket.
        table: Diff<Vec<u32>>,
    },
    RssTable {
        device: DeviceId,
        context: RssContextId,
        table: Diff<Vec<u32>>,
    },
    Feature {
        device: DeviceId,
        name: String,
        on: Diff<bool>,
    },
    /// Number of channels. Recreates the queues.
    Channels {
        device: DeviceId,
        counts: Diff<ChannelCounts>,
    },
    /// Ring sizes. Most drivers recreate the queues.
    Rings {
        device: DeviceId,
        sizes: Diff<RingSizes>,
    },
    /// Coalescing of all queues; contains changed parameters only.
    Coalescing {
        device: DeviceId,
        values: Diff<Coalescing>,
    },
    /// Coalescing of one queue; contains changed parameters only.
    QueueCoalescing {
        device: DeviceId,
        queue: u32,
        values: Diff<Coalescing>,
    },
    RpsCpus {
        device: DeviceId,
        queue: u32,
        /// CPUs; empty: off.
        cpus: Diff<CpuList>,
    },
    IrqAffinity {
        device: DeviceId,
        queue: u32,
        /// IRQ number; `None` until an earlier change creates the queue.
        irq: Option<u32>,
        cpus: Diff<CpuList>,
    },
    XpsCpus {
        device: DeviceId,
        queue: u32,
        /// CPUs; empty: off.
        cpus: Diff<CpuList>,
    },
    XpsRxqs {
        device: DeviceId,
        queue: u32,
        /// Receive queues; empty: off.
        rx_queues: Diff<Vec<u32>>,
    },
    /// Threaded NAPI of all queues, for kernels that support it only per device (before 6.17).
    DeviceThreading {
        device: DeviceId,
        on: Diff<bool>,
    },
    Napi(PlannedQueue),
    ThreadCpus {
        device: DeviceId,
        queue: u32,
        /// Thread ID; `None` until an earlier change creates the kthread.
        thread: Option<Pid>,
        cpus: Diff<CpuList>,
    },
    ThreadScheduling {
        device: DeviceId,
        queue: u32,
        thread: Option<Pid>,
        scheduling: Diff<Scheduling>,
    },
    Sysctl {
        /// Name with dots.
        name: String,
        value: Diff<String>,
    },
}

impl PlannedChange {
    #[must_use]
    pub fn inverse(&self) -> Self {
        let mut inverse = self.clone();
        match &mut inverse {
            Self::FlowRule { action, .. } => action.swap(),
            Self::RssContext { table, .. } | Self::RssTable { table, .. } => table.swap(),
            Self::Feature { on, .. } | Self::DeviceThreading { on, .. } => on.swap(),
            Self::Channels { counts, .. } => counts.swap(),
            Self::Rings { sizes, .. } => sizes.swap(),
            Self::Coalescing { values, .. } | Self::QueueCoalescing { values, .. } => values.swap(),
            Self::RpsCpus { cpus, .. }
            | Self::IrqAffinity { cpus, .. }
            | Self::XpsCpus { cpus, .. }
            | Self::ThreadCpus { cpus, .. } => cpus.swap(),
            Self::XpsRxqs { rx_queues, .. } => rx_queues.swap(),
            Self::Napi(PlannedQueue { values, .. }) => values.swap(),
            Self::ThreadScheduling { scheduling, .. } => scheduling.swap(),
            Self::Sysctl { value, .. } => value.swap(),
        }
        inverse
    }

    /// Rank of the change in the order that the kernel requires, lowest first:
    ///
    /// - References to an object are removed before the object, and added after it exists.
    /// - Recreated queues lose their settings, so changes that recreate queues precede settings on them.
    /// - A table must not name missing queues, so it shrinks before the channels do and grows after them.
    /// - The setting of a NAPI instance creates and removes its kthread.
    #[must_use]
    pub fn rank(&self) -> u8 {
        match self {
            Self::FlowRule { action, .. } if action.new.is_none() => 0,
            Self::RssContext { table, .. } if table.new.is_none() => 1,
            Self::RssTable { table, .. } if shrinks(table) => 2,
            Self::Feature { .. } => 3,
            Self::Channels { .. } => 4,
            Self::Rings { .. } => 5,
            Self::RssTable { .. } => 6,
            Self::RssContext { .. } => 7,
            Self::FlowRule { .. } => 8,
            Self::Coalescing { .. } => 9,
            Self::QueueCoalescing { .. } => 10,
            Self::RpsCpus { .. } => 11,
            Self::IrqAffinity { .. } => 12,
            Self::XpsCpus { .. } => 13,
            Self::XpsRxqs { .. } => 14,
            Self::DeviceThreading { .. } => 15,
            Self::Napi(_) => RANK_OF_QUEUES,
            Self::ThreadCpus { .. } => 17,
            Self::ThreadScheduling { .. } => 18,
            Self::Sysctl { .. } => 19,
        }
    }

    /// Whether drivers recreate the queues of the device for it.
    pub(crate) fn recreates_queues(&self) -> bool {
        matches!(self, Self::Feature { .. } | Self::Channels { .. } | Self::Rings { .. })
    }

    #[must_use]
    pub fn device(&self) -> Option<&DeviceId> {
        match self {
            Self::FlowRule { device, .. }
            | Self::RssContext { device, .. }
            | Self::RssTable { device, .. }
            | Self::Feature { device, .. }
            | Self::Channels { device, .. }
            | Self::Rings { device, .. }
            | Self::Coalescing { device, .. }
            | Self::QueueCoalescing { device, .. }
            | Self::RpsCpus { device, .. }
            | Self::IrqAffinity { device, .. }
            | Self::XpsCpus { device, .. }
            | Self::XpsRxqs { device, .. }
            | Self::DeviceThreading { device, .. }
            | Self::Napi(PlannedQueue { device, .. })
            | Self::ThreadCpus { device, .. }
            | Self::ThreadScheduling { device, .. } => Some(device),
            Self::Sysctl { .. } => None,
        }
    }

    #[must_use]
    pub fn queue(&self) -> Option<u32> {
        match self {
            Self::QueueCoalescing { queue, .. }
            | Self::RpsCpus { queue, .. }
            | Self::IrqAffinity { queue, .. }
            | Self::XpsCpus { queue, .. }
            | Self::XpsRxqs { queue, .. }
            | Self::Napi(PlannedQueue { queue, .. })
            | Self::ThreadCpus { queue, .. }
            | Self::ThreadScheduling { queue, .. } => Some(*queue),
            _ => None,
        }
    }
}

/// Whether the highest queue of the new table is lower than that of the old one.
fn shrinks(table: &Diff<Vec<u32>>) -> bool {
    let highest = |table: &Option<Vec<u32>>| table.as_ref().and_then(|table| table.iter().max().copied());
    highest(&table.new) < highest(&table.old)
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
