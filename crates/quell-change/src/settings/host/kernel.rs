//! Finds the devices, queues, interrupts and threads of a plan. Searches at every use, because some changes recreate
//! them.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use quell_linux::ethtool::{Ethtool, RssContextId};
use quell_linux::link::{Link, Links};
use quell_linux::netdev::{Napi, Netdev};
use quell_linux::netns::Namespace;
use quell_linux::proc::{InterruptLine, ProcRoot};
use quell_linux::sysfs::Sysfs;
use quell_linux::{Ifindex, InterfaceName, Pid};

use crate::change::{DeviceId, HostSetting};
use crate::devices::{self, FoundDevice};
use crate::driver_inference::virtio_rx_interrupt;
use crate::namespaces;
use crate::settings::{SettingsError, napi};

#[derive(Debug)]
pub(crate) struct HostAccess<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) proc: &'a ProcRoot,
    /// Current ifindex, if the device has moved to this namespace since the change was planned.
    moved_to: Option<Ifindex>,
    sysfs: OnceCell<Sysfs>,
}

#[derive(Debug)]
pub(crate) enum SettingPlace {
    Namespace(Namespace),
    Device(FoundDevice),
}

impl SettingPlace {
    pub(crate) fn find(proc: &ProcRoot, change: &HostSetting) -> Result<Option<Self>, SettingsError> {
        Ok(match change.recorded_device() {
            Some(key) => devices::find(proc, &key)?.map(Self::Device),
            None => namespaces::by_cookie(proc, change.namespace_cookie)?.map(Self::Namespace),
        })
    }

    pub(crate) fn kernel<'a>(&'a self, proc: &'a ProcRoot) -> HostAccess<'a> {
        match self {
            Self::Namespace(namespace) => HostAccess::new(namespace, proc),
            Self::Device(device) => {
                HostAccess { moved_to: Some(device.link.index), ..HostAccess::new(&device.namespace, proc) }
            }
        }
    }
}

/// RSS contexts whose IDs were assigned after planning. A context created by a plan is identified by its name in the
/// plan. A context recreated by an undo is identified by its old ID.
#[derive(Debug, Default)]
pub(crate) struct KnownContexts {
    pub(crate) planned: BTreeMap<(DeviceId, String), RssContextId>,
    pub(crate) made_again: BTreeMap<(DeviceId, RssContextId), RssContextId>,
}

impl<'a> HostAccess<'a> {
    pub(crate) fn new(namespace: &'a Namespace, proc: &'a ProcRoot) -> Self {
        Self { namespace, proc, moved_to: None, sysfs: OnceCell::new() }
    }

    pub(crate) fn ethtool(&self) -> Result<Ethtool, SettingsError> {
        Ok(Ethtool::open_in(self.namespace)?)
    }

    pub(crate) fn sysfs(&self) -> Result<&Sysfs, SettingsError> {
        if self.sysfs.get().is_none() {
            let _ = self.sysfs.set(Sysfs::of(self.namespace)?);
        }
        self.sysfs.get().ok_or(SettingsError::Gone { what: "sysfs".to_owned() })
    }

    pub(crate) fn name(&self, device: &DeviceId) -> Result<InterfaceName, SettingsError> {
        let link = self.link(device)?;
        InterfaceName::new(link.name.as_str()).map_err(|_| gone(device.to_string()))
    }

    pub(crate) fn index(&self, device: &DeviceId) -> Result<Ifindex, SettingsError> {
        Ok(self.link(device)?.index)
    }

    pub(crate) fn link(&self, device: &DeviceId) -> Result<Link, SettingsError> {
        Ok(Links::open_in(self.namespace)?.by_index(self.moved_to.unwrap_or(device.ifindex))?)
    }

    pub(crate) fn napi(&self, device: &DeviceId, queue: u32) -> Result<Napi, SettingsError> {
        let mut netdev = Netdev::open_in(self.namespace)?;
        let polled = napi::rx_queues(&mut netdev, &self.link(device)?)?;
        let napi = polled.into_iter().find(|(of, _)| *of == queue).map(|(_, napi)| napi);
        napi.ok_or_else(|| gone(format!("the NAPI instance of receive queue {queue} of {device}")))
    }

    pub(crate) fn thread(&self, device: &DeviceId, queue: u32) -> Result<Pid, SettingsError> {
        let pid = self.napi(device, queue)?.pid;
        pid.ok_or_else(|| gone(format!("the NAPI thread of receive queue {queue} of {device}")))
    }

    /// Returns the interrupt of a receive queue, as reported by the kernel or inferred from its name.
    pub(crate) fn irq(&self, device: &DeviceId, queue: u32) -> Result<u32, SettingsError> {
        if let Some(irq) = self.napi(device, queue)?.irq {
            return Ok(irq);
        }
        let bus = self.sysfs()?.net_class(&self.name(device)?).bus_name()?;
        let named = bus.map(|bus| virtio_rx_interrupt(&bus, queue));
        let interrupts = self.proc.interrupts()?;
        let line = interrupts.lines.iter().find(|line| named.as_deref() == Some(line.name()));
        let irq = line.and_then(InterruptLine::irq);
        irq.ok_or_else(|| gone(format!("the interrupt of receive queue {queue} of {device}")))
    }
}

fn gone(what: String) -> SettingsError {
    SettingsError::Gone { what }
}
