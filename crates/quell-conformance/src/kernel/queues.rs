//! The queues of a site: which there are and how they are told their settings, by netlink each for itself, or, on kernels
//! that have no more, all of a device at once by sysfs.

use quell_linux::netdev::{NapiChange, NapiThreading, Netdev};
use quell_linux::sysfs::Sysfs;
use quell_linux::{InterfaceName, NapiId, Pid};
use quell_mode::NapiSettings;

use super::{PlayError, Site};

/// How the queues of a device are told their settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Each for itself, by netlink (`napi-set`, Linux 6.13).
    EachByNetlink,
    /// The only one that there is, through the values of its device in sysfs; suspension and a thread of its own cannot
    /// be told it.
    DeviceBySysfs {
        /// The device.
        device: InterfaceName,
        /// Its queue, as sockets know it: not every such kernel lists NAPI instances.
        napi: NapiId,
    },
}

/// The queues of a site.
pub(super) struct Queues {
    ids: Vec<NapiId>,
    told: Told,
}

enum Told {
    Netlink(Netdev),
    Sysfs { sysfs: Sysfs, device: InterfaceName },
}

impl Queues {
    pub(super) fn of(site: &Site) -> Result<Self, PlayError> {
        match &site.control {
            Control::EachByNetlink => {
                let mut netdev = Netdev::open_in(&site.application.namespace)?;
                let ids = netdev.napis(site.application.ifindex)?.iter().map(|napi| napi.id).collect();
                Ok(Self { ids, told: Told::Netlink(netdev) })
            }
            Control::DeviceBySysfs { device, napi, .. } => {
                let (sysfs, device) = (Sysfs::of(&site.application.namespace)?, device.clone());
                Ok(Self { ids: vec![*napi], told: Told::Sysfs { sysfs, device } })
            }
        }
    }

    /// Their ids, in the order of the queues.
    pub(super) fn ids(&self) -> &[NapiId] {
        &self.ids
    }

    /// The interrupt of each, where the device has one that can be told.
    pub(super) fn irqs(&mut self, site: &Site) -> Result<Vec<Option<u32>>, PlayError> {
        match &mut self.told {
            Told::Netlink(netdev) => {
                let said = |&id: &NapiId| Ok(netdev.napi(id)?.irq.or(site.rx_irq));
                self.ids.iter().map(said).collect()
            }
            Told::Sysfs { .. } => Ok(vec![site.rx_irq]),
        }
    }

    /// Tells a queue its settings.
    pub(super) fn set(&mut self, queue: usize, settings: &NapiSettings) -> Result<(), PlayError> {
        match &mut self.told {
            Told::Netlink(netdev) => Ok(netdev.set_napi(self.ids[queue], &change_to(settings))?),
            Told::Sysfs { sysfs, device } => {
                let class = sysfs.net_class(device);
                class.set_napi_defer_hard_irqs(settings.defer_hard_irqs)?;
                Ok(class.set_gro_flush_timeout_ns(settings.gro_flush_timeout_ns)?)
            }
        }
    }

    /// The thread that polls a queue; absent when there is none.
    pub(super) fn thread(&mut self, queue: usize) -> Result<Option<Pid>, PlayError> {
        match &mut self.told {
            Told::Netlink(netdev) => Ok(netdev.napi(self.ids[queue])?.pid),
            Told::Sysfs { .. } => Ok(None),
        }
    }
}

fn change_to(settings: &NapiSettings) -> NapiChange {
    NapiChange {
        defer_hard_irqs: Some(settings.defer_hard_irqs),
        gro_flush_timeout_ns: Some(settings.gro_flush_timeout_ns),
        irq_suspend_timeout_ns: Some(settings.irq_suspend_timeout_ns),
        threading: Some(NapiThreading::from_kernel(settings.threaded.kernel_value())),
    }
}
