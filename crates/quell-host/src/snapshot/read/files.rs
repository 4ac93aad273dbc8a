//! Inspects files of other processes through duplicates: parameters of epolls, their watched files, and the readiness
//! of those. Does not affect the processes, because it never waits on a duplicate.

use std::collections::HashMap;

use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::kcmp::is_same_file;
use quell_linux::pidfd::{PidFd, PidFdError};
use quell_linux::proc::{EpollInfo, FdKind, ProcRoot};

use super::super::{HeldEpoll, Reading, SnapshotEpoll, UnknownReason, WatchedFile, WatchedTarget};
use super::outcome::Outcome as _;
use super::processes::OpenProcess;
use super::sockets::SocketTable;
use super::watched::{OpenFiles, numbered};
use super::xdp;

pub(super) fn look_at_watched(processes: &mut [OpenProcess], sockets: &SocketTable) {
    let proc = ProcRoot::default();
    for process in &mut *processes {
        if !process.fds.known_elements().any(|fd| matches!(fd.kind, FdKind::Socket { .. } | FdKind::Epoll)) {
            continue;
        }
        let pidfd = PidFd::open(process.pid);
        if let Ok(pidfd) = &pidfd {
            xdp::look_at(process, pidfd, sockets);
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
