//! A queue of signals with their senders (`signalfd(2)`), for a program that forwards signals to another program.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use rustix::io::Errno;

use crate::Pid;
use crate::pidfd::Signal;

/// Blocked signals. They wait in a queue instead of causing their action.
pub struct SignalQueue {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    pub signal: Signal,
    pub from: Sender,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel, because of a timer or a terminal key. A terminal key signals the whole foreground process group.
    Kernel,
    /// A process; `None` if it has no PID in this PID namespace.
    Process(Option<Pid>),
}

impl SignalQueue {
    /// Blocks `signals` in the calling thread and in threads that it starts later. Call this while the process has only
    /// one thread. Ignored signals remain ignored and never arrive.
    pub fn of(signals: &[Signal]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initializes the set. The numbers that are added are valid signals.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            set.assume_init()
        };
        let mut mask_before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialized, and `mask_before` has space for the previous mask.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, mask_before.as_mut_ptr()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: the call succeeded, so it initialized the mask.
        let mask_before = unsafe { mask_before.assume_init() };
        // SAFETY: the set is initialized.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this file descriptor, so this value is its only owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, mask_before })
    }

    /// Returns a function that blocks exactly the signals that were blocked before this queue was created. The function
    /// affects the calling thread. It makes one system call, so it can run in the child after a `fork`.
    pub(crate) fn mask_before(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let mask = self.mask_before;
        move || {
            // SAFETY: the kernel wrote this set. The call does not request the current one.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    pub fn take(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes to `info`, which has that size.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if Errno::from_io_error(&error) == Some(Errno::AGAIN) { Ok(None) } else { Err(error) };
        }
        if read.unsigned_abs() != size {
            return Err(io::Error::other(format!("read {read} bytes from a signalfd, expected {size}")));
        }
        // SAFETY: the kernel has initialized the whole value.
        Ok(arrived(&unsafe { info.assume_init() }))
    }
}

/// Converts the kernel's record. Codes above 0 mean that the kernel sent the signal
/// (`include/uapi/asm-generic/siginfo.h`).
fn arrived(info: &libc::signalfd_siginfo) -> Option<Arrived> {
    let signal = i32::try_from(info.ssi_signo).ok().and_then(Signal::from_named_raw)?;
    let from = if info.ssi_code > 0 { Sender::Kernel } else { Sender::Process(Pid::from_kernel(info.ssi_pid)) };
    Some(Arrived { signal, from })
}

impl fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalQueue").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl AsFd for SignalQueue {
    /// The descriptor is readable while a signal is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_signal_contains_its_sender() {
        let queue = SignalQueue::of(&[Signal::USR1, Signal::WINCH]).unwrap();
        assert_eq!(queue.take().unwrap(), None);
        let this = crate::pidfd::PidFd::open(Pid::of_this_process()).unwrap();
        // Other threads of the test binary do not block this signal. They ignore it, which is its default action.
        this.signal(Signal::WINCH).unwrap();
        // SAFETY: the call signals only this thread, which blocks the signal.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) }, 0);
        let first =
            std::iter::from_fn(|| queue.take().unwrap()).find(|arrived| arrived.signal == Signal::USR1).unwrap();
        assert_eq!(first.from, Sender::Process(Some(Pid::of_this_process())));
    }

    #[test]
    fn signals_of_the_terminal_come_from_the_kernel() {
        // SAFETY: all zeros is a valid value of this type.
        let mut info: libc::signalfd_siginfo = unsafe { MaybeUninit::zeroed().assume_init() };
        info.ssi_signo = libc::SIGINT.unsigned_abs();
        info.ssi_code = 0x80;
        assert_eq!(arrived(&info), Some(Arrived { signal: Signal::INT, from: Sender::Kernel }));
        info.ssi_code = 0;
        assert_eq!(arrived(&info).unwrap().from, Sender::Process(None));
        info.ssi_signo = 4711;
        assert_eq!(arrived(&info), None);
    }
}
