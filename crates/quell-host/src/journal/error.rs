//! What can go wrong with journals as files, in words: what was tried, on which file, and what that means for the host.

use quell_linux::visible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use quell_linux::file::{LockHolder, lock_holder};
use quell_linux::proc::ProcRoot;

use super::history::HistoryError;

/// What was tried with a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// Making, locking and naming its file, with its first line.
    Begin,
    /// Listing the directory of the journals.
    List,
    /// Reading it.
    Read,
    /// Taking its lock.
    Lock,
    /// Taking the turn among those who set or undo what several journals speak of.
    Turn,
    /// Writing down what is about to be changed.
    WriteIntent,
    /// Writing down what came of a change.
    WriteOutcome,
    /// Writing down that a change was undone.
    WriteUndone,
    /// Writing down for whose sake the host is changed.
    WriteTarget,
    /// Writing down that what was changed is to stay.
    WriteKeep,
    /// Writing down that what was kept is to be undone.
    WriteRelease,
    /// Renaming it once what is left in it waits for queues.
    SetAside,
    /// Removing it once everything was undone.
    Remove,
}

impl Attempt {
    const fn consequence(self) -> &'static str {
        match self {
            Self::Begin => "every change is written down there before it is made, so nothing was changed",
            Self::List | Self::Read | Self::Lock => "what it speaks of is left as it is",
            Self::Turn => "nothing of this queue was changed; try again when that process has ended",
            Self::WriteIntent => "every change is written down there before it is made, so this one was not made",
            Self::WriteOutcome => "the change was made, and is undone with the others",
            Self::WriteUndone => "it is undone; undoing it again does no harm",
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

/// Why a journal could not be read or written. Its text says what of the host was changed all the same.
#[derive(Debug, thiserror::Error)]
#[error("could not {attempt} {}: {source}; {}", visible::path(path), attempt.consequence())]
pub struct JournalError {
    /// What was tried.
    pub attempt: Attempt,
    /// On which file or directory.
    pub path: PathBuf,
    /// What came back.
    pub source: io::Error,
}

/// Why a lock could not be taken. Inside of an [`io::Error`] of kind [`io::ErrorKind::WouldBlock`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", match holder {
    Some(holder) => format!("{holder} holds its lock"),
    None => "a process that is not visible here holds its lock".to_owned(),
})]
pub struct Locked {
    /// Who holds it; absent when that process is not visible here.
    pub holder: Option<LockHolder>,
}

impl JournalError {
    /// The lock of `path` is another process's.
    pub(crate) fn locked(attempt: Attempt, path: &Path) -> Self {
        let holder = lock_holder(&ProcRoot::default(), path);
        let source = io::Error::new(io::ErrorKind::WouldBlock, Locked { holder });
        Self { attempt, path: path.to_owned(), source }
    }

    /// Whether a process holds the lock that is not of this PID namespace.
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

/// A journal of which a part cannot be read. It is left as it is, and so is what it speaks of, until somebody asks for
/// what its whole lines say to be undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal {} is left alone: {why}{}", visible::path(path), self.advice())]
pub struct UnusableJournal {
    /// Where it is.
    pub path: PathBuf,
    /// Why.
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
        assert!(text(Attempt::WriteUndone).contains("it is undone"));
        assert!(text(Attempt::Remove).contains("everything was undone"));
    }

    #[test]
    fn the_text_says_what_was_tried_on_what() {
        assert!(text(Attempt::Remove).starts_with("could not remove the journal /j/a.journal: "));
    }
}
