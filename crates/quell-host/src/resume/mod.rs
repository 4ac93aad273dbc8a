//! Frees queues with suspended interrupts without touching the program they are suspended for. A change that disables
//! the end of a suspension (`irq-suspend-timeout`, deferral, `prefer_busy_poll` of an epoll) must free the queue before
//! and after. Otherwise its packets wait until the old timeout expires.
//!
//! Waiting on the program's own epoll would also free the queue, but would consume edge-triggered and one-shot events
//! of the program. The queue is therefore polled by an io_uring that is given the NAPI ID. Without io_uring, an epoll
//! of our own polls it; it watches a duplicate of one of the program's sockets without any events. Both polls deliver
//! the queue's packets to their sockets and re-arm its timer with gro-flush-timeout (`busy_poll_stop` in
//! `net/core/dev.c`).

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
use tracing::{debug, info};

pub use sockets::SocketsError;
use sockets::{CANDIDATES, SocketOnNapi, sockets_on};

/// A timeout of zero neither polls nor resumes (`ep_poll` in `fs/eventpoll.c`). The poll precedes the sleep. The sleep
/// is short because a duplicate of the program's socket is open during it.
const OWN_WAIT: Duration = Duration::from_micros(1);
/// Limit of waits on our epoll until it reports nothing: a hang-up and an error are reported once each.
const OWN_WAITS_MAX: usize = 3;
const NO_SOCKET: &str = "no socket arrives by it";
/// Longest suspension whose end is waited for.
pub const WAITED_OUT_MAX: Duration = Duration::from_secs(10);

/// How a queue was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Polled by our epoll, which watched a duplicate of this socket.
    ThroughSocket {
        /// Process that owns the socket.
        pid: Pid,
        /// File descriptor in that process.
        fd: i32,
    },
    /// Polled by an io_uring.
    ThroughIoUring,
    /// Not polled: after this time any suspension has ended.
    WaitedOut(Duration),
}

/// Reason why a queue could not be freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Nothing can poll the queue, and the suspension cannot be waited for: it is too long, or its timeout is unknown
    /// because the device is not in the program's namespace.
    #[error(
        "NAPI {napi} may stay suspended for up to {}, because it cannot be polled: {no_socket}; {no_ring}. Its packets \
         are delivered after that, or when the program waits on its epoll again",
        timeout.map_or("an unknown time".to_owned(), |timeout| format!("{timeout:?}"))
    )]
    CannotPoll {
        /// NAPI instance of the queue.
        napi: NapiId,
        /// Suspension timeout; absent when unknown.
        timeout: Option<Duration>,
        /// Reason why no socket helped.
        no_socket: String,
        /// Reason why io_uring failed.
        no_ring: NapiPollError,
    },
}

/// Means to free one queue.
#[derive(Debug)]
pub struct Resumer {
    napi: NapiId,
    timeout: Option<Duration>,
    candidates: Vec<SocketOnNapi>,
    no_socket: String,
}

impl Resumer {
    /// Prepares to free one queue: searches `programs` for sockets on it. Programs that cannot be inspected are
    /// skipped.
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

    /// Prepares to free every queue that a program may have suspended: the queues of its sockets, and `others`, which
    /// may be the queues of sockets closed by now.
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

    /// Polls the queue, if possible. Ends any suspension that began before this call.
    ///
    /// # Errors
    /// Returns why io_uring, the last resort, failed.
    pub fn poll(&self) -> Result<Freed, NapiPollError> {
        let napi = self.napi.get();
        let Err(no_ring) = poll_napi_once(self.napi) else {
            debug!(napi, "a suspension is ended: polled by an io_uring");
            return Ok(Freed::ThroughIoUring);
        };
        match self.poll_through_socket() {
            Some(Freed::ThroughSocket { pid, fd }) => {
                debug!(napi, pid = pid.get(), fd, %no_ring, "a suspension is ended: polled by an epoll with this socket");
                Ok(Freed::ThroughSocket { pid, fd })
            }
            Some(freed) => Ok(freed),
            None => {
                debug!(napi, %no_ring, no_socket = self.no_socket, "the queue cannot be polled");
                Err(no_ring)
            }
        }
    }

    /// Polls the queue for some microseconds through a duplicate of one of the sockets, as on a kernel without
    /// io_uring. `None`: no socket receives from it.
    #[must_use]
    pub fn poll_through_socket(&self) -> Option<Freed> {
        // Skips sockets that no longer receive from the queue and sockets of exited programs.
        let through = self.candidates.iter().find(|socket| matches!(poll_through(socket, self.napi), Ok(true)))?;
        Some(Freed::ThroughSocket { pid: through.pid, fd: through.fd })
    }

    /// Polls the queue, or waits until a suspension that was possible when this value was created has ended.
    ///
    /// # Errors
    /// [`ResumeError`], also when the wait would exceed [`WAITED_OUT_MAX`].
    pub fn poll_or_wait_out(&self) -> Result<Freed, ResumeError> {
        match (self.poll(), self.timeout) {
            (Ok(freed), _) => Ok(freed),
            (Err(_), Some(timeout)) if timeout <= WAITED_OUT_MAX => {
                info!(napi = self.napi.get(), ?timeout, "waiting until a suspension has ended");
                thread::sleep(timeout);
                Ok(Freed::WaitedOut(timeout))
            }
            (Err(no_ring), timeout) => {
                Err(ResumeError::CannotPoll { napi: self.napi, timeout, no_socket: self.no_socket.clone(), no_ring })
            }
        }
    }
}

/// Longest possible suspension of the instance; absent when it does not suspend.
fn suspend_timeout(napi: &Napi) -> Option<Duration> {
    napi.settings.irq_suspend_timeout_ns.filter(|&timeout| timeout > 0).map(Duration::from_nanos)
}

/// Reason why our epoll did not poll.
#[derive(Debug, thiserror::Error)]
enum OwnEpollError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Params(#[from] EpollParamsError),
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
}

/// Polls `napi` through our epoll, which learns the NAPI ID from `socket`. Returns whether it certainly did: the socket
/// still receives from `napi`, and the last wait reported nothing, so it went as far as polling.
fn poll_through(socket: &SocketOnNapi, napi: NapiId) -> Result<bool, OwnEpollError> {
    let mut epoll = Epoll::new(1)?;
    // Set before the socket is added: the kernel records the NAPI ID only while busy polling is on.
    let prefer = EpollParams { prefer_busy_poll: true, ..EpollParams::default() };
    epoll_params::set(&epoll, prefer)?;
    let Some(duplicate) = socket.duplicate() else { return Ok(false) };
    epoll.add(&duplicate, 0, Trigger::Unrequested)?;
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
