//! A delivery mode for a program that runs: its epolls and the queues that its sockets arrive by get the mode's values, from
//! outside and by a journal, and are put back when it ends. [`target`] finds the processes, [`mod@plan`] decides, [`attachment`]
//! acts, [`launch`] is about queues that are set before the program is started, [`placement`] steers and binds workers,
//! [`keeper`] puts back when nobody else can, [`neighbours`] says whom else it touches, [`consequences`] what it brings
//! along, [`quiet`] what it does not reach yet,
//! [`ready_files`] what would stall it, [`effect`] whether it shows, [`stall`] frees a queue that its program does not
//! come back to.

pub mod attachment;
pub mod consequences;
pub mod effect;
mod error;
mod journal_name;
pub mod keeper;
pub mod launch;
pub mod neighbours;
mod pass;
pub mod placement;
pub mod plan;
mod pollers;
pub mod quiet;
pub mod ready_files;
pub mod stall;
pub mod target;
pub mod wait;

pub use attachment::{Attached, Attachment, attachments, observe};
pub use error::AttachError;
pub use pass::{Pass, place};
pub use plan::{EpollsSetBy, Plan, Request, Step, plan};
pub use pollers::{RingStep, SocketId, SocketsStep};
pub use target::{Selection, TargetError, Targets, Turnover};
