//! The journal: every change to the host is written down, durably, before it is made, so that it can be undone after
//! a crash by whoever comes next. [`record`] is what a line says, [`history`] what the lines amount to, [`store`] the
//! files and who owns them. Acting on a journal is [`crate::transaction`]'s.

pub mod history;
pub mod record;
pub mod store;

pub use history::{Entry, History, HistoryError};
pub use record::{Change, Outcome};
pub use store::{Journal, JournalError, JournalFile, OwnedJournal};
