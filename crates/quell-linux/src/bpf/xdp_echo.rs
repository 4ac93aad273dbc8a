//! A TCP peer without a server program, for benchmarks and tests. An XDP program at one end of a veth pair returns
//! every request as its response. The other end therefore measures against the cheapest possible server. It is not a
//! TCP implementation: it is stateless and serves only Linux clients.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use thiserror::Error;

use super::assembler::Instruction;
use super::syscall::{self, LoadError};
use super::xdp_echo_program::{assemble, assemble_pass};
use crate::Ifindex;
use crate::netns::{Namespace, NamespaceError};

/// Why the responder could not be attached to a veth pair.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpEchoError {
    /// The network namespace of a veth end cannot be entered.
    #[error("XDP echo: {0}")]
    Namespace(#[from] NamespaceError),
    /// The verifier rejected the program.
    #[error("XDP echo: the kernel rejected the program: {source}; verifier log: {log}")]
    Rejected {
        /// Error returned by the system call.
        source: io::Error,
        /// The verifier's log.
        log: String,
    },
    /// The caller lacks permission.
    #[error("XDP echo: {action}: {source}; needs CAP_BPF and CAP_NET_ADMIN in the initial user namespace")]
    Denied {
        /// Step that failed.
        action: &'static str,
        /// Error returned by the system call.
        source: io::Error,
    },
    /// The kernel returned another error.
    #[error("XDP echo: {action}: {source}")]
    Refused {
        /// Step that failed.
        action: &'static str,
        /// Error returned by the system call.
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
        // EACCES with a verifier log means a rejected program, not a lack of permission.
        if log.is_empty() { Self::new("loading the program", source) } else { Self::Rejected { source, log } }
    }
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethSide<'a> {
    /// Network namespace that contains this end.
    pub namespace: &'a Namespace,
    /// Interface index of this end in its namespace.
    pub interface: Ifindex,
}

/// A TCP port whose XDP program returns every request as its response, until this value is dropped.
///
/// The program handles TCP over IPv4 to that port. It accepts a SYN from any sender, returns data unchanged, and
/// answers a FIN with a reset. It drops all other segments to the port, and passes packets for other ports to the
/// kernel. Responses contain the sequence numbers that the client expects, so the program needs no state.
///
/// The client must be Linux with TCP timestamps enabled (`net.ipv4.tcp_timestamps`, the default). It must send complete
/// checksums, so its end needs `tx-checksum-ip-generic` off. Otherwise the client's kernel drops every response. A
/// request must fit one TCP segment, because the program returns each segment separately.
#[derive(Debug)]
pub struct XdpEcho {
    /// The programs stay loaded and attached while these file descriptors are open.
    _attachments: [OwnedFd; 2],
}

impl XdpEcho {
    /// Attaches the responder for `port` at `server`, and at `client` a program that passes every packet. Without the
    /// second program, veth does not deliver frames that the XDP program of the peer sends (`veth_xdp_flush` in
    /// `drivers/net/veth.c`).
    ///
    /// # Errors
    /// When the caller lacks permission or an end does not support XDP in its driver. Both ends then have no program.
    pub fn attach(server: VethSide<'_>, client: VethSide<'_>, port: u16) -> Result<Self, XdpEchoError> {
        let receiving = attach(client, "quell_pass", &assemble_pass())?;
        let answering = attach(server, "quell_echo", &assemble(port))?;
        Ok(Self { _attachments: [answering, receiving] })
    }
}

fn attach(side: VethSide<'_>, name: &str, program: &[Instruction]) -> Result<OwnedFd, XdpEchoError> {
    let program = syscall::load_xdp_program(name, program)?;
    // The kernel resolves the interface index in the network namespace of the calling thread.
    side.namespace
        .run(|| syscall::attach_xdp(program.as_fd(), side.interface))?
        .map_err(|source| XdpEchoError::new("attaching the program", source))
}
