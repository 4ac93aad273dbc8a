//! The transport that `link`, `address`, `features` and `netdev` share: a netlink socket, the
//! framing of its messages, and the error that says what was tried and what the kernel answered.
//! What a request means belongs to those modules.
//!
//! The crate `netlink-bindings` supplies the kernel's message formats. Its companion socket is not
//! used: as of 0.3.5 it reports a dump that the kernel refuses (an error in `NLMSG_DONE`) as a
//! short packet, does not show `NLM_F_DUMP_INTR`, and panics on a message above 8 KiB. And one of
//! its types is too small: it reads the specifications' `uint`, 4 or 8 bytes on the wire, as 4, so
//! `attribute` reads and writes those.

#[cfg(test)]
mod any_reply;
mod attribute;
mod error;
mod message;
mod socket;

#[cfg(any(fuzzing, test))]
pub(crate) use message::statuses;

pub use error::{Failure, NetlinkError, Target};

#[cfg(test)]
pub(crate) use any_reply::any_reply;
pub(crate) use attribute::{attributes, begin_nested, end_nested, push, push_uint, uint};
pub(crate) use error::{Cause, Malformed};
pub(crate) use socket::NetlinkSocket;
