//! The journal: every change to the host is written down, durably, before it is made, so that it can be undone after
//! a crash by whoever comes next. [`record`] is what a line says, [`history`] what the lines amount to, [`store`] the
//! files and who owns them, [`found`] those of others. Acting on a journal is [`crate::transaction`]'s.

pub mod error;
pub mod found;
pub mod history;
pub mod record;
pub mod store;

pub use error::{Attempt, JournalError, UnusableJournal};
pub use found::{JournalFile, ListedJournal};
pub use history::{Entry, History, HistoryError, Stay};
pub use record::{
    Change, EpollParameters, HostSetting, NapiSettings, Outcome, ReuseportFilter, ThreadAffinity, Watchdog,
};
pub use store::{Journal, OwnedJournal};
