//! Freeing queues whose interrupts are suspended, without touching the program that they are suspended for. Whoever
//! takes away what ends a suspension (`irq-suspend-timeout`, deferral, an epoll's `prefer_busy_poll`) frees the queue
//! before and after, or its packets lie until the old timeout is over.
//!
//! A wait on the program's own epoll would free the queue too, and take from the program the edge-triggered and one-shot
//! events that it reports. So the queue is polled from elsewhere: by an io_uring that is given the NAPI id, or, where
//! there is no io_uring, by an epoll of our own that watches a duplicate of one of the program's sockets for nothing.
//! Either poll takes the packets that lie there to their sockets and re-arms the queue's timer with gro-flush-timeout
//! (`busy_poll_stop` in `net/core/dev.c`).

mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread;
use std::time::Duration;

use quell_linux::epoll_params::{self, EpollParams, EpollParamsError};
use quell_linux::event::{Epoll, Trigger};
use quell_linux::io_uring::{NapiPollError, poll_napi_once};
use quell_linux::netdev::Napi;
use quell_linux::proc::ProcRoot;
use quell_linux::socket_options::{self, SocketOptionError};
use quell_linux::{NapiId, Pid};

pub use sockets::SocketsError;
use sockets::{CANDIDATES, SocketOnNapi, sockets_on};

/// A timeout of zero neither polls nor resumes (`ep_poll` in `fs/eventpoll.c`). The poll comes before the sleep, which is
/// short because a duplicate of the program's socket is open during it.
const OWN_WAIT: Duration = Duration::from_micros(1);
/// Waits of an own epoll until it reports nothing: a hang-up and an error are reported once each.
const OWN_WAITS_MAX: usize = 3;
const NO_SOCKET: &str = "no socket arrives by it";
/// The longest suspension that is waited out.
pub const WAITED_OUT_MAX: Duration = Duration::from_secs(10);

/// How a queue was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// By an epoll of our own that watched a duplicate of this socket.
    ThroughSocket {
        /// Whose socket.
        pid: Pid,
        /// Its number there.
        fd: i32,
    },
    /// By an io_uring that was told the id.
    ThroughIoUring,
    /// By itself: whatever suspension there was is over after this time.
    WaitedOut(Duration),
}

/// Why a queue could not be freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Nothing can poll the queue, and its suspension is too long to be waited out, or of a length that is not known
    /// because the queue's device is in a namespace that the program itself is not in.
    #[error(
        "NAPI {napi} may be suspended for up to {}, and nothing here can end that: {no_socket}; {no_ring}. Its packets \
         arrive when the time is over, or when the program waits on its epoll again",
        timeout.map_or("an unknown time".to_owned(), |timeout| format!("{timeout:?}"))
    )]
    CannotPoll {
        /// The queue.
        napi: NapiId,
        /// The timeout that holds it; absent when it is not known.
        timeout: Option<Duration>,
        /// Why no socket helped.
        no_socket: String,
        /// Why io_uring did not.
        no_ring: NapiPollError,
    },
}

/// What can free one queue now.
#[derive(Debug)]
pub struct Resumer {
    napi: NapiId,
    timeout: Option<Duration>,
    candidates: Vec<SocketOnNapi>,
    no_socket: String,
}

impl Resumer {
    /// For one queue: looks for sockets of `programs` that arrive by it. A program that cannot be looked into does not
    /// help, and is no error.
    #[must_use]
    pub fn of_queue(proc: &ProcRoot, napi: &Napi, programs: &[Pid]) -> Self {
        let (mut candidates, mut no_socket) = (Vec::new(), NO_SOCKET.to_owned());
        for &program in programs {
            match sockets_on(proc, program, Some(napi.id)) {
                Ok(found) => candidates.extend(found.into_values().flatten()),
                Err(error) => no_socket = error.to_string(),
            }
            if candidates.len() >= CANDIDATES {
                break;
            }
        }
        Self { napi: napi.id, timeout: suspend_timeout(napi), candidates, no_socket }
    }

