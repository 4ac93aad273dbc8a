//! The socket options that decide how packets reach a socket, or tell how they did (`net/core/sock.c`), on own sockets and
//! on duplicates of other programs'. Other options are set where sockets are made.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use thiserror::Error;

use crate::NapiId;

/// One of the options, by its number in `asm-generic/socket.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum SocketOption {
    ReusePort = 15,
    AcceptConn = 30,
    Domain = 39,
    BusyPoll = 46,
    IncomingCpu = 49,
    IncomingNapiId = 56,
    PreferBusyPoll = 69,
    BusyPollBudget = 70,
}

impl SocketOption {
    const fn name(self) -> &'static str {
        match self {
            Self::ReusePort => "SO_REUSEPORT",
            Self::AcceptConn => "SO_ACCEPTCONN",
            Self::Domain => "SO_DOMAIN",
            Self::IncomingCpu => "SO_INCOMING_CPU",
            Self::BusyPoll => "SO_BUSY_POLL",
            Self::IncomingNapiId => "SO_INCOMING_NAPI_ID",
            Self::PreferBusyPoll => "SO_PREFER_BUSY_POLL",
            Self::BusyPollBudget => "SO_BUSY_POLL_BUDGET",
        }
    }
}

/// Why a socket option could not be read or set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocketOptionError {
    /// The kernel does not know the option: too old, or built without busy polling.
    #[error("{action} {option}: this kernel does not have it")]
    Unsupported {
        /// Reading or setting.
        action: &'static str,
        /// Which option.
        option: &'static str,
    },
    /// The caller lacks the right.
    #[error("{action} {option}: {source}; needs CAP_NET_ADMIN")]
    Denied {
        /// Reading or setting.
        action: &'static str,
        /// Which option.
        option: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another answer; `ENOTSOCK` for what is no socket.
    #[error("{action} {option}: {source}")]
    Refused {
        /// Reading or setting.
        action: &'static str,
        /// Which option.
        option: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl SocketOptionError {
    /// Whether the file that was asked is no socket.
    #[must_use]
    pub fn is_no_socket(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.raw_os_error() == Some(libc::ENOTSOCK))
    }
}

/// Whether the socket waits for connections.
///
/// # Errors
/// When the file is no socket.
pub fn is_listening(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::AcceptConn)? != 0)
}

/// The NAPI that delivered the socket's last packet; `None` before the first, and for packets that
/// came by none (loopback, a veth whose peer sends TSO frames).
///
/// # Errors
/// When the file is no socket or the kernel does not know the option.
pub fn incoming_napi_id(socket: impl AsFd) -> Result<Option<NapiId>, SocketOptionError> {
    let value = get(socket, SocketOption::IncomingNapiId)?;
    Ok(NapiId::from_kernel(value.cast_unsigned()))
}

/// The CPU that processed the socket's last packet; `None` before the first.
///
/// # Errors
/// When the file is no socket or the kernel does not know the option.
pub fn incoming_cpu(socket: impl AsFd) -> Result<Option<u32>, SocketOptionError> {
    Ok(u32::try_from(get(socket, SocketOption::IncomingCpu)?).ok())
}

/// Whether the socket shares its address with others of its group.
///
/// # Errors
/// When the file is no socket.
pub fn reuse_port(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::ReusePort)? != 0)
}

/// Whether the socket speaks IPv4 or IPv6; a Unix socket, for one, comes by no NAPI and answers as if it were asked too
/// early.
///
/// # Errors
/// When the file is no socket.
pub fn is_inet(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok([libc::AF_INET, libc::AF_INET6].contains(&get(socket, SocketOption::Domain)?))
}

/// Whether the socket is an AF_XDP one.
///
/// # Errors
/// When the file is no socket.
pub fn is_xdp(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::Domain)? == libc::AF_XDP)
}

/// How long a blocking receive polls the device before it sleeps, microseconds; new sockets have the
/// sysctl `net.core.busy_read`.
///
/// # Errors
/// When the file is no socket or the kernel does not know the option.
pub fn busy_poll_us(socket: impl AsFd) -> Result<u32, SocketOptionError> {
    get(socket, SocketOption::BusyPoll).map(i32::cast_unsigned)
}

/// Sets how long a blocking receive polls, microseconds, at most 2³¹−1.
///
/// # Errors
/// When the value is out of range, the file is no socket or the kernel does not know the option.
pub fn set_busy_poll_us(socket: impl AsFd, microseconds: u32) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::BusyPoll, microseconds.cast_signed())
}

/// Whether the socket's busy polling asks the NAPI's owner to let go.
///
/// # Errors
/// When the file is no socket or the kernel does not know the option.
pub fn prefer_busy_poll(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::PreferBusyPoll)? != 0)
}

/// Sets whether busy polling is preferred; `true` needs CAP_NET_ADMIN.
///
/// # Errors
/// When it is not granted, the file is no socket or the kernel does not know the option.
pub fn set_prefer_busy_poll(socket: impl AsFd, prefer: bool) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::PreferBusyPoll, prefer.into())
}

