//! The filter of a reuseport group (`net/core/sock_reuseport.c`): put on through any socket of the group, own or
//! duplicated, and taken off again. It picks by [`QueueSteering`] and nothing else; whether a group is to have one is
//! decided above.
//!
//! The kernel offers no way to read a group's filter, to ask whether there is one, or to put one back that it replaced.

mod classic_bpf;
mod steering;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use thiserror::Error;

pub use steering::{InvalidSteering, QueueSteering, SeenQueues};

/// Why a group's filter could not be changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReuseportError {
    /// The socket is in no group: it was bound without `SO_REUSEPORT`.
    #[error("{action} {option}: the socket was bound without SO_REUSEPORT, so it has no group")]
    NoGroup {
        /// Setting or removing.
        action: &'static str,
        /// Which option.
        option: &'static str,
    },
    /// The kernel cannot do it: detaching is there since Linux 5.3.
    #[error("{action} {option}: this kernel cannot (Linux 5.3 and newer can)")]
    Unsupported {
        /// Setting or removing.
        action: &'static str,
        /// Which option.
        option: &'static str,
    },
    /// Another answer; `ENOTSOCK` for what is no socket.
    #[error("{action} {option}: {source}")]
    Refused {
        /// Setting or removing.
        action: &'static str,
        /// Which option.
        option: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What detaching found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detachment {
    /// A filter, of whomever: it is gone.
    Detached,
    /// No filter.
    WasAbsent,
}

/// Gives the group of this socket the filter, in the place of any that it has (`SO_ATTACH_REUSEPORT_CBPF`). It holds
/// from the next connection or datagram on, also for sockets that join the group later, and goes with the group's last
/// socket.
///
/// # Errors
/// [`ReuseportError`]; the group then has the filter that it had.
pub fn attach(socket: impl AsFd, steering: &QueueSteering) -> Result<(), ReuseportError> {
    let program = classic_bpf::assemble(steering);
    let header = libc::sock_fprog {
        // A steering is refused when it is made if its program would be too long.
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads one `struct sock_fprog` from the pointer, and `len` instructions from the one in it, which
    // is what the vector holds; it copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const header).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(refusal("setting", "SO_ATTACH_REUSEPORT_CBPF")) } else { Ok(()) }
}

/// Takes the filter off the group of this socket, whoever put it there (`SO_DETACH_REUSEPORT_BPF`): the kernel spreads
/// by its hash again.
///
/// # Errors
/// [`ReuseportError`].
pub fn detach(socket: impl AsFd) -> Result<Detachment, ReuseportError> {
    let ignored: libc::c_int = 0;
    // SAFETY: the kernel reads one `int` from the pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_DETACH_REUSEPORT_BPF,
            (&raw const ignored).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(Detachment::Detached);
    }
    if io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) {
        return Ok(Detachment::WasAbsent);
    }
    Err(refusal("setting", "SO_DETACH_REUSEPORT_BPF"))
}

/// Reads `errno` of the call that just failed.
fn refusal(action: &'static str, option: &'static str) -> ReuseportError {
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::EINVAL) => ReuseportError::NoGroup { action, option },
        Some(libc::ENOPROTOOPT) => ReuseportError::Unsupported { action, option },
        _ => ReuseportError::Refused { action, option, source },
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::Ifindex;
    use crate::tcp::{Blocking, TcpConnection, TcpListener};

    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

    fn group(of: usize) -> (Vec<TcpListener>, SocketAddr) {
        let first = TcpListener::bind("127.0.0.1:0".parse().unwrap(), true, Blocking::No).unwrap();
        let address = first.local_address().unwrap();
        let others = (1..of).map(|_| TcpListener::bind(address, true, Blocking::No).unwrap());
        (std::iter::once(first).chain(others.collect::<Vec<_>>()).collect(), address)
    }

    /// All that comes by the loopback interface goes to the socket at this place.
    fn loopback_to(place: u32, sockets: u32) -> QueueSteering {
        let loopback = |first| SeenQueues { ifindex: Ifindex::new(1).unwrap(), first, queues: 1 };
        let elsewhere = SeenQueues { ifindex: Ifindex::new(u32::MAX >> 1).unwrap(), first: 0, queues: sockets };
        QueueSteering::new(vec![loopback(place), elsewhere], sockets).unwrap()
    }

    #[test]
    fn a_group_gives_every_connection_to_the_socket_that_its_filter_picks() {
        let (listeners, address) = group(4);
        for (place, listener) in listeners.iter().enumerate() {
            attach(&listeners[0], &loopback_to(u32::try_from(place).unwrap(), 4)).unwrap();
            for _ in 0..8 {
                let _client = TcpConnection::connect(address, PATIENCE).unwrap();
                listener.accept(Blocking::No).unwrap();
            }
        }
    }

    #[test]
    fn a_filter_is_detached_once_by_whichever_socket() {
        let (listeners, _) = group(2);
        attach(&listeners[0], &loopback_to(0, 2)).unwrap();
        assert_eq!(detach(&listeners[1]).unwrap(), Detachment::Detached);
        assert_eq!(detach(&listeners[0]).unwrap(), Detachment::WasAbsent);
    }

    #[test]
    fn a_socket_without_a_group_is_refused_by_that_reason() {
        let alone = TcpListener::bind("127.0.0.1:0".parse().unwrap(), false, Blocking::No).unwrap();
        assert!(matches!(attach(&alone, &loopback_to(0, 1)), Err(ReuseportError::NoGroup { .. })));
        assert!(matches!(detach(&alone), Err(ReuseportError::NoGroup { .. })));
    }
}
