//! Reads the devices of a namespace: links, ethtool data, queues, NAPI instances and their kthreads.

use std::collections::BTreeMap;
use std::net::IpAddr;

use quell_linux::address::Addresses;
use quell_linux::capability::Capability;
use quell_linux::ethtool::{Coalescing, Ethtool};
use quell_linux::link::{Link, Links};
use quell_linux::netdev::{self, Netdev, QueueKind, QueueStats};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::proc::{Interrupts, NetDev, ProcRoot};
use quell_linux::queue_drops::QueueDrops;
use quell_linux::sysfs::{NetClass, Sysfs, SysfsError};
use quell_linux::{Ifindex, InterfaceName, Pid};

use super::super::{
    Device, DeviceDefaults, Linked, Lower, Provenance, Reading, RxQueue, SnapshotNapi, SnapshotScope, Thread, TxQueue,
    Unknown, UnknownReason,
};
use super::TakeError;
use super::namespaces::Space;
use super::outcome::Outcome as _;
use super::{join, threads};

/// An ifindex that no interface has. A request with it shows whether the kernel supports the request at all.
const NO_INTERFACE: u32 = i32::MAX.cast_unsigned();

/// Devices, and for namespaces whose devices could not be listed, the reason, by inode.
type DevicesRead = (Vec<Device>, BTreeMap<u64, Unknown>);

