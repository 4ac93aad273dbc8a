//! The queues of a site and their NAPI settings. Newer kernels set each queue by netlink. On older kernels, sysfs sets
//! all queues of a device at once.

use quell_linux::netdev::Netdev;
use quell_linux::sysfs::Sysfs;
use quell_linux::{InterfaceName, NapiId, Pid};
use quell_mode::NapiSettings;

use super::{PlayError, Site};

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Each queue separately, by netlink (`napi-set`, Linux 6.13).
    EachByNetlink,
    /// The only queue, through the sysfs attributes of its device, which support neither suspension nor threaded NAPI.
    DeviceBySysfs {
        device: InterfaceName,
        /// NAPI ID of the queue, as reported by its sockets. Some of these kernels do not list NAPI instances.
        napi: NapiId,
    },
}

pub(super) struct Queues {
    ids: Vec<NapiId>,
    access: SettingsAccess,
}

enum SettingsAccess {
    Netlink(Netdev),
    Sysfs { sysfs: Sysfs, device: InterfaceName },
}

impl Queues {
    pub(super) fn of(site: &Site) -> Result<Self, PlayError> {
        match &site.control {
            Control::EachByNetlink => {
                let mut netdev = Netdev::open_in(&site.application.namespace)?;
                let ids = netdev.napis(site.application.ifindex)?.iter().map(|napi| napi.id).collect();
                Ok(Self { ids, access: SettingsAccess::Netlink(netdev) })
            }
            Control::DeviceBySysfs { device, napi, .. } => {
                let (sysfs, device) = (Sysfs::of(&site.application.namespace)?, device.clone());
                Ok(Self { ids: vec![*napi], access: SettingsAccess::Sysfs { sysfs, device } })
            }
        }
    }

    pub(super) fn ids(&self) -> &[NapiId] {
        &self.ids
    }

    /// Interrupt of each queue; absent if it has none or if it is unknown.
    pub(super) fn irqs(&mut self, site: &Site) -> Result<Vec<Option<u32>>, PlayError> {
        match &mut self.access {
            SettingsAccess::Netlink(netdev) => {
                let said = |&id: &NapiId| Ok(netdev.napi(id)?.irq.or(site.rx_irq));
                self.ids.iter().map(said).collect()
            }
            SettingsAccess::Sysfs { .. } => Ok(vec![site.rx_irq]),
        }
    }

    pub(super) fn set(&mut self, queue: usize, settings: &NapiSettings) -> Result<(), PlayError> {
        match &mut self.access {
            SettingsAccess::Netlink(netdev) => Ok(netdev.set_napi(self.ids[queue], &(*settings).into())?),
            SettingsAccess::Sysfs { sysfs, device } => {
                let class = sysfs.net_class(device);
                class.set_napi_defer_hard_irqs(settings.defer_hard_irqs)?;
                Ok(class.set_gro_flush_timeout_ns(settings.gro_flush_timeout_ns)?)
            }
        }
    }

    pub(super) fn thread(&mut self, queue: usize) -> Result<Option<Pid>, PlayError> {
        match &mut self.access {
            SettingsAccess::Netlink(netdev) => Ok(netdev.napi(self.ids[queue])?.pid),
            SettingsAccess::Sysfs { .. } => Ok(None),
        }
    }
}
