//! Finding the objects of a picture that others refer to by key.

use std::collections::HashMap;

use quell_linux::{Ifindex, NapiId, Pid};

use super::{Cpu, Device, Irq, Napi, Picture, Process, Socket};

/// The key of a device: the inode of its namespace and its number there.
pub type DeviceKey = (u64, Ifindex);

/// The objects of a picture by their keys. What a key does not find is outside of the picture's scope, or went away
/// while it was taken.
#[derive(Debug)]
pub struct Index<'a> {
    devices: HashMap<DeviceKey, &'a Device>,
    napis: HashMap<NapiId, (&'a Device, &'a Napi)>,
    irqs: HashMap<u32, &'a Irq>,
    cpus: HashMap<u32, &'a Cpu>,
    processes: HashMap<Pid, &'a Process>,
    sockets: HashMap<u64, &'a Socket>,
}

impl<'a> Index<'a> {
    pub(super) fn new(picture: &'a Picture) -> Self {
        let napis = picture
            .devices
            .iter()
            .flat_map(|device| device.napis.known_elements().map(move |napi| (napi.id, (device, napi))));
        Self {
            devices: picture.devices.iter().map(|device| ((device.namespace, device.ifindex), device)).collect(),
            napis: napis.collect(),
            irqs: picture.irqs.known_elements().map(|irq| (irq.number, irq)).collect(),
            cpus: picture.cpus.each.iter().map(|cpu| (cpu.number, cpu)).collect(),
            processes: picture.processes.iter().map(|process| (process.pid, process)).collect(),
            sockets: picture.sockets.iter().map(|socket| (socket.inode, socket)).collect(),
        }
    }

    /// The device of this number in the namespace of this inode.
    #[must_use]
    pub fn device(&self, namespace: u64, ifindex: Ifindex) -> Option<&'a Device> {
        self.devices.get(&(namespace, ifindex)).copied()
    }

    /// The NAPI of this id, and the device that it belongs to.
    #[must_use]
    pub fn napi(&self, id: NapiId) -> Option<(&'a Device, &'a Napi)> {
        self.napis.get(&id).copied()
    }

    /// The interrupt of this number.
    #[must_use]
    pub fn irq(&self, number: u32) -> Option<&'a Irq> {
        self.irqs.get(&number).copied()
    }

    /// The CPU of this number.
    #[must_use]
    pub fn cpu(&self, number: u32) -> Option<&'a Cpu> {
        self.cpus.get(&number).copied()
    }

    /// How many CPUs the picture has.
    pub(crate) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// The process of this number.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&'a Process> {
        self.processes.get(&pid).copied()
    }

    /// The socket of this inode.
    #[must_use]
    pub fn socket(&self, inode: u64) -> Option<&'a Socket> {
        self.sockets.get(&inode).copied()
    }
}
