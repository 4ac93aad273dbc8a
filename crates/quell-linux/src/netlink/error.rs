//! The one error of everything that speaks netlink, or the ioctl that netlink has replaced: what was tried, on what, and what came back,
//! with the kernel's own words (extended acknowledgement) where it gave some. It names what failed
//! and of what class that is; what to do then is decided above.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;

use crate::interface::{Ifindex, InterfaceName};
use crate::napi_id::NapiId;
use crate::netns::NamespaceError;

/// What a request was about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// No single object: the namespace of the handle as a whole.
    Namespace,
    /// An interface by its number.
    Index(Ifindex),
    /// An interface by its name.
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

/// The classes of failure that callers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// There is no such object (`ENOENT`, `ENODEV`, `ENXIO`, `ESRCH`, `EADDRNOTAVAIL`).
    Absent,
    /// The kernel or the driver does not know the operation (`EOPNOTSUPP`, no such family).
    Unsupported,
    /// A privilege is missing (`EPERM`, `EACCES`).
    Denied,
    /// Somebody else uses it right now (`EBUSY`, `EAGAIN`).
    Busy,
    /// There is already such an object (`EEXIST`).
    Exists,
    /// A value that the kernel does not take (`EINVAL`, `ERANGE`).
    Invalid,
    /// Anything else: transport, memory, an answer that makes no sense.
    Other,
}

/// A netlink request, or an ioctl of ethtool, that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkError {
    action: &'static str,
    target: Target,
    cause: Cause,
}

/// An answer that does not have its specified form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// What came back instead of success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel refused; with its words and the attribute that it blames.
    Refused { errno: i32, message: Option<String>, attribute: Option<String>, range: Option<(u64, u64)> },
    /// The socket itself failed, or an ioctl on it.
    Transport { call: &'static str, errno: i32 },
    /// This kernel has no such generic netlink family.
    FamilyAbsent { family: &'static str },
    /// The answer was not understood.
    Malformed(Malformed),
    /// What is listed kept changing.
    DumpInterrupted { attempts: u32 },
    /// What was asked for cannot be said to the kernel; nothing was sent.
    Inexpressible(&'static str),
    /// The namespace could not be entered.
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

    /// The class of this failure.
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

    /// Whether this kernel has no such generic netlink family at all, so that it is not the driver that lacks something.
    #[must_use]
    pub fn is_family_absent(&self) -> bool {
        matches!(self.cause, Cause::FamilyAbsent { .. })
    }

    /// What was tried, for example `change settings of`; [`NetlinkError::target`] completes it.
    #[must_use]
    pub fn action(&self) -> &'static str {
        self.action
    }

    /// What it was tried on.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The error number, where there was one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Refused { errno, .. } | Cause::Transport { errno, .. } => Some(errno),
            _ => None,
        }
    }

    /// The kernel's own words about the failure (`NLMSGERR_ATTR_MSG`), where it gave some.
    #[must_use]
    pub fn kernel_message(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { message, .. } => message.as_deref(),
            _ => None,
        }
    }

    /// The values that the blamed attribute may have (`NLMSGERR_ATTR_POLICY`), both ends included.
    #[must_use]
    pub fn allowed_range(&self) -> Option<RangeInclusive<u64>> {
        match self.cause {
            Cause::Refused { range: Some((least, greatest)), .. } => Some(least..=greatest),
            _ => None,
        }
    }

    /// The attribute that the kernel blames, as its specifications spell it (`NLMSGERR_ATTR_OFFS`, `NLMSGERR_ATTR_MISS_TYPE`).
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
