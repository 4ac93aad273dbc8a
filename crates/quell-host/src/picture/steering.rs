//! How a device spreads packets over its queues and how long it gathers them before an interrupt: rings, coalescing, RSS
//! contexts, flow rules. Of what ethtool tells, only what decides when and where a packet is seen.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Descriptors of each ring in use, and the most that there can be; what the driver does not tell is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rings {
    /// Receive descriptors of a queue.
    pub rx: Option<u32>,
    /// The most.
    pub rx_max: Option<u32>,
    /// Transmit descriptors of a queue.
    pub tx: Option<u32>,
    /// The most.
    pub tx_max: Option<u32>,
}

/// Interrupt moderation; what the driver does not have is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Coalescing {
    /// How long after a received packet the interrupt comes at the latest, µs.
    pub rx_usecs: Option<u32>,
    /// After how many received packets it comes at once.
    pub rx_frames: Option<u32>,
    /// As `rx_usecs`, of completed sends.
    pub tx_usecs: Option<u32>,
    /// As `rx_frames`, of completed sends.
    pub tx_frames: Option<u32>,
    /// The driver adapts the receive values to the load.
    pub adaptive_rx: Option<bool>,
    /// The driver adapts the transmit values to the load.
    pub adaptive_tx: Option<bool>,
    /// The receive timer starts anew with each completion (CQE mode) and not with the first.
    pub cqe_mode_rx: Option<bool>,
    /// As `cqe_mode_rx`, of completed sends.
    pub cqe_mode_tx: Option<bool>,
}

/// One RSS context: a table by which hashes choose queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RssContext {
    /// Its number; 0 is the device's own, for all packets that no flow rule sends elsewhere.
    pub id: u32,
    /// `toeplitz`, `xor`, …; absent where the driver does not tell.
    pub hash_function: Option<String>,
    /// The queue of each hash bucket; empty where the driver tells of none.
    pub indirection: Vec<u32>,
}

/// A rule that sends some packets to a queue, a context, or nowhere (`ethtool --show-ntuple`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FlowRule {
    /// Its place in the device's table; also its name when it is removed.
    pub location: u32,
    /// What kind of packets, by ethtool's word: `tcp4`, `udp6`, `ether`, …
    pub flow_type: String,
    /// Source address; absent: any.
    pub source: Option<IpAddr>,
    /// Destination address; absent: any.
    pub destination: Option<IpAddr>,
    /// Source port; absent: any.
    pub source_port: Option<u16>,
    /// Destination port; absent: any.
    pub destination_port: Option<u16>,
    /// It looks at more than what is said here: partial masks, VLANs, other fields.
    pub is_partial: bool,
    /// What becomes of such packets.
    pub action: FlowAction,
}

/// What a flow rule does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum FlowAction {
    /// It is dropped.
    Drop,
    /// It goes to this queue.
    Queue {
        /// The receive queue.
        queue: u32,
    },
    /// It is spread by an RSS context.
    Context {
        /// The context.
        context: u32,
        /// Added to the queue that the context chooses.
        queue_offset: u32,
    },
    /// Something else, such as a queue of a virtual function, by the kernel's number.
    Other {
        /// The ring cookie.
        cookie: u64,
    },
}
