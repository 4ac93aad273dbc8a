//! State and transitions of single parts of the kernel and the NIC. These parts are the NAPI instance, interrupt
//! coalescing with adaptive moderation, the RX queue with its ring, and the epoll context. The transitions are pure
//! functions; `world` adds CPUs and costs.

mod coalescing;
mod epoll;
mod inbox;
mod moderation;
mod napi;
mod packet_size;
mod rx_queue;

pub(crate) use coalescing::Coalescer;
pub use coalescing::{CoalescingPeriod, SimCoalescing};
pub(crate) use epoll::{Epoll, Link, Socket, budget};
pub use napi::NapiState;
pub(crate) use napi::{Completion, Napi, Schedule};
pub(crate) use packet_size::{PacketCounts, PacketSizer};
pub use packet_size::{PacketSizes, StoredValues};
pub(crate) use rx_queue::{Held, RxQueue};
pub use rx_queue::{Packet, PacketKind};
