//! Makes SIGINT, SIGTERM, SIGHUP or other signals available to waits and checks, so that a run can end in an orderly
//! way. The handling of other signals, such as SIGPIPE, is unchanged.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::SigId;
use signal_hook::low_level::signal_name;

use crate::pidfd::{Signal, poll_readable};

const NONE: usize = 0;

/// Signals that request the end of this program, from [`Interruption::listen`] on.
#[derive(Debug)]
pub struct Interruption {
    flag: InterruptionFlag,
    wake: UnixStream,
    handlers: Vec<SigId>,
}

/// Tells whether a signal arrived, with one atomic load. It is for loops and other threads.
#[derive(Clone, Debug)]
pub struct InterruptionFlag(Arc<AtomicUsize>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptionSignal(i32);

impl InterruptionSignal {
    /// Signal number. By convention, a program that a signal ended exits with 128 plus this number.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        signal_name(self.0).unwrap_or("a signal")
    }
}

impl InterruptionFlag {
    #[must_use]
    pub fn get(&self) -> Option<InterruptionSignal> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            number => i32::try_from(number).ok().map(InterruptionSignal),
        }
    }

    /// Whether this signal arrived last.
    #[must_use]
    pub fn has(&self, signal: Signal) -> bool {
        self.get() == Some(InterruptionSignal(signal.as_raw()))
    }
}

impl Interruption {
    /// Starts to listen. From now on these signals do not end the program, even after this value is dropped.
    pub fn listen() -> io::Result<Self> {
        Self::listen_to(&[Signal::INT, Signal::TERM, Signal::HUP])
    }

    /// Starts to listen also to SIGTSTP (Ctrl-Z), for commands that try settings: if the program stopped, the present
    /// one would stay.
    pub fn listen_and_never_stop() -> io::Result<Self> {
        Self::listen_to(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::TSTP])
    }

    pub fn listen_to(signals: &[Signal]) -> io::Result<Self> {
        let flag = Arc::new(AtomicUsize::new(NONE));
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut listening = Self { flag: InterruptionFlag(Arc::clone(&flag)), wake, handlers: Vec::new() };
        for signal in signals.iter().map(|signal| signal.as_raw()) {
            // The handlers run in this order, so that a woken thread finds the flag set.
            let number = signal.unsigned_abs() as usize;
            let set = signal_hook::flag::register_usize(signal, Arc::clone(&flag), number)?;
            listening.handlers.push(set);
            let wake = signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
            listening.handlers.push(wake);
        }
        Ok(listening)
    }

    #[must_use]
    pub fn flag(&self) -> InterruptionFlag {
        self.flag.clone()
    }

    /// Waits up to `timeout` for a signal, and returns the last signal that arrived, if any. If a signal arrived before
    /// the call, it returns at once.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<InterruptionSignal>> {
        if self.flag.get().is_none() {
            poll_readable(self.wake.as_fd(), Some(timeout))?;
        }
        Ok(self.flag.get())
    }

    /// Clears the flag and pending wake-ups, so that a later signal is distinguished from an earlier one.
    pub fn reset(&self) -> io::Result<()> {
        let mut wake = &self.wake;
        let mut bytes = [0; 64];
        loop {
            match wake.read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.flag.0.store(NONE, Ordering::Relaxed);
        Ok(())
    }
}

impl AsFd for Interruption {
    /// The descriptor becomes readable after a signal arrived. It can be used with other files in `poll` or `epoll`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGHUP;

    /// This module has a single test, because signals belong to the whole process.
    #[test]
    fn a_signal_wakes_and_sets_the_flag_until_it_is_reset() {
        let interruption = Interruption::listen().unwrap();
        let flag = interruption.flag();
        assert_eq!(interruption.wait(Duration::from_millis(1)).unwrap(), None);

        signal_hook::low_level::raise(SIGHUP).unwrap();
        let signal = interruption.wait(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!((signal.name(), signal.number()), ("SIGHUP", SIGHUP));
        assert_eq!(flag.get(), Some(signal));

        interruption.reset().unwrap();
        assert_eq!(flag.get(), None);
        assert_eq!(interruption.wait(Duration::from_millis(1)).unwrap(), None);
    }
}
