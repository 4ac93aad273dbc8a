//! What can go wrong with network namespaces, in words. What is tried is in the modules beside this one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::NamespaceName;
use crate::visible;

/// Why something about a namespace could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// A text that cannot be a name in `/run/netns`.
    #[error("network namespace name {name:?}: {reason}")]
    InvalidName {
        /// The text as given.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// There is already something of that name.
    #[error("network namespace {name}: exists already; choose another name or delete it")]
    Exists {
        /// The name asked for.
        name: NamespaceName,
    },
    /// There is no namespace of that name, or no such process.
    #[error("network namespace {what}: there is none")]
    Absent {
        /// The name or the path that was looked for.
        what: String,
    },
    /// The file is there, but no namespace is mounted on it, as after a crash between the two steps.
    #[error("{path}: a file, but no network namespace is mounted on it; delete it", path = visible::path(path))]
    NotANamespace {
        /// The file.
        path: PathBuf,
    },
    /// The kernel does not tell the cookies of namespaces.
    #[error(
        "read the cookie of network namespace {what}: this kernel does not tell it; Linux 5.14 does (SO_NETNS_COOKIE)"
    )]
    NoCookie {
        /// The namespace.
        what: String,
    },
    /// A system call failed.
    #[error("{action} {what}: {text}{hint}", text = io::Error::from_raw_os_error(*errno), hint = hint(*errno))]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        what: String,
        /// The error number of the system call.
        errno: i32,
    },
}

fn hint(errno: i32) -> &'static str {
    match errno {
        libc::EPERM | libc::EACCES => "; this needs root (CAP_SYS_ADMIN)",
        _ => "",
    }
}

impl NamespaceError {
    /// The caller lacks the privilege (`EPERM`, `EACCES`).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::System { errno: libc::EPERM | libc::EACCES, .. })
    }

    /// There is no such namespace or process.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    pub(super) fn system(action: &'static str, what: impl fmt::Display, errno: Errno) -> Self {
        Self::System { action, what: what.to_string(), errno: errno.raw_os_error() }
    }

    pub(super) fn io(action: &'static str, what: &Path, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::System { action, what: visible::path(what), errno }
    }
}
