//! Network namespaces: creates, finds, enters and deletes them. Names are files `/run/netns/NAME`, as for `ip netns`,
//! so each tool sees the other's namespaces.
//!
//! The calling thread never changes its namespace by accident. Work in another namespace runs on a new thread, which
//! then ends ([`Namespace::run`]). A panic or an error therefore cannot leave the caller in the wrong namespace.

mod cookie;
mod error;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::pid::Pid;
use crate::visible;

pub use error::NamespaceError;

/// Directory of `ip netns` (`NETNS_RUN_DIR` of iproute2, below `/var/run`).
const NAMED_DIRECTORY: &str = "/run/netns";
/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`: the file system type that `fstatfs(2)` returns for a namespace.
const NSFS_MAGIC: i64 = 0x6e73_6673;
/// Maximum number of stacked mounts that are removed from a name. A faulty tool can create more than one mount.
const STACKED_MOUNTS_MAX: usize = 16;

/// Words in front of a command that runs in a network namespace: by its name, otherwise through one of its processes.
/// `None` without either.
#[must_use]
pub fn entering(name: Option<&str>, inhabitant: Option<Pid>) -> Option<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    match (name, inhabitant) {
        (Some(name), _) => Some(words(&["ip", "netns", "exec", name])),
        (None, Some(pid)) => Some(words(&["nsenter", "-t", &pid.to_string(), "-n"])),
        (None, None) => None,
    }
}

/// Name of a namespace in `/run/netns`: a file name other than `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceName(String);

impl NamespaceName {
    /// Maximum length in bytes, `NAME_MAX` of Linux file systems.
    pub const MAX_BYTES: usize = 255;

    pub fn new(name: impl Into<String>) -> Result<Self, NamespaceError> {
        let name = name.into();
        let reason = if name.is_empty() {
            "is empty"
        } else if name.len() > Self::MAX_BYTES {
            "is longer than 255 bytes"
        } else if name == "." || name == ".." {
            "is the name of a directory"
        } else if name.contains(['/', '\0']) {
            "contains a slash or a zero byte"
        } else {
            return Ok(Self(name));
        };
        Err(NamespaceError::InvalidName { name, reason })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMED_DIRECTORY).join(&self.0)
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NamespaceName {
    type Err = NamespaceError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The name existed and was deleted. The namespace itself exists until no process, socket or file descriptor refers
    /// to it.
    Deleted,
    WasAbsent,
}

/// Processes in a namespace, as far as this process may read their namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceProcesses {
    /// PIDs of the processes whose main thread is in the namespace, in ascending order.
    pub pids: Vec<Pid>,
    /// PIDs of the processes whose namespace this process cannot read, for lack of ptrace access.
    pub unreadable: Vec<Pid>,
}

/// A network namespace. The open file descriptor in this value keeps the namespace alive.
///
/// Two values are equal if they refer to the same namespace.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
    inode: u64,
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.inode == other.inode
    }
}

