//! Applies a delivery mode to a running program from outside. Its epolls, and the queues its sockets receive through,
//! get the mode's values; they are journalled and restored when the program exits.
//!
//! - [`target`] finds the processes.
//! - [`mod@plan`] decides the changes, [`attachment`] makes them, `ledger` knows which are still due.
//! - [`launch`] plans queues that are set before the program is started.
//! - [`placement`] steers connections and binds workers.
//! - [`keeper`] restores the settings when nobody else can.
//! - [`affected_processes`] lists other affected processes.
//! - [`consequences`] predicts new findings.
//! - [`unassigned_epolls`] lists epolls without a known queue.
//! - [`ready_files`] finds files that would stall the program.
//! - [`effect`] judges whether the mode is in effect.
//! - [`stall`] frees a queue that its program no longer polls.

pub mod affected_processes;
pub mod attachment;
pub mod consequences;
pub mod effect;
mod error;
pub(crate) mod journal_name;
pub mod keeper;
pub mod launch;
mod ledger;
mod pass;
pub mod placement;
pub mod plan;
mod pollers;
pub mod ready_files;
pub mod stall;
pub mod target;
pub mod unassigned_epolls;
pub mod wait;

pub use attachment::{Attached, Attachment, attachments, observe};
pub use error::AttachError;
pub use pass::{Pass, place};
pub use plan::{EpollsSetBy, Plan, Request, Step, plan};
pub use pollers::{RingStep, SocketId, SocketsStep};
pub use target::{Selection, TargetError, Targets, Turnover};
