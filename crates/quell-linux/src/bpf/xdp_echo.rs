//! A TCP peer without a server, for benchmarks and tests. An XDP program at one end of a veth pair returns
//! every request as its own response, so the other end measures against the cheapest possible server. It is not
//! a TCP implementation: it is stateless and serves only Linux clients.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use thiserror::Error;

use super::assembler::Instruction;
use super::syscall::{self, LoadError};
use super::xdp_echo_program::{assemble, assemble_pass};
use crate::Ifindex;
use crate::netns::{Namespace, NamespaceError};

/// Why no responder could be attached to a veth pair.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpEchoError {
    /// The network namespace of an end cannot be entered.
    #[error("XDP echo: {0}")]
    Namespace(#[from] NamespaceError),
    /// The verifier rejected the program.
    #[error("XDP echo: the kernel refused the program: {source}; it says: {log}")]
    Rejected {
        /// Error of the system call.
        source: io::Error,
        /// Log of the verifier.
        log: String,
    },
    /// The caller lacks permission.
    #[error("XDP echo: {action}: {source}; needs CAP_BPF and CAP_NET_ADMIN in the initial user namespace")]
    Denied {
        /// Step that failed.
        action: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// Other error.
    #[error("XDP echo: {action}: {source}")]
    Refused {
        /// Step that failed.
        action: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

impl XdpEchoError {
    fn new(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action, source },
            _ => Self::Refused { action, source },
        }
    }
}

impl From<LoadError> for XdpEchoError {
    fn from(LoadError { source, log }: LoadError) -> Self {
        // The verifier also returns EACCES, but then it writes a log.
        if log.is_empty() { Self::new("loading the program", source) } else { Self::Rejected { source, log } }
    }
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethSide<'a> {
    /// Network namespace of the end.
    pub namespace: &'a Namespace,
    /// Interface index in that namespace.
    pub interface: Ifindex,
}

/// A TCP port that returns every request as its response, until it is dropped.
///
/// It handles TCP over IPv4 to that port. A SYN from any sender is accepted. Data are returned unchanged. A FIN
/// ends the connection with a reset. Everything else to the port is dropped; other ports go to the kernel.
/// Responses use the sequence numbers that the client expects, so no state is needed.
///
/// The client must be Linux with TCP timestamps enabled (`net.ipv4.tcp_timestamps`, the default). It must send
/// complete checksums, with `tx-checksum-ip-generic` off at its end; otherwise its kernel drops every response.
/// A request must not exceed the segment size, because a response is segmented like its request.
#[derive(Debug)]
pub struct XdpEcho {
    /// The programs stay loaded and attached while these file descriptors are open.
    _attachments: [OwnedFd; 2],
}

impl XdpEcho {
    /// Attaches the responder for `port` at `server`, and a program that passes every packet at `client`. Without
    /// the latter, veth does not deliver frames that the XDP program of the peer sends (`veth_xdp_flush` in
    /// `drivers/net/veth.c`).
    ///
    /// # Errors
    /// When the caller lacks permission or an end does not support XDP in its driver. Nothing stays attached
    /// then.
    pub fn attach(server: VethSide<'_>, client: VethSide<'_>, port: u16) -> Result<Self, XdpEchoError> {
        let receiving = attach(client, "quell_pass", &assemble_pass())?;
        let answering = attach(server, "quell_echo", &assemble(port))?;
        Ok(Self { _attachments: [answering, receiving] })
    }
}

fn attach(side: VethSide<'_>, name: &str, program: &[Instruction]) -> Result<OwnedFd, XdpEchoError> {
    let program = syscall::load_xdp_program(name, program)?;
    // The interface index is resolved in the namespace of the calling thread.
    side.namespace
        .run(|| syscall::attach_xdp(program.as_fd(), side.interface))?
        .map_err(|source| XdpEchoError::new("attaching the program", source))
}