    /// For every queue that a program can have suspended: those that its sockets arrive by, and `others`, by which
    /// sockets may have arrived that are closed now.
    #[must_use]
    pub fn of_program(proc: &ProcRoot, program: Pid, others: &[Napi]) -> Vec<Self> {
        let timeouts: BTreeMap<NapiId, Option<Duration>> =
            others.iter().map(|napi| (napi.id, suspend_timeout(napi))).collect();
        let (mut sockets, no_socket) = match sockets_on(proc, program, None) {
            Ok(sockets) => (sockets, NO_SOCKET.to_owned()),
            Err(error) => (BTreeMap::new(), error.to_string()),
        };
        let napis: BTreeSet<NapiId> = timeouts.keys().chain(sockets.keys()).copied().collect();
        let resumer = |napi| Self {
            napi,
            timeout: timeouts.get(&napi).copied().flatten(),
            candidates: sockets.remove(&napi).unwrap_or_default(),
            no_socket: no_socket.clone(),
        };
        napis.into_iter().map(resumer).collect()
    }

    /// Polls the queue, if it can be polled from here; whatever suspension began before this call is over then.
    ///
    /// # Errors
    /// Says why io_uring, the last means, did not do it.
    pub fn poll(&self) -> Result<Freed, NapiPollError> {
        let Err(no_ring) = poll_napi_once(self.napi) else { return Ok(Freed::ThroughIoUring) };
        self.poll_through_socket().ok_or(no_ring)
    }

    /// Polls the queue as a kernel has it done that has no io_uring: through a duplicate of one of the sockets, for some
    /// microseconds. `None`: none of them arrives by it.
    #[must_use]
    pub fn poll_through_socket(&self) -> Option<Freed> {
        // A socket that no longer arrives by the queue, or whose program is gone, leaves its place to the next.
        let through = self.candidates.iter().find(|socket| matches!(poll_through(socket, self.napi), Ok(true)))?;
        Some(Freed::ThroughSocket { pid: through.pid, fd: through.fd })
    }

    /// Polls the queue, or waits until the suspension that was possible when this value was made is over.
    ///
    /// # Errors
    /// [`ResumeError`], also when it would have to be waited for longer than [`WAITED_OUT_MAX`].
    pub fn poll_or_wait_out(&self) -> Result<Freed, ResumeError> {
        match (self.poll(), self.timeout) {
            (Ok(freed), _) => Ok(freed),
            (Err(_), Some(timeout)) if timeout <= WAITED_OUT_MAX => {
                thread::sleep(timeout);
                Ok(Freed::WaitedOut(timeout))
            }
            (Err(no_ring), timeout) => {
                Err(ResumeError::CannotPoll { napi: self.napi, timeout, no_socket: self.no_socket.clone(), no_ring })
            }
        }
    }
}

/// How long the instance can be suspended at most; absent when it cannot.
fn suspend_timeout(napi: &Napi) -> Option<Duration> {
    napi.irq_suspend_timeout_ns.filter(|&timeout| timeout > 0).map(Duration::from_nanos)
}

/// Why an own epoll did not poll.
#[derive(Debug, thiserror::Error)]
enum OwnEpollError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Params(#[from] EpollParamsError),
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
}

/// Polls `napi` by an epoll of our own that learns its id from `socket`. Says whether it surely did: the socket still
/// arrives by it, and the last wait went as far as polling, which it does when it has nothing to report.
fn poll_through(socket: &SocketOnNapi, napi: NapiId) -> Result<bool, OwnEpollError> {
    let mut epoll = Epoll::new(1)?;
    // Before the socket is added: the id is noted only while busy polling is on.
    let prefer = EpollParams { prefer_busy_poll: true, ..EpollParams::default() };
    epoll_params::set(&epoll, prefer)?;
    let Some(duplicate) = socket.duplicate() else { return Ok(false) };
    epoll.add(&duplicate, 0, Trigger::Unasked)?;
    let arrives = || Ok::<bool, OwnEpollError>(socket_options::incoming_napi_id(&duplicate)? == Some(napi));
    if !arrives()? {
        return Ok(false);
    }
    for _ in 0..OWN_WAITS_MAX {
        epoll.wait(Some(OWN_WAIT))?;
        if epoll.is_empty() {
            return arrives();
        }
    }
    Ok(false)
}
