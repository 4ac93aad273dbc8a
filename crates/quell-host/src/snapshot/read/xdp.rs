//! Sockets of other processes that are neither TCP nor UDP: their kinds, and of AF_XDP sockets their options through
//! duplicates, and their queues by XDP_DIAG, or by a BPF iterator where the kernel lacks it.

use std::collections::HashMap;

use quell_change::reuseport_group::reason;
use quell_linux::capability::Capability;
use quell_linux::pidfd::PidFd;
use quell_linux::sock_diag::SockDiag;
use quell_linux::socket_options::{self, SocketFamily};
use quell_linux::{af_xdp, kernel};
use quell_sampler::{SamplerError, xdp_bindings};

use super::super::{BoundXdpQueue, OtherSocket, Reading, SnapshotXdpSocket, UnknownReason};
use super::namespaces::Space;
use super::processes::OpenProcess;
use super::sockets::SocketTable;

pub(super) fn look_at(process: &mut OpenProcess, pidfd: &PidFd, sockets: &SocketTable) {
    let others: Vec<(i32, u64)> = process.sockets().filter(|(_, inode)| !sockets.contains(*inode)).collect();
    for (fd, inode) in others {
        let kind = kind(pidfd, fd);
        if kind == OtherSocket::Xdp {
            process.xdp_sockets.push(fd);
            process.xdp_details.extend(details(pidfd, fd).map(|socket| (inode, socket)));
        }
        process.other_sockets.insert(kind);
    }
}

fn kind(pidfd: &PidFd, fd: i32) -> OtherSocket {
    let Ok(socket) = pidfd.duplicate_briefly(fd) else { return OtherSocket::Unknown };
    let listens = || socket_options::is_listening(&socket).unwrap_or(false);
    match socket_options::family(&socket) {
        Ok(SocketFamily::Xdp) => OtherSocket::Xdp,
        Ok(SocketFamily::Unix) if listens() => OtherSocket::UnixListener,
        Ok(SocketFamily::Unix) => OtherSocket::Unix,
        Ok(SocketFamily::Vsock) if listens() => OtherSocket::VsockListener,
        Ok(SocketFamily::Vsock) => OtherSocket::Vsock,
        Ok(SocketFamily::Netlink) => OtherSocket::Netlink,
        Ok(_) | Err(_) => OtherSocket::Unknown,
    }
}

/// `None` if the kernel refuses one of the options, or the program has closed the socket.
fn details(pidfd: &PidFd, fd: i32) -> Option<SnapshotXdpSocket> {
    let socket = pidfd.duplicate_briefly(fd).ok()?;
    Some(SnapshotXdpSocket {
        fd,
        bound: Reading::unknown(UnknownReason::Absent, "the kernel does not list this AF_XDP socket"),
        zero_copy: af_xdp::is_zero_copy(&socket).ok()?,
        napi: socket_options::incoming_napi_id(&socket).ok()?,
        prefer_busy_poll: socket_options::prefer_busy_poll(&socket).ok()?,
        busy_poll_us: socket_options::busy_poll_us(&socket).ok()?,
        stats: af_xdp::stats(&socket).ok()?,
    })
}

/// Reads the queues of these sockets.
pub(super) fn read_queues(spaces: &[Space], processes: &mut [OpenProcess]) {
    if processes.iter().all(|process| process.xdp_details.is_empty()) {
        return;
    }
    let mut bound: HashMap<u64, Option<BoundXdpQueue>> = HashMap::new();
    let mut are_listed = true;
    for space in spaces {
        let listed = space.open(SockDiag::open, SockDiag::open_in).and_then(|mut diag| diag.xdp_sockets());
        let Ok(Some(listed)) = listed else {
            are_listed = false;
            continue;
        };
        let namespace = space.namespace.inode();
        bound.extend(listed.into_iter().map(|socket| {
            let queue = |(ifindex, rx_queue)| BoundXdpQueue { namespace, ifindex, rx_queue, need_wakeup: None };
            (socket.inode.into(), socket.bound.map(queue))
        }));
    }
    let unlisted = if are_listed { Reading::Known(()) } else { by_iterator(&mut bound) };
    for (inode, socket) in processes.iter_mut().flat_map(|process| &mut process.xdp_details) {
        match (bound.get(inode), &unlisted) {
            (Some(queue), _) => socket.bound = Reading::Known(*queue),
            (None, Reading::Unknown(unknown)) => socket.bound = Reading::Unknown(unknown.clone()),
            (None, Reading::Known(())) => {}
        }
    }
}

fn by_iterator(bound: &mut HashMap<u64, Option<BoundXdpQueue>>) -> Reading<()> {
    let bindings = match xdp_bindings(kernel::sysfs()) {
        Ok(bindings) => bindings,
        Err(error) => {
            let why = match &error {
                SamplerError::Unsupported(_) => UnknownReason::UnsupportedByKernel,
                SamplerError::Denied { .. } => UnknownReason::Denied { needs: Some(Capability::Bpf) },
                _ => UnknownReason::Failed,
            };
            return Reading::unknown(why, format!("list the queues of AF_XDP sockets: {}", reason(&error)));
        }
    };
    bound.extend(bindings.into_iter().map(|(inode, binding)| {
        let queue = binding.map(|binding| BoundXdpQueue {
            namespace: binding.namespace,
            ifindex: binding.ifindex,
            rx_queue: binding.queue,
            need_wakeup: Some(binding.need_wakeup),
        });
        (inode, queue)
    }));
    Reading::Known(())
}
