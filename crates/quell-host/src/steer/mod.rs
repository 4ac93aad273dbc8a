//! Steers connections of a running server from outside: its reuseport group gets a filter that selects the worker by
//! interface and queue. All connections of a worker then share one NAPI instance, even on a host with several devices.
//!
//! - [`look`] and a snapshot provide the data of a [`Group`].
//! - [`plan`], a pure function, decides its filter.
//! - [`Transaction::steer`](quell_change::transaction::Transaction::steer) attaches the filter through the journal.
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
mod spread;
mod surroundings;
mod verify;

pub use groups::{Group, Member, SteerWorker, groups};
pub use pin::{NotPinned, Pins, UnboundPoller, WhyNotPinned, can_pin, pins};
pub use plan::{CannotSteer, Note, NothingSteered, Steering, mark_steered, plan};
pub use programs::{KnownPrograms, PresentFilter, SteerRequest};
pub use quell_change::reuseport_group::{GroupKey, GroupSocket, ServersFilter};
pub use quell_change::settings::affinity::Pin;
pub use queues::{LeftOut, SteerQueue, WhyLeftOut};
pub use shown::{Shown, ShownGroup};
pub(crate) use spread::Spread;
pub use surroundings::{Connection, LookError, Surroundings, connections, look};
pub use verify::{Alignment, Baseline, SeenWorker, SteerVerdict, Verification, alignment, verify};
