//! Readers for /proc files, one module per file. Each module has a `parse` function for bytes and a method of
//! [`ProcRoot`] or [`ProcDir`] that reads the file. Quell writes only IRQ affinities and sysctls.
//!
//! `procfs-core` (0.18) is not used, because any process can choose bytes that defeat it: a command name that is not
//! UTF-8 is an error in `status` and altered in `stat`, an interface name with such bytes or a wide blank is an error
//! for all interfaces of `net/dev`, and a mapped file `/SYSVx` is a panic in `maps`, as is a truncated `stat`. It loses
//! the CPU numbers of `/proc/stat`, requires fields that Quell does not need, and parses `status` nineteen times
//! slower. It has no `interrupts`, `softirqs`, `softnet_stat`, `netstat` and `fdinfo` of an epoll.

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
mod unit;

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
pub use maps::{parse_executable_files, parse_load_address};
pub use net_dev::{NetDev, TrafficCounters};
pub use netstat::Netstat;
pub use pid_stat::{PidStat, ProcessState};
pub use pid_status::PidStatus;
pub use schedstat::Schedstat;
pub use softirqs::Softirqs;
pub use softnet_stat::{SoftnetCpu, SoftnetStat};
pub use stat::{CpuTimes, Stat, Ticks};
pub use syscall::{CurrentSyscall, EpollTimeout, EpollWaitCall, SocketWaitCall};
pub use sysctl::{InvalidSysctlName, SysctlName};
pub use text::Malformed;
pub(crate) use unit::unescaped as unescaped_unit;
pub use unit::{ControlGroups, ProgramPlace, parse_unit};

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcError {
    #[error("reading {path}: {source}; needs the process's user, or CAP_SYS_PTRACE")]
    Denied { path: PathBuf, source: io::Error },
    /// The read failed for another reason.
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}, {source}")]
    Parse {
        path: PathBuf,
        /// Line number, expected content and actual content.
        source: Malformed,
    },
}

impl ProcError {
    /// Whether the file, process or thread does not exist (`ENOENT`, `ESRCH`). The kernel may also be built without the
    /// file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        let Self::Read { source, .. } = self else {
            return false;
        };
        matches!(Errno::from_io_error(source), Some(Errno::NOENT | Errno::SRCH))
    }

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

/// Mount point of /proc, or a copy of it in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRoot(PathBuf);

impl Default for ProcRoot {
    fn default() -> Self {
        Self::new("/proc")
    }
}

impl ProcRoot {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Directory of a process, selected by its PID or by the TID of one of its threads. With a TID, per-thread files
    /// (`schedstat`, `stat`) contain the values of that thread.
    #[must_use]
    pub fn process(&self, pid: Pid) -> ProcDir {
        ProcDir(self.0.join(pid.to_string()))
    }

    /// Directory of the calling thread, in the thread's current namespaces.
    #[must_use]
    pub fn thread_self(&self) -> ProcDir {
        ProcDir(self.0.join("thread-self"))
    }

    /// PIDs of all visible processes, in no particular order.
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

/// Directory of a process (`/proc/PID`) or of a thread (`/proc/PID/task/TID`); both contain the same files. The
/// directory is not kept open. If the process exits and its PID is reused, later reads return data of the new process.
/// Callers that must detect this compare [`ProcessIdentity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcDir(PathBuf);

impl ProcDir {
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Identity of the file that the process executes (`/proc/PID/exe`). Needs ptrace access.
    pub fn executable(&self) -> Result<FileId, ProcError> {
        let path = self.0.join("exe");
        fs::metadata(&path).map(|metadata| FileId::from(&metadata)).map_err(|source| ProcError::refused(&path, source))
    }

    /// Path of the executable file, as of the process's own mounts.
    ///
    /// # Errors
    /// When the link cannot be read, which needs ptrace access.
    pub fn executable_path(&self) -> Result<PathBuf, ProcError> {
        let path = self.0.join("exe");
        fs::read_link(&path).map_err(|source| ProcError::refused(&path, source))
    }

    /// Working directory, as of the process's own mounts.
    ///
    /// # Errors
    /// When the link cannot be read, which needs ptrace access.
    pub fn working_directory(&self) -> Result<PathBuf, ProcError> {
        let path = self.0.join("cwd");
        fs::read_link(&path).map_err(|source| ProcError::refused(&path, source))
    }

    /// Arguments of the process (`/proc/PID/cmdline`), with its name first. Empty for kernel threads.
    pub fn arguments(&self) -> Result<Vec<String>, ProcError> {
        let parse = |bytes: &[u8]| {
            let words = bytes.strip_suffix(b"\0").into_iter().flat_map(|bytes| bytes.split(|&byte| byte == 0));
            Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
        };
        self.read("cmdline", parse)
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

/// Lists the entries of a directory whose names are ids: processes, or threads of a process.
fn numbered_entries(path: &Path) -> Result<Vec<Pid>, ProcError> {
    let failed = |source| ProcError::refused(path, source);
    let mut ids = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        ids.extend(name.to_str().and_then(|name| name.parse::<Pid>().ok()));
    }
    Ok(ids)
}