/// Reads the devices of all namespaces in the scope. A namespace that nobody requested and that may not be entered has no
/// devices: everybody can open a name in `/run/netns`, but entering it needs CAP_SYS_ADMIN.
pub(super) fn read_all(
    spaces: &[Space],
    scope: &SnapshotScope,
    interrupts: &Reading<Interrupts>,
) -> Result<DevicesRead, TakeError> {
    let mut devices = Vec::new();
    let mut unlisted = BTreeMap::new();
    let mut there = Vec::new();
    for space in spaces {
        let mut links = match space.open(Links::open, Links::open_in).and_then(|mut links| links.list()) {
            Ok(links) => links,
            Err(error) if error.failure() == Failure::Denied && !space.is_current && !space.is_requested => {
                let unknown = Unknown {
                    reason: UnknownReason::Denied { needs: Some(Capability::SysAdmin) },
                    message: error.to_string(),
                };
                unlisted.insert(space.namespace.inode(), unknown);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        links.sort_unstable_by_key(|link| link.index);
        let mut handles = Handles::open(space, interrupts);
        for link in &links {
            if scope.device.as_ref().is_none_or(|name| *name == link.name) {
                devices.push(handles.device(space, link));
            }
            there.push(link.name.clone());
        }
    }
    match &scope.device {
        Some(name) if devices.is_empty() => Err(TakeError::NoSuchDevice { name: name.clone(), there }),
        _ => Ok((devices, unlisted)),
    }
}

struct Handles<'a> {
    ethtool: Reading<Ethtool>,
    netdev: Reading<Netdev>,
    net_dev: Reading<NetDev>,
    queue_drops: Reading<QueueDrops>,
    /// By interface; absent if they could not be read.
    addresses: Option<BTreeMap<Ifindex, Vec<IpAddr>>>,
    interrupts: &'a Reading<Interrupts>,
    proc: ProcRoot,
}

impl<'a> Handles<'a> {
    fn open(space: &Space, interrupts: &'a Reading<Interrupts>) -> Self {
        Self {
            ethtool: space.open(Ethtool::open, Ethtool::open_in).outcome(),
            netdev: space.open(Netdev::open, Netdev::open_in).outcome(),
            net_dev: space.net_dev(),
            queue_drops: space.open(QueueDrops::open, QueueDrops::open_in).outcome(),
            addresses: space.open(Addresses::open, Addresses::open_in).and_then(|mut all| all.list()).ok().map(|all| {
                let mut by_interface: BTreeMap<Ifindex, Vec<IpAddr>> = BTreeMap::new();
                all.iter().for_each(|(index, address)| by_interface.entry(*index).or_default().push(address.ip()));
                by_interface
            }),
            interrupts,
            proc: ProcRoot::default(),
        }
    }

    fn device(&mut self, space: &Space, link: &Link) -> Device {
        let index = link.index;
        let sysfs = Class::of(&space.sysfs, &link.name);
        let coalescing = self.ethtool(index, Ethtool::coalescing);
        let irqs = sysfs.read(|class| class.irqs().map(Option::unwrap_or_default));
        let mut device = Device {
            namespace: space.namespace.inode(),
            ifindex: index,
            name: link.name.clone(),
            kind: link.kind.clone(),
            driver: self.ethtool(index, Ethtool::driver_info),
            is_up: link.is_up,
            operational_state: link.operational_state,
            speed_mbit: sysfs.read(NetClass::speed_mbit),
            mtu: link.mtu,
            mac: link.mac,
            lower: link
                .peer
                .map(|peer| Lower { ifindex: peer.index, is_in_other_namespace: peer.namespace_id.is_some() }),
            master: link.master,
            addresses: self.addresses.as_ref().map(|all| all.get(&index).cloned().unwrap_or_default()),
            has_xdp: reported(link.has_xdp, "read state", index),
            numa_node: sysfs.read(NetClass::numa_node),
            irqs,
            channels: self.ethtool(index, Ethtool::channels),
            rings: self.ethtool(index, Ethtool::rings),
            rss_contexts: self.ethtool(index, Ethtool::rss_contexts),
            flow_rules: self.ethtool(index, |ethtool, index| Ok(ethtool.flow_rules(index)?.rules)),
            features: self.ethtool(index, Ethtool::features),
            defaults: DeviceDefaults {
                defer_hard_irqs: sysfs.read(NetClass::napi_defer_hard_irqs),
                gro_flush_timeout_ns: sysfs.read(NetClass::gro_flush_timeout_ns),
                threaded: sysfs.read(NetClass::threaded),
            },
            counters: self.counters(&link.name),
            rx_queue_dropped: match &mut self.queue_drops {
                Reading::Known(drops) => drops.received(index).outcome(),
                Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
            },
            rx_queues: Reading::Known(Vec::new()),
            tx_queues: Reading::Known(Vec::new()),
            napis: self.napis(index),
            coalescing,
        };
        self.read_queues(&mut device, &sysfs);
        let bus = sysfs.read(NetClass::bus_name);
        join::napis_to_irqs(&mut device, bus.known().and_then(Option::as_deref), self.interrupts.known());
        device
    }

    /// Sends an ethtool request. If it is unsupported, determines whether the kernel or the driver lacks it.
    fn ethtool<T>(
        &mut self,
        index: Ifindex,
        ask: impl Fn(&mut Ethtool, Ifindex) -> Result<T, NetlinkError>,
    ) -> Reading<T> {
        let ethtool = match &mut self.ethtool {
            Reading::Known(ethtool) => ethtool,
            Reading::Unknown(unknown) => return Reading::Unknown(unknown.clone()),
        };
        let error = match ask(ethtool, index) {
            Ok(value) => return Reading::Known(value),
            Err(error) => error,
        };
        let is_unsupported = |error: &NetlinkError| error.failure() == Failure::Unsupported;
        let nobody = Ifindex::new(NO_INTERFACE).map(|nobody| ask(ethtool, nobody));
        if is_unsupported(&error) && nobody.is_some_and(|answer| answer.is_err_and(|error| is_unsupported(&error))) {
            return Reading::unknown(UnknownReason::UnsupportedByKernel, error.to_string());
        }
        Err(error).outcome()
    }

    fn netdev<T>(&mut self, ask: impl FnOnce(&mut Netdev) -> Result<T, NetlinkError>) -> Reading<T> {
        match &mut self.netdev {
            Reading::Known(netdev) => ask(netdev).outcome(),
            Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        }
    }

    fn counters(&self, name: &str) -> Reading<quell_linux::proc::TrafficCounters> {
        match &self.net_dev {
            Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
            Reading::Known(all) => match all.get(name) {
                Some(counters) => Reading::Known(counters),
                None => {
                    Reading::unknown(UnknownReason::Absent, format!("read /proc/net/dev: it does not contain {name}"))
                }
            },
        }
    }

    fn napis(&mut self, index: Ifindex) -> Reading<Vec<SnapshotNapi>> {
        let napis = self.netdev(|netdev| netdev.napis(index));
        napis.map(|napis| napis.iter().map(|napi| self.napi(napi)).collect())
    }

    fn napi(&self, napi: &netdev::Napi) -> SnapshotNapi {
        let id = napi.id;
        SnapshotNapi {
            id,
            irq: match napi.irq {
                Some(irq) => Reading::Known(Some(Linked { to: irq, source: Provenance::Kernel })),
                None => Reading::unknown(
                    UnknownReason::UnsupportedByDriver,
                    format!("read NAPI {id}: the reply has no attribute irq"),
                ),
            },
            defer_hard_irqs: setting(napi.settings.defer_hard_irqs, "defer-hard-irqs", napi),
            gro_flush_timeout_ns: setting(napi.settings.gro_flush_timeout_ns, "gro-flush-timeout", napi),
            irq_suspend_timeout_ns: setting(napi.settings.irq_suspend_timeout_ns, "irq-suspend-timeout", napi),
            threading: setting(napi.settings.threaded, "threaded", napi),
            thread: Reading::Known(napi.pid.and_then(|pid| self.kernel_thread(pid))),
        }
    }

    fn kernel_thread(&self, pid: Pid) -> Option<Thread> {
        threads::read(pid, &self.proc.process(pid))
    }

    fn read_queues(&mut self, device: &mut Device, sysfs: &Class<'_>) {
        let index = device.ifindex;
        let counters = self.netdev(|netdev| netdev.queue_stats(index));
        let queues = match self.netdev(|netdev| netdev.queues(index)) {
            Reading::Known(queues) => queues,
            Reading::Unknown(unknown) => {
                device.rx_queues = Reading::Unknown(unknown.clone());
                device.tx_queues = Reading::Unknown(unknown);
                return;
            }
        };
        let of_kind = |kind| queues.iter().filter(move |queue| queue.kind == kind);
        let mut by_queue = Reading::Known(());
        let rx = of_kind(QueueKind::Rx).map(|queue| RxQueue {
            id: queue.id,
            napi: napi_of(queue),
            lease: Reading::Known(queue.lease),
            xsk: queue.xsk,
            rps_cpus: sysfs.read(|class| class.rps_cpus(queue.id)),
            rps_flow_cnt: sysfs.read(|class| class.rps_flow_cnt(queue.id)),
            coalescing: self.queue_coalescing(index, queue.id, &device.coalescing, &mut by_queue),
            counters: queue_counters(&counters, QueueKind::Rx, queue.id),
        });
        device.rx_queues = Reading::Known(rx.collect());
        let tx = of_kind(QueueKind::Tx).map(|queue| TxQueue {
            id: queue.id,
            napi: napi_of(queue),
            xps_cpus: sysfs.read(|class| class.xps_cpus(queue.id)),
            xps_rxqs: sysfs.read(|class| class.xps_rxqs(queue.id)),
            counters: queue_counters(&counters, QueueKind::Tx, queue.id),
        });
        device.tx_queues = Reading::Known(tx.collect());
    }

    /// Coalescing of one queue. A driver without per-queue coalescing is queried only once.
    fn queue_coalescing(
        &mut self,
        index: Ifindex,
        queue: u32,
        device: &Reading<Coalescing>,
        by_queue: &mut Reading<()>,
    ) -> Reading<Coalescing> {
        let device = match (device, &*by_queue) {
            (Reading::Known(device), Reading::Known(())) => device,
            (Reading::Unknown(unknown), _) | (_, Reading::Unknown(unknown)) => {
                return Reading::Unknown(unknown.clone());
            }
        };
        let read = self.ethtool(index, |ethtool, index| ethtool.queue_coalescing(index, queue, device));
        if let Reading::Unknown(unknown) = &read {
            *by_queue = Reading::Unknown(unknown.clone());
        }
        read
    }
}

/// sysfs directory of a device, if accessible.
struct Class<'a>(Reading<NetClass<'a>>);

