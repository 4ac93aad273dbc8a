//! A delivery mode for a program that runs: its epolls and the queues that its sockets arrive by get the mode's values, from
//! outside and by a journal, and are put back when it ends. [`target`] finds the processes, [`plan`] decides, [`attachment`]
//! acts, [`launch`] is about queues that are set before the program is started, [`keeper`] puts back when nobody else can, [`neighbours`] says whom else it touches.

pub mod attachment;
pub mod keeper;
pub mod launch;
pub mod neighbours;
pub mod plan;
pub mod target;

pub use attachment::{AttachError, Attached, Attachment, Pass, attachments, observe};
pub use plan::{EpollsSetBy, Plan, Request, Step, plan};
pub use target::{Selection, TargetError, Targets, Turnover};
