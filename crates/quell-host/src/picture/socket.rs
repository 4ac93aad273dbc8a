//! A socket as far as it decides by which NAPI its packets come, and whose it is.

use std::net::SocketAddr;

use quell_linux::{Ifindex, NapiId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// One socket that a process holds. Its key is its inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Socket {
    /// Its inode in sockfs, the number in `socket:[…]`.
    pub inode: u64,
    /// What it speaks.
    pub protocol: Protocol,
    /// The inode of the namespace that it was made in.
    pub namespace: u64,
    /// Its own address and port; absent where there is none.
    pub local: Option<SocketAddr>,
    /// The other side's; absent when it is connected to none.
    pub remote: Option<SocketAddr>,
    /// What it does.
    pub state: SocketState,
    /// The device that it is bound to (`SO_BINDTODEVICE`).
    pub bound_to: Option<Ifindex>,
    /// The user that made it.
    pub uid: Option<u32>,
    /// Bytes received and not yet read; of a listening socket: connections not yet accepted.
    pub receive_queue: Option<u32>,
    /// Bytes sent and not yet acknowledged; of a listening socket: the most that may wait.
    pub send_queue: Option<u32>,
    /// The NAPI that delivered its last packet (`SO_INCOMING_NAPI_ID`); known to be none before the first one and for
    /// packets that came by none.
    pub napi: Reading<Option<NapiId>>,
    /// The CPU that processed its last packet (`SO_INCOMING_CPU`).
    pub incoming_cpu: Reading<Option<u32>>,
    /// How long a blocking receive polls, µs (`SO_BUSY_POLL`); 0: not at all.
    pub busy_poll_us: Reading<u32>,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer_busy_poll: Reading<bool>,
    /// `SO_REUSEPORT`: together with others of the same address, user and device it is a group, over which the kernel,
    /// or a program that it does not show, spreads what arrives.
    pub reuseport: Reading<bool>,
}

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The states of `include/net/tcp_states.h`; a UDP socket is `established` when connected and `close` otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SocketState {
    /// Connected.
    Established,
    /// Its own SYN is under way.
    SynSent,
    /// The other side's SYN has come.
    SynRecv,
    /// Closing.
    FinWait1,
    /// Closing, acknowledged.
    FinWait2,
    /// Closed, waiting for stray segments.
    TimeWait,
    /// Not connected.
    Close,
    /// The other side closed.
    CloseWait,
    /// Both closed, this one's end not yet acknowledged.
    LastAck,
    /// Waits for connections.
    Listen,
    /// Both closed at the same time.
    Closing,
    /// A SYN that has no socket of its own yet.
    NewSynRecv,
    /// A number that this program does not know.
    Other(u8),
}

impl SocketState {
    /// The state of a number of `include/net/tcp_states.h`.
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
