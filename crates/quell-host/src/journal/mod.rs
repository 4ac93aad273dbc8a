//! The journal: every change to the host is written down, durably, before it is made, so that it can be undone after
//! a crash by whoever comes next. [`record`] is what a line says, [`history`] what the lines amount to, [`store`] the
//! files and who owns them, `trust` who may have written them, [`found`] those of others, `claims` what several say of one
//! queue. Acting on a journal is [`crate::transaction`]'s.

pub(crate) mod claims;
pub mod error;
pub mod found;
pub mod history;
pub mod record;
pub mod store;
mod trust;

pub use error::{Attempt, JournalError, Locked, UnusableJournal};
pub use found::{DamagedJournal, JournalFile, ListedJournal, Witness};
pub use history::{Entry, History, HistoryError, Stay};
pub use record::{
    Change, EpollParameters, HostSetting, Keeper, LaunchedEpolls, NapiSettings, Outcome, ReuseportFilter,
    RingPollingChange, SocketsAlike, SocketsPolling, Target, ThreadAffinity, Undoing, Watchdog,
};
pub use store::{Journal, OwnedJournal};
pub use trust::Untrusted;
