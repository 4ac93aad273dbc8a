//! The filter of a reuseport group (`net/core/sock_reuseport.c`). It is attached or detached through any socket of the
//! group, or a duplicate of it. It selects sockets by [`QueueSteering`].
//!
//! No system call reports the filter of a group; `quell-sampler` reads it with a BPF iterator.

mod classic_bpf;
mod ebpf;
mod steering;

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use serde::{Deserialize, Serialize};

use thiserror::Error;

pub use ebpf::EbpfFilter;
pub use steering::{InvalidSteering, QueueSteering, SeenQueues};

/// Instruction of a classic BPF program (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClassicInstruction {
    pub code: u16,
    /// Instructions to skip if the condition is true.
    pub jt: u8,
    /// Instructions to skip if the condition is false.
    pub jf: u8,
    pub k: u32,
}

/// Whether [`attach`] assembled this program.
#[must_use]
pub fn is_quells(program: &[ClassicInstruction]) -> bool {
    program.first().is_some_and(|first| (first.code, first.k) == classic_bpf::MARK)
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReuseportError {
    #[error("{action} {option}: the socket was bound without SO_REUSEPORT, so it has no group")]
    NoGroup { action: &'static str, option: &'static str },
    #[error("{action} {option}: not supported by this kernel (needs Linux 5.3)")]
    Unsupported { action: &'static str, option: &'static str },
    #[error("{action} {option}: {source}")]
    Refused { action: &'static str, option: &'static str, source: io::Error },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detachment {
    /// The group's filter was detached. Any program may have attached it.
    Detached,
    WasAbsent,
}

/// Attaches the filter to the group of this socket and replaces any other filter (`SO_ATTACH_REUSEPORT_CBPF`). It
/// applies to new connections and datagrams, also on sockets that join the group later. It ends with the group's last
/// socket. On an error, the group keeps its previous filter.
pub fn attach(socket: impl AsFd, steering: &QueueSteering) -> Result<(), ReuseportError> {
    set_classic(socket, &classic_bpf::assemble(steering))
}

/// Attaches a classic BPF program to the group of this socket and replaces any other filter.
pub fn attach_classic(socket: impl AsFd, program: &[ClassicInstruction]) -> Result<(), ReuseportError> {
    let instruction = |&ClassicInstruction { code, jt, jf, k }: &_| libc::sock_filter { code, jt, jf, k };
    set_classic(socket, &program.iter().map(instruction).collect::<Vec<_>>())
}

/// Attaches an eBPF program to the group of this socket and replaces any other filter (`SO_ATTACH_REUSEPORT_EBPF`).
pub fn attach_ebpf(socket: impl AsFd, program: &EbpfFilter) -> Result<(), ReuseportError> {
    set(socket, libc::SO_ATTACH_REUSEPORT_EBPF, "SO_ATTACH_REUSEPORT_EBPF", &program.as_raw_fd())
}

fn set_classic(socket: impl AsFd, program: &[libc::sock_filter]) -> Result<(), ReuseportError> {
    const OPTION: &str = "SO_ATTACH_REUSEPORT_CBPF";
    let too_long = |_| ReuseportError::Refused {
        action: "setting",
        option: OPTION,
        source: io::Error::from_raw_os_error(libc::EINVAL),
    };
    let len = libc::c_ushort::try_from(program.len()).map_err(too_long)?;
    let header = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set(socket, libc::SO_ATTACH_REUSEPORT_CBPF, OPTION, &header)
}

fn set<T>(socket: impl AsFd, number: libc::c_int, option: &'static str, value: &T) -> Result<(), ReuseportError> {
    let (value, size) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `size` bytes, which are one `T`. If `T` is a `struct sock_fprog`, it also copies `len`
    // instructions, which is the length of the slice that `set_classic` borrows.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, number, value, size) };
    if result < 0 { Err(refusal("setting", option)) } else { Ok(()) }
}

/// Detaches the filter from the group of this socket, regardless of the program that attached it
/// (`SO_DETACH_REUSEPORT_BPF`). The kernel then selects sockets by hash.
pub fn detach(socket: impl AsFd) -> Result<Detachment, ReuseportError> {
    let ignored: libc::c_int = 0;
    match set(socket, libc::SO_DETACH_REUSEPORT_BPF, "SO_DETACH_REUSEPORT_BPF", &ignored) {
        Ok(()) => Ok(Detachment::Detached),
        Err(ReuseportError::Refused { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            Ok(Detachment::WasAbsent)
        }
        Err(error) => Err(error),
    }
}

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
