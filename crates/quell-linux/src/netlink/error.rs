//! Error type of all netlink requests and of the ethtool ioctl. It contains the operation, the target, the cause, and
//! the kernel's message (extended acknowledgement) if there is one.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

use crate::interface::{Ifindex, InterfaceName};
use crate::napi_id::NapiId;
use crate::netns::NamespaceError;

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestTarget {
    Namespace,
    Index(Ifindex),
    Name(InterfaceName),
    Napi(NapiId),
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace => f.write_str("this namespace"),
            Self::Index(index) => write!(f, "interface {index}"),
            Self::Name(name) => write!(f, "interface {name}"),
            Self::Napi(id) => write!(f, "NAPI {id}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The object does not exist (`ENOENT`, `ENODEV`, `ENXIO`, `ESRCH`, `EADDRNOTAVAIL`).
    Absent,
    /// The kernel or the driver does not support the operation (`EOPNOTSUPP`, unknown family).
    Unsupported,
    /// The caller lacks permission (`EPERM`, `EACCES`).
    Denied,
    /// The object is in use (`EBUSY`, `EAGAIN`).
    Busy,
    /// The object already exists (`EEXIST`).
    Exists,
    /// The kernel rejects a value (`EINVAL`, `ERANGE`).
    Invalid,
    /// Any other failure, for example of the transport, for lack of memory, or an invalid reply.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkError {
    action: &'static str,
    target: RequestTarget,
    cause: Cause,
}

/// A reply that violates its specification, with a description of the violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel rejected the request. The fields are its message, the offending attribute, and the valid range.
    Refused {
        errno: i32,
        message: Option<String>,
        attribute: Option<String>,
        range: Option<(u64, u64)>,
    },
    Transport {
        call: &'static str,
        errno: i32,
    },
    FamilyAbsent {
        family: &'static str,
    },
    Malformed(Malformed),
    DumpInterrupted {
        attempts: u32,
    },
    /// The request cannot be encoded, so it was not sent.
    Inexpressible(&'static str),
    Namespace(NamespaceError),
}

impl From<Malformed> for Cause {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl NetlinkError {
    pub(crate) fn new(action: &'static str, target: RequestTarget, cause: Cause) -> Self {
        Self { action, target, cause }
    }

    #[must_use]
    pub fn failure(&self) -> Failure {
        match &self.cause {
            Cause::FamilyAbsent { .. } => Failure::Unsupported,
            Cause::DumpInterrupted { .. } => Failure::Busy,
            Cause::Malformed(_) => Failure::Other,
            Cause::Inexpressible(_) => Failure::Invalid,
            Cause::Namespace(error) if error.is_denied() => Failure::Denied,
            Cause::Namespace(_) => Failure::Other,
            Cause::Refused { errno, .. } | Cause::Transport { errno, .. } => classify(*errno),
        }
    }

    /// Whether the kernel lacks the generic netlink family. If not, `Unsupported` refers to the driver.
    #[must_use]
    pub fn is_family_absent(&self) -> bool {
        matches!(self.cause, Cause::FamilyAbsent { .. })
    }

    /// Operation that failed, for example `change the settings of`. [`NetlinkError::target`] is its object.
    #[must_use]
    pub fn action(&self) -> &'static str {
        self.action
    }

    #[must_use]
    pub fn target(&self) -> &RequestTarget {
        &self.target
    }

    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Refused { errno, .. } | Cause::Transport { errno, .. } => Some(errno),
            _ => None,
        }
    }

    /// The kernel's message (`NLMSGERR_ATTR_MSG`), if it sent one.
    #[must_use]
    pub fn kernel_message(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { message, .. } => message.as_deref(),
            _ => None,
        }
    }

    /// Valid range of the offending attribute (`NLMSGERR_ATTR_POLICY`), inclusive.
    #[must_use]
    pub fn allowed_range(&self) -> Option<RangeInclusive<u64>> {
        match self.cause {
            Cause::Refused { range: Some((least, greatest)), .. } => Some(least..=greatest),
            _ => None,
        }
    }

    /// Name of the offending attribute in the kernel's specification (`NLMSGERR_ATTR_OFFS`, `NLMSGERR_ATTR_MISS_TYPE`).
    #[must_use]
    pub fn attribute(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { attribute, .. } => attribute.as_deref(),
            _ => None,
        }
    }
}

fn classify(errno: i32) -> Failure {
    match errno {
        libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ESRCH | libc::EADDRNOTAVAIL => Failure::Absent,
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT => Failure::Unsupported,
        libc::EPERM | libc::EACCES => Failure::Denied,
        libc::EBUSY | libc::EAGAIN => Failure::Busy,
        libc::EEXIST => Failure::Exists,
        libc::EINVAL | libc::ERANGE => Failure::Invalid,
        _ => Failure::Other,
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.action, self.target, self.cause)?;
        match self.failure() {
            // The error of the namespace names the capability.
            Failure::Denied if matches!(self.cause, Cause::Namespace(_)) => Ok(()),
            Failure::Denied => f.write_str("; this needs root (CAP_NET_ADMIN)"),
            Failure::Unsupported => f.write_str("; not supported by this kernel or driver"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { errno, message, attribute, range } => {
                write!(f, "{}", io::Error::from_raw_os_error(*errno))?;
                if let Some(message) = message {
                    write!(f, ": {message}")?;
                }
                if let Some(attribute) = attribute {
                    write!(f, " (attribute {attribute})")?;
                }
                match range {
                    Some((least, greatest)) => write!(f, "; the valid range is {least} to {greatest}"),
                    None => Ok(()),
                }
            }
            Self::Transport { call, errno } => {
                write!(f, "{call}: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::FamilyAbsent { family } => write!(f, "no netlink family {family:?}"),
            Self::Malformed(Malformed(what)) => write!(f, "invalid reply: {what}"),
            Self::Inexpressible(why) => f.write_str(why),
            Self::DumpInterrupted { attempts } => {
                write!(f, "the objects changed during each of {attempts} attempts to list them; try again")
            }
            Self::Namespace(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NetlinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Namespace(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_cannot_be_entered_needs_root_once() {
        let errno = libc::EPERM;
        let denied = NamespaceError::System { action: "enter network namespace", what: "net:[7]".to_owned(), errno };
        let error = NetlinkError::new("open a netlink socket in", RequestTarget::Namespace, Cause::Namespace(denied));
        assert_eq!(error.failure(), Failure::Denied);
        assert!(error.to_string().ends_with(": Operation not permitted (os error 1); this needs root (CAP_SYS_ADMIN)"));
    }
}
