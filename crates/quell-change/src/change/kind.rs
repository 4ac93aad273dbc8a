//! What a journal does with each kind of change. A kind is one implementation of [`Kind`], beside its record.

use std::fmt;

use quell_linux::Pid;
use quell_linux::netlink::NetlinkError;
use quell_linux::proc::{BootId, ProcError, ProcRoot, ProcessIdentity, Ticks};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ChangeOutcome, UndoOutcome};
use crate::journal::claims::{Others, Owned};
use crate::journal::{History, JournalError};
use crate::missing_queue::MissingQueue;
use crate::settings::SettingsError;
use crate::settings::epoll::EpollParameters;
use crate::settings::host::KnownContexts;
use crate::undo::UndoError;

/// A change that a journal has recorded. Prints the object and the new value on one line.
pub(crate) trait Kind: fmt::Display {
    /// Undoes the change, from its record alone. Can be repeated without harm, and changes only objects that the record
    /// identifies.
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError>;

    fn compare(&self, _: &Present<'_>) -> Result<Comparison, CompareError> {
        Ok(Comparison::Same)
    }

    fn make_again(&self, _: &Present<'_>) -> Result<(), CompareError> {
        Ok(())
    }

    fn namespace_cookie(&self) -> Option<u64> {
        None
    }

    fn exists(&self, _: &ProcRoot) -> Result<bool, SettingsError> {
        Ok(true)
    }

    fn undo_order(&self) -> UndoOrder {
        UndoOrder::Others
    }

    /// Why the undo has to wait at present.
    fn waiting(&self, _: &ProcRoot, _: &History) -> Option<String> {
        None
    }

    /// Whether several journals can concern the object.
    fn has_owners(&self) -> bool {
        false
    }
}

/// Order of undoing: within one place the last change first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UndoOrder {
    /// Settings of queues that the plan has created. The queues vanish when the plan is undone, but some settings
    /// outlive a queue and could not be undone afterwards.
    CreatedQueues,
    /// Changes of a plan, by the rank of their inverse: changes that recreate queues precede settings on these queues,
    /// both when applied and when undone.
    Plan(u8),
    Others,
}

pub(crate) struct Undo<'a> {
    pub(crate) proc: &'a ProcRoot,
    pub(crate) boot_id: BootId,
    pub(crate) others: &'a Others,
    pub(crate) history: &'a History,
    /// Absent if the change was perhaps not made.
    pub(crate) outcome: Option<ChangeOutcome>,
    pub(crate) contexts: &'a mut KnownContexts,
}

pub(crate) struct Present<'a> {
    pub(crate) proc: &'a ProcRoot,
    pub(crate) others: &'a Others,
    pub(crate) history: &'a History,
    pub(crate) epolls: &'a [Owned<EpollParameters>],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// It has the value, or that of a newer owner, or its program has closed it.
    Same,
    Differs(Drift),
    /// The driver has reset it, and the owner of the journal sets it again.
    BeingSetAgain(Drift),
    Gone,
    /// It can be in a namespace that may not be entered.
    OutOfSight(Option<Drift>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Drift {
    pub device: Option<String>,
    pub queue: Option<u32>,
    pub setting: String,
    pub made: String,
    /// Current value; absent if the object does not exist at present.
    pub now: Option<String>,
    /// Why its queue does not exist at present. Null if it does, or if this cannot be seen.
    pub missing: Option<MissingQueue>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

pub(crate) fn identity(pid: Pid, start_time_ticks: u64, boot_id: BootId) -> ProcessIdentity {
    ProcessIdentity { pid, starttime: Ticks(start_time_ticks), boot_id }
}

/// Turns an error for an object that no accessible namespace contains into a waiting change, because the object may
/// still exist elsewhere.
pub(crate) fn unless_out_of_sight(
    undoing: Result<UndoOutcome, SettingsError>,
    what: &str,
) -> Result<UndoOutcome, UndoError> {
    match undoing {
        Err(error) if error.is_out_of_sight() => {
            Ok(UndoOutcome::Waits(format!("{what} (not found, but possibly in an inaccessible namespace): {error}")))
        }
        undoing => Ok(undoing?),
    }
}
