//! Handles of other processes: a pidfd names one process for good, whatever becomes of its number.
//! Through it a process is signalled, its end awaited, and its open files are duplicated.

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

/// Why something could not be done to another process.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PidFdError {
    /// The process ended, or never was.
    #[error("{action} process {pid}: it does not exist")]
    Gone {
        /// What was tried.
        action: &'static str,
        /// On which process.
        pid: Pid,
    },
    /// The caller lacks the right.
    #[error("{action} process {pid}: {source}; needs its user, or CAP_SYS_PTRACE for its files")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// On which process.
        pid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The process has no such file descriptor (any more).
    #[error("process {pid} has no file descriptor {fd}")]
    NoSuchFd {
        /// The process.
        pid: Pid,
        /// The number.
        fd: i32,
    },
    /// Another answer.
    #[error("{action} process {pid}: {source}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// On which process.
        pid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl PidFdError {
    /// Whether the process does not exist (any more).
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

/// A handle of one process.
#[derive(Debug)]
pub struct PidFd {
    pid: Pid,
    fd: OwnedFd,
}

/// A duplicate of another process's open file: the same file with the same state, under a number of
/// our own. It keeps the file alive after its owner closed it, so it is not to be held for long.
#[derive(Debug)]
pub struct DuplicatedFd(OwnedFd);

/// A duplicate that is closed before its thread gives up its CPU.
#[derive(Debug)]
pub struct BriefDuplicate {
    // Dropped in this order.
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
    /// Opens the process that has this number now. To be sure that it is the one that was meant,
    /// compare its [`ProcessIdentity`](crate::proc::ProcessIdentity) after opening.
    ///
    /// # Errors
    /// When there is no such process, or the number is that of a thread which is not a main thread.
    pub fn open(pid: Pid) -> Result<Self, PidFdError> {
        pidfd_open(pid.as_rustix(), PidfdFlags::empty())
            .map(|fd| Self { pid, fd })
            .map_err(|errno| PidFdError::new("opening", pid, errno))
    }

    /// Opens a process through one of its threads (`PIDFD_THREAD`, Linux 6.9). Files of a process whose main thread has
    /// exited are reached through another thread only.
    ///
    /// # Errors
    /// When there is no such thread, or the kernel opens main threads only.
    pub fn open_thread(tid: Pid) -> Result<Self, PidFdError> {
        // `PIDFD_THREAD` is `O_EXCL` in linux/pidfd.h; rustix has no name for it.
        let thread = PidfdFlags::from_bits_retain(rustix::fs::OFlags::EXCL.bits());
        pidfd_open(tid.as_rustix(), thread)
            .map(|fd| Self { pid: tid, fd })
            .map_err(|errno| PidFdError::new("opening thread", tid, errno))
    }

    /// The number that the process has (or had).
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process ended and was waited for, or belongs to another user.
    pub fn signal(&self, signal: Signal) -> Result<(), PidFdError> {
        pidfd_send_signal(&self.fd, signal).map_err(|errno| PidFdError::new("signalling", self.pid, errno))
    }

    /// Duplicates one of the process's open files (`pidfd_getfd`, Linux 5.6).
    ///
    /// A file leaves an epoll by itself only with its last descriptor (epoll(7)). If the process closes its own without
    /// `EPOLL_CTL_DEL` while a duplicate is open, its epoll goes on reporting the file until that is closed: keep it for as
    /// short as can be.
    ///
    /// # Errors
    /// When the process has no such file, has ended, or the caller has no ptrace access to it.
    pub fn duplicate(&self, fd: i32) -> Result<DuplicatedFd, PidFdError> {
        let result = pidfd_getfd(&self.fd, fd, PidfdGetfdFlags::empty());
        result.map(DuplicatedFd).map_err(|errno| match errno {
            Errno::BADF => PidFdError::NoSuchFd { pid: self.pid, fd },
            other => PidFdError::new("duplicating a file of", self.pid, other),
        })
    }

    /// As [`Self::duplicate`], for some system calls that do not wait: until it is dropped the calling thread gives its CPU
    /// to no thread that is not real-time, or the duplicate would be open for as long as others run.
    ///
    /// # Errors
    /// As [`Self::duplicate`].
    pub fn duplicate_briefly(&self, fd: i32) -> Result<BriefDuplicate, PidFdError> {
        let unpreempted = Unpreempted::begin();
        Ok(BriefDuplicate { file: self.duplicate(fd)?, _unpreempted: unpreempted })
    }

    /// Waits until the whole process ended, for at most this long; says whether it did. It does not
    /// reap: that stays its parent's task.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait_for_exit(&self, timeout: Duration) -> Result<bool, PidFdError> {
        poll_readable(self.fd.as_fd(), Some(timeout)).map_err(|errno| PidFdError::new("waiting for", self.pid, errno))
    }
}

impl DuplicatedFd {
    /// Its descriptor number in this process.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// The inode of the file: of a socket the number in `socket:[…]`.
    ///
    /// # Errors
    /// What `fstat(2)` said.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_ino)
    }

    /// Whether one of these events (`EPOLLIN` and its like; flags such as `EPOLLET` do not count) or an error is there
    /// now. Asking takes nothing away: whoever waits for the event still gets it.
    ///
    /// # Errors
    /// What `poll(2)` said.
    pub fn is_ready(&self, events: u32) -> io::Result<bool> {
        // The low 16 bits of epoll's events are those of poll (`include/uapi/linux/eventpoll.h`).
        let wanted = PollFlags::from_bits_truncate(events as u16);
        let ready = poll(&mut [PollFd::new(self, wanted)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(ready > 0)
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

/// Waits until a file can be read, for at most this long (`None`: for ever); says whether it can.
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

    #[test]
    fn an_own_file_is_duplicated() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let file = tempfile::tempfile().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let duplicate = this.duplicate(number).unwrap();
        assert_eq!(duplicate.inode().unwrap(), rustix::fs::fstat(&file).unwrap().st_ino);
    }

    #[test]
    fn asking_whether_an_event_is_there_takes_nothing_away() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let reader = this.duplicate(reader.as_raw_fd()).unwrap();
        const EPOLLIN: u32 = 1;
        const EPOLLET: u32 = 1 << 31;
        assert!(!reader.is_ready(EPOLLIN | EPOLLET).unwrap());
        rustix::io::write(&writer, b"x").unwrap();
        assert!(reader.is_ready(EPOLLIN | EPOLLET).unwrap() && reader.is_ready(EPOLLIN).unwrap());
    }

    #[test]
    fn a_closed_file_is_reported_by_its_epoll_for_as_long_as_a_duplicate_is_open() {
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
        assert!(reports(), "whose number is closed");
        drop(duplicate);
        assert!(!reports());
    }

    #[test]
    fn a_number_that_is_not_open_is_named() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        let error = this.duplicate(i32::MAX).unwrap_err();
        assert!(matches!(error, PidFdError::NoSuchFd { fd: i32::MAX, .. }), "{error}");
    }

    #[test]
    fn a_process_that_never_was_is_gone() {
        let unused = Pid::new(1 << 30).unwrap();
        assert!(PidFd::open(unused).unwrap_err().is_gone());
    }

    #[test]
    fn waiting_for_a_running_process_ends_at_the_timeout() {
        let this = PidFd::open(Pid::of_this_process()).unwrap();
        assert!(!this.wait_for_exit(Duration::from_millis(1)).unwrap());
    }
}
