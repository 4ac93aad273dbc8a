//! A network device: identity, driver features, queues and NAPI instances.

use std::net::IpAddr;

use quell_linux::ethtool::{Channels, Coalescing, DriverInfo, Features, InstalledFlowRule, Rings, RssContext};
use quell_linux::link::OperationalState;
use quell_linux::proc::TrafficCounters;
use quell_linux::{Ifindex, MacAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Reading, RxQueue, SnapshotNapi, TxQueue};

/// One network device. Its key is the pair of [`Device::namespace`] and [`Device::ifindex`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Device {
    /// Inode of its namespace.
    pub namespace: u64,
    /// Interface index.
    pub ifindex: Ifindex,
    /// Interface name.
    pub name: String,
    /// Kind of a virtual device (`veth`, `macvlan`, `tun`, …); absent for hardware and `lo`.
    pub kind: Option<String>,
    /// Driver as reported by ethtool.
    pub driver: Reading<DriverInfo>,
    /// Whether the device is administratively up.
    pub is_up: bool,
    /// Operational state reported by the driver.
    pub operational_state: OperationalState,
    /// Speed in Mbit/s; null if the driver does not know it (no cable, virtual device).
    pub speed_mbit: Reading<Option<u32>>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Ethernet address, if the device has one.
    pub mac: Option<MacAddress>,
    /// Lower device, or the peer of a veth pair.
    pub lower: Option<Lower>,
    /// Interface index, in the same namespace, of the bond, bridge, team or VRF that this device is a port of. Packets
    /// received by a port count as received by that device.
    pub master: Option<Ifindex>,
    /// Its IP addresses, in kernel order; absent if they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpAddr>>,
    /// Whether an XDP program is attached, which enables NAPI on veth.
    pub has_xdp: Reading<bool>,
    /// NUMA node of its bus; null for virtual devices, and if the platform does not report it.
    pub numa_node: Reading<Option<u32>>,
    /// Its interrupts in ascending order, including those without a queue.
    pub irqs: Reading<Vec<u32>>,
    /// Channels in use, and their maximum.
    pub channels: Reading<Channels>,
    /// Ring sizes.
    pub rings: Reading<Rings>,
    /// Coalescing of all queues. Queues with different values have their own entry.
    pub coalescing: Reading<Coalescing>,
    /// RSS contexts, the default one first.
    pub rss_contexts: Reading<Vec<RssContext>>,
    /// Flow rules, by location.
    pub flow_rules: Reading<Vec<InstalledFlowRule>>,
    /// Offload features by kernel name (`rx-gro`, `tx-tcp-segmentation`, …).
    pub features: Reading<Features>,
    /// Defaults for new NAPI instances; existing instances may have other values.
    pub defaults: DeviceDefaults,
    /// Traffic counters.
    pub counters: Reading<TrafficCounters>,
    /// Packets for the device that were lost because a receive queue was full: `rx_missed_errors`, overruns of its
    /// queues, and for veth the `tx_dropped` of the peer. `counters` has these and frames that no protocol wanted in
    /// `rx-dropped`.
    pub rx_queue_dropped: Reading<u64>,
    /// Its receive queues in use, in ascending order.
    pub rx_queues: Reading<Vec<RxQueue>>,
    /// Its transmit queues in use, in ascending order.
    pub tx_queues: Reading<Vec<TxQueue>>,
    /// Its NAPI instances, in ascending order.
    pub napis: Reading<Vec<SnapshotNapi>>,
}

impl Device {
    /// Whether it is known to have this address, which may be an IPv4-mapped IPv6 address.
    #[must_use]
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().flatten().any(|own| *own == ip.to_canonical())
    }
}

/// Lower device of a stacked device, or peer of a veth device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lower {
    /// Interface index in its namespace.
    pub ifindex: Ifindex,
    /// Whether it is in another namespace than this device.
    pub is_in_other_namespace: bool,
}

/// Device settings in sysfs (`/sys/class/net/NAME`), which predate settings per NAPI instance. They are the defaults of
/// new instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DeviceDefaults {
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: Reading<u32>,
    /// `gro_flush_timeout` in nanoseconds.
    pub gro_flush_timeout_ns: Reading<u64>,
    /// `threaded`.
    pub threaded: Reading<bool>,
}
