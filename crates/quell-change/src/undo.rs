//! Reasons why a change could not be undone.

use std::time::Duration;

use quell_linux::netlink::NetlinkError;
use quell_linux::netns::NamespaceError;
use quell_linux::process::ProcessError;

use crate::journal::JournalError;
use crate::settings::SettingsError;
use crate::target::TargetError;

/// Reason why a change could not be undone. It stays in the journal and can be retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The namespace could not be removed.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The link could not be removed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A process could not be killed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A setting could not be restored.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Another process was setting or undoing the same queue.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The descendants of a program could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another namespace has this name now.
    #[error(
        "network namespace {name} is not the one that Quell created (cookie {today} instead of {made}), so it was \
         left alone; if you no longer need it, run `ip netns delete {}`",
        shell_words::quote(name)
    )]
    NotTheSame {
        name: String,
        /// Cookie of the namespace that was created.
        made: u64,
        /// Cookie of the current namespace.
        today: u64,
    },
    /// Processes of a namespace did not exit after SIGKILL.
    #[error(
        "network namespace {namespace}: its processes {left:?} did not exit within {within:?} after SIGKILL; they \
         hang in the kernel, or start new processes faster than Quell can kill them"
    )]
    StillInside {
        /// Name of the namespace.
        namespace: String,
        left: Vec<i32>,
        /// Time limit that was exceeded.
        within: Duration,
    },
    /// The journal contains an invalid name.
    #[error("the journal contains an invalid name of a {what}, {name:?}: {why}")]
    Impossible {
        /// `network namespace`, `interface` or `process`.
        what: &'static str,
        name: String,
        /// Rule that it violates.
        why: String,
    },
}

impl UndoError {
    pub(crate) fn impossible(what: &'static str, name: &str, why: impl ToString) -> Self {
        Self::Impossible { what, name: name.to_owned(), why: why.to_string() }
    }
}