impl<'a> Class<'a> {
    fn of(sysfs: &'a Reading<Sysfs>, name: &str) -> Self {
        Self(match (sysfs, InterfaceName::new(name)) {
            (Reading::Known(sysfs), Ok(name)) => Reading::Known(sysfs.net_class(&name)),
            (Reading::Unknown(unknown), _) => Reading::Unknown(unknown.clone()),
            (_, Err(error)) => Reading::unknown(UnknownReason::Failed, error.to_string()),
        })
    }

    fn read<T>(&self, read: impl FnOnce(&NetClass<'a>) -> Result<T, SysfsError>) -> Reading<T> {
        match &self.0 {
            Reading::Known(class) => read(class).outcome(),
            Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        }
    }
}

fn setting<T>(value: Option<T>, attribute: &str, napi: &netdev::Napi) -> Reading<T> {
    match value {
        Some(value) => Reading::Known(value),
        None => {
            let said = format!("read NAPI {}: the reply has no attribute {attribute}", napi.id);
            Reading::unknown(UnknownReason::UnsupportedByKernel, said)
        }
    }
}

fn reported<T>(value: Option<T>, tried: &str, index: Ifindex) -> Reading<T> {
    match value {
        Some(value) => Reading::Known(value),
        None => Reading::unknown(
            UnknownReason::UnsupportedByKernel,
            format!("{tried} of interface {index}: not in the reply"),
        ),
    }
}

fn napi_of(queue: &netdev::Queue) -> Reading<Option<Linked<quell_linux::NapiId>>> {
    match queue.napi_id {
        Some(id) => Reading::Known(Some(Linked { to: id, source: Provenance::Kernel })),
        None => {
            let said = format!("list queues: the reply has no NAPI instance for {:?} queue {}", queue.kind, queue.id);
            Reading::unknown(UnknownReason::UnsupportedByDriver, said)
        }
    }
}

fn queue_counters(
    all: &Reading<Vec<QueueStats>>,
    kind: QueueKind,
    id: u32,
) -> Reading<quell_linux::netdev::QueueCounters> {
    match all {
        Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        Reading::Known(all) => match all.iter().find(|stats| stats.kind == kind && stats.id == id) {
            Some(stats) => Reading::Known(stats.counters),
            None => Reading::unknown(
                UnknownReason::UnsupportedByDriver,
                format!("read statistics: the reply has no {kind:?} queue {id}"),
            ),
        },
    }
}
