//! The /proc files that Quell reads, one module an interface: each a pure `parse` of bytes and a
//! reader on [`ProcRoot`] or [`ProcDir`]. Only affinities of interrupts and sysctls are written.
//! Nothing here interprets what it read.
//!
//! Own parsers rather than a crate: values that the running kernel does not report must be absent,
//! command names may be any bytes, and most of the files (`interrupts`, `softirqs`, `netstat`, an
//! epoll's `fdinfo`) have no typed reader elsewhere.

mod cpuinfo;
mod fd;
mod fdinfo;
mod identity;
mod interrupts;
pub(crate) mod irq;
mod maps;
mod namespace;
mod net_dev;
mod netstat;
mod pid_stat;
mod pid_status;
mod schedstat;
mod softirqs;
mod softnet_stat;
mod stat;
mod syscall;
pub(crate) mod sysctl;
mod task;
pub(crate) mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use crate::Pid;
use crate::executable::FileId;

pub use cpuinfo::parse_model_name;
pub use fd::{Fd, FdKind};
pub use fdinfo::{EpollInfo, EpollTarget};
pub use identity::{BootId, BootIdError, ProcessIdentity};
pub use interrupts::{InterruptLine, Interrupts};
pub use irq::ProcWriteError;
pub use maps::parse_executable_files;
pub use net_dev::{NetDev, TrafficCounters};
pub use netstat::Netstat;
pub use pid_stat::{PidStat, ProcessState};
pub use pid_status::PidStatus;
pub use schedstat::Schedstat;
pub use softirqs::Softirqs;
pub use softnet_stat::{SoftnetCpu, SoftnetStat};
pub use stat::{CpuTimes, Stat, Ticks};
pub use syscall::{CurrentSyscall, EpollTimeout, EpollWaitCall};
pub use sysctl::{InvalidSysctlName, SysctlName};
pub use text::Malformed;

/// A /proc file that could not be read, or does not look as the kernel documents it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcError {
    /// The caller lacks the right.
    #[error("reading {path}: {source}; needs the process's user, or CAP_SYS_PTRACE")]
    Denied {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel did not read it for another reason.
    #[error("reading {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The content is not what the kernel documents.
    #[error("{path}, {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where in it, and what was expected.
        source: Malformed,
    },
}

impl ProcError {
    /// Whether the file, process or thread does not exist (any more), or this kernel is built
    /// without the file: `ENOENT`, `ESRCH`.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        let Self::Read { source, .. } = self else {
            return false;
        };
        matches!(Errno::from_io_error(source), Some(Errno::NOENT | Errno::SRCH))
    }

    /// Whether the caller lacks the right to read it.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }

    fn refused(path: &Path, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { path, source },
            _ => Self::Read { path, source },
        }
    }
}

/// Where /proc is mounted: `/proc`, or a copy of it in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRoot(PathBuf);

impl Default for ProcRoot {
    fn default() -> Self {
        Self::new("/proc")
    }
}

impl ProcRoot {
    /// A /proc at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The path it was made with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory of a process, by its id or by the id of one of its threads; of a thread's id
    /// the per-thread files (`schedstat`, `stat`) are still those of the thread.
    #[must_use]
    pub fn process(&self, pid: Pid) -> ProcDir {
        ProcDir(self.0.join(pid.to_string()))
    }

    /// The directory of the calling thread, in whatever namespaces it is now.
    #[must_use]
    pub fn thread_self(&self) -> ProcDir {
        ProcDir(self.0.join("thread-self"))
    }

    /// The ids of all processes that are visible, in no particular order.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn pids(&self) -> Result<Vec<Pid>, ProcError> {
        numbered_entries(&self.0)
    }

    pub(crate) fn read<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, ProcError> {
        read_file(self.0.join(name), parse)
    }
}

/// The directory of one process (`/proc/PID`) or one thread (`/proc/PID/task/TID`), which hold the
/// same files. Nothing is kept open: should the process end and its id be reused, later reads speak
/// of the new one; compare [`ProcessIdentity`] where that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcDir(PathBuf);

impl ProcDir {
    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file that the process executes (`/proc/PID/exe`).
    ///
    /// # Errors
    /// When it cannot be looked at; denied without ptrace access.
    pub fn executable(&self) -> Result<FileId, ProcError> {
        let path = self.0.join("exe");
        fs::metadata(&path).map(|metadata| FileId::from(&metadata)).map_err(|source| ProcError::refused(&path, source))
    }

    pub(crate) fn read<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, ProcError> {
        read_file(self.0.join(name), parse)
    }
}

fn read_file<T>(path: PathBuf, parse: impl FnOnce(&[u8]) -> Result<T, Malformed>) -> Result<T, ProcError> {
    match fs::read(&path) {
        Ok(bytes) => parse(&bytes).map_err(|source| ProcError::Parse { path, source }),
        Err(source) => Err(ProcError::refused(&path, source)),
    }
}

/// The entries of a directory whose names are ids: processes, or threads of one.
fn numbered_entries(path: &Path) -> Result<Vec<Pid>, ProcError> {
    let failed = |source| ProcError::refused(path, source);
    let mut ids = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        ids.extend(name.to_str().and_then(|name| name.parse::<Pid>().ok()));
    }
    Ok(ids)
}
