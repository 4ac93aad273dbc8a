//! `/proc/PID/fd`: the open files of a process, identified by the kernel's name for each file.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, RawDir, open, readlinkat_raw};
use rustix::io::Errno;

use super::text::number;
use super::{ProcDir, ProcError};

/// Kind of file behind a descriptor, from the link `/proc/PID/fd/N`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FdKind {
    /// A socket. Its sockfs inode also appears in `sock_diag` and `/proc/net/tcp`.
    Socket {
        inode: u64,
    },
    Pipe {
        inode: u64,
    },
    Epoll,
    EventFd,
    TimerFd,
    SignalFd,
    IoUring,
    /// Another anonymous file (`anon_inode:`), with the kernel's name of its kind.
    AnonInode(String),
    /// A file with a path. The path of a deleted file ends with ` (deleted)`.
    Path(PathBuf),
    /// Any other file, with the kernel's name for it.
    Other(OsString),
}

impl FdKind {
    #[must_use]
    pub fn parse(target: &[u8]) -> Self {
        if target.first() == Some(&b'/') {
            return Self::Path(PathBuf::from(std::ffi::OsStr::from_bytes(target)));
        }
        if let Some(inode) = bracketed(target, b"socket:").and_then(number) {
            return Self::Socket { inode };
        }
        if let Some(inode) = bracketed(target, b"pipe:").and_then(number) {
            return Self::Pipe { inode };
        }
        match target.strip_prefix(b"anon_inode:") {
            Some(name) => Self::anon_inode(name),
            None => Self::Other(std::ffi::OsStr::from_bytes(target).into()),
        }
    }

    fn anon_inode(name: &[u8]) -> Self {
        match name {
            b"[eventpoll]" => Self::Epoll,
            b"[eventfd]" => Self::EventFd,
            b"[timerfd]" => Self::TimerFd,
            b"[signalfd]" => Self::SignalFd,
            b"[io_uring]" => Self::IoUring,
            other => Self::AnonInode(String::from_utf8_lossy(other).into_owned()),
        }
    }
}

fn bracketed<'a>(target: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    target.strip_prefix(prefix)?.strip_prefix(b"[")?.strip_suffix(b"]")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fd {
    pub number: i32,
    pub kind: FdKind,
}

/// Buffer size for directory entries in bytes. One system call returns about three hundred files.
const LISTED_AT_ONCE: usize = 8 << 10;
/// Maximum length of the kernel's name for a file (`include/uapi/linux/limits.h`).
const PATH_MAX: usize = 4_096;

impl ProcDir {
    /// Lists the open file descriptors in ascending order. A descriptor that is closed during the call is skipped.
    /// Needs ptrace access.
    pub fn fds(&self) -> Result<Vec<Fd>, ProcError> {
        let path = self.path().join("fd");
        let failed = |errno: Errno| ProcError::refused(&path, errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty()).map_err(failed)?;
        let (mut listed, mut target) = ([MaybeUninit::uninit(); LISTED_AT_ONCE], [MaybeUninit::uninit(); PATH_MAX]);
        let mut entries = RawDir::new(&directory, &mut listed);
        let mut fds = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(number) = number(name.to_bytes()) else {
                continue;
            };
            match readlinkat_raw(&directory, name, &mut target[..]) {
                Ok((target, _)) => fds.push(Fd { number, kind: FdKind::parse(target) }),
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    let path = path.join(number.to_string());
                    return Err(ProcError::refused(&path, errno.into()));
                }
            }
        }
        fds.sort_unstable_by_key(|fd| fd.number);
        Ok(fds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_distinguished() {
        assert_eq!(FdKind::parse(b"socket:[4242]"), FdKind::Socket { inode: 4242 });
        assert_eq!(FdKind::parse(b"pipe:[7]"), FdKind::Pipe { inode: 7 });
        assert_eq!(FdKind::parse(b"anon_inode:[eventpoll]"), FdKind::Epoll);
        assert_eq!(FdKind::parse(b"anon_inode:bpf-map"), FdKind::AnonInode("bpf-map".into()));
    }

    #[test]
    fn more_files_than_fit_one_system_call_are_all_listed() {
        let first = std::fs::File::open("/dev/null").unwrap();
        let files: Vec<_> = (0..500).map(|_| first.try_clone().unwrap()).collect();
        let fds = crate::proc::ProcRoot::default().process(crate::Pid::of_this_process()).fds().unwrap();
        assert!(fds.is_sorted_by_key(|fd| fd.number));
        for file in &files {
            let number = std::os::fd::AsRawFd::as_raw_fd(file);
            let found = fds.iter().find(|fd| fd.number == number).unwrap();
            assert_eq!(found.kind, FdKind::Path("/dev/null".into()));
        }
    }

    #[test]
    fn a_file_with_a_name_like_a_socket_is_a_path() {
        let kind = FdKind::parse(b"/tmp/socket:[4242]");
        assert_eq!(kind, FdKind::Path("/tmp/socket:[4242]".into()));
    }

    #[test]
    fn an_invalid_inode_is_not_guessed() {
        assert_eq!(FdKind::parse(b"socket:[x]"), FdKind::Other("socket:[x]".into()));
    }
}
