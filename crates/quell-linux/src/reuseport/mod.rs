//! The filter of a reuseport group (`net/core/sock_reuseport.c`). It is attached or detached through any socket of the
//! group, or a duplicate of it. It selects sockets by [`QueueSteering`]. Callers decide which groups get a filter.
//!
//! The kernel does not report whether a group has a filter, does not return it, and cannot restore a replaced filter.

mod classic_bpf;
mod steering;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use thiserror::Error;

pub use steering::{InvalidSteering, QueueSteering, SeenQueues};

/// Why the filter of a group could not be changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReuseportError {
    /// The socket does not belong to a group, because it was bound without `SO_REUSEPORT`.
    #[error("{action} {option}: the socket was bound without SO_REUSEPORT, so it has no group")]
    NoGroup {
        /// Operation that failed: setting or removing.
        action: &'static str,
        /// Name of the socket option.
        option: &'static str,
    },
    /// The kernel does not support the operation. Detaching needs Linux 5.3.
    #[error("{action} {option}: not supported by this kernel (needs Linux 5.3)")]
    Unsupported {
        /// Operation that failed: setting or removing.
        action: &'static str,
        /// Name of the socket option.
        option: &'static str,
    },
    /// The kernel returned another error, for example `ENOTSOCK` if the file is not a socket.
    #[error("{action} {option}: {source}")]
    Refused {
        /// Operation that failed: setting or removing.
        action: &'static str,
        /// Name of the socket option.
        option: &'static str,
        /// Error returned by the system call.
        source: io::Error,
    },
}

/// Result of detaching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detachment {
    /// The group's filter was detached. Any program may have attached it.
    Detached,
    /// The group had no filter.
    WasAbsent,
}

/// Attaches the filter to the group of this socket and replaces any other filter (`SO_ATTACH_REUSEPORT_CBPF`). It
/// applies to new connections and datagrams, also on sockets that join the group later. It ends with the group's last
/// socket.
///
/// # Errors
/// [`ReuseportError`]; the group then keeps its previous filter.
pub fn attach(socket: impl AsFd, steering: &QueueSteering) -> Result<(), ReuseportError> {
    let program = classic_bpf::assemble(steering);
    let header = libc::sock_fprog {
        // The length fits, because the constructor of `QueueSteering` rejects rules with too long a program.
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads one `struct sock_fprog` and copies `len` instructions, which is the length of the
    // vector.
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

/// Detaches the filter from the group of this socket, regardless of the program that attached it
/// (`SO_DETACH_REUSEPORT_BPF`). The kernel then selects sockets by hash.
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

/// Converts `errno` of the failed call to an error.
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

    /// Steers all packets of the loopback interface to the socket at index `place`.
    fn loopback_to(place: u32, sockets: u32) -> QueueSteering {
        let loopback = |first| SeenQueues { ifindex: Ifindex::new(1).unwrap(), first, queues: 1 };
        let elsewhere = SeenQueues { ifindex: Ifindex::new(u32::MAX >> 1).unwrap(), first: 0, queues: sockets };
        QueueSteering::new(vec![loopback(place), elsewhere], sockets).unwrap()
    }

    #[test]
    fn every_connection_of_a_group_goes_to_the_socket_that_its_filter_selects() {
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
    fn a_filter_is_detached_once_by_any_socket() {
        let (listeners, _) = group(2);
        attach(&listeners[0], &loopback_to(0, 2)).unwrap();
        assert_eq!(detach(&listeners[1]).unwrap(), Detachment::Detached);
        assert_eq!(detach(&listeners[0]).unwrap(), Detachment::WasAbsent);
    }

    #[test]
    fn a_socket_without_a_group_is_refused_for_that_reason() {
        let alone = TcpListener::bind("127.0.0.1:0".parse().unwrap(), false, Blocking::No).unwrap();
        assert!(matches!(attach(&alone, &loopback_to(0, 1)), Err(ReuseportError::NoGroup { .. })));
        assert!(matches!(detach(&alone), Err(ReuseportError::NoGroup { .. })));
    }
}
