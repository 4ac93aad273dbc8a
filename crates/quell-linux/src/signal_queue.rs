//! A queue of signals with their senders (`signalfd(2)`), for a program that forwards signals to another. The
//! callers decide which to forward.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use rustix::io::Errno;

use crate::Pid;
use crate::pidfd::Signal;

/// Blocked signals, which wait to be taken instead of running their action.
pub struct SignalQueue {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Signal.
    pub signal: Signal,
    /// Sender.
    pub from: Sender,
}

/// Sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel: a terminal key, sent to the whole foreground process group, or a timer.
    Kernel,
    /// A process; `None` if it has no PID in this pid namespace.
    Process(Option<Pid>),
}

impl SignalQueue {
    /// Blocks `signals` in the calling thread and in threads that it starts later, so call it while there is only
    /// one thread. Ignored signals stay ignored and never arrive.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of(signals: &[Signal]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initializes the set; then numbers of real signals are added.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            set.assume_init()
        };
        let mut mask_before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialized, and there is space for the previous one.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, mask_before.as_mut_ptr()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: written by the call, which succeeded.
        let mask_before = unsafe { mask_before.assume_init() };
        // SAFETY: the set is initialized.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just created this file descriptor, so it is owned here.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, mask_before })
    }

    /// Returns a function that blocks in the calling thread exactly the signals that were blocked before this
    /// queue. It makes one system call, so it can run in the child of a `fork`.
    pub(crate) fn mask_before(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let mask = self.mask_before;
        move || {
            // SAFETY: the set comes from the kernel; the current one is not requested.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Takes the next signal, if any.
    ///
    /// # Errors
    /// When the kernel refuses to read.
    pub fn take(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, into a value of that size.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if Errno::from_io_error(&error) == Some(Errno::AGAIN) { Ok(None) } else { Err(error) };
        }
        if read.unsigned_abs() != size {
            return Err(io::Error::other(format!("a signalfd gave {read} bytes instead of {size}")));
        }
        // SAFETY: the kernel has written the whole value.
        Ok(arrived(&unsafe { info.assume_init() }))
    }
}

/// The kernel uses codes above 0 (`include/uapi/asm-generic/siginfo.h`).
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
    /// Readable while a signal is queued.
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
        // Other threads of the test binary do not block the signal; its default action ignores it there.
        this.signal(Signal::WINCH).unwrap();
        // SAFETY: sends a signal only to this thread, which blocks it.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) }, 0);
        let first =
            std::iter::from_fn(|| queue.take().unwrap()).find(|arrived| arrived.signal == Signal::USR1).unwrap();
        assert_eq!(first.from, Sender::Process(Some(Pid::of_this_process())));
    }

    #[test]
    fn signals_of_the_terminal_come_from_the_kernel() {
        // SAFETY: all-zero is a valid value of this type.
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
