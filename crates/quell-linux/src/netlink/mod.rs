//! Netlink transport for `link`, `address`, `ethtool` and `netdev`: a socket, the framing of messages, and the error
//! type.
//!
//! The crate `netlink-bindings` supplies the kernel's message formats. Quell does not use `netlink-socket2`, the socket
//! of these bindings (0.3.5), for four reasons. It hides `NLM_F_DUMP_INTR`, so an interrupted dump cannot be repeated.
//! It does not set `NETLINK_GET_STRICT_CHK`, so the kernel ignores dump filters that it does not support. It reports a
//! dump that the kernel rejected (an error in `NLMSG_DONE`) as a short packet, and a socket that could not be opened as
//! `EPERM`. It panics on a message above 8 KiB.
//!
//! The bindings read the type `uint`, which has 4 or 8 bytes on the wire, as 4 bytes; `attribute` decodes it correctly.

#[cfg(test)]
mod any_reply;
mod attribute;
mod error;
mod message;
mod socket;

#[cfg(any(fuzzing, test))]
pub(crate) use message::statuses;

pub use error::{Failure, NetlinkError, RequestTarget};

#[cfg(test)]
pub(crate) use any_reply::any_reply;
pub(crate) use attribute::{attributes, begin_nested, end_nested, push, push_uint, uint};
pub(crate) use error::{Cause, Malformed};
pub(crate) use socket::NetlinkSocket;
