//! Received packets that were lost because a queue was full. `rx_dropped` of a device also counts frames that no
//! protocol wanted (`__netif_receive_skb_core`), and on veth it does not count a full ring at all: `veth_xmit` charges
//! the peer.

use crate::link::{DeviceDrops, Links};
use crate::netdev::Netdev;
use crate::netlink::NetlinkError;
use crate::netns::Namespace;
use crate::{Ifindex, InterfaceName};

#[derive(Debug)]
pub struct QueueDrops {
    links: Links,
    /// Absent before Linux 6.9, which has no statistics of queues.
    netdev: Option<Netdev>,
}

impl QueueDrops {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { links: Links::open()?, netdev: Netdev::open().ok() })
    }

    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { links: Links::open_in(namespace)?, netdev: Netdev::open_in(namespace).ok() })
    }

    /// Packets for the device that were lost because a receive queue was full, since the device was created. Errors:
    /// `Absent` if the device does not exist, `Denied` if the peer of a veth is in a namespace where the caller lacks
    /// `CAP_NET_ADMIN`.
    pub fn received(&mut self, index: Ifindex) -> Result<u64, NetlinkError> {
        let device = self.links.drops(index, None)?;
        self.of(&device)
    }

    /// Packets from and to the device that were lost because a queue was full or refused them, since the device was
    /// created: those of [`QueueDrops::received`], and its `tx_dropped`.
    pub fn both_ways(&mut self, name: &InterfaceName) -> Result<u64, NetlinkError> {
        let index = self.links.by_name(name)?.index;
        let device = self.links.drops(index, None)?;
        Ok(self.of(&device)?.saturating_add(device.tx_dropped))
    }

    fn of(&mut self, device: &DeviceDrops) -> Result<u64, NetlinkError> {
        if let Some(peer) = device.veth_peer {
            return Ok(self.links.drops(peer.index, peer.namespace_id)?.tx_dropped);
        }
        let stats = self.netdev.as_mut().and_then(|netdev| netdev.device_stats(device.index).ok());
        let overruns = stats.and_then(|stats| stats.counters.rx_hw_drop_overruns);
        // Drivers report the same packets in either place.
        Ok(device.rx_overruns.max(overruns.unwrap_or(0)))
    }
}
