//! Steering from outside: the reuseport group of a running server gets a filter that picks the worker by (interface,
//! queue), so that the connections of one worker arrive by one NAPI, also where a host has several devices.
//!
//! A [`Group`] is found in a picture and in what its namespace lists ([`look`]); [`plan`] decides, as a pure function,
//! what its filter is; [`Transaction::steer`](crate::transaction::Transaction::steer) puts it on by the journal;
//! [`verify()`] says from later pictures whether each worker's connections sit on one NAPI; [`pins`] says which CPU each then
//! belongs on; [`Shown`] whether it is worth deciding anew. What the kernel tells nobody is whether the group had a filter of
//! the server's own: it is replaced, and taking Quell's off leaves none.

mod groups;
mod pin;
mod plan;
mod queues;
mod shown;
mod surroundings;
mod verify;

pub use groups::{Group, GroupKey, Member, Worker, groups};
pub use pin::{NotPinned, Pin, Pins, WhyNotPinned, pins};
pub use plan::{CannotSteer, Note, Steering, plan};
pub use queues::{LeftOut, Place, WhyLeftOut};
pub use shown::{Shown, ShownGroup};
pub(crate) use surroundings::waiting_sockets;
pub use surroundings::{Connection, GroupSocket, LookError, Surroundings, connections, look};
pub use verify::{Baseline, SeenWorker, Verdict, Verification, verify};
