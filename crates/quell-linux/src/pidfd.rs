//! Handles to processes. A pidfd refers to the same process even if the PID is reused. It is used to send signals, to
//! wait for the exit, and to duplicate file descriptors.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::Pid;
use crate::unpreempted::Unpreempted;

pub use rustix::process::Signal;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PidFdError {
    #[error("{action} process {pid}: it does not exist")]
    Gone { action: &'static str, pid: Pid },
    #[error("{action} process {pid}: {source}; needs its user, or CAP_SYS_PTRACE for its files")]
    Denied { action: &'static str, pid: Pid, source: io::Error },
    #[error("process {pid} has no file descriptor {fd}")]
    NoSuchFd { pid: Pid, fd: i32 },
    #[error("{action} process {pid}: {source}")]
    Refused { action: &'static str, pid: Pid, source: io::Error },
}

impl PidFdError {
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    fn new(action: &'static str, pid: Pid, errno: Errno) -> Self {
        let source = errno.into();
        match errno {
            Errno::SRCH => Self::Gone { action, pid },
            Errno::PERM | Errno::ACCESS => Self::Denied { action, pid, source },
            _ => Self::Refused { action, pid, source },
        }
    }
}

#[derive(Debug)]
pub struct PidFd {
    pid: Pid,
    fd: OwnedFd,
}

/// A duplicate of another process's file descriptor. Both share the open file description and its state. The duplicate
/// keeps the file open after the owner closed it, so drop it soon.
#[derive(Debug)]
pub struct DuplicatedFd(OwnedFd);

/// A duplicate that is closed before the kernel can preempt its thread.
#[derive(Debug)]
pub struct BriefDuplicate {
    // Rust drops the fields in this order: the file is closed before the protection ends.
    file: DuplicatedFd,
    _unpreempted: Unpreempted,
}

impl Deref for BriefDuplicate {
    type Target = DuplicatedFd;

    fn deref(&self) -> &DuplicatedFd {
        &self.file
    }
}

impl AsFd for BriefDuplicate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl PidFd {
    /// Opens the process that currently has this PID. To detect reuse of the PID, compare its
    /// [`ProcessIdentity`](crate::proc::ProcessIdentity) after opening. Fails also if the number is that of a thread, a
    /// process group or a session.
    pub fn open(pid: Pid) -> Result<Self, PidFdError> {
        pidfd_open(pid.as_rustix(), PidfdFlags::empty()).map(|fd| Self { pid, fd }).map_err(|errno| match errno {
            // No process has this PID, but a process group, a session or a thread has (`pidfd_prepare`, kernel/fork.c).
            Errno::INVAL | Errno::NOENT => PidFdError::Gone { action: "opening", pid },
            errno => PidFdError::new("opening", pid, errno),
        })
    }

    /// Opens a process through one of its threads (`PIDFD_THREAD`, Linux 6.9). If the main thread of a process has
    /// exited, its files are accessible only through another thread. Fails if there is no such thread, or the kernel
    /// supports main threads only.
    pub fn open_thread(tid: Pid) -> Result<Self, PidFdError> {
        // `PIDFD_THREAD` has the value of `O_EXCL` in `linux/pidfd.h`. rustix has no constant for it.
        let thread = PidfdFlags::from_bits_retain(rustix::fs::OFlags::EXCL.bits());
        pidfd_open(tid.as_rustix(), thread)
            .map(|fd| Self { pid: tid, fd })
            .map_err(|errno| PidFdError::new("opening thread", tid, errno))
    }

    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn signal(&self, signal: Signal) -> Result<(), PidFdError> {
        pidfd_send_signal(&self.fd, signal).map_err(|errno| PidFdError::new("signalling", self.pid, errno))
    }

    /// Duplicates a file descriptor of the process (`pidfd_getfd`, Linux 5.6).
    ///
    /// An epoll removes a file only when the last descriptor of that file is closed (`epoll(7)`). If the process closes
    /// its descriptor without `EPOLL_CTL_DEL` while a duplicate exists, its epoll continues to report the file. Drop
    /// the duplicate as soon as possible. Fails if the process lacks the file descriptor or has exited, or the caller
    /// lacks ptrace access.
    pub fn duplicate(&self, fd: i32) -> Result<DuplicatedFd, PidFdError> {
        let result = pidfd_getfd(&self.fd, fd, PidfdGetfdFlags::empty());
        result.map(DuplicatedFd).map_err(|errno| match errno {
            Errno::BADF => PidFdError::NoSuchFd { pid: self.pid, fd },
            other => PidFdError::new("duplicating a file descriptor of", self.pid, other),
        })
    }

    /// Duplicates a file descriptor like [`Self::duplicate`], for a few non-blocking system calls. Until the result is
    /// dropped, only real-time threads preempt the calling thread. The duplicate therefore does not stay open while
    /// other threads run.
    pub fn duplicate_briefly(&self, fd: i32) -> Result<BriefDuplicate, PidFdError> {
        let unpreempted = Unpreempted::begin();
        Ok(BriefDuplicate { file: self.duplicate(fd)?, _unpreempted: unpreempted })
    }

    /// Waits up to `timeout` for the exit of all threads of the process, and returns whether they exited. It does not
    /// reap the process, because that is the parent's task.
    pub fn wait_for_exit(&self, timeout: Duration) -> Result<bool, PidFdError> {
        poll_readable(self.fd.as_fd(), Some(timeout)).map_err(|errno| PidFdError::new("waiting for", self.pid, errno))
    }
}

impl DuplicatedFd {
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Inode of the file; for a socket, the number in `socket:[…]`.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_ino)
    }

    /// Which of these events, and of `EPOLLERR` and `EPOLLHUP`, are pending. The events are `EPOLLIN` and similar;
    /// flags such as `EPOLLET` are ignored. An event stays pending for other waiters.
    pub fn pending(&self, events: u32) -> io::Result<u32> {
        // The low 16 bits of epoll events equal those of `poll(2)` (`include/uapi/linux/eventpoll.h`).
        let wanted = PollFlags::from_bits_truncate(events as u16);
        let mut polled = [PollFd::new(self, wanted)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(u32::from(polled[0].revents().bits()))
    }

    /// Whether `poll(2)` has no effect on the file: a FIFO, a terminal, a TUN device or a POSIX message queue. Drivers
    /// of other devices may do anything.
    #[must_use]
    pub fn is_polled_without_effect(&self) -> bool {
        const TUN: (u32, u32) = (10, 200);
        /// Both ends of pseudoterminals, and `/dev/tty`.
        const TERMINALS: [std::ops::RangeInclusive<u32>; 2] = [5..=5, 136..=143];
        const MQUEUE_MAGIC: u32 = 0x1980_0202;
        let Ok(stat) = rustix::fs::fstat(&self.0) else { return false };
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Fifo => true,
            rustix::fs::FileType::CharacterDevice => {
                device == TUN || TERMINALS.iter().any(|majors| majors.contains(&device.0))
            }
            rustix::fs::FileType::RegularFile => {
                rustix::fs::fstatfs(&self.0).is_ok_and(|of| u32::try_from(of.f_type) == Ok(MQUEUE_MAGIC))
            }
            _ => false,
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for DuplicatedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits up to `timeout` until a file is readable, and returns whether it is. `None` waits without a time limit.
pub(crate) fn poll_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, Errno> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            other => return other.map(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::event::{Epoll, Trigger};
    use quell_test_support::wait_until;

    #[test]
    fn a_file_of_this_process_is_duplicated() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let file = tempfile::tempfile().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let duplicate = this.duplicate(number).unwrap();
        assert_eq!(duplicate.inode().unwrap(), rustix::fs::fstat(&file).unwrap().st_ino);
    }

    #[test]
    fn the_number_of_a_session_without_its_leader_is_no_process() {
        let mut leader = std::process::Command::new("setsid").args(["sh", "-c", "sleep 5 &"]).spawn().unwrap();
        leader.wait().unwrap();
        let leader = Pid::from_kernel(leader.id()).unwrap();
        assert!(PidFd::open(leader).unwrap_err().is_gone());
    }

    #[test]
    fn checking_an_event_does_not_consume_it() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let reader = this.duplicate(reader.as_raw_fd()).unwrap();
        const EPOLLIN: u32 = 1;
        const EPOLLET: u32 = 1 << 31;
        assert_eq!(reader.pending(EPOLLIN | EPOLLET).unwrap(), 0);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!([EPOLLIN | EPOLLET, EPOLLIN].map(|events| reader.pending(events).unwrap()), [EPOLLIN; 2]);
    }

    #[test]
    fn an_epoll_reports_a_closed_file_while_a_duplicate_is_open() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut epoll = Epoll::new(1).unwrap();
        epoll.add(&reader, 7, Trigger::Level).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let mut reports = || {
            epoll.wait(Some(Duration::ZERO)).unwrap();
            !epoll.is_empty()
        };
        let duplicate = PidFd::open(Pid::of_this_process()).unwrap().duplicate(reader.as_raw_fd()).unwrap();
        drop(reader);
        assert!(reports(), "the epoll still reports the file although its descriptor is closed");
        drop(duplicate);
        // Programs that other tests start have the file, too, until they execute.
        wait_until(|| if reports() { Err("the file is open".to_owned()) } else { Ok(()) });
    }

    #[test]
    fn a_missing_file_descriptor_is_named() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let error = this.duplicate(i32::MAX).unwrap_err();
        assert!(matches!(error, PidFdError::NoSuchFd { fd: i32::MAX, .. }), "{error}");
    }

    #[test]
    fn a_process_that_never_existed_is_gone() {
        let unused = Pid::new(1 << 30).unwrap();
        assert!(PidFd::open(unused).unwrap_err().is_gone());
    }

    #[test]
    fn waiting_for_a_running_process_ends_at_the_timeout() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        assert!(!this.wait_for_exit(Duration::from_millis(1)).unwrap());
    }
}
