//! Applies a delivery mode to running programs. Their epolls, and the queues of their sockets, get the values of the
//! mode. The journal records the previous values, which are restored when the programs exit.
//!
//! - [`attached`] finds the attachments that journals record.
//! - [`mod@plan`] decides the changes, [`attachment`] makes them, and `ledger` records which remain.
//! - [`launch`] plans the queues of a program that is not started yet.
//! - [`placement`] steers connections and binds workers.
//! - [`keeper`] reverts the changes when the attaching process cannot; [`hand_over`] continues them in another process.
//! - [`poller`] busy polls the queues in threads of Quell.
//! - [`measured`] finds attachments that an experiment measures.
//! - [`affected_processes`] lists other affected processes.
//! - [`consequences`] predicts new findings.
//! - [`unassigned_epolls`] lists epolls without a known queue.
//! - [`no_queue`] decides why no queue is known.
//! - [`effect`] judges whether the mode is in effect.
//! - [`mode_command`] is the command that gives programs a mode.
//! - [`stall`] frees queues that nobody polls any more, [`stall_log`] records them. Owners of modes use both: [`keeper`],
//!   [`watch`] for followed and launched programs, and [`stall_guard`] during experiments.

pub mod affected_processes;
pub mod attached;
pub mod attachment;
pub mod consequences;
pub mod effect;
mod error;
pub mod hand_over;
pub mod instances;
pub(crate) mod journal_name;
pub mod keeper;
pub mod later_queues;
pub mod launch;
mod ledger;
mod limitation;
pub mod measured;
pub mod mode_command;
pub mod no_poll;
pub mod no_queue;
pub mod own_work;
pub mod owners;
mod pass;
pub mod payoff;
pub mod placement;
pub mod plan;
pub mod poll_counting;
pub mod poller;
mod pollers;
pub(crate) mod receivers;
mod shared_epolls;
pub mod stall;
pub mod stall_guard;
pub mod stall_log;
mod successors;
pub mod unassigned_epolls;
pub mod views;
pub mod wait;
pub mod watch;

pub use attached::{Attached, AttachedMode, attachments};
pub use attachment::{Attachment, observe, observe_programs};
pub use error::AttachError;
pub use mode_command::ModeCommand;
pub use pass::{Pass, describe_step};
pub use plan::{AttachPlan, AttachRequest, AttachStep, EpollsSetBy, plan};
pub use pollers::{RingStep, SocketsStep};
pub use quell_change::settings::socket::SocketId;
pub use quell_change::target::{Selection, TargetError, Targets, Turnover};
pub use receivers::why_sockets_do_not_poll;
