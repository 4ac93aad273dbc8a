//! Classifies read errors for the snapshot, and names the capability that would help.

use quell_linux::CpuSetReadError;
use quell_linux::capability::Capability;
use quell_linux::epoll_params::EpollParamsError;
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::NamespaceError;
use quell_linux::pidfd::PidFdError;
use quell_linux::proc::ProcError;
use quell_linux::sched::SchedError;
use quell_linux::socket_options::SocketOptionError;
use quell_linux::sysfs::SysfsError;

use super::super::{Reading, UnknownReason};

pub(super) trait Explained: std::fmt::Display {
    fn why(&self) -> UnknownReason;
}

pub(super) trait Outcome<T> {
    fn outcome(self) -> Reading<T>;
}

impl<T, E: Explained> Outcome<T> for Result<T, E> {
    fn outcome(self) -> Reading<T> {
        match self {
            Ok(value) => Reading::Known(value),
            Err(error) => Reading::unknown(error.why(), error.to_string()),
        }
    }
}

fn denied(needs: Capability) -> UnknownReason {
    UnknownReason::Denied { needs: Some(needs) }
}

impl Explained for NetlinkError {
    /// `Unsupported` refers to the driver, except for a missing netlink family. Support of single requests by the
    /// kernel is determined beforehand.
    fn why(&self) -> UnknownReason {
        match self.failure() {
            _ if self.is_family_absent() => UnknownReason::UnsupportedByKernel,
            Failure::Absent => UnknownReason::Absent,
            Failure::Unsupported => UnknownReason::UnsupportedByDriver,
            Failure::Denied => denied(Capability::NetAdmin),
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for NamespaceError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::NoCookie { .. } => UnknownReason::UnsupportedByKernel,
            error if error.is_denied() => denied(Capability::SysAdmin),
            error if error.is_absent() => UnknownReason::Absent,
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for ProcError {
    fn why(&self) -> UnknownReason {
        match self {
            error if error.is_absent() => UnknownReason::Absent,
            error if error.is_denied() => denied(Capability::SysPtrace),
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for SysfsError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Namespace(error) => error.why(),
            error if error.is_absent() => UnknownReason::Absent,
            error if error.is_denied() => UnknownReason::Denied { needs: None },
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for CpuSetReadError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => UnknownReason::Absent,
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for SchedError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Gone { .. } => UnknownReason::Absent,
            Self::Denied { .. } => denied(Capability::SysNice),
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for PidFdError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Gone { .. } | Self::NoSuchFd { .. } => UnknownReason::Absent,
            Self::Denied { .. } => denied(Capability::SysPtrace),
            _ => UnknownReason::Failed,
        }
    }
}

impl<E: Explained> Explained for &E {
    fn why(&self) -> UnknownReason {
        (*self).why()
    }
}

impl Explained for SocketOptionError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Unsupported { .. } => UnknownReason::UnsupportedByKernel,
            Self::Denied { .. } => denied(Capability::NetAdmin),
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for EpollParamsError {
    fn why(&self) -> UnknownReason {
        match self {
            Self::Unsupported | Self::NoBusyPoll => UnknownReason::UnsupportedByKernel,
            _ => UnknownReason::Failed,
        }
    }
}

impl Explained for std::io::Error {
    fn why(&self) -> UnknownReason {
        match self.kind() {
            std::io::ErrorKind::PermissionDenied => UnknownReason::Denied { needs: None },
            std::io::ErrorKind::NotFound => UnknownReason::Absent,
            _ => UnknownReason::Failed,
        }
    }
}
