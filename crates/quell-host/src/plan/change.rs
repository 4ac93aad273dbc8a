//! The changes that a plan consists of: what is set, on what, from which value to which. Each can be
//! inverted, and all have an order in which the kernel takes them.

use std::fmt;

use quell_linux::ethtool::{Coalescing, FlowMatch, RssContextId};
use quell_linux::sched::Scheduling;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use serde::{Deserialize, Serialize};

use crate::settings::values::NapiValues;

/// A device as plans and pictures know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DeviceId {
    /// The inode of its network namespace.
    pub namespace: u64,
    /// Its number there.
    pub ifindex: Ifindex,
    /// Its name there.
    pub name: String,
}

/// From which value to which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Diff<T> {
    /// The value now; `None` when there is none: the thing does not exist, or comes with an earlier
    /// change (the queues of a channel, the thread of a queue), and then with the kernel's default.
    pub old: Option<T>,
    /// The value afterwards; `None` when the thing goes: by this change, or with an earlier one, and
    /// then there is nothing to be done.
    pub new: Option<T>,
}

impl<T> Diff<T> {
    fn swap(&mut self) {
        std::mem::swap(&mut self.old, &mut self.new);
    }
}

/// Counts of channels; `None` is a kind that the change does not speak of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ChannelCounts {
    /// Of one receive and one transmit queue.
    pub combined: Option<u32>,
    /// Receive.
    pub rx: Option<u32>,
    /// Transmit.
    pub tx: Option<u32>,
}

/// Ring sizes in descriptors; `None` is a side that the change does not speak of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingSizes {
    /// Of each receive queue.
    pub rx: Option<u32>,
    /// Of each transmit queue.
    pub tx: Option<u32>,
}

/// An RSS context that exists, or one that an earlier change of the same plan makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextRef {
    /// By the kernel's number.
    Existing(RssContextId),
    /// By the plan's own name for it; the number is known once it is made.
    Planned(String),
}

/// What becomes of the packets of a flow rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleAction {
    /// They go to a receive queue.
    Queue(u32),
    /// They go to an RSS context.
    Context(ContextRef),
    /// They are dropped.
    Discard,
}

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "setting", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// A flow rule: added (no old action) or deleted (no new one). Its place is the driver's choice.
    FlowRule {
        /// The device.
        device: DeviceId,
        /// Which packets.
        matches: FlowMatch,
        /// Where they go.
        action: Diff<RuleAction>,
    },
    /// A further RSS context: made (no old table) or deleted (no new one).
    RssContext {
        /// The device.
        device: DeviceId,
        /// Which context.
        context: ContextRef,
        /// The queue of each hash value.
        table: Diff<Vec<u32>>,
    },
    /// The table of a context that stays.
    RssTable {
        /// The device.
        device: DeviceId,
        /// Which context.
        context: RssContextId,
        /// The queue of each hash value.
        table: Diff<Vec<u32>>,
    },
    /// An offload feature.
    Feature {
        /// The device.
        device: DeviceId,
        /// By the kernel's name.
        name: String,
        /// Whether it is on.
        on: Diff<bool>,
    },
    /// How many channels. Queues are made anew.
    Channels {
        /// The device.
        device: DeviceId,
        /// The counts.
        counts: Diff<ChannelCounts>,
    },
    /// How large the rings are. Queues are made anew by most drivers.
    Rings {
        /// The device.
        device: DeviceId,
        /// The sizes.
        sizes: Diff<RingSizes>,
    },
    /// Coalescing of all queues; only the parameters that change.
    Coalescing {
        /// The device.
        device: DeviceId,
        /// The parameters.
        values: Diff<Coalescing>,
    },
    /// Coalescing of one queue; only the parameters that change.
    QueueCoalescing {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The parameters.
        values: Diff<Coalescing>,
    },
    /// `rps_cpus` of a receive queue.
    RpsCpus {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The CPUs; empty: off.
        cpus: Diff<CpuList>,
    },
    /// Where the interrupt of a queue may be handled.
    IrqAffinity {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The interrupt's number; `None` while its queue is to be made.
        irq: Option<u32>,
        /// The CPUs.
        cpus: Diff<CpuList>,
    },
    /// `xps_cpus` of a transmit queue.
    XpsCpus {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The CPUs; empty: off.
        cpus: Diff<CpuList>,
    },
    /// `xps_rxqs` of a transmit queue.
    XpsRxqs {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The receive queues; empty: off.
        rx_queues: Diff<Vec<u32>>,
    },
    /// Threaded NAPI of all queues, where the kernel has it per device only (before 6.17).
    DeviceThreading {
        /// The device.
        device: DeviceId,
        /// Whether threads poll.
        on: Diff<bool>,
    },
    /// Settings of the NAPI instance of a receive queue.
    Napi {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// Its instance; `None` while it is to be made.
        napi: Option<NapiId>,
        /// All settings that the kernel has.
        values: Diff<NapiValues>,
    },
    /// The CPUs of the kernel thread of a queue.
    ThreadCpus {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The thread; `None` while it is to be made.
        thread: Option<Pid>,
        /// The CPUs.
        cpus: Diff<CpuList>,
    },
    /// How the kernel thread of a queue is scheduled.
    ThreadScheduling {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: u32,
        /// The thread; `None` while it is to be made.
        thread: Option<Pid>,
        /// Class and priority.
        scheduling: Diff<Scheduling>,
    },
    /// A sysctl, as text.
    Sysctl {
        /// Its name with dots.
        name: String,
        /// The value.
        value: Diff<String>,
    },
}

impl Change {
    /// The change that leads back.
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
            Self::Napi { values, .. } => values.swap(),
            Self::ThreadScheduling { scheduling, .. } => scheduling.swap(),
            Self::Sysctl { value, .. } => value.swap(),
        }
        inverse
    }

    /// The place of the change in the order that the kernel needs, lower first: what refers to
    /// something goes before it goes and comes after it came; queues that are made anew lose what was
    /// set on them, so what makes them comes before what is set on them; a table may not name queues
    /// that are not there, so it shrinks before the channels do and grows after them; a thread comes
    /// and goes with the NAPI's setting.
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
            Self::Napi { .. } => 16,
            Self::ThreadCpus { .. } => 17,
            Self::ThreadScheduling { .. } => 18,
            Self::Sysctl { .. } => 19,
        }
    }

    /// The device; `None` for what is not of one.
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
            | Self::Napi { device, .. }
            | Self::ThreadCpus { device, .. }
            | Self::ThreadScheduling { device, .. } => Some(device),
            Self::Sysctl { .. } => None,
        }
    }

    /// The queue; `None` for what is not of one.
    #[must_use]
    pub fn queue(&self) -> Option<u32> {
        match self {
            Self::QueueCoalescing { queue, .. }
            | Self::RpsCpus { queue, .. }
            | Self::IrqAffinity { queue, .. }
            | Self::XpsCpus { queue, .. }
            | Self::XpsRxqs { queue, .. }
            | Self::Napi { queue, .. }
            | Self::ThreadCpus { queue, .. }
            | Self::ThreadScheduling { queue, .. } => Some(*queue),
            _ => None,
        }
    }
}

/// Whether the highest queue of the new table is below that of the old one.
fn shrinks(table: &Diff<Vec<u32>>) -> bool {
    let highest = |table: &Option<Vec<u32>>| table.as_ref().and_then(|table| table.iter().max().copied());
    highest(&table.new) < highest(&table.old)
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
