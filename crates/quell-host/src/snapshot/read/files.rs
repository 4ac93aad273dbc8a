//! Inspects files of other processes through duplicates: parameters of epolls, their watched files, and the readiness
//! of those. Does not affect the processes, because it never waits on a duplicate.

use std::collections::HashMap;

use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::pidfd::{PidFd, PidFdError};
use quell_linux::proc::{EpollInfo, EpollTarget, FdKind, ProcRoot};
use quell_linux::socket_options;

use super::super::{Reading, UnknownReason};
use super::outcome::Outcome as _;
use super::processes::OpenProcess;
use super::sockets::SocketTable;

/// An epoll of a process.
pub(super) struct OpenEpoll {
    pub(super) fd: i32,
    pub(super) params: Reading<EpollParams>,
    pub(super) targets: Reading<EpollInfo>,
    /// Readiness of each watched file other than a TCP or UDP socket, by descriptor.
    pub(super) ready: HashMap<i32, Reading<bool>>,
}

/// Reads the epolls and AF_XDP sockets of processes that may receive packets.
pub(super) fn look_at_watched(processes: &mut [OpenProcess], sockets: &SocketTable) {
    let proc = ProcRoot::default();
    for process in processes {
        if !process.fds.known_elements().any(|fd| matches!(fd.kind, FdKind::Socket { .. } | FdKind::Epoll)) {
            continue;
        }
        let pidfd = PidFd::open(process.pid);
        process.xdp_sockets = pidfd.as_ref().map_or_else(|_| Vec::new(), |pidfd| xdp_sockets(process, pidfd, sockets));
        process.epolls = epolls(&proc, process, &pidfd, sockets);
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

fn epolls(
    proc: &ProcRoot,
    process: &OpenProcess,
    pidfd: &Result<PidFd, PidFdError>,
    sockets: &SocketTable,
) -> Vec<OpenEpoll> {
    let kinds: HashMap<i32, &FdKind> = process.fds.known_elements().map(|fd| (fd.number, &fd.kind)).collect();
    let directory = proc.process(process.pid);
    let fds = process.fds.known_elements().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| fd.number);
    let epoll = |fd| {
        let targets = directory.epoll(fd).outcome();
        let watched = targets.known().map_or(&[][..], |info| &info.targets);
        let others =
            watched.iter().filter(|target| sockets.of_target(target, kinds.get(&target.tfd).copied()).is_none());
        let ready = others.map(|target| (target.tfd, is_ready(pidfd, target, kinds.get(&target.tfd).copied())));
        OpenEpoll { fd, params: params(pidfd, fd), ready: ready.collect(), targets }
    };
    fds.map(epoll).collect()
}

fn params(pidfd: &Result<PidFd, PidFdError>, fd: i32) -> Reading<EpollParams> {
    match duplicate(pidfd, fd) {
        Reading::Known(epoll) => epoll_params::get(epoll).outcome(),
        Reading::Unknown(unknown) => Reading::Unknown(unknown),
    }
}

/// Whether a requested event is pending. Queries only files that give every process the same answer and do not change
/// because of the query.
fn is_ready(pidfd: &Result<PidFd, PidFdError>, target: &EpollTarget, kind: Option<&FdKind>) -> Reading<bool> {
    match kind {
        Some(FdKind::EventFd | FdKind::TimerFd | FdKind::Pipe { .. } | FdKind::Epoll | FdKind::Socket { .. }) => {}
        Some(FdKind::SignalFd) => {
            return Reading::unknown(
                UnknownReason::UnsupportedByKernel,
                "query a signalfd: it reports signals of the querying process",
            );
        }
        _ => return Reading::unknown(UnknownReason::NotAsked, "files of this type are not queried"),
    }
    match duplicate(pidfd, target.tfd) {
        Reading::Known(file) => file.is_ready(target.events).outcome(),
        Reading::Unknown(unknown) => Reading::Unknown(unknown),
    }
}

fn duplicate(pidfd: &Result<PidFd, PidFdError>, fd: i32) -> Reading<quell_linux::pidfd::BriefDuplicate> {
    match pidfd {
        Ok(pidfd) => pidfd.duplicate_briefly(fd).outcome(),
        Err(error) => Err(error).outcome(),
    }
}
