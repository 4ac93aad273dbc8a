//! Errors of journal files. Each text gives the operation, the file, and the effect on the host.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use quell_linux::file::{LockHolder, lock_holder};
use quell_linux::proc::ProcRoot;
use quell_linux::visible;

use super::history::HistoryError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// Creating the file, locking it, writing its first line and naming it.
    Begin,
    List,
    Read,
    Lock,
    /// Locking the directory, which serializes changes to objects that several journals share.
    Turn,
    WriteIntent,
    WriteOutcome,
    WriteUndone,
    WriteTarget,
    WriteKeep,
    WriteRelease,
    SetAside,
    Remove,
}

impl Attempt {
    const fn consequence(self) -> &'static str {
        match self {
            Self::Begin => "changes are recorded there before they are made, so nothing was changed",
            Self::List => "the changes recorded there are unknown",
            Self::Read | Self::Lock => "its changes were left in place",
            Self::Turn => "the queue was not changed; try again when that process has exited",
            Self::WriteIntent => "changes are recorded there before they are made, so this one was not made",
            Self::WriteOutcome => "the change was made and will be undone with the others",
            Self::WriteUndone => "the change was undone; undoing it again is harmless",
            Self::WriteTarget => "nothing was changed for that process",
            Self::WriteKeep => "the changes will be undone",
            Self::WriteRelease => "nothing was undone",
            Self::SetAside => "the changes that wait for a queue stay in it",
            Self::Remove => "everything was undone; `quell lab clean` tries to remove it again",
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "create the journal",
            Self::List => "list the journals in",
            Self::Read => "read the journal",
            Self::Lock => "lock the journal",
            Self::Turn => "lock the journal directory",
            Self::WriteIntent => "record an intended change in the journal",
            Self::WriteOutcome => "record the outcome of a change in the journal",
            Self::WriteUndone => "record an undone change in the journal",
            Self::WriteTarget => "record a process in the journal",
            Self::WriteKeep => "record that the changes persist in the journal",
            Self::WriteRelease => "record the release of the changes in the journal",
            Self::SetAside => "rename the journal",
            Self::Remove => "remove the journal",
        })
    }
}

/// Reason why a journal could not be read or written. The text states which changes were made to the host nevertheless.
#[derive(Debug, thiserror::Error)]
#[error("could not {attempt} {}: {source}; {}{}", visible::path(path), attempt.consequence(), match source.kind() {
    io::ErrorKind::PermissionDenied => "; run the command as root",
    _ => "",
})]
pub struct JournalError {
    pub attempt: Attempt,
    pub path: PathBuf,
    pub source: io::Error,
}

/// Reason why a lock could not be taken. Wrapped in an [`io::Error`] of kind [`io::ErrorKind::WouldBlock`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", match holder {
    Some(holder) => format!("{holder} holds its lock"),
    None => "a process that is not visible here holds its lock".to_owned(),
})]
pub struct Locked {
    /// Holder of the lock; absent when that process is not visible here.
    pub holder: Option<LockHolder>,
}

impl JournalError {
    pub(crate) fn locked(attempt: Attempt, path: &Path) -> Self {
        let holder = lock_holder(&ProcRoot::default(), path);
        let source = io::Error::new(io::ErrorKind::WouldBlock, Locked { holder });
        Self { attempt, path: path.to_owned(), source }
    }

    pub(crate) fn is_locked_out_of_sight(&self) -> bool {
        let locked = self.source.get_ref().and_then(|source| source.downcast_ref::<Locked>());
        locked.is_some_and(|locked| locked.holder.as_ref().is_none_or(|holder| holder.is_in_other_namespace))
    }

    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.source.get_ref().is_some_and(|source| source.is::<Locked>())
    }
}

/// A journal that is partly unreadable. Quell leaves it and its changes alone until the user asks to undo the readable
/// lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal {} was left alone: {why}{}", visible::path(path), self.advice())]
pub struct UnusableJournal {
    pub path: PathBuf,
    pub why: HistoryError,
}

impl UnusableJournal {
    fn advice(&self) -> &'static str {
        match self.why {
            HistoryError::Format { .. } => "",
            _ => "; `quell revert` undoes its readable lines, and with --remove-damaged it also removes the file",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(attempt: Attempt) -> String {
        JournalError { attempt, path: "/j/a.journal".into(), source: io::ErrorKind::StorageFull.into() }.to_string()
    }

    #[test]
    fn the_text_states_whether_something_was_changed() {
        assert!(text(Attempt::Begin).ends_with("so nothing was changed"));
        assert!(text(Attempt::WriteIntent).ends_with("so this one was not made"));
        assert!(text(Attempt::WriteOutcome).contains("the change was made"));
        assert!(text(Attempt::WriteUndone).contains("the change was undone"));
        assert!(text(Attempt::Remove).contains("everything was undone"));
    }

    #[test]
    fn a_directory_that_only_root_reads_says_so_and_nothing_about_undoing() {
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        let text = JournalError { attempt: Attempt::List, path: "/j".into(), source }.to_string();
        assert!(text.ends_with("; the changes recorded there are unknown; run the command as root"), "{text}");
        assert!(!self::text(Attempt::List).contains("root"), "a full disk is not a missing permission");
    }

    #[test]
    fn the_text_names_the_operation_and_the_file() {
        assert!(text(Attempt::Remove).starts_with("could not remove the journal /j/a.journal: "));
    }
}