/// Sets how many packets one busy poll of this socket takes; 0 means 8. More than it was needs
/// CAP_NET_ADMIN. The kernel offers no way to read it.
///
/// # Errors
/// When it is not granted, the file is no socket or the kernel does not know the option.
pub fn set_busy_poll_budget(socket: impl AsFd, packets: u16) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::BusyPollBudget, packets.into())
}

/// Sets whether datagrams that follow each other may reach this UDP socket merged (`UDP_GRO`, `udp(7)`): GRO then holds
/// them back to wait for more.
///
/// # Errors
/// When the file is no UDP socket or the kernel does not know the option (before Linux 5.0).
pub fn set_udp_gro(socket: impl AsFd, merged: bool) -> Result<(), SocketOptionError> {
    let value = libc::c_int::from(merged);
    // SAFETY: the kernel reads one `int` from the pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(refused_by_name("setting", "UDP_GRO")) } else { Ok(()) }
}

fn get(socket: impl AsFd, option: SocketOption) -> Result<i32, SocketOptionError> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option as libc::c_int,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(refusal("reading", option)) } else { Ok(value) }
}

fn set(socket: impl AsFd, option: SocketOption, value: i32) -> Result<(), SocketOptionError> {
    // SAFETY: the kernel reads one `int` from the pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option as libc::c_int,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(refusal("setting", option)) } else { Ok(()) }
}

/// Reads `errno` of the call that just failed.
fn refusal(action: &'static str, option: SocketOption) -> SocketOptionError {
    refused_by_name(action, option.name())
}

/// Reads `errno` of the call that just failed.
fn refused_by_name(action: &'static str, option: &'static str) -> SocketOptionError {
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ENOPROTOOPT) => SocketOptionError::Unsupported { action, option },
        Some(libc::EPERM) => SocketOptionError::Denied { action, option, source },
        _ => SocketOptionError::Refused { action, option, source },
    }
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::net::UdpSocket;

    use super::*;

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn a_socket_that_received_nothing_has_no_napi() {
        assert_eq!(incoming_napi_id(socket()).unwrap(), None);
    }

    #[test]
    fn a_listening_socket_is_told_from_others() {
        assert!(is_listening(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap());
        assert!(!is_listening(socket()).unwrap());
    }

    #[test]
    fn a_unix_socket_is_told_from_those_of_a_network() {
        assert!(is_inet(socket()).unwrap());
        assert!(!is_inet(std::os::unix::net::UnixDatagram::unbound().unwrap()).unwrap());
    }

    #[test]
    fn the_busy_poll_time_is_read_back() {
        let socket = socket();
        match set_busy_poll_us(&socket, 50) {
            Err(SocketOptionError::Denied { .. }) => skip(Lacks::Root, "needs CAP_NET_ADMIN"),
            result => {
                result.unwrap();
                assert_eq!(busy_poll_us(&socket).unwrap(), 50);
            }
        }
    }

    #[test]
    fn preferring_busy_poll_is_read_back() {
        let socket = socket();
        match set_prefer_busy_poll(&socket, true) {
            Err(SocketOptionError::Denied { .. }) => skip(Lacks::Root, "needs CAP_NET_ADMIN"),
            result => {
                result.unwrap();
                assert!(prefer_busy_poll(&socket).unwrap());
            }
        }
    }

    #[test]
    fn the_budget_can_be_set_but_not_read() {
        let socket = socket();
        match set_busy_poll_budget(&socket, 64) {
            Err(SocketOptionError::Denied { .. }) => skip(Lacks::Root, "needs CAP_NET_ADMIN"),
            result => result.unwrap(),
        }
        let read = get(&socket, SocketOption::BusyPollBudget);
        assert!(matches!(read, Err(SocketOptionError::Unsupported { .. })), "{read:?}");
    }

    #[test]
    fn an_af_xdp_socket_is_told_to_poll_as_others_are() {
        let family = rustix::net::AddressFamily::from_raw(libc::AF_XDP as u16);
        let Ok(socket) = rustix::net::socket(family, rustix::net::SocketType::RAW, None) else {
            return skip(Lacks::Root, "no AF_XDP socket can be had (needs CAP_NET_RAW)");
        };
        assert!(is_xdp(&socket).unwrap());
        match set_prefer_busy_poll(&socket, true) {
            Err(SocketOptionError::Denied { .. }) => return skip(Lacks::Root, "needs CAP_NET_ADMIN"),
            result => result.unwrap(),
        }
        set_busy_poll_us(&socket, 20).unwrap();
        set_busy_poll_budget(&socket, 64).unwrap();
        assert_eq!((prefer_busy_poll(&socket).unwrap(), busy_poll_us(&socket).unwrap()), (true, 20));
    }

    #[test]
    fn merging_is_for_udp_sockets() {
        set_udp_gro(socket(), true).unwrap();
        let error = set_udp_gro(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), true).unwrap_err();
        assert!(error.to_string().starts_with("setting UDP_GRO: "), "{error}");
    }

    #[test]
    fn a_file_that_is_no_socket_is_refused_by_name() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let error = incoming_napi_id(file).unwrap_err();
        assert!(error.to_string().starts_with("reading SO_INCOMING_NAPI_ID: "), "{error}");
        assert!(error.is_no_socket());
    }
}
