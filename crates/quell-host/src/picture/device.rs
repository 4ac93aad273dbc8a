//! A network device: what it is, what its driver offers, and its queues and NAPI instances.

use quell_linux::ethtool::{Channels, Coalescing, DriverInfo, Features, InstalledFlowRule, Rings, RssContext};
use quell_linux::link::OperationalState;
use quell_linux::proc::TrafficCounters;
use quell_linux::{Ifindex, MacAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Napi, Reading, RxQueue, TxQueue};

/// One network device. Its key is [`Device::namespace`] with [`Device::ifindex`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Device {
    /// The inode of the namespace that it is in.
    pub namespace: u64,
    /// Its number there.
    pub ifindex: Ifindex,
    /// Its name there.
    pub name: String,
    /// The kind of a virtual device (`veth`, `macvlan`, `tun`, …); absent for hardware and `lo`.
    pub kind: Option<String>,
    /// Its driver, as ethtool tells it.
    pub driver: Reading<DriverInfo>,
    /// The administrator set it up.
    pub is_up: bool,
    /// What the driver says of the connection.
    pub operational_state: OperationalState,
    /// Speed in Mbit/s; known to be none where the driver does not know (no cable, virtual).
    pub speed_mbit: Reading<Option<u32>>,
    /// The largest packet in bytes.
    pub mtu: Option<u32>,
    /// Its Ethernet address, where it has one.
    pub mac: Option<MacAddress>,
    /// The device below it, or the other end of a veth pair.
    pub lower: Option<Lower>,
    /// The device that took this one as a port, by its number in the same namespace: a bond, bridge, team or VRF. What
    /// arrives by a port is taken to have arrived by that device.
    pub master: Option<Ifindex>,
    /// An XDP program is attached, which turns NAPI on for veth.
    pub has_xdp: Reading<bool>,
    /// The NUMA node of its bus; known to be none for virtual devices and where the platform does not say.
    pub numa_node: Reading<Option<u32>>,
    /// Its interrupts, also those that serve no queue, ascending.
    pub irqs: Reading<Vec<u32>>,
    /// Channels in use and the most that there can be.
    pub channels: Reading<Channels>,
    /// Ring sizes.
    pub rings: Reading<Rings>,
    /// Interrupt moderation of all queues; those that differ have their own.
    pub coalescing: Reading<Coalescing>,
    /// RSS contexts, the device's own first.
    pub rss_contexts: Reading<Vec<RssContext>>,
    /// Flow rules, by location.
    pub flow_rules: Reading<Vec<InstalledFlowRule>>,
    /// Offload features by the kernel's names (`rx-gro`, `tx-tcp-segmentation`, …).
    pub features: Reading<Features>,
    /// What new NAPI instances get; reads say nothing about what a queue has.
    pub defaults: DeviceDefaults,
    /// What it counted.
    pub counters: Reading<TrafficCounters>,
    /// Its receive queues in use, ascending.
    pub rx_queues: Reading<Vec<RxQueue>>,
    /// Its transmit queues in use, ascending.
    pub tx_queues: Reading<Vec<TxQueue>>,
    /// Its NAPI instances, ascending.
    pub napis: Reading<Vec<Napi>>,
}

/// The device that another one is tied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lower {
    /// Its number in its namespace.
    pub ifindex: Ifindex,
    /// It is in another namespace than this device.
    pub is_elsewhere: bool,
}

/// The settings in sysfs (`/sys/class/net/NAME`), from before each NAPI instance had its own: what new instances get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DeviceDefaults {
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: Reading<u32>,
    /// `gro_flush_timeout`, nanoseconds.
    pub gro_flush_timeout_ns: Reading<u64>,
    /// `threaded`.
    pub threaded: Reading<bool>,
}
