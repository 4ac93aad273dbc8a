//! The journal records every change to the host on disk before it is made. After a crash, the next Quell process undoes
//! the changes.
//!
//! - [`record`] and [`purpose`] define the lines, [`history`] interprets them.
//! - [`store`] handles files and their owners, `trust` their permissions.
//! - [`found`] handles journals of other processes.
//! - [`stalls`] handles the records of stalled queues.
//! - `claims` reads the settings of one queue in several journals.
//!
//! [`crate::transaction`] makes changes through a journal.

pub(crate) mod claims;
pub(crate) mod ends;
pub mod error;
pub mod found;
pub mod history;
pub mod purpose;
pub mod record;
pub mod stalls;
pub mod store;
mod trust;

pub use ends::EndRecord;
pub use error::{Attempt, JournalError, Locked, UnusableJournal};
pub use found::{DamagedJournal, JournalFile, ListedJournal, Witness};
pub use history::{Entry, History, HistoryError, Persistence};
pub use purpose::Purpose;
pub use record::{Keeper, TargetProgram, Watchdog};
pub use stalls::StallRecord;
pub use store::{Journal, OwnedJournal};
pub use trust::Untrusted;
