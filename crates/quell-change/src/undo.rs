//! Reasons why a change could not be undone.

use std::time::Duration;

use quell_linux::netlink::NetlinkError;
use quell_linux::netns::NamespaceError;
use quell_linux::process::ProcessError;
use quell_linux::shell;

use crate::journal::JournalError;
use crate::settings::SettingsError;
use crate::target::TargetError;

/// Reason why a change could not be undone. It stays in the journal and can be retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(
        "network namespace {name} is not the one that Quell created (cookie {today} instead of {made}), so it was \
         left alone; if you no longer need it, run `ip netns delete {}`",
        shell::word(name)
    )]
    NotTheSame { name: String, made: u64, today: u64 },
    #[error(
        "network namespace {namespace}: its processes {left:?} did not exit within {within:?} after SIGKILL; they \
         hang in the kernel, or start new processes faster than Quell can kill them"
    )]
    StillInside { namespace: String, left: Vec<i32>, within: Duration },
    #[error("the journal contains an invalid name of a {what}, {name:?}: {why}")]
    Impossible {
        /// `network namespace`, `interface` or `process`.
        what: &'static str,
        name: String,
        why: String,
    },
}

impl UndoError {
    pub(crate) fn impossible(what: &'static str, name: &str, why: impl ToString) -> Self {
        Self::Impossible { what, name: name.to_owned(), why: why.to_string() }
    }
}
