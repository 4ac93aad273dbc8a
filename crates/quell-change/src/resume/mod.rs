//! Frees queues with suspended interrupts without disturbing their programs. Some changes disable the end of a
//! suspension (`irq-suspend-timeout`, deferral, `prefer_busy_poll` of an epoll). Such a change must free the queue
//! before and after. Otherwise its packets wait until the old timeout expires.
//!
//! A wait on the program's own epoll would also free the queue, but would consume edge-triggered and one-shot events of
//! the program. Instead, an io_uring with the NAPI ID polls the queue. Without io_uring, Quell's own epoll polls it,
//! which watches a duplicate of one of the program's sockets with an empty event mask. Both polls deliver the queue's
//! packets to their sockets and re-arm its timer with gro-flush-timeout (`busy_poll_stop` in `net/core/dev.c`).

mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{io, thread};

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

/// Timeout of a wait on Quell's own epoll. With zero, the kernel neither polls nor resumes (`ep_poll` in
/// `fs/eventpoll.c`). It is short, because the duplicate of the program's socket stays open during the sleep, which
/// follows the poll.
const OWN_WAIT: Duration = Duration::from_micros(1);
/// Maximum number of waits until Quell's epoll returns no events. A hang-up and an error are returned once each.
const OWN_WAITS_MAX: usize = 3;
const NO_SOCKET: &str = "no socket receives from it";
/// Longest suspension that Quell waits for.
pub const WAITED_OUT_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Quell's epoll polled it while watching a duplicate of this socket.
    ThroughSocket {
        pid: Pid,
        fd: i32,
    },
    ThroughIoUring,
    /// Nothing polled it, but every suspension has ended after this time.
    WaitedOut(Duration),
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Nothing can poll the queue, and waiting for the end of the suspension is not possible. Either the timeout is too
    /// long, or it is unknown because the device is not in the program's namespace.
    #[error(
        "NAPI {napi} may stay suspended for up to {}, because it cannot be polled: {no_socket}; {no_ring}. Its \
         packets are delivered after that time, or when the program calls epoll_wait again",
        timeout.map_or("an unknown time".to_owned(), |timeout| format!("{timeout:?}"))
    )]
    CannotPoll { napi: NapiId, timeout: Option<Duration>, no_socket: String, no_ring: NapiPollError },
}

#[derive(Debug)]
pub struct Resumer {
    napi: NapiId,
    timeout: Option<Duration>,
    candidates: Vec<SocketOnNapi>,
    no_socket: String,
}

impl Resumer {
    /// Prepares to free one queue by searching `programs` for sockets on it. Skips programs that cannot be inspected.
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

    /// Prepares to free every queue that a program may have suspended: the queues of its sockets, and `others`, whose
    /// sockets may be closed by now.
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

    /// Polls the queue if possible, which ends any suspension that began before this call.
    pub fn poll(&self) -> Result<Freed, NapiPollError> {
        let napi = self.napi.get();
        // io_uring first: it polls by the NAPI ID alone. A socket has to be found, duplicated from the program, and
        // still be served by the queue.
        let Err(no_ring) = poll_napi_once(self.napi) else {
            debug!(napi, "an io_uring polled the queue, which ends a suspension");
            return Ok(Freed::ThroughIoUring);
        };
        match self.poll_through_socket() {
            Some(Freed::ThroughSocket { pid, fd }) => {
                debug!(napi, pid = pid.get(), fd, %no_ring, "an epoll with this socket polled the queue, which ends a suspension");
                Ok(Freed::ThroughSocket { pid, fd })
            }
            Some(freed) => Ok(freed),
            None => {
                debug!(napi, %no_ring, no_socket = self.no_socket, "could not poll the queue");
                Err(no_ring)
            }
        }
    }

    /// Polls the queue for some microseconds through a duplicate of one of the sockets, as on a kernel without
    /// io_uring. Returns `None` if no socket receives from the queue.
    #[must_use]
    pub fn poll_through_socket(&self) -> Option<Freed> {
        // Skips sockets that no longer receive from the queue and sockets of exited programs.
        let through = self.candidates.iter().find(|socket| matches!(poll_through(socket, self.napi), Ok(true)))?;
        Some(Freed::ThroughSocket { pid: through.pid, fd: through.fd })
    }

    /// Polls the queue, or waits until a suspension that was possible when this value was created has ended.
    pub fn poll_or_wait_out(&self) -> Result<Freed, ResumeError> {
        match (self.poll(), self.timeout) {
            (Ok(freed), _) => Ok(freed),
            (Err(_), Some(timeout)) if timeout <= WAITED_OUT_MAX => {
                info!(napi = self.napi.get(), ?timeout, "waiting for the end of a suspension");
                // A suspension that began before this value was created is over after one timeout, if nothing polls in
                // between; if something does, it is over as well.
                thread::sleep(timeout);
                Ok(Freed::WaitedOut(timeout))
            }
            (Err(no_ring), timeout) => {
                Err(ResumeError::CannotPoll { napi: self.napi, timeout, no_socket: self.no_socket.clone(), no_ring })
            }
        }
    }
}

/// Polls a queue without preparation: through io_uring, otherwise through a socket of `programs`, for which they are
/// searched. Returns `None` if nothing could poll it.
pub fn poll_queue(proc: &ProcRoot, napi: &Napi, programs: &BTreeSet<Pid>) -> Option<Freed> {
    match poll_napi_once(napi.id) {
        Ok(()) => Some(Freed::ThroughIoUring),
        Err(no_ring) => {
            debug!(napi = napi.id.get(), %no_ring, "searching for a socket on the queue");
            let programs: Vec<Pid> = programs.iter().copied().collect();
            Resumer::of_queue(proc, napi, &programs).poll_through_socket()
        }
    }
}

/// Longest possible suspension of the instance; absent if it does not suspend.
fn suspend_timeout(napi: &Napi) -> Option<Duration> {
    napi.settings.irq_suspend_timeout_ns.filter(|&timeout| timeout > 0).map(Duration::from_nanos)
}

#[derive(Debug, thiserror::Error)]
enum OwnEpollError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Params(#[from] EpollParamsError),
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
}

/// Polls `napi` through Quell's epoll, which gets the NAPI ID from `socket`. Returns whether the poll certainly
/// happened: the socket still receives from `napi`, and the last wait returned no events, so the kernel went on to
/// poll.
fn poll_through(socket: &SocketOnNapi, napi: NapiId) -> Result<bool, OwnEpollError> {
    let mut epoll = Epoll::new(1)?;
    // Set before the socket is added, because the kernel records the NAPI ID only while busy polling is on.
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
            // The wait found no event, so the kernel has polled the queue of the NAPI ID that the epoll recorded. The
            // ID may have changed since `add`, hence the second look.
            return arrives();
        }
    }
    Ok(false)
}
