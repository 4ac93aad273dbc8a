//! Event primitives for programs that wait on many sockets: an epoll, an event that another thread raises, and a
//! periodic ticker.
//!
//! C library functions create epolls and wait on them, so that the preload library of `quell run` affects `quell
//! respond` as it affects other programs. Waits that cannot sleep are raw system calls. In a program with threads, the
//! C library's function executes 56 more instructions, two of them atomic. A load generator that spins would pay for
//! them in each iteration.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;
use std::time::Duration;

use libc::epoll_event;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{read, write};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// In every wait while the file is readable (level-triggered).
    Level,
    /// Once when the file becomes readable, or writable after a full buffer (`EPOLLET`). Later waits do not examine the
    /// file until its next event.
    Edge,
    /// Once when the file becomes readable (`EPOLLET`), regardless of writability.
    ReadEdge,
    /// Once when the file becomes readable. The file is then disabled until it is re-armed (`EPOLLONESHOT`).
    OneShot,
    /// Never when the file becomes readable, because the interest mask is 0. The kernel adds errors and hang-ups to
    /// every mask (`ep_ctl` in `fs/eventpoll.c`), so it reports them once. Other waiters on the same file receive all
    /// events.
    Unrequested,
}

impl Trigger {
    fn flags(self) -> EventFlags {
        let readable = EventFlags::IN | EventFlags::RDHUP;
        match self {
            Self::Level => readable,
            Self::Edge => readable | EventFlags::OUT | EventFlags::ET,
            Self::ReadEdge => readable | EventFlags::ET,
            Self::OneShot => readable | EventFlags::ONESHOT,
            Self::Unrequested => EventFlags::ONESHOT,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub token: u64,
    /// Whether the peer closed the connection or the file has an error, so that no more data will arrive.
    pub hung_up: bool,
}

/// An epoll with a buffer for the events of one wait.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll_event>,
}

impl Epoll {
    pub fn new(events_max: usize) -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the new descriptor has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Vec::with_capacity(events_max.max(1)) })
    }

    /// Registers `file` with `token`. The kernel removes the registration when the file is closed.
    pub fn add(&self, file: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::add(&self.fd, file, EventData::new_u64(token), trigger.flags())?)
    }

    /// Re-arms a registered file (`EPOLL_CTL_MOD`), for example after a one-shot event.
    pub fn rearm(&self, file: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, file, EventData::new_u64(token), trigger.flags())?)
    }

    /// Waits for events. `None` waits without a time limit, and zero does not wait. A signal ends the wait without
    /// events.
    #[inline]
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        let (fd, events, room) = (self.fd.as_raw_fd(), self.events.as_mut_ptr(), self.events.capacity());
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        let no_mask = ptr::null::<libc::sigset_t>();
        let reported = match whole_ms(timeout) {
            // SAFETY: the kernel writes at most `room` events, and the buffer has space for them.
            Some(0) => unsafe { libc::syscall(libc::SYS_epoll_pwait, fd, events, room, 0, no_mask, 0_usize) },
            // SAFETY: the kernel writes at most `room` events, and the buffer has space for them.
            Some(timeout_ms) => unsafe { libc::epoll_wait(fd, events, room, timeout_ms) }.into(),
            None => self.wait_ns(timeout),
        };
        match usize::try_from(reported) {
            Ok(reported) => {
                // SAFETY: the kernel has initialized this number of events.
                unsafe { self.events.set_len(reported) };
                Ok(())
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Waits with a resolution of 1 ns. This is a raw system call, because glibc before 2.35 lacks `epoll_pwait2`.
    #[cold]
    fn wait_ns(&mut self, timeout: Option<Duration>) -> i64 {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let (fd, room, no_mask) = (self.fd.as_raw_fd(), self.events.capacity(), ptr::null::<libc::sigset_t>());
        // SAFETY: the buffer has space for `room` events, and the timeout outlives the call.
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, self.events.as_mut_ptr(), room, timeout, no_mask, 0_usize) }
    }

    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The event at `index` of the last wait; `None` if the index is at least [`Epoll::len`].
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Readiness> {
        let event = self.events.get(index)?;
        let ended = (EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR).bits();
        Some(Readiness { token: event.u64, hung_up: event.events & ended != 0 })
    }
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoll").field("fd", &self.fd).field("events", &self.events.len()).finish()
    }
}

/// Converts to a timeout of `epoll_wait(2)` in ms; -1 means no limit. Returns `None` if `timeout` is not a whole number
/// of ms, or is too long.
fn whole_ms(timeout: Option<Duration>) -> Option<i32> {
    let Some(timeout) = timeout else { return Some(-1) };
    (timeout.subsec_nanos() % 1_000_000 == 0).then(|| i32::try_from(timeout.as_millis()).ok()).flatten()
}

