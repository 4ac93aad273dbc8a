//! Errors of journal files. Each text says what was attempted, on which file, and what this means for the host.

use quell_linux::visible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use quell_linux::file::{LockHolder, lock_holder};
use quell_linux::proc::ProcRoot;

use super::history::HistoryError;

/// Operation on a journal that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// Creating, locking and naming the file, with its first line.
    Begin,
    /// Listing the directory of the journals.
    List,
    /// Reading the journal.
    Read,
    /// Taking its lock.
    Lock,
    /// Taking the lock of the directory, which serialises changes of objects that several journals share.
    Turn,
    /// Recording an intended change.
    WriteIntent,
    /// Recording the outcome of a change.
    WriteOutcome,
    /// Recording that a change was undone.
    WriteUndone,
    /// Recording a process that the changes are for.
    WriteTarget,
    /// Recording that the changes persist.
    WriteKeep,
    /// Recording that persistent changes are to be undone.
    WriteRelease,
    /// Renaming a journal whose remaining changes wait for queues.
    SetAside,
    /// Removing it after everything was undone.
    Remove,
}

impl Attempt {
    const fn consequence(self) -> &'static str {
        match self {
            Self::Begin => "every change is written down there before it is made, so nothing was changed",
            Self::List | Self::Read | Self::Lock => "its changes are not touched",
            Self::Turn => "nothing of this queue was changed; try again when that process has ended",
            Self::WriteIntent => "every change is written down there before it is made, so this one was not made",
            Self::WriteOutcome => "the change was made, and is undone with the others",
            Self::WriteUndone => "it was undone; undoing it again is harmless",
            Self::WriteTarget => "nothing is changed for its sake",
            Self::WriteKeep => "what was changed does not stay: it is undone",
            Self::WriteRelease => "nothing was undone",
            Self::SetAside => "what waits for its queue stays in it",
            Self::Remove => "everything was undone; `quell lab clean` tries to remove it again",
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "begin the journal",
            Self::List => "list the journals in",
            Self::Read => "read the journal",
            Self::Lock => "take the journal",
            Self::Turn => "take the turn to change a queue in",
            Self::WriteIntent => "write down what is about to be changed in the journal",
            Self::WriteOutcome => "write down what was changed in the journal",
            Self::WriteUndone => "write down what was undone in the journal",
            Self::WriteTarget => "write down whose sake a change is for in the journal",
            Self::WriteKeep => "write down what is to stay in the journal",
            Self::WriteRelease => "write down what is to be undone in the journal",
            Self::SetAside => "rename the journal",
            Self::Remove => "remove the journal",
        })
    }
}

/// Reason why a journal could not be read or written. The text says which changes of the host were made regardless.
#[derive(Debug, thiserror::Error)]
#[error("could not {attempt} {}: {source}; {}", visible::path(path), attempt.consequence())]
pub struct JournalError {
    /// Operation that failed.
    pub attempt: Attempt,
    /// File or directory.
    pub path: PathBuf,
    /// Cause.
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
    /// The lock of `path` is held by another process.
    pub(crate) fn locked(attempt: Attempt, path: &Path) -> Self {
        let holder = lock_holder(&ProcRoot::default(), path);
        let source = io::Error::new(io::ErrorKind::WouldBlock, Locked { holder });
        Self { attempt, path: path.to_owned(), source }
    }

    /// Whether the lock's holder is in another PID namespace.
    pub(crate) fn is_locked_out_of_sight(&self) -> bool {
        let locked = self.source.get_ref().and_then(|source| source.downcast_ref::<Locked>());
        locked.is_some_and(|locked| locked.holder.as_ref().is_none_or(|holder| holder.is_elsewhere))
    }

    /// Whether another process holds the lock.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.source.get_ref().is_some_and(|source| source.is::<Locked>())
    }
}

/// A journal that is partly unreadable. The journal and its changes are left alone until the user asks to undo the
/// readable lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal {} is left alone: {why}{}", visible::path(path), self.advice())]
pub struct UnusableJournal {
    /// Path of the journal.
    pub path: PathBuf,
    /// Reason.
    pub why: HistoryError,
}

impl UnusableJournal {
    fn advice(&self) -> &'static str {
        match self.why {
            HistoryError::Format { .. } => "",
            _ => "; `quell revert` undoes what its whole lines say, with --remove-damaged it also removes the file",
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
    fn nothing_was_changed_is_said_only_where_that_is_so() {
        assert!(text(Attempt::Begin).ends_with("so nothing was changed"));
        assert!(text(Attempt::WriteIntent).ends_with("so this one was not made"));
        assert!(text(Attempt::WriteOutcome).contains("the change was made"));
        assert!(text(Attempt::WriteUndone).contains("it was undone"));
        assert!(text(Attempt::Remove).contains("everything was undone"));
    }

    #[test]
    fn the_text_says_what_was_tried_on_what() {
        assert!(text(Attempt::Remove).starts_with("could not remove the journal /j/a.journal: "));
    }
}
