//! Signals taken from a queue, each with who sent it (`signalfd(2)`): for a program that stands before another one and
//! passes on to it what is meant for it. Which to pass on is decided above.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use rustix::io::Errno;

use crate::Pid;
use crate::pidfd::Signal;

/// Signals that wait to be taken, instead of doing to this process what they do to others.
pub struct SignalQueue {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
}

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Which.
    pub signal: Signal,
    /// Who sent it.
    pub from: Sender,
}

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel: a key of the terminal, whose whole process group has it; a timer.
    Kernel,
    /// A process; absent when it has no number in this one's pid namespace.
    Process(Option<Pid>),
}

impl SignalQueue {
    /// Blocks `signals` in the calling thread, and in those that it starts from now on: so to be called while there is
    /// only one. Signals that are ignored stay ignored and never come.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of(signals: &[Signal]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises the set, in which the numbers of real signals are then put.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            set.assume_init()
        };
        let mut mask_before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialised, and there is room for the one before.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, mask_before.as_mut_ptr()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: written by the call that has just succeeded.
        let mask_before = unsafe { mask_before.assume_init() };
        // SAFETY: the set is initialised.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this number to us alone.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, mask_before })
    }

    /// What blocks in the calling thread the signals that were blocked before this queue, and no others. Makes one system
    /// call, so that it can be called in the child of a `fork`.
    pub(crate) fn mask_before(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let mask = self.mask_before;
        move || {
            // SAFETY: the set is one that the kernel gave, the present one is not asked for.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut()) } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// The next signal, if one waits.
    ///
    /// # Errors
    /// When the kernel refuses to be read from.
    pub fn take(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: at most `size` bytes are written, into a value of that size.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if Errno::from_io_error(&error) == Some(Errno::AGAIN) { Ok(None) } else { Err(error) };
        }
        if read.unsigned_abs() != size {
            return Err(io::Error::other(format!("a signalfd gave {read} bytes instead of {size}")));
        }
        // SAFETY: the kernel has written it whole.
        Ok(arrived(&unsafe { info.assume_init() }))
    }
}

/// Codes above 0 are the kernel's (`include/uapi/asm-generic/siginfo.h`).
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
    /// Readable while a signal waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_waits_in_the_queue_and_tells_who_sent_it() {
        let queue = SignalQueue::of(&[Signal::USR1, Signal::WINCH]).unwrap();
        assert_eq!(queue.take().unwrap(), None);
        let this = crate::pidfd::PidFd::open(Pid::of_this_process()).unwrap();
        // Other threads of the test binary have it unblocked, and ignore it as it comes.
        this.signal(Signal::WINCH).unwrap();
        // SAFETY: sends a signal to this thread alone, which has it blocked.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) }, 0);
        let first =
            std::iter::from_fn(|| queue.take().unwrap()).find(|arrived| arrived.signal == Signal::USR1).unwrap();
        assert_eq!(first.from, Sender::Process(Some(Pid::of_this_process())));
    }

    #[test]
    fn what_the_terminal_sends_is_the_kernels() {
        // SAFETY: all bits zero is a value of this type.
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
