//! Reuseport groups: their sockets, and the filters that select among these.

use std::fmt;
use std::net::SocketAddr;

use quell_linux::Ifindex;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::Namespace;
use quell_linux::reuseport::QueueSteering;
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};
use quell_linux::visible::counted;
use quell_sampler::{GroupProgram, SamplerError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Transport protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Properties that the sockets of one group share (`inet_reuseport_add_sock` in `net/ipv4/inet_hashtables.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GroupKey {
    /// Inode of their network namespace.
    pub namespace: u64,
    pub protocol: Protocol,
    pub local: SocketAddr,
    /// Bound device (`SO_BINDTODEVICE`). A server that binds to several devices has one group per device.
    pub bound_to: Option<Ifindex>,
    pub uid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSocket {
    pub key: GroupKey,
    pub inode: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServersFilter {
    pub program: GroupProgram,
    /// Reason why it is lost when it is replaced; absent if it can be attached again.
    pub lost: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFilter {
    pub group: GroupKey,
    /// Inodes of its sockets, in ascending order.
    pub sockets: Vec<u64>,
    pub filter: QueueSteering,
    pub replaces: Option<ServersFilter>,
}

/// `include/net/tcp_states.h`.
const TCP_LISTEN: u8 = 10;

impl GroupKey {
    /// Whether sockets with this key receive packets for this address and bound device.
    #[must_use]
    pub fn covers(&self, local: SocketAddr, bound_to: Option<Ifindex>) -> bool {
        local.port() == self.local.port()
            && (self.local.ip().is_unspecified() || local.ip() == self.local.ip())
            && self.bound_to.is_none_or(|bound| bound_to == Some(bound))
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{protocol} {}", self.local)?;
        match self.bound_to {
            Some(ifindex) => write!(f, " bound to interface {ifindex}"),
            None => Ok(()),
        }
    }
}

pub fn waiting_sockets(namespace: &Namespace) -> Result<Vec<GroupSocket>, NetlinkError> {
    let mut diag = SockDiag::open_in(namespace)?;
    let mut found = Vec::new();
    for (inet, protocol) in [(InetProtocol::Tcp, Protocol::Tcp), (InetProtocol::Udp, Protocol::Udp)] {
        for family in [InetFamily::V4, InetFamily::V6] {
            diag.for_each(inet, family, |socket| {
                if waits(protocol, &socket) {
                    found.push(group_socket(namespace.inode(), protocol, &socket));
                }
            })?;
        }
    }
    Ok(found)
}

fn waits(protocol: Protocol, socket: &InetSocket) -> bool {
    match protocol {
        Protocol::Tcp => socket.state == TCP_LISTEN,
        Protocol::Udp => socket.remote.is_none(),
    }
}

fn group_socket(namespace: u64, protocol: Protocol, socket: &InetSocket) -> GroupSocket {
    let key = GroupKey { namespace, protocol, local: socket.local, bound_to: socket.bound_to, uid: socket.uid };
    GroupSocket { key, inode: socket.inode.into() }
}

/// The reason in one line, without the verifier's log.
pub fn reason(error: &SamplerError) -> String {
    let text = match error {
        SamplerError::Unsupported(error) => error.to_string(),
        SamplerError::Denied { action, source } => {
            format!("{action}: {source}; needs CAP_BPF and CAP_PERFMON in the initial user namespace")
        }
        SamplerError::Refused { action, said } => format!("{action}: {said}"),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.split(". Verifier output").next().unwrap_or_default().to_owned()
}

impl fmt::Display for ServersFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            GroupProgram::Ebpf(id) => write!(f, "eBPF program {id}"),
            GroupProgram::Classic(Some(code)) => write!(f, "classic BPF of {}", counted(code.len(), "instruction")),
            _ => f.write_str("classic BPF"),
        }
    }
}
