//! Receive queues that can deliver packets to a socket. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::{Ifindex, NapiId};

use super::{Device, Files, Index, Reading, Snapshot, SnapshotSocket, SnapshotXdpSocket, SocketState};

/// NAPI instances that can deliver packets to a socket. Empty before its first packet.
///
/// The kernel records the last instance for a connection, but the first one for an unconnected UDP socket. Such a socket
/// receives from every queue of the devices that deliver to its address.
#[must_use]
pub fn queues_of(snapshot: &Snapshot, index: &Index<'_>, socket: &SnapshotSocket) -> BTreeSet<NapiId> {
    let Some(&Some(recorded)) = socket.napi.known() else { return BTreeSet::new() };
    if !socket.records_first_napi() {
        return BTreeSet::from([recorded]);
    }
    let recorded_on = index.napi(recorded).map(|(device, _)| device);
    let here: BTreeMap<Ifindex, &Device> = (snapshot.devices.iter())
        .filter(|device| device.namespace == socket.namespace)
        .map(|device| (device.ifindex, device))
        .collect();
    let devices = |delivers: &dyn Fn(&Device) -> bool| -> Vec<&Device> {
        here.values().filter(|device| delivers(device)).copied().collect()
    };
    let address = socket.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
    let delivering = match (socket.bound_to, address) {
        (Some(bound), _) => devices(&|device| interfaces_of(device, &here).contains(&bound)),
        // An address belongs to one device.
        (None, Some(_)) if recorded_on.is_some() => Vec::new(),
        // The recorded instance is gone, as after link down and up.
        (None, Some(ip)) if here.values().any(|device| device.has_address(ip)) => {
            devices(&|device| device.has_address(ip))
        }
        (None, _) => devices(&has_received),
    };
    // The device may be in another namespace: below a macvlan device of a container, for example.
    let recorded_on = recorded_on.filter(|_| socket.bound_to.is_none() || delivering.is_empty());
    let queues: BTreeSet<NapiId> = delivering.into_iter().chain(recorded_on).flat_map(receiving_napis).collect();
    if queues.is_empty() { BTreeSet::from([recorded]) } else { queues }
}

/// NAPI instances that deliver packets to the sockets of a process, AF_XDP sockets included.
#[must_use]
pub fn napis_of_files(snapshot: &Snapshot, index: &Index<'_>, files: &Files) -> BTreeSet<NapiId> {
    let sockets = files.sockets.iter().filter_map(|held| index.socket(held.inode));
    let receivers = sockets.filter(|socket| socket.state != SocketState::Listen);
    let of_xdp = files.xdp_details.iter().filter_map(|socket| napi_of_xdp(index, socket).ok()?);
    let read = files.read_queues.iter().copied();
    receivers.flat_map(|socket| queues_of(snapshot, index, socket)).chain(of_xdp).chain(read).collect()
}

/// NAPI instance of the queue to which an AF_XDP socket is bound, or the reason why it is unknown. Sockets that cannot
/// busy poll do not report it themselves.
pub(crate) fn napi_of_xdp(index: &Index<'_>, socket: &SnapshotXdpSocket) -> Result<Option<NapiId>, String> {
    let queue = match &socket.bound {
        Reading::Known(None) => return Ok(None),
        Reading::Known(Some(queue)) => queue,
        Reading::Unknown(unknown) => return socket.napi.map(Some).ok_or_else(|| unknown.unknown.message.clone()),
    };
    let (namespace, ifindex) = queue.device();
    let device = index.device(namespace, ifindex).ok_or("its device is not in the snapshot")?;
    let its = device.rx_queues.known_elements().find(|rx| rx.id == queue.rx_queue);
    let napi = its.and_then(|rx| rx.napi_id());
    napi.map(Some).ok_or_else(|| format!("the NAPI instance of {} rx {} is unknown", device.name, queue.rx_queue))
}

/// Whether packets have arrived. True if the device does not report its counters.
fn has_received(device: &Device) -> bool {
    device.is_up && device.counters.known().is_none_or(|counters| counters.rx_packets > 0)
}

/// NAPI instances of the receive queues; all instances of the device if the kernel does not report which these are.
pub(crate) fn receiving_napis(device: &Device) -> BTreeSet<NapiId> {
    let of_queues: BTreeSet<NapiId> = device.rx_queues.known_elements().filter_map(|queue| queue.napi_id()).collect();
    match of_queues.is_empty() {
        true => device.napis.known_elements().map(|napi| napi.id).collect(),
        false => of_queues,
    }
}

/// Interfaces on which packets of a device's queues appear: the device, its upper devices, and VLANs and similar devices
/// on either.
fn interfaces_of(device: &Device, devices: &BTreeMap<Ifindex, &Device>) -> BTreeSet<Ifindex> {
    let (mut found, mut to_look_at) = (BTreeSet::new(), vec![device.ifindex]);
    while let Some(ifindex) = to_look_at.pop() {
        let Some(device) = devices.get(&ifindex).filter(|_| found.insert(ifindex)) else { continue };
        to_look_at.extend(device.master);
        to_look_at.extend(devices.values().filter(|upper| lies_on(upper, ifindex)).map(|upper| upper.ifindex));
    }
    found
}

/// Whether an interface is a VLAN, macvlan or similar device on top of another one. The peer of a veth device is not.
pub(crate) fn lies_on(upper: &Device, ifindex: Ifindex) -> bool {
    upper.kind.as_deref() != Some("veth")
        && upper.lower.is_some_and(|lower| !lower.is_in_other_namespace && lower.ifindex == ifindex)
}