impl Epoll {
    /// Creates another reference to the same epoll, with its own event buffer of the same size. Both share
    /// registrations and parameters; the epoll exists until both are dropped.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, events: Vec::with_capacity(self.events.capacity()) })
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An event that one thread raises and another thread's epoll reports. It remains raised.
#[derive(Debug)]
pub struct WakeEvent(OwnedFd);

impl WakeEvent {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn raise(&self) -> io::Result<()> {
        write(&self.0, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A timer that becomes readable at regular intervals. Waits that it ends need no timeout, so the kernel does not start
/// and cancel a timer for every wait.
#[derive(Debug)]
pub struct Ticker(OwnedFd);

impl Ticker {
    /// Creates a ticker that ticks every `interval` from now on. A zero interval never ticks.
    pub fn new(interval: Duration) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let interval = Timespec::try_from(interval).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: interval, it_value: interval })?;
        Ok(Self(fd))
    }

    /// Consumes the reported tick. The next tick comes only after this call, because `timerfd_read_iter` in
    /// `fs/timerfd.c` restarts the timer. Errors: those of `read(2)`; `WouldBlock` if no tick is pending.
    pub fn take(&self) -> io::Result<()> {
        read(&self.0, &mut [0; 8])?;
        Ok(())
    }
}

impl AsFd for Ticker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_event_is_reported_with_its_token() {
        let event = WakeEvent::new().unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&event, 7, Trigger::Level).unwrap();
        epoll.wait(Some(Duration::ZERO)).unwrap();
        assert!(epoll.is_empty());
        event.raise().unwrap();
        epoll.wait(None).unwrap();
        assert_eq!(epoll.get(0), Some(Readiness { token: 7, hung_up: false }));
        assert_eq!((epoll.len(), epoll.get(1)), (1, None));
    }

    #[test]
    fn a_timeout_in_ns_behaves_like_a_timeout_in_ms() {
        assert_eq!([None, Some(Duration::ZERO), Some(Duration::from_millis(7))].map(whole_ms), [-1, 0, 7].map(Some));
        assert_eq!([Duration::from_nanos(1), Duration::MAX].map(|long| whole_ms(Some(long))), [None, None]);
        let (event, mut epoll) = (WakeEvent::new().unwrap(), Epoll::new(4).unwrap());
        epoll.add(&event, 7, Trigger::Level).unwrap();
        epoll.wait(Some(Duration::from_nanos(1))).unwrap();
        assert!(epoll.is_empty());
        event.raise().unwrap();
        epoll.wait(Some(Duration::from_nanos(1))).unwrap();
        assert_eq!((epoll.len(), epoll.get(0)), (1, Some(Readiness { token: 7, hung_up: false })));
    }

    #[test]
    fn an_edge_is_reported_once_and_a_level_each_time() {
        let (edge, level) = (WakeEvent::new().unwrap(), WakeEvent::new().unwrap());
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&level, 2, Trigger::Level).unwrap();
        epoll.add(&edge, 1, Trigger::Edge).unwrap();
        edge.raise().unwrap();
        level.raise().unwrap();
        let mut tokens = || {
            epoll.wait(Some(Duration::ZERO)).unwrap();
            let mut tokens: Vec<_> = (0..epoll.len()).filter_map(|index| epoll.get(index)).map(|r| r.token).collect();
            tokens.sort_unstable();
            tokens
        };
        assert_eq!(tokens(), [1, 2]);
        assert_eq!(tokens(), [2]);
    }

    #[test]
    fn a_file_with_an_empty_interest_mask_is_not_reported_when_readable() {
        let event = WakeEvent::new().unwrap();
        event.raise().unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&event, 1, Trigger::Unrequested).unwrap();
        epoll.wait(Some(Duration::ZERO)).unwrap();
        assert!(epoll.is_empty());
    }

    #[test]
    fn a_one_shot_event_is_reported_once_although_the_file_stays_readable() {
        let event = WakeEvent::new().unwrap();
        event.raise().unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&event, 1, Trigger::OneShot).unwrap();
        for expected in [1, 0] {
            epoll.wait(Some(Duration::ZERO)).unwrap();
            assert_eq!(epoll.len(), expected);
        }
        epoll.rearm(&event, 1, Trigger::OneShot).unwrap();
        epoll.wait(Some(Duration::ZERO)).unwrap();
        assert_eq!(epoll.len(), 1);
    }

    #[test]
    fn an_edge_that_a_duplicate_reported_is_not_reported_again() {
        let event = WakeEvent::new().unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&event, 1, Trigger::Edge).unwrap();
        let mut duplicate = epoll.duplicate().unwrap();
        event.raise().unwrap();
        for (epoll, expected) in [(&mut duplicate, 1), (&mut epoll, 0)] {
            epoll.wait(Some(Duration::ZERO)).unwrap();
            assert_eq!(epoll.len(), expected);
        }
    }

    #[test]
    fn a_ticker_ends_waits_repeatedly() {
        let ticker = Ticker::new(Duration::from_millis(1)).unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&ticker, 3, Trigger::Edge).unwrap();
        for _ in 0..3 {
            epoll.wait(None).unwrap();
            assert_eq!(epoll.get(0), Some(Readiness { token: 3, hung_up: false }));
            ticker.take().unwrap();
        }
    }
}
