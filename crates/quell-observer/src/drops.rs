//! Counters of the devices of a snapshot, read without another snapshot.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::snapshot::{NetworkNamespace, Snapshot};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::{NetDev, ProcRoot, TrafficCounters};

use crate::report::ObservedDevice;

/// A device: the inode of its namespace, and its name.
type DeviceKey = (u64, String);

/// Counters of the devices with NAPI instances.
pub(crate) type DeviceCounters = BTreeMap<DeviceKey, TrafficCounters>;

fn devices(snapshot: &Snapshot) -> impl Iterator<Item = DeviceKey> + '_ {
    let with_napis = snapshot.devices.iter().filter(|device| device.napis.known_elements().next().is_some());
    with_napis.map(|device| (device.namespace, device.name.clone()))
}

/// Reads the counters. Those that cannot be read are absent.
pub(crate) fn read(snapshot: &Snapshot) -> DeviceCounters {
    let inodes: BTreeSet<u64> = devices(snapshot).map(|(inode, _)| inode).collect();
    let namespaces = snapshot.namespaces.iter().filter(|namespace| inodes.contains(&namespace.inode));
    let files: BTreeMap<u64, NetDev> =
        namespaces.filter_map(|namespace| Some((namespace.inode, net_dev(namespace, snapshot)?))).collect();
    let counters = |(inode, name): DeviceKey| {
        let counters = files.get(&inode)?.get(&name)?;
        Some(((inode, name), counters))
    };
    devices(snapshot).filter_map(counters).collect()
}

/// Reads the file in the namespace. No descriptor stays open, because it would keep the namespace alive.
fn net_dev(namespace: &NetworkNamespace, snapshot: &Snapshot) -> Option<NetDev> {
    let proc = ProcRoot::default();
    if namespace.is_readers {
        return proc.thread_self().net_dev().ok();
    }
    let is_it = |opened: &Namespace| opened.inode() == namespace.inode;
    let named = |name: &String| Namespace::open_named(&NamespaceName::new(name).ok()?).ok();
    if let Some(named) = namespace.names.iter().filter_map(named).find(is_it) {
        return named.run(|| proc.thread_self().net_dev()).ok()?.ok();
    }
    let in_it = snapshot.processes.iter().filter(|process| process.namespace.known() == Some(&namespace.inode));
    let still = |pid: &_| Namespace::open_pid(proc.path(), *pid).is_ok_and(|opened| is_it(&opened));
    let pid = in_it.map(|process| process.pid).find(still)?;
    proc.process(pid).net_dev().ok()
}

/// What the devices of the snapshot dropped between two readings.
pub(crate) fn between(snapshot: &Snapshot, before: &DeviceCounters, after: &DeviceCounters) -> Vec<ObservedDevice> {
    let dropped = |key: &DeviceKey, of: fn(&TrafficCounters) -> u64| {
        let (before, after) = (before.get(key)?, after.get(key)?);
        // A driver that resets its device begins at 0.
        of(after).checked_sub(of(before))
    };
    let observed = |key: DeviceKey| ObservedDevice {
        rx_dropped: dropped(&key, |counters| counters.rx_dropped),
        tx_dropped: dropped(&key, |counters| counters.tx_dropped),
        namespace: key.0,
        name: key.1,
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
        let key = devices(&snapshot).next().unwrap();
        let dropped = |rx_dropped, tx_dropped| {
            DeviceCounters::from([(
                key.clone(),
                TrafficCounters { rx_dropped, tx_dropped, ..TrafficCounters::default() },
            )])
        };
        let observed = between(&snapshot, &dropped(7, 7), &dropped(3, 9));
        assert_eq!((observed[0].rx_dropped, observed[0].tx_dropped), (None, Some(2)));
    }
}
