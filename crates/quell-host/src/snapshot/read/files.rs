//! Inspects files of other processes through duplicates: parameters of epolls, their watched files, and the readiness
//! of those. Does not affect the processes, because it never waits on a duplicate.

use std::collections::HashMap;

use quell_linux::af_xdp;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::kcmp::is_same_file;
use quell_linux::pidfd::{PidFd, PidFdError};
use quell_linux::proc::{EpollInfo, FdKind, ProcRoot};
use quell_linux::socket_options;

use super::super::{HeldEpoll, Reading, SnapshotEpoll, SnapshotXdpSocket, UnknownReason, WatchedFile, WatchedTarget};
use super::outcome::Outcome as _;
use super::processes::OpenProcess;
use super::sockets::SocketTable;
use super::watched::{OpenFiles, numbered};

pub(super) fn look_at_watched(processes: &mut [OpenProcess], sockets: &SocketTable) {
    let proc = ProcRoot::default();
    for process in &mut *processes {
        if !process.fds.known_elements().any(|fd| matches!(fd.kind, FdKind::Socket { .. } | FdKind::Epoll)) {
            continue;
        }
        let pidfd = PidFd::open(process.pid);
        if let Ok(pidfd) = &pidfd {
            process.xdp_sockets = xdp_sockets(process, pidfd, sockets);
            process.xdp_details = process.xdp_sockets.iter().filter_map(|fd| xdp_details(pidfd, *fd)).collect();
        }
        process.epolls = epolls(&proc, process, &pidfd, sockets);
    }
    mark_shared_epolls(processes);
}

/// Marks descriptors of one epoll, which watch the same files. Without `kcmp(2)` they look like several epolls.
fn mark_shared_epolls(processes: &mut [OpenProcess]) {
    let mut first: HashMap<Vec<(i32, u32)>, Vec<HeldEpoll>> = HashMap::new();
    for process in processes {
        let pid = process.pid;
        for epoll in &mut process.epolls {
            let targets: Vec<_> = epoll.targets.known_elements().map(|target| (target.fd, target.events)).collect();
            let (held, alike) = (HeldEpoll { pid, fd: epoll.fd }, first.entry(targets).or_default());
            let is_it = |other: &&HeldEpoll| is_same_file((other.pid, other.fd), (pid, epoll.fd)).unwrap_or(false);
            epoll.same_as = alike.iter().find(is_it).copied();
            if epoll.same_as.is_none() {
                alike.push(held);
            }
        }
    }
}

/// Finds AF_XDP sockets among the sockets that are neither TCP nor UDP.
fn xdp_sockets(process: &OpenProcess, pidfd: &PidFd, sockets: &SocketTable) -> Vec<i32> {
    let others = process.sockets().filter(|(_, inode)| !sockets.contains(*inode));
    others.map(|(fd, _)| fd).filter(|fd| is_xdp(pidfd, *fd)).collect()
}

fn is_xdp(pidfd: &PidFd, fd: i32) -> bool {
    pidfd.duplicate_briefly(fd).is_ok_and(|socket| socket_options::is_xdp(socket).unwrap_or(false))
}

/// `None` if the kernel refuses one of the options, or the program has closed the socket.
fn xdp_details(pidfd: &PidFd, fd: i32) -> Option<SnapshotXdpSocket> {
    let socket = pidfd.duplicate_briefly(fd).ok()?;
    Some(SnapshotXdpSocket {
        fd,
        zero_copy: af_xdp::is_zero_copy(&socket).ok()?,
        napi: socket_options::incoming_napi_id(&socket).ok()?,
        prefer_busy_poll: socket_options::prefer_busy_poll(&socket).ok()?,
        busy_poll_us: socket_options::busy_poll_us(&socket).ok()?,
        stats: af_xdp::stats(&socket).ok()?,
    })
}

fn epolls(
    proc: &ProcRoot,
    process: &OpenProcess,
    pidfd: &Result<PidFd, PidFdError>,
    sockets: &SocketTable,
) -> Vec<SnapshotEpoll> {
    let Reading::Known(fds) = &process.fds else { return Vec::new() };
    let files = OpenFiles::new(process.pid, pidfd, fds);
    let epolls = fds.iter().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| fd.number);
    let epoll = |fd| SnapshotEpoll {
        fd,
        params: params(&files, fd),
        targets: proc.process(process.pid).epoll(fd).outcome().map(|info| watched(&files, fd, &info, sockets)),
        same_as: None,
    };
    epolls.map(epoll).collect()
}

fn watched(files: &OpenFiles<'_>, epoll: i32, info: &EpollInfo, sockets: &SocketTable) -> Vec<WatchedTarget> {
    let other = |registration| {
        let descriptor = files.descriptor(epoll, registration);
        let ready = match descriptor {
            Some(fd) => files.pending(fd, registration.0.events).map(|pending| pending != 0),
            None => Reading::unknown(UnknownReason::Absent, "the process has no descriptor of the watched file"),
        };
        WatchedFile::Other { kind: files.watched_kind(descriptor), ready }
    };
    let target = |(target, number)| {
        let inode = sockets.of_target(target, files.kind(target.tfd));
        let file = inode.map_or_else(|| other((target, number)), |inode| WatchedFile::Socket { inode });
        WatchedTarget { fd: target.tfd, events: target.events, file }
    };
    numbered(&info.targets).map(target).collect()
}

fn params(files: &OpenFiles<'_>, fd: i32) -> Reading<EpollParams> {
    match files.duplicate(fd) {
        Reading::Known(epoll) => epoll_params::get(epoll).outcome(),
        Reading::Unknown(unknown) => Reading::Unknown(unknown),
    }
}
