//! Joins the collected data: queues to NAPI instances, NAPI instances to interrupts, epolls and processes to sockets.
//! Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use quell_change::driver_inference::{napis_follow_queues, virtio_rx_interrupt, virtio_tx_interrupt};
use quell_linux::proc::{FdKind, Interrupts};
use quell_linux::{NapiId, Pid};

use super::super::{
    BoundXdpQueue, Device, Files, HeldSocket, Linked, Process, Provenance, Reading, SnapshotScope, SnapshotSocket,
    SnapshotXdpSocket,
};
use super::processes::OpenProcess;
use super::sockets::SocketTable;

/// Infers the NAPI instances of receive queues that the kernel does not report. A device without NAPI has none, and
/// some devices are matched by order.
pub(super) fn queues_to_napis(devices: &mut [Device]) {
    for device in devices {
        let Reading::Known(napis) = &device.napis else { continue };
        let napis: Vec<NapiId> = napis.iter().map(|napi| napi.id).collect();
        let Reading::Known(queues) = &mut device.rx_queues else { continue };
        if napis.is_empty() {
            queues.iter_mut().for_each(|queue| queue.napi = Reading::Known(None));
        } else if napis_follow_queues(device.kind.as_deref(), napis.len(), queues.len()) {
            for (queue, napi) in queues.iter_mut().zip(napis) {
                queue.napi = Reading::Known(Some(Linked { to: napi, source: Provenance::Order }));
            }
        }
    }
}

/// Infers the interrupts of NAPI instances that the kernel does not report. A device without interrupts has none, and
/// virtio-net is matched by interrupt name.
pub(super) fn napis_to_irqs(device: &mut Device, bus: Option<&str>, interrupts: Option<&Interrupts>) {
    let has_none = device.irqs.known().is_some_and(Vec::is_empty);
    let by_napi = match (bus, interrupts) {
        (Some(bus), Some(interrupts)) => irqs_by_name(device, bus, interrupts),
        _ => HashMap::new(),
    };
    let Reading::Known(napis) = &mut device.napis else { return };
    for napi in napis.iter_mut().filter(|napi| napi.irq.known().is_none()) {
        if has_none {
            napi.irq = Reading::Known(None);
        } else if let Some(&irq) = by_napi.get(&napi.id) {
            napi.irq = Reading::Known(Some(Linked { to: irq, source: Provenance::Name }));
        }
    }
}

fn irqs_by_name(device: &Device, bus: &str, interrupts: &Interrupts) -> HashMap<NapiId, u32> {
    let named = |name: String| interrupts.lines.iter().find(|line| line.name() == name)?.irq();
    let rx = device.rx_queues.known_elements().map(|queue| (&queue.napi, virtio_rx_interrupt(bus, queue.id)));
    let tx = device.tx_queues.known_elements().map(|queue| (&queue.napi, virtio_tx_interrupt(bus, queue.id)));
    let pairs = rx.chain(tx).filter_map(|(napi, name)| Some((napi.known()?.as_ref()?.to, named(name)?)));
    let mut by_napi = HashMap::new();
    // If an instance serves both directions, the interrupt of its receive queue wakes it for received packets.
    pairs.for_each(|(napi, irq)| _ = by_napi.entry(napi).or_insert(irq));
    by_napi
}

pub(super) fn processes_to_sockets(
    open: Vec<OpenProcess>,
    sockets: SocketTable,
    scope: &SnapshotScope,
) -> (Vec<Process>, Vec<SnapshotSocket>, Vec<Pid>) {
    let is_left_out = |process: &OpenProcess| process.is_hidden() && !scope.pids.contains(&process.pid);
    let (hidden, seen): (Vec<_>, Vec<_>) = open.into_iter().partition(is_left_out);
    let hidden = hidden.into_iter().map(|process| process.pid).collect();
    let processes: Vec<Process> = seen.into_iter().map(|process| join_process(process, &sockets)).collect();
    let held: HashSet<u64> = processes.iter().flat_map(held_sockets).collect();
    let mut sockets = sockets.into_sorted();
    sockets.retain(|socket| held.contains(&socket.inode));
    (processes, sockets, hidden)
}

fn held_sockets(process: &Process) -> Vec<u64> {
    process.files.known().map_or_else(Vec::new, |files| files.sockets.iter().map(|held| held.inode).collect())
}

/// Keeps only processes and sockets that receive from these devices.
pub(super) fn keep_what_arrives_by(
    devices: &[Device],
    processes: &mut Vec<Process>,
    sockets: &mut Vec<SnapshotSocket>,
) {
    let napis: HashSet<NapiId> =
        devices.iter().flat_map(|device| device.napis.known_elements()).map(|napi| napi.id).collect();
    let arrives = |socket: &SnapshotSocket| matches!(socket.napi, Reading::Known(Some(napi)) if napis.contains(&napi));
    let reached: HashSet<u64> = sockets.iter().filter(|socket| arrives(socket)).map(|socket| socket.inode).collect();
    let is_bound_there = |socket: &SnapshotXdpSocket| {
        let queue = socket.bound.known().copied().flatten();
        let is_its = |queue: BoundXdpQueue| devices.iter().any(|it| (it.namespace, it.ifindex) == queue.device());
        queue.is_some_and(is_its)
    };
    let has_xdp =
        |process: &Process| process.files.known().is_some_and(|files| files.xdp_details.iter().any(is_bound_there));
    processes.retain(|process| has_xdp(process) || held_sockets(process).iter().any(|inode| reached.contains(inode)));
    let held: HashSet<u64> = processes.iter().flat_map(held_sockets).collect();
    sockets.retain(|socket| held.contains(&socket.inode));
}

fn join_process(process: OpenProcess, sockets: &SocketTable) -> Process {
    let held = process.sockets().filter(|(_, inode)| sockets.contains(*inode));
    let held = held.map(|(fd, inode)| HeldSocket { fd, inode }).collect();
    let io_urings = process.fds.known_elements().filter(|fd| fd.kind == FdKind::IoUring).map(|fd| fd.number).collect();
    let OpenProcess {
        epolls, xdp_sockets, xdp_details, other_sockets, rings_with_sockets, rings_without_sockets, ..
    } = process;
    let xdp_details = xdp_details.into_iter().map(|(_, socket)| socket).collect();
    let files = Files {
        epolls,
        sockets: held,
        other_sockets,
        xdp_sockets,
        xdp_details,
        read_queues: BTreeSet::new(),
        io_urings,
        rings_with_sockets,
        rings_without_sockets,
    };
    Process {
        pid: process.pid,
        start_time_ticks: process.start_time_ticks,
        name: process.name,
        namespace: process.namespace,
        threads: process.threads,
        files: process.fds.map(|_| files),
    }
}
