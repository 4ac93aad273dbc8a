//! Errors of operations on network namespaces.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::NamespaceName;
use crate::visible;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    #[error("network namespace name {name:?}: {reason}")]
    InvalidName { name: String, reason: &'static str },
    #[error("network namespace {name}: already exists; choose another name or delete it")]
    Exists { name: NamespaceName },
    #[error("network namespace {what} does not exist")]
    Absent { what: String },
    /// The file exists, but no namespace is mounted on it. A crash between the creation of the file and the mount has
    /// this effect.
    #[error("{path}: no network namespace is mounted on this file; delete it", path = visible::path(path))]
    NotANamespace { path: PathBuf },
    #[error(
        "read the cookie of network namespace {what}: not supported by this kernel; needs Linux 5.14 (SO_NETNS_COOKIE)"
    )]
    NoCookie { what: String },
    #[error("{action} {what}: {text}{hint}", text = io::Error::from_raw_os_error(*errno), hint = hint(*errno))]
    System { action: &'static str, what: String, errno: i32 },
}

fn hint(errno: i32) -> &'static str {
    match errno {
        libc::EPERM | libc::EACCES => "; this needs root (CAP_SYS_ADMIN)",
        _ => "",
    }
}

impl NamespaceError {
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::System { errno: libc::EPERM | libc::EACCES, .. })
    }

    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    #[must_use]
    pub fn is_of_name(&self) -> bool {
        matches!(self, Self::InvalidName { .. })
    }

    pub(super) fn system(action: &'static str, what: impl fmt::Display, errno: Errno) -> Self {
        Self::System { action, what: what.to_string(), errno: errno.raw_os_error() }
    }

    pub(super) fn io(action: &'static str, what: &Path, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::System { action, what: visible::path(what), errno }
    }
}
