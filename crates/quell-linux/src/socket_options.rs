//! Socket options that control or report how packets reach a socket (`net/core/sock.c`). They apply to sockets of this
//! process and to duplicates of other programs' sockets. Other options are set where sockets are created.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use thiserror::Error;

use crate::NapiId;

/// A socket option, numbered as in `asm-generic/socket.h`.
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

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SocketOptionError {
    /// The kernel does not support the option. It is too old, or was built without busy polling.
    #[error("{action} {option}: not supported by this kernel")]
    Unsupported { action: &'static str, option: &'static str },
    #[error("{action} {option}: {source}; needs CAP_NET_ADMIN")]
    Denied { action: &'static str, option: &'static str, source: io::Error },
    #[error("{action} {option}: {source}")]
    Refused { action: &'static str, option: &'static str, source: io::Error },
}

impl SocketOptionError {
    #[must_use]
    pub fn is_no_socket(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.raw_os_error() == Some(libc::ENOTSOCK))
    }
}

pub fn is_listening(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::AcceptConn)? != 0)
}

/// NAPI instance that delivered the socket's last packet, or the first one of an unconnected UDP socket. `None` before
/// the first packet, and for packets that no NAPI instance delivered (loopback, or a veth whose peer sends TSO frames).
pub fn incoming_napi_id(socket: impl AsFd) -> Result<Option<NapiId>, SocketOptionError> {
    let value = get(socket, SocketOption::IncomingNapiId)?;
    Ok(NapiId::from_kernel(value.cast_unsigned()))
}

/// CPU that processed the socket's last packet; `None` before the first packet.
pub fn incoming_cpu(socket: impl AsFd) -> Result<Option<u32>, SocketOptionError> {
    Ok(u32::try_from(get(socket, SocketOption::IncomingCpu)?).ok())
}

/// Whether the socket may share its address with other sockets (`SO_REUSEPORT`).
pub fn reuse_port(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::ReusePort)? != 0)
}

/// Whether the socket uses IPv4 or IPv6. The check excludes Unix sockets, which never have a NAPI instance and thus
/// look like sockets before their first packet.
pub fn is_inet(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok([libc::AF_INET, libc::AF_INET6].contains(&get(socket, SocketOption::Domain)?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketFamily {
    Xdp,
    Unix,
    Vsock,
    Netlink,
    Other,
}

pub fn family(socket: impl AsFd) -> Result<SocketFamily, SocketOptionError> {
    Ok(match get(socket, SocketOption::Domain)? {
        libc::AF_XDP => SocketFamily::Xdp,
        libc::AF_UNIX => SocketFamily::Unix,
        libc::AF_VSOCK => SocketFamily::Vsock,
        libc::AF_NETLINK => SocketFamily::Netlink,
        _ => SocketFamily::Other,
    })
}

/// Time for which a blocking receive busy polls before it sleeps, in µs. A new socket starts with the sysctl
/// `net.core.busy_read`.
pub fn busy_poll_us(socket: impl AsFd) -> Result<u32, SocketOptionError> {
    get(socket, SocketOption::BusyPoll).map(i32::cast_unsigned)
}

/// Sets the time for which a blocking receive busy polls, in µs, at most 2³¹−1.
pub fn set_busy_poll_us(socket: impl AsFd, microseconds: u32) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::BusyPoll, microseconds.cast_signed())
}

/// Whether the socket prefers busy polling to softirq processing (`SO_PREFER_BUSY_POLL`).
pub fn prefer_busy_poll(socket: impl AsFd) -> Result<bool, SocketOptionError> {
    Ok(get(socket, SocketOption::PreferBusyPoll)? != 0)
}

/// Sets preferred busy polling. Setting it to `true` needs CAP_NET_ADMIN.
pub fn set_prefer_busy_poll(socket: impl AsFd, prefer: bool) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::PreferBusyPoll, prefer.into())
}

/// Prefers busy polling, with a time in µs and a budget in packets. Needs CAP_NET_ADMIN.
pub fn set_busy_polling(socket: impl AsFd, microseconds: u32, packets: u16) -> Result<(), SocketOptionError> {
    set_prefer_busy_poll(&socket, true)?;
    set_busy_poll_us(&socket, microseconds)?;
    set_busy_poll_budget(&socket, packets)
}

