//! Inspects files of other processes through duplicates: parameters of epolls, their watched files, and the readiness
//! of those. Does not affect the processes, because it never waits on a duplicate.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::io;

use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::kcmp::compare_files;
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

/// Marks descriptors of one epoll. Without `kcmp(2)` they look like several epolls.
fn mark_shared_epolls(processes: &mut [OpenProcess]) {
    let epolls = processes.iter_mut().flat_map(|process| process.epolls.iter_mut().map(|epoll| (process.pid, epoll)));
    let (held, same_as): (Vec<_>, Vec<_>) =
        epolls.map(|(pid, epoll)| (HeldEpoll { pid, fd: epoll.fd }, &mut epoll.same_as)).unzip();
    let order = |one: HeldEpoll, other: HeldEpoll| compare_files((one.pid, one.fd), (other.pid, other.fd));
    same_as.into_iter().zip(earlier_of(&held, order)).for_each(|(same_as, earlier)| *same_as = earlier);
}

/// Earlier descriptor of the same file, for each descriptor; `None` for the first one, and if it cannot be compared.
/// The order of files saves comparing each with each other one.
fn earlier_of(
    held: &[HeldEpoll],
    order: impl Fn(HeldEpoll, HeldEpoll) -> io::Result<Ordering>,
) -> Vec<Option<HeldEpoll>> {
    let mut firsts: Vec<HeldEpoll> = Vec::new();
    let earlier = |&held: &HeldEpoll| {
        loop {
            let mut failed = None;
            let compare = |first: &HeldEpoll| {
                order(*first, held).unwrap_or_else(|_| {
                    failed = Some(*first);
                    Ordering::Less
                })
            };
            match (firsts.binary_search_by(compare), failed) {
                (Ok(first), _) => return Some(firsts[first]),
                // Its process has exited, or closed it, since.
                (Err(_), Some(first)) if order(first, first).is_err() => firsts.retain(|other| *other != first),
                (Err(_), Some(_)) => return None,
                (Err(at), None) => {
                    firsts.insert(at, held);
                    return None;
                }
            }
        }
    };
    held.iter().map(earlier).collect()
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
        read_queues: BTreeSet::new(),
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use quell_linux::Pid;

    #[test]
    fn descriptors_of_one_epoll_in_several_processes_name_the_first_one() {
        // Files by process, in which the descriptor 4 of three processes is one file, and 5 is a duplicate of it.
        let files = [(10, 4, 70), (10, 6, 20), (11, 4, 70), (11, 7, 90), (12, 4, 70), (12, 5, 70), (13, 4, 30)];
        let held = |pid, fd| HeldEpoll { pid: Pid::new(pid).unwrap(), fd };
        let of = |held: HeldEpoll| files.iter().find(|file| (file.0, file.1) == (held.pid.get(), held.fd)).unwrap().2;
        let all: Vec<HeldEpoll> = files.iter().map(|&(pid, fd, _)| held(pid, fd)).collect();
        let first = Some(held(10, 4));
        let earlier = earlier_of(&all, |one, other| Ok(of(one).cmp(&of(other))));
        assert_eq!(earlier, [None, None, first, None, first, first, None]);
        let unsupported = earlier_of(&all, |_, _| Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(unsupported, [None; 7]);
    }

    #[test]
    fn a_process_that_exits_hides_no_epoll_of_others() {
        let held = |pid| HeldEpoll { pid: Pid::new(pid).unwrap(), fd: 4 };
        let file = |one: HeldEpoll| if one.pid.get() < 12 { one.pid.get() } else { 12 };
        let has_exited = Cell::new(false);
        let earlier = earlier_of(&[10, 11, 12, 13].map(held), |one, other| {
            has_exited.set(has_exited.get() || other == held(12));
            match has_exited.get() && [one, other].contains(&held(11)) {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(file(one).cmp(&file(other))),
            }
        });
        assert_eq!(earlier, [None, None, None, Some(held(12))]);
    }
}
