//! A socket: its owner, and the properties that determine the NAPI instance of its packets.

use std::net::SocketAddr;

use quell_change::reuseport_group::Protocol;
use quell_linux::{Ifindex, NapiId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// One socket that a process holds. Its key is its inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotSocket {
    /// Inode in sockfs, the number in `socket:[…]`.
    pub inode: u64,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Inode of the namespace in which it was created.
    pub namespace: u64,
    /// Local address and port, if the socket has one.
    pub local: Option<SocketAddr>,
    /// Remote address and port; absent if the socket is not connected.
    pub remote: Option<SocketAddr>,
    /// Connection state.
    pub state: SocketState,
    /// Bound device (`SO_BINDTODEVICE`).
    pub bound_to: Option<Ifindex>,
    /// UID of the user that created it.
    pub uid: Option<u32>,
    /// Number of received bytes that are not read yet. For a listening socket: number of connections that are not
    /// accepted yet.
    pub receive_queue: Option<u32>,
    /// Number of sent bytes that are not acknowledged yet. For a listening socket: maximum number of waiting
    /// connections.
    pub send_queue: Option<u32>,
    /// NAPI instance that delivered its last packet (`SO_INCOMING_NAPI_ID`). For an unconnected UDP socket, the instance
    /// of its first datagram, even if that instance no longer exists. Null before the first packet, and for packets
    /// that arrive without a NAPI instance.
    pub napi: Reading<Option<NapiId>>,
    /// CPU that processed its last packet (`SO_INCOMING_CPU`).
    pub incoming_cpu: Reading<Option<u32>>,
    /// Duration in microseconds for which a blocking receive polls (`SO_BUSY_POLL`); 0: off.
    pub busy_poll_us: Reading<u32>,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer_busy_poll: Reading<bool>,
    /// Whether `SO_REUSEPORT` is set. Sockets with the same address, user and device form a group. The kernel, or a
    /// filter that it does not report, distributes connections within the group.
    pub reuseport: Reading<bool>,
    /// Maximum number of queues from which Quell's reuseport filter delivers to the socket; absent without such a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steered_queues: Option<u32>,
}

impl SnapshotSocket {
    /// Whether the kernel records only the NAPI instance of its first datagram (`sk_mark_napi_id_once` in
    /// `net/ipv4/udp.c`).
    #[must_use]
    pub fn records_first_napi(&self) -> bool {
        self.protocol == Protocol::Udp && self.remote.is_none()
    }

    /// Whether a NAPI instance is known to have delivered packets to it.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        matches!(self.napi.known(), Some(Some(_)))
    }
}

/// TCP states from `include/net/tcp_states.h`. A UDP socket is `established` if connected and `close` otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SocketState {
    /// Connected.
    Established,
    /// SYN sent.
    SynSent,
    /// SYN received.
    SynRecv,
    /// Closing, FIN sent.
    FinWait1,
    /// Closing, FIN acknowledged.
    FinWait2,
    /// Closed, waiting for late segments.
    TimeWait,
    /// Not connected.
    Close,
    /// Closed by the peer.
    CloseWait,
    /// Both sides closed, the final FIN is not acknowledged yet.
    LastAck,
    /// Listening.
    Listen,
    /// Both sides closed at the same time.
    Closing,
    /// SYN received, without a full socket yet.
    NewSynRecv,
    /// A number unknown to this version.
    Other(u8),
}

impl SocketState {
    /// State with this number in `include/net/tcp_states.h`.
    #[must_use]
    pub const fn from_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            12 => Self::NewSynRecv,
            other => Self::Other(other),
        }
    }
}
