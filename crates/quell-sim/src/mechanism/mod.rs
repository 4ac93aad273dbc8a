//! The parts of the kernel and the NIC, each by itself, as state and pure transitions: a NAPI
//! instance, interrupt coalescing with its adaptive moderation, an RX queue with its ring, an epoll
//! context. What they cost, and on which CPU they run, is the business of `world`.

mod coalescing;
mod epoll;
mod moderation;
mod napi;
mod rx_queue;

pub(crate) use coalescing::Coalescer;
pub use coalescing::{Coalescing, CoalescingPeriod};
pub(crate) use epoll::{Epoll, Socket, budget};
pub use napi::NapiState;
pub(crate) use napi::{Completion, Napi, Schedule};
pub(crate) use rx_queue::{Held, RxQueue};
pub use rx_queue::{Packet, PacketKind};