impl Eq for Namespace {}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Namespace {
    /// Creates an empty namespace with a name, as `ip netns add` does.
    ///
    /// The file `/run/netns/NAME` is created first, and then the namespace is mounted on it. A crash in between leaves
    /// an empty file, which [`Namespace::delete_named`] removes, and never a namespace without a name. `/run/netns`
    /// becomes a shared mount if necessary. Other mount namespaces therefore see the namespace and can delete it.
    pub fn create_named(name: &NamespaceName) -> Result<Self, NamespaceError> {
        share_named_directory()?;
        let path = name.path();
        let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o0).open(&path);
        match created {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(NamespaceError::Exists { name: name.clone() });
            }
            Err(error) => return Err(NamespaceError::io("create", &path, &error)),
        }
        let mounted = in_own_thread(|| mount_new_namespace(&path));
        let opened = mounted.and_then(|()| Self::open_named(name));
        if opened.is_err() {
            // Return the first error. `list_named` shows the file if it could not be deleted.
            let _ = Self::delete_named(name);
        }
        opened
    }

    pub fn open_named(name: &NamespaceName) -> Result<Self, NamespaceError> {
        Self::open_path(&name.path())
    }

    /// Opens the namespace of a process's main thread via `proc_root`, normally `/proc`. Errors:
    /// [`NamespaceError::Absent`] if the process does not exist, [`NamespaceError::System`] without ptrace access.
    pub fn open_pid(proc_root: &Path, pid: Pid) -> Result<Self, NamespaceError> {
        Self::open_path(&proc_root.join(pid.to_string()).join("ns/net"))
    }

    pub fn current() -> Result<Self, NamespaceError> {
        Self::open_path(Path::new("/proc/thread-self/ns/net"))
    }

    fn open_path(path: &Path) -> Result<Self, NamespaceError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NamespaceError::Absent { what: visible::path(path) },
            _ => NamespaceError::io("open", path, &error),
        })?;
        let fs = rustix::fs::fstatfs(&file)
            .map_err(|errno| NamespaceError::system("fstatfs", visible::path(path), errno))?;
        if fs.f_type != NSFS_MAGIC {
            return Err(NamespaceError::NotANamespace { path: path.to_owned() });
        }
        let inode = file.metadata().map_err(|error| NamespaceError::io("stat", path, &error))?.ino();
        Ok(Self { fd: file.into(), inode })
    }

    /// Lists the names in `/run/netns`, sorted, including files without a mounted namespace.
    pub fn list_named() -> Result<Vec<NamespaceName>, NamespaceError> {
        let directory = Path::new(NAMED_DIRECTORY);
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(NamespaceError::io("list", directory, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| NamespaceError::io("list", directory, &error))?;
            // Quell never creates names that are not UTF-8.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(NamespaceName(name));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Deletes a name, as `ip netns delete` does. It is not an error if the name does not exist.
    pub fn delete_named(name: &NamespaceName) -> Result<Deletion, NamespaceError> {
        let path = name.path();
        for _ in 0..STACKED_MOUNTS_MAX {
            match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
                Ok(()) => {}
                // No mount is left. A name can have several, if `ip netns add` ran where `/run/netns` was not shared.
                Err(Errno::INVAL) => break,
                Err(Errno::NOENT) => return Ok(Deletion::WasAbsent),
                Err(errno) => return Err(NamespaceError::system("unmount", visible::path(&path), errno)),
            }
        }
        match fs::remove_file(&path) {
            Ok(()) => Ok(Deletion::Deleted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Deletion::WasAbsent),
            Err(error) => Err(NamespaceError::io("remove", &path, &error)),
        }
    }

    /// Inode number of the namespace, as in `net:[4026531840]` of `/proc/PID/ns/net`. It is unique only while the
    /// namespace exists, because the kernel reuses it at once. To recognize a namespace later, use the
    /// [`cookie`](Self::cookie).
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs `work` on a new thread in this namespace, and returns its result.
    ///
    /// Sockets and processes that `work` creates stay in this namespace. The thread ends with `work`. A process with
    /// `PR_SET_PDEATHSIG` therefore receives its signal at once. A panic in `work` continues in the caller. Errors:
    /// [`NamespaceError::System`] if the namespace cannot be entered; `work` does not run then. Entering needs
    /// `CAP_SYS_ADMIN`, except for the caller's own namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        in_own_thread(|| {
            // `setns(2)` moves one thread. It must be a new one, because the way back can need a privilege that the
            // caller no longer has, and other code must never run in the wrong namespace.
            self.move_calling_thread()?;
            Ok(work())
        })
    }

    /// Moves the calling thread into this namespace permanently. This is for threads that work only there; others use
    /// [`Namespace::run`]. On an error, the thread stays in its namespace.
    pub fn move_calling_thread(&self) -> Result<(), NamespaceError> {
        // `setns(2)` needs a capability even for the current namespace.
        if Self::current().is_ok_and(|here| here == *self) {
            return Ok(());
        }
        rustix::thread::move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NamespaceError::system("enter network namespace", self, errno))
    }

    /// Finds the processes in this namespace, by the links `PID/ns/net` below `proc_root` (normally `/proc`). Processes
    /// that exit during the search are skipped.
    pub fn processes(&self, proc_root: &Path) -> Result<NamespaceProcesses, NamespaceError> {
        let list_error = |error: io::Error| NamespaceError::io("list", proc_root, &error);
        let mut found = NamespaceProcesses::default();
        for entry in fs::read_dir(proc_root).map_err(list_error)? {
            let entry = entry.map_err(list_error)?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<Pid>().ok()) else {
                continue;
            };
            match fs::read_link(entry.path().join("ns/net")) {
                Ok(link) if parse_namespace_link(&link) == Some(self.inode) => found.pids.push(pid),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    found.unreadable.push(pid);
                }
                // Another namespace, or the process has exited since it was listed.
                Ok(_) | Err(_) => {}
            }
        }
        found.pids.sort_unstable();
        found.unreadable.sort_unstable();
        Ok(found)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)
    }
}

