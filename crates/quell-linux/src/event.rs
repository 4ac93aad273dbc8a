//! An epoll of one's own, for programs that wait on many sockets, an event that ends such a wait from
//! another thread, and a ticker that ends it at intervals. Reading and changing the busy-poll parameters of an epoll, own or
//! foreign, is `epoll_params`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, read, write};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// When a registered file is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At each wait as long as it is readable.
    Level,
    /// Once when it becomes readable, or writable after having been full (`EPOLLET`). The kernel
    /// then does not look at it again at the next wait.
    Edge,
    /// Once when it becomes readable (`EPOLLET`), whether or not it can be written to.
    ReadEdge,
    /// Once when it becomes readable, and then no more (`EPOLLONESHOT`).
    OneShot,
    /// Never for what it can be read for: the interest mask is 0. The kernel adds errors and hang-ups to every mask
    /// (`ep_ctl` in `fs/eventpoll.c`); those are reported once. What others wait for on the same file is not taken from
    /// them.
    Unasked,
}

impl Trigger {
    fn flags(self) -> EventFlags {
        let readable = EventFlags::IN | EventFlags::RDHUP;
        match self {
            Self::Level => readable,
            Self::Edge => readable | EventFlags::OUT | EventFlags::ET,
            Self::ReadEdge => readable | EventFlags::ET,
            Self::OneShot => readable | EventFlags::ONESHOT,
            Self::Unasked => EventFlags::ONESHOT,
        }
    }
}

/// What a wait reported of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The number that the file was registered with.
    pub token: u64,
    /// The peer has closed, or the file has an error: nothing more will arrive after what is there.
    pub hung_up: bool,
}

/// An epoll file with room for the events of one wait.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    /// A new epoll that reports at most `events_max` events a wait.
    ///
    /// # Errors
    /// What `epoll_create1(2)` said.
    pub fn new(events_max: usize) -> io::Result<Self> {
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { fd, events: Vec::with_capacity(events_max.max(1)) })
    }

    /// Watches `file`, whose events will carry `token`. Closing the file ends it.
    ///
    /// # Errors
    /// What `epoll_ctl(2)` said.
    pub fn add(&self, file: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::add(&self.fd, file, EventData::new_u64(token), trigger.flags())?)
    }

    /// Watches a file that is watched already anew: one that was reported once for all is reported again.
    ///
    /// # Errors
    /// What `epoll_ctl(2)` said.
    pub fn rearm(&self, file: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, file, EventData::new_u64(token), trigger.flags())?)
    }

    /// Waits for events: for ever without a timeout, not at all with a zero one. A signal ends the
    /// wait without events.
    ///
    /// # Errors
    /// What `epoll_pwait2(2)` said.
    #[inline]
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        match epoll::wait(&self.fd, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// How many events the last wait reported.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the last wait reported nothing.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The event number `index` of the last wait; `None` beyond [`Epoll::len`].
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Readiness> {
        let event = self.events.get(index)?;
        let flags = event.flags;
        Some(Readiness {
            token: event.data.u64(),
            hung_up: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
        })
    }
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoll").field("fd", &self.fd).field("events", &self.events.len()).finish()
    }
}

// SAFETY: what keeps it from being `Send` by itself is that an event's data may be a pointer; here it is always the
// number that the file was registered with.
unsafe impl Send for Epoll {}

impl Epoll {
    /// Another reference to the same epoll, with room of its own for as many events: what is added to, set on or taken
    /// from one is so for both, and the epoll lives until both are gone.
    ///
    /// # Errors
    /// What `fcntl(2)` said: too many open files.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, events: Vec::with_capacity(self.events.capacity()) })
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Something that one thread raises and an epoll of another reports, from then on for ever.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event that is not raised.
    ///
    /// # Errors
    /// What `eventfd2(2)` said.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Raises it.
    ///
    /// # Errors
    /// What `write(2)` said.
    pub fn raise(&self) -> io::Result<()> {
        write(&self.0, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A clock that becomes ready at regular intervals. A wait that it ends needs no timeout, and so the
/// kernel sets and cancels no timer at each of them.
#[derive(Debug)]
pub struct Ticker(OwnedFd);

impl Ticker {
    /// Ticks every `interval` from now on; a zero interval never does.
    ///
    /// # Errors
    /// What `timerfd_create(2)` or `timerfd_settime(2)` said.
    pub fn new(interval: Duration) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let interval = Timespec::try_from(interval).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: interval, it_value: interval })?;
        Ok(Self(fd))
    }

    /// Takes the tick that was reported; until then there is no further one
    /// (`timerfd_read_iter` in `fs/timerfd.c` starts the timer again).
    ///
    /// # Errors
    /// What `read(2)` said; `WouldBlock` when there was no tick.
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
        let event = Event::new().unwrap();
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
    fn an_edge_is_reported_once_and_a_level_each_time() {
        let (edge, level) = (Event::new().unwrap(), Event::new().unwrap());
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
    fn a_file_that_is_watched_unasked_is_not_reported_when_it_can_be_read() {
        let event = Event::new().unwrap();
        event.raise().unwrap();
        let mut epoll = Epoll::new(4).unwrap();
        epoll.add(&event, 1, Trigger::Unasked).unwrap();
        epoll.wait(Some(Duration::ZERO)).unwrap();
        assert!(epoll.is_empty());
    }

    #[test]
    fn a_one_shot_event_is_reported_once_though_it_stays_readable() {
        let event = Event::new().unwrap();
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
    fn what_a_duplicate_is_told_of_is_no_news_to_the_other_when_it_is_edge_triggered() {
        let event = Event::new().unwrap();
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
    fn a_ticker_ends_waits_again_and_again() {
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
