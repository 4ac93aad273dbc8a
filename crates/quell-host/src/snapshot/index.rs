//! Finds the objects of a snapshot by their keys in other objects.

use std::collections::HashMap;

use quell_linux::{Ifindex, NapiId, Pid};

use super::{Cpu, Device, Irq, Process, Snapshot, SnapshotNapi, SnapshotSocket};

/// Key of a device: inode of its namespace and interface index.
pub type DeviceKey = (u64, Ifindex);

/// Objects of a snapshot by key. If a key has no object, the object is outside the scope or vanished during the
/// snapshot.
#[derive(Debug)]
pub struct Index<'a> {
    devices: HashMap<DeviceKey, &'a Device>,
    napis: HashMap<NapiId, (&'a Device, &'a SnapshotNapi)>,
    irqs: HashMap<u32, &'a Irq>,
    cpus: HashMap<u32, &'a Cpu>,
    processes: HashMap<Pid, &'a Process>,
    sockets: HashMap<u64, &'a SnapshotSocket>,
}

impl<'a> Index<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let napis = snapshot
            .devices
            .iter()
            .flat_map(|device| device.napis.known_elements().map(move |napi| (napi.id, (device, napi))));
        Self {
            devices: snapshot.devices.iter().map(|device| ((device.namespace, device.ifindex), device)).collect(),
            napis: napis.collect(),
            irqs: snapshot.irqs.known_elements().map(|irq| (irq.number, irq)).collect(),
            cpus: snapshot.cpus.each.iter().map(|cpu| (cpu.number, cpu)).collect(),
            processes: snapshot.processes.iter().map(|process| (process.pid, process)).collect(),
            sockets: snapshot.sockets.iter().map(|socket| (socket.inode, socket)).collect(),
        }
    }

    /// The device with this index in the namespace with this inode.
    #[must_use]
    pub fn device(&self, namespace: u64, ifindex: Ifindex) -> Option<&'a Device> {
        self.devices.get(&(namespace, ifindex)).copied()
    }

    #[must_use]
    pub fn napi(&self, id: NapiId) -> Option<(&'a Device, &'a SnapshotNapi)> {
        self.napis.get(&id).copied()
    }

    #[must_use]
    pub fn irq(&self, number: u32) -> Option<&'a Irq> {
        self.irqs.get(&number).copied()
    }

    #[must_use]
    pub fn cpu(&self, number: u32) -> Option<&'a Cpu> {
        self.cpus.get(&number).copied()
    }

    pub(crate) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&'a Process> {
        self.processes.get(&pid).copied()
    }

    #[must_use]
    pub fn socket(&self, inode: u64) -> Option<&'a SnapshotSocket> {
        self.sockets.get(&inode).copied()
    }
}
