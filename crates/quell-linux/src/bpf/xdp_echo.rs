//! For benchmarks and tests: a TCP peer without a server. An XDP program at one end of a veth pair
//! sends every request back as its own answer, so that the other end meets the cheapest server there
//! can be. It is no TCP implementation: it keeps no state, and only talks to Linux clients.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use thiserror::Error;

use super::assembler::Instruction;
use super::syscall::{self, LoadError};
use super::xdp_echo_program::{assemble, assemble_pass};
use crate::Ifindex;
use crate::netns::{Namespace, NamespaceError};

/// Why no answering program could be put at the ends of a veth pair.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpEchoError {
    /// The namespace of an end cannot be entered.
    #[error("XDP echo: {0}")]
    Namespace(#[from] NamespaceError),
    /// The kernel's verifier did not accept the program.
    #[error("XDP echo: the kernel refused the program: {source}; it says: {log}")]
    Rejected {
        /// The kernel's answer.
        source: io::Error,
        /// The verifier's words.
        log: String,
    },
    /// The caller lacks the right.
    #[error("XDP echo: {action}: {source}; needs CAP_BPF and CAP_NET_ADMIN in the initial user namespace")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another answer.
    #[error("XDP echo: {action}: {source}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
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
        // The verifier also answers EACCES, but then it says why.
        if log.is_empty() { Self::new("loading the program", source) } else { Self::Rejected { source, log } }
    }
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethSide<'a> {
    /// Where it is.
    pub namespace: &'a Namespace,
    /// Which it is there.
    pub interface: Ifindex,
}

/// A TCP port that answers every request with the request, until this is dropped.
///
/// It takes TCP over IPv4 to that port: a SYN is accepted, whoever sends it; data come back
/// unchanged; a FIN ends the connection by a reset; everything else is dropped. What goes to other
/// ports is the kernel's. The sequence numbers of the answers are those that the client expects, so
/// that nothing need be remembered.
///
/// The client has to be Linux with TCP timestamps on (`net.ipv4.tcp_timestamps`, the default) and to
/// send whole checksums: `tx-checksum-ip-generic` off at its end, or its kernel drops every answer.
/// No request may exceed the segment size, because an answer is cut as its request was.
#[derive(Debug)]
pub struct XdpEcho {
    /// The programs stay loaded and attached while these are open.
    _attachments: [OwnedFd; 2],
}

impl XdpEcho {
    /// Answers at `server` for `port`. `client` gets a program that passes everything on: without
    /// one, veth does not deliver what its peer's program sends (`veth_xdp_flush` in
    /// `drivers/net/veth.c`).
    ///
    /// # Errors
    /// When the caller may not or an end is no device for XDP in its driver; nothing is attached
    /// then.
    pub fn attach(server: VethSide<'_>, client: VethSide<'_>, port: u16) -> Result<Self, XdpEchoError> {
        let receiving = attach(client, "quell_pass", &assemble_pass())?;
        let answering = attach(server, "quell_echo", &assemble(port))?;
        Ok(Self { _attachments: [answering, receiving] })
    }
}

fn attach(side: VethSide<'_>, name: &str, program: &[Instruction]) -> Result<OwnedFd, XdpEchoError> {
    let program = syscall::load_xdp_program(name, program)?;
    // An interface index is looked up in the namespace of the calling thread.
    side.namespace
        .run(|| syscall::attach_xdp(program.as_fd(), side.interface))?
        .map_err(|source| XdpEchoError::new("attaching the program", source))
}
