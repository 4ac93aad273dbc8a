//! The error type of all netlink requests, and of the ioctl that netlink replaced. It holds operation, target,
//! cause, and the kernel's message (extended acknowledgement) if there is one. It classifies the failure; the
//! callers decide how to react.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

use crate::interface::{Ifindex, InterfaceName};
use crate::napi_id::NapiId;
use crate::netns::NamespaceError;

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The network namespace of the handle.
    Namespace,
    /// Interface by index.
    Index(Ifindex),
    /// Interface by name.
    Name(InterfaceName),
    /// A NAPI instance.
    Napi(NapiId),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace => f.write_str("this namespace"),
            Self::Index(index) => write!(f, "interface {index}"),
            Self::Name(name) => write!(f, "interface {name}"),
            Self::Napi(id) => write!(f, "NAPI {id}"),
        }
    }
}

/// Classes of failures that callers distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The object does not exist (`ENOENT`, `ENODEV`, `ENXIO`, `ESRCH`, `EADDRNOTAVAIL`).
    Absent,
    /// The kernel or the driver does not support the operation (`EOPNOTSUPP`, unknown family).
    Unsupported,
    /// Permission is missing (`EPERM`, `EACCES`).
    Denied,
    /// The object is in use (`EBUSY`, `EAGAIN`).
    Busy,
    /// The object exists already (`EEXIST`).
    Exists,
    /// The kernel rejects a value (`EINVAL`, `ERANGE`).
    Invalid,
    /// Any other failure: transport, memory, invalid reply.
    Other,
}

/// A failed netlink request or ethtool ioctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkError {
    action: &'static str,
    target: Target,
    cause: Cause,
}

/// A reply that violates its specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel refused, with its message and the offending attribute.
    Refused { errno: i32, message: Option<String>, attribute: Option<String>, range: Option<(u64, u64)> },
    /// The socket or an ioctl on it failed.
    Transport { call: &'static str, errno: i32 },
    /// The kernel lacks the generic netlink family.
    FamilyAbsent { family: &'static str },
    /// The reply is malformed.
    Malformed(Malformed),
    /// The listed objects changed during every attempt.
    DumpInterrupted { attempts: u32 },
    /// The request cannot be encoded; nothing was sent.
    Inexpressible(&'static str),
    /// The network namespace could not be entered.
    Namespace(NamespaceError),
}

impl From<Malformed> for Cause {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl NetlinkError {
    pub(crate) fn new(action: &'static str, target: Target, cause: Cause) -> Self {
        Self { action, target, cause }
    }

    /// Class of this failure.
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

    /// Whether the kernel lacks the generic netlink family. Otherwise, `Unsupported` refers to the driver.
    #[must_use]
    pub fn is_family_absent(&self) -> bool {
        matches!(self.cause, Cause::FamilyAbsent { .. })
    }

    /// Operation, for example `change settings of`; [`NetlinkError::target`] completes it.
    #[must_use]
    pub fn action(&self) -> &'static str {
        self.action
    }

    /// Target of the operation.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Error number, if the cause has one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Refused { errno, .. } | Cause::Transport { errno, .. } => Some(errno),
            _ => None,
        }
    }

    /// Message of the kernel (`NLMSGERR_ATTR_MSG`), if it sent one.
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

    /// Offending attribute, with the name of the kernel's specification (`NLMSGERR_ATTR_OFFS`,
    /// `NLMSGERR_ATTR_MISS_TYPE`).
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
            Failure::Denied => f.write_str("; this needs root (CAP_NET_ADMIN)"),
            Failure::Unsupported => f.write_str("; this kernel or driver does not have it"),
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
                    Some((least, greatest)) => write!(f, "; allowed is {least} to {greatest}"),
                    None => Ok(()),
                }
            }
            Self::Transport { call, errno } => {
                write!(f, "{call}: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::FamilyAbsent { family } => write!(f, "no netlink family {family:?}"),
            Self::Malformed(Malformed(what)) => write!(f, "the answer makes no sense: {what}"),
            Self::Inexpressible(why) => f.write_str(why),
            Self::DumpInterrupted { attempts } => {
                write!(f, "changed while it was listed, {attempts} times in a row; try again")
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
