//! The files that an epoll watches, other than TCP and UDP sockets: the descriptors that refer to them, and whether they
//! are ready.
//!
//! An epoll watches an open file, not a descriptor. If the file stays open elsewhere, for example in a child, the process
//! can close the descriptor and use its number for another file, and the epoll still reports the first one.

use std::collections::HashMap;
use std::io;

use quell_linux::kcmp::{self, FdOf};
use quell_linux::pidfd::{BriefDuplicate, PidFd, PidFdError};
use quell_linux::proc::{EpollTarget, Fd, FdKind, ProcRoot};
use quell_linux::{Pid, visible};

use super::super::{Reading, UnknownReason, WatchedKind};
use super::outcome::Outcome as _;

/// Maximum number of descriptors of a process that are compared with a watched file.
const COMPARED_MAX: usize = 256;

const EPOLLIN: u32 = 0x1;

pub(crate) struct OpenFiles<'a> {
    pid: Pid,
    pidfd: &'a Result<PidFd, PidFdError>,
    fds: &'a [Fd],
    kinds: HashMap<i32, &'a FdKind>,
}

/// The registrations of an epoll, each with the number of earlier ones under the same descriptor number.
pub(crate) fn numbered(targets: &[EpollTarget]) -> impl Iterator<Item = (&EpollTarget, u32)> {
    let mut earlier: HashMap<i32, u32> = HashMap::new();
    targets.iter().map(move |target| {
        let next = earlier.entry(target.tfd).or_default();
        let number = *next;
        *next += 1;
        (target, number)
    })
}

/// Which of these events are pending for a file of a process. Queries only files that do not change because of the query.
pub(crate) fn pending(process: &PidFd, (kind, fd): (&FdKind, i32), events: u32) -> Reading<u32> {
    let not_queried = || Reading::unknown(UnknownReason::NotAsked, "files of this type are not queried");
    let is_known = match kind {
        FdKind::EventFd | FdKind::TimerFd | FdKind::Pipe { .. } | FdKind::Epoll | FdKind::Socket { .. } => true,
        FdKind::AnonInode(name) => matches!(name.as_str(), "inotify" | "[pidfd]" | "[fanotify]"),
        FdKind::Path(_) => false,
        // `poll(2)` reports signals of the process that calls it.
        FdKind::SignalFd => {
            let is_ready = ProcRoot::default().process(process.pid()).signalfd_is_ready(fd).outcome();
            return is_ready.map(|is_ready| if is_ready { events & EPOLLIN } else { 0 });
        }
        _ => return not_queried(),
    };
    match process.duplicate_briefly(fd).outcome() {
        Reading::Known(file) if is_known || file.is_polled_without_effect() => file.pending(events).outcome(),
        Reading::Known(_) => not_queried(),
        Reading::Unknown(unknown) => Reading::Unknown(unknown),
    }
}

impl<'a> OpenFiles<'a> {
    pub(crate) fn new(pid: Pid, pidfd: &'a Result<PidFd, PidFdError>, fds: &'a [Fd]) -> Self {
        Self { pid, pidfd, fds, kinds: fds.iter().map(|fd| (fd.number, &fd.kind)).collect() }
    }

    pub(crate) fn kind(&self, fd: i32) -> Option<&'a FdKind> {
        self.kinds.get(&fd).copied()
    }

    pub(crate) fn descriptor(&self, epoll: i32, (target, number): (&EpollTarget, u32)) -> Option<i32> {
        let is_it = |fd: i32| self.is_registered(epoll, (target, number), fd);
        if self.kinds.contains_key(&target.tfd) && is_it(target.tfd)? {
            return Some(target.tfd);
        }
        let may_be = |fd: &&Fd| match fd.kind {
            FdKind::Socket { inode } | FdKind::Pipe { inode } => target.inode.is_none_or(|watched| watched == inode),
            _ => true,
        };
        let candidates = self.fds.iter().filter(|fd| fd.number != target.tfd).filter(may_be).take(COMPARED_MAX);
        candidates.map(|fd| fd.number).find(|&fd| is_it(fd) == Some(true))
    }

    /// Whether a descriptor refers to a watched file; `None` if the file is not watched any more. Without `kcmp(2)` the
    /// inode decides, which files without a name share.
    fn is_registered(&self, epoll: i32, (target, number): (&EpollTarget, u32), fd: i32) -> Option<bool> {
        let of = |fd: i32| -> FdOf { (self.pid, fd) };
        match kcmp::is_registered(of(epoll), (target.tfd, number), of(fd)) {
            Ok(is_it) => Some(is_it),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => Some(match self.kind(fd) {
                Some(FdKind::Socket { inode } | FdKind::Pipe { inode }) => target.inode.is_none_or(|it| it == *inode),
                _ => fd == target.tfd,
            }),
        }
    }

    pub(crate) fn pending(&self, fd: i32, events: u32) -> Reading<u32> {
        match (self.pidfd, self.kind(fd)) {
            (Ok(process), Some(kind)) => pending(process, (kind, fd), events),
            (Ok(_), None) => Reading::unknown(UnknownReason::Absent, "the descriptor is closed"),
            (Err(error), _) => Err(error).outcome(),
        }
    }

    pub(super) fn duplicate(&self, fd: i32) -> Reading<BriefDuplicate> {
        match self.pidfd {
            Ok(pidfd) => pidfd.duplicate_briefly(fd).outcome(),
            Err(error) => Err(error).outcome(),
        }
    }

    pub(crate) fn watched_kind(&self, descriptor: Option<i32>) -> WatchedKind {
        match descriptor.and_then(|fd| self.kind(fd)) {
            None => WatchedKind::Unnamed,
            Some(FdKind::Socket { .. }) => WatchedKind::OtherSocket,
            Some(FdKind::Pipe { .. }) => WatchedKind::Pipe,
            Some(FdKind::Epoll) => WatchedKind::Epoll,
            Some(FdKind::EventFd) => WatchedKind::EventFd,
            Some(FdKind::TimerFd) => WatchedKind::TimerFd,
            Some(FdKind::SignalFd) => WatchedKind::SignalFd,
            Some(FdKind::AnonInode(name)) => WatchedKind::Named(name.clone()),
            Some(FdKind::Path(path)) => WatchedKind::Named(visible::path(path)),
            Some(FdKind::Other(name)) => WatchedKind::Named(visible::name(&name.to_string_lossy()).into_owned()),
            Some(_) => WatchedKind::Named("unknown".to_owned()),
        }
    }
}
