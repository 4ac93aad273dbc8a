//! Errors of operations on network namespaces.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::NamespaceName;
use crate::visible;

/// Why an operation on a network namespace failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// An invalid name for `/run/netns`.
    #[error("network namespace name {name:?}: {reason}")]
    InvalidName {
        /// Name as given.
        name: String,
        /// Rule that it violates.
        reason: &'static str,
    },
    /// The name exists already.
    #[error("network namespace {name}: exists already; choose another name or delete it")]
    Exists {
        /// Requested name.
        name: NamespaceName,
    },
    /// The namespace or process does not exist.
    #[error("network namespace {what} does not exist")]
    Absent {
        /// Requested name or path.
        what: String,
    },
    /// No namespace is mounted on the file, as after a crash between the creation of the file and the mount.
    #[error("{path}: a file, but no network namespace is mounted on it; delete it", path = visible::path(path))]
    NotANamespace {
        /// File.
        path: PathBuf,
    },
    /// The kernel does not support cookies of namespaces.
    #[error(
        "read the cookie of network namespace {what}: not supported by this kernel; needs Linux 5.14 (SO_NETNS_COOKIE)"
    )]
    NoCookie {
        /// Namespace.
        what: String,
    },
    /// A system call failed.
    #[error("{action} {what}: {text}{hint}", text = io::Error::from_raw_os_error(*errno), hint = hint(*errno))]
    System {
        /// Operation.
        action: &'static str,
        /// Object of the operation.
        what: String,
        /// Error number.
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
    /// Whether the caller lacks permission (`EPERM`, `EACCES`).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::System { errno: libc::EPERM | libc::EACCES, .. })
    }

    /// Whether the namespace or process does not exist.
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
