//! Counters of the devices of a snapshot, read without another snapshot.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::snapshot::{Device, NetworkNamespace, Snapshot};
use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::{NetDev, ProcDir, ProcRoot, TrafficCounters};
use quell_linux::queue_drops::QueueDrops;

use quell_result::top::ObservedDevice;

/// A device: the inode of its namespace, and its name.
type DeviceKey = (u64, String);

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DropReading {
    traffic: Option<TrafficCounters>,
    /// Packets that a full receive queue lost.
    rx_queue: Option<u64>,
}

/// Counters of the devices with NAPI instances.
pub(crate) type DeviceCounters = BTreeMap<DeviceKey, DropReading>;

fn devices(snapshot: &Snapshot) -> impl Iterator<Item = &Device> {
    snapshot.devices.iter().filter(|device| device.napis.known_elements().next().is_some())
}

fn key(device: &Device) -> DeviceKey {
    (device.namespace, device.name.clone())
}

/// Reads the counters. Those that cannot be read are absent.
pub(crate) fn read(snapshot: &Snapshot) -> DeviceCounters {
    let inodes: BTreeSet<u64> = devices(snapshot).map(|device| device.namespace).collect();
    let namespaces = snapshot.namespaces.iter().filter(|namespace| inodes.contains(&namespace.inode));
    namespaces.flat_map(|namespace| read_in(namespace, snapshot)).collect()
}

/// Reads the counters of one namespace. No descriptor stays open, because it would keep the namespace alive.
fn read_in(namespace: &NetworkNamespace, snapshot: &Snapshot) -> DeviceCounters {
    let place = Place::of(namespace, snapshot);
    let traffic = place.as_ref().and_then(Place::net_dev);
    let mut queues = place.and_then(|place| place.queue_drops());
    let mut reading = |device: &Device| DropReading {
        traffic: traffic.as_ref().and_then(|traffic| traffic.get(&device.name)),
        rx_queue: queues.as_mut().and_then(|queues| queues.received(device.ifindex).ok()),
    };
    let its = devices(snapshot).filter(|device| device.namespace == namespace.inode);
    its.map(|device| (key(device), reading(device))).collect()
}

enum Place {
    Here,
    Named(Namespace),
    /// A process in it. Its `/proc/PID/net` can be read without the capability to enter.
    Process(ProcDir, Namespace),
}

impl Place {
    fn of(namespace: &NetworkNamespace, snapshot: &Snapshot) -> Option<Self> {
        if namespace.is_current {
            return Some(Self::Here);
        }
        let proc = ProcRoot::default();
        let is_it = |opened: &Namespace| opened.inode() == namespace.inode;
        let named = |name: &String| Namespace::open_named(&NamespaceName::new(name).ok()?).ok();
        if let Some(named) = namespace.names.iter().filter_map(named).find(is_it) {
            return Some(Self::Named(named));
        }
        let in_it = snapshot.processes.iter().filter(|process| process.namespace.known() == Some(&namespace.inode));
        let opened = |pid: Pid| Some((pid, Namespace::open_pid(proc.path(), pid).ok().filter(is_it)?));
        let (pid, opened) = in_it.map(|process| process.pid).find_map(opened)?;
        Some(Self::Process(proc.process(pid), opened))
    }

    fn net_dev(&self) -> Option<NetDev> {
        let own = || ProcRoot::default().thread_self().net_dev();
        match self {
            Self::Here => own().ok(),
            Self::Named(namespace) => namespace.run(own).ok()?.ok(),
            Self::Process(process, _) => process.net_dev().ok(),
        }
    }

    fn queue_drops(&self) -> Option<QueueDrops> {
        match self {
            Self::Here => QueueDrops::open().ok(),
            Self::Named(namespace) | Self::Process(_, namespace) => QueueDrops::open_in(namespace).ok(),
        }
    }
}

pub(crate) fn between(snapshot: &Snapshot, before: &DeviceCounters, after: &DeviceCounters) -> Vec<ObservedDevice> {
    let observed = |device: &Device| {
        let key = key(device);
        let dropped = |of: fn(&DropReading) -> Option<u64>| {
            // A driver that resets its device begins at 0.
            of(after.get(&key)?)?.checked_sub(of(before.get(&key)?)?)
        };
        ObservedDevice {
            rx_dropped: dropped(|reading| Some(reading.traffic?.rx_dropped)),
            rx_queue_dropped: dropped(|reading| reading.rx_queue),
            tx_dropped: dropped(|reading| Some(reading.traffic?.tx_dropped)),
            namespace: device.namespace,
            name: device.name.clone(),
        }
    };
    devices(snapshot).map(observed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_a_device_whose_counter_was_reset_are_unknown() {
        let host = include_bytes!("../../quell-host/tests/fixtures/healthy.json");
        let snapshot = Snapshot::parse(host).unwrap();
        let key = key(devices(&snapshot).next().unwrap());
        let dropped = |rx_dropped, tx_dropped| {
            let traffic = Some(TrafficCounters { rx_dropped, tx_dropped, ..TrafficCounters::default() });
            DeviceCounters::from([(key.clone(), DropReading { traffic, rx_queue: None })])
        };
        let observed = between(&snapshot, &dropped(7, 7), &dropped(3, 9));
        assert_eq!(
            (observed[0].rx_dropped, observed[0].tx_dropped, observed[0].rx_queue_dropped),
            (None, Some(2), None)
        );
    }
}