/// Sets the socket's busy-poll budget in packets; 0 means 8. Raising it needs CAP_NET_ADMIN. The kernel has no way to
/// read it.
pub fn set_busy_poll_budget(socket: impl AsFd, packets: u16) -> Result<(), SocketOptionError> {
    set(socket, SocketOption::BusyPollBudget, packets.into())
}

/// Sets whether this UDP socket accepts merged datagrams (`UDP_GRO` in `udp(7)`). If it does, GRO delays datagrams to
/// merge them with later ones. Fails if the file is not a UDP socket, or the kernel does not support the option (before
/// Linux 5.0).
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

fn refusal(action: &'static str, option: SocketOption) -> SocketOptionError {
    refused_by_name(action, option.name())
}

fn refused_by_name(action: &'static str, option: &'static str) -> SocketOptionError {
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ENOPROTOOPT) => SocketOptionError::Unsupported { action, option },
        Some(libc::EPERM) => SocketOptionError::Denied { action, option, source },
        _ => SocketOptionError::Refused { action, option, source },
    }
}

/// Time since a TCP connection received its last data (`tcpi_last_data_recv` of `TCP_INFO`). Errors: those of
/// `getsockopt(2)`: `ENOPROTOOPT` for other sockets.
pub fn time_since_data(connection: impl AsFd) -> io::Result<Duration> {
    /// `struct tcp_info` up to `tcpi_last_data_recv`, as 32-bit words (`include/uapi/linux/tcp.h`).
    const WORDS: usize = 14;
    let mut words = [0_u32; WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    let fd = connection.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to the array, and the new length to `length`.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, words.as_mut_ptr().cast(), &raw mut length) };
    match result {
        0 if length as usize == size_of_val(&words) => Ok(Duration::from_millis(words[WORDS - 1].into())),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::last_os_error()),
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
    fn a_socket_without_packets_has_no_napi() {
        assert_eq!(incoming_napi_id(socket()).unwrap(), None);
    }

    #[test]
    fn a_listening_socket_is_distinguished_from_others() {
        assert!(is_listening(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap());
        assert!(!is_listening(socket()).unwrap());
    }

    #[test]
    fn a_unix_socket_is_distinguished_from_network_sockets() {
        assert!(is_inet(socket()).unwrap());
        assert!(!is_inet(std::os::unix::net::UnixDatagram::unbound().unwrap()).unwrap());
    }

    #[test]
    fn the_busy_poll_time_reads_back_as_set() {
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
    fn preferred_busy_poll_reads_back_as_set() {
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
    fn an_af_xdp_socket_is_configured_like_other_sockets() {
        let family = rustix::net::AddressFamily::from_raw(libc::AF_XDP as u16);
        let Ok(socket) = rustix::net::socket(family, rustix::net::SocketType::RAW, None) else {
            return skip(Lacks::Root, "could not create an AF_XDP socket (needs CAP_NET_RAW)");
        };
        assert_eq!(super::family(&socket).unwrap(), SocketFamily::Xdp);
        match set_prefer_busy_poll(&socket, true) {
            Err(SocketOptionError::Denied { .. }) => return skip(Lacks::Root, "needs CAP_NET_ADMIN"),
            result => result.unwrap(),
        }
        set_busy_poll_us(&socket, 20).unwrap();
        set_busy_poll_budget(&socket, 64).unwrap();
        assert_eq!((prefer_busy_poll(&socket).unwrap(), busy_poll_us(&socket).unwrap()), (true, 20));
    }

    #[test]
    fn only_udp_sockets_accept_merged_datagrams() {
        set_udp_gro(socket(), true).unwrap();
        let error = set_udp_gro(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), true).unwrap_err();
        assert!(error.to_string().starts_with("setting UDP_GRO: "), "{error}");
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_refused_by_name() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let error = incoming_napi_id(file).unwrap_err();
        assert!(error.to_string().starts_with("reading SO_INCOMING_NAPI_ID: "), "{error}");
        assert!(error.is_no_socket());
    }
}
