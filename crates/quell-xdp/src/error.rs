//! Errors that prevent or end a load or a responder.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use quell_linux::af_xdp::XdpSocketError;
use quell_linux::io_uring::NapiPollError;
use quell_linux::netlink::NetlinkError;
use quell_linux::sched::SchedError;
use quell_linux::socket_options::SocketOptionError;
use quell_sampler::XdpRedirectError;
use thiserror::Error;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The specification exceeds a limit, or contradicts itself. Nothing has been done.
    #[error("--{field}: {problem}")]
    Spec { field: &'static str, problem: String },
    #[error("no device of this network namespace has the address {0}; AF_XDP needs the address of one device")]
    NoDevice(IpAddr),
    #[error("{device} has no Ethernet frames; AF_XDP needs an Ethernet device")]
    NotEthernet { device: String },
    #[error("{device}: {source}")]
    Socket { device: String, source: XdpSocketError },
    #[error("{device}: {source}")]
    Program { device: String, source: XdpRedirectError },
    /// A UDP socket reserves the port, so that no other program uses it.
    #[error("could not reserve {address} by a UDP socket: {source}")]
    Reserve { address: SocketAddr, source: io::Error },
    #[error("{server} did not answer within {within:?}; run `quell respond --xdp {server}` there")]
    NoAnswer { server: SocketAddr, within: Duration },
    #[error(
        "{what} arrive on another queue of {device} than {queue}; leave one queue (ethtool -L {device} combined 1), or \
         steer UDP port {port} to it (ethtool -N {device} flow-type {flow} dst-port {port} action {queue})"
    )]
    OtherQueue { what: &'static str, device: String, queue: u32, port: u16, flow: &'static str },
    #[error(
        "this AF_XDP socket cannot busy poll on this kernel: its SO_INCOMING_NAPI_ID is 0 after a frame of queue {queue} of \
         {device}; `--poller udp-busy-poll` and `io-uring` poll the queue by its NAPI ID instead"
    )]
    CannotBusyPoll { device: String, queue: u32 },
    #[error(
        "no UDP socket received from queue {queue} of {device} within {within:?}, so none has its NAPI ID; use `--poller io-uring`"
    )]
    NoUdpSocket { device: String, queue: u32, within: Duration },
    #[error("--poller {way}: a responder has no UDP socket that receives from its queue; use `io-uring`")]
    OnlyLoads { way: &'static str },
    #[error(
        "the NAPI instance of queue {queue} of {device} is unknown: the driver does not report it, so nobody can poll it by ID"
    )]
    NoNapi { device: String, queue: u32 },
    #[error(
        "queue {queue} of {device} has no NAPI thread; enable it first, for example by `echo 1 > /sys/class/net/{device}/threaded`"
    )]
    NoNapiThread { device: String, queue: u32 },
    #[error(
        "queue {queue} of {device} is not in threaded busy polling, which needs Linux 6.19 and `threaded` = busy-poll"
    )]
    NoThreadedBusyPoll { device: String, queue: u32 },
    #[error(transparent)]
    NapiPoll(#[from] NapiPollError),
    #[error("AF_XDP socket: {0}")]
    Option(#[from] SocketOptionError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("could not place a thread: {0}")]
    Place(#[from] SchedError),
    #[error("could not {action}: {source}")]
    System { action: &'static str, source: io::Error },
    #[error("a thread exited unexpectedly")]
    ThreadLost,
    #[error("cancelled before the first response")]
    Cancelled,
}

impl XdpError {
    /// Whether this machine, its kernel, a driver or the privileges of the caller do not allow what was asked for.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::CannotBusyPoll { .. }
            | Self::NoUdpSocket { .. }
            | Self::NoNapi { .. }
            | Self::NoNapiThread { .. }
            | Self::NoThreadedBusyPoll { .. }
            | Self::NotEthernet { .. }
            | Self::NapiPoll(NapiPollError::Unsupported | NapiPollError::Denied { .. })
            | Self::Option(SocketOptionError::Unsupported { .. } | SocketOptionError::Denied { .. }) => true,
            Self::Socket { source, .. } => matches!(
                source,
                XdpSocketError::Unsupported | XdpSocketError::Denied | XdpSocketError::NoZeroCopy { .. }
            ),
            Self::Program { source, .. } => {
                matches!(source, XdpRedirectError::NoXdp(_) | XdpRedirectError::Denied(_) | XdpRedirectError::NoLinks)
            }
            _ => false,
        }
    }

    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    pub(crate) fn socket(device: &str) -> impl Fn(XdpSocketError) -> Self {
        move |source| Self::Socket { device: device.to_owned(), source }
    }
}
