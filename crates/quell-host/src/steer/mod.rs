//! Steers connections of a running server from outside: its reuseport group gets a filter that selects the worker by
//! interface and queue. All connections of a worker then share one NAPI instance, even on a host with several devices.
//!
//! - [`look`] and a snapshot provide the data of a [`Group`].
//! - [`plan`], a pure function, decides its filter.
//! - [`Transaction::steer`](crate::transaction::Transaction::steer) attaches the filter through the journal.
//! - [`verify()`] checks later snapshots: the connections of each worker must share one NAPI instance.
//! - [`pins`] finds the CPU for each worker.
//! - [`Shown`] detects whether a new decision is needed.
//!
//! A filter of the server itself is replaced only on request. Undo attaches it again.

mod groups;
mod pin;
mod plan;
mod programs;
mod queues;
mod shown;
mod surroundings;
mod verify;

pub use groups::{Group, GroupKey, Member, SteerWorker, groups};
pub use pin::{NotPinned, Pin, Pins, WhyNotPinned, pins};
pub use plan::{CannotSteer, Note, Steering, mark_steered, plan};
pub(crate) use programs::reason;
pub use programs::{KnownPrograms, PresentFilter, ServersFilter, SteerRequest};
pub use queues::{LeftOut, SteerQueue, WhyLeftOut};
pub use shown::{Shown, ShownGroup};
pub(crate) use surroundings::waiting_sockets;
pub use surroundings::{Connection, GroupSocket, LookError, Surroundings, connections, look};
pub use verify::{Baseline, SeenWorker, SteerVerdict, Verification, verify};