pub(crate) fn parse_namespace_link(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Runs `work` on a new thread. Changes that `work` makes to the thread end with it.
fn in_own_thread<T: Send>(work: impl FnOnce() -> Result<T, NamespaceError> + Send) -> Result<T, NamespaceError> {
    // Enter the caller's span again, because spans belong to a thread.
    let span = tracing::Span::current();
    thread::scope(|scope| {
        let spawned = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, || span.in_scope(work))
            .map_err(|error| NamespaceError::io("start a thread for", Path::new("netns"), &error))?;
        spawned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread into a new namespace and mounts it on `path`.
fn mount_new_namespace(path: &Path) -> Result<(), NamespaceError> {
    // SAFETY: only the flag `FILES` is unsafe, and it is not used.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| NamespaceError::system("unshare", "the network namespace", errno))?;
    rustix::mount::mount_bind("/proc/thread-self/ns/net", path)
        .map_err(|errno| NamespaceError::system("mount the network namespace on", visible::path(path), errno))
}

/// Makes `/run/netns` a shared mount. This holds the lock that iproute2 uses for the same purpose.
fn share_named_directory() -> Result<(), NamespaceError> {
    let path = Path::new(NAMED_DIRECTORY);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|error| NamespaceError::io("create", path, &error))?;
    let directory = File::open(path).map_err(|error| NamespaceError::io("open", path, &error))?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)
        .map_err(|errno| NamespaceError::system("lock", visible::path(path), errno))?;
    let share = || {
        let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
        rustix::mount::mount_change(path, shared)
    };
    match share() {
        Ok(()) => return Ok(()),
        Err(Errno::INVAL) => {} // The directory is not a mount point yet.
        Err(errno) => return Err(NamespaceError::system("share", visible::path(path), errno)),
    }
    rustix::mount::mount_bind_recursive(path, path)
        .and_then(|()| share())
        .map_err(|errno| NamespaceError::system("mount and share", visible::path(path), errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_namespace_name_is_one_file_name() {
        for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(NamespaceName::new(name).is_err(), "{name:?}");
        }
        assert_eq!("qt-x".parse::<NamespaceName>().unwrap().as_str(), "qt-x");
    }

    #[test]
    fn a_link_of_another_kind_of_namespace_is_not_a_network_namespace() {
        assert_eq!(parse_namespace_link(Path::new("net:[4026531840]")), Some(4_026_531_840));
        assert_eq!(parse_namespace_link(Path::new("mnt:[4026531840]")), None);
        assert_eq!(parse_namespace_link(Path::new("net:[-1]")), None);
    }

    #[test]
    fn processes_are_found_by_the_inode_of_their_namespace() {
        let here = Namespace::current().unwrap();
        let root = tempfile::tempdir().unwrap();
        let links = [("17", here.to_string()), ("5", here.to_string()), ("6", "net:[1]".to_owned())];
        for (pid, link) in &links {
            fs::create_dir_all(root.path().join(pid).join("ns")).unwrap();
            symlink(link, root.path().join(pid).join("ns/net")).unwrap();
        }
        fs::create_dir_all(root.path().join("sys")).unwrap();
        fs::create_dir_all(root.path().join("99")).unwrap();
        let found = here.processes(root.path()).unwrap();
        assert_eq!(
            found,
            NamespaceProcesses { pids: [5, 17].map(|id| Pid::new(id).unwrap()).to_vec(), unreadable: vec![] }
        );
    }

    #[test]
    fn a_plain_file_is_not_a_namespace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Namespace::open_path(file.path()).unwrap_err();
        assert_eq!(error, NamespaceError::NotANamespace { path: file.path().to_owned() });
    }

    #[test]
    fn a_panic_in_borrowed_work_reaches_the_caller() {
        let caught = std::panic::catch_unwind(|| in_own_thread::<()>(|| panic!("from inside")));
        assert!(caught.is_err());
    }
}
