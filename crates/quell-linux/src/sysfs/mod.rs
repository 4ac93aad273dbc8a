//! The sysfs of a network namespace: mounts it and reads its files.
//!
//! `/sys/class/net` shows the interfaces of the namespace in which the sysfs was mounted, independently of the reader's
//! namespace. For another namespace, Quell creates a sysfs mount without a mount point (`fsmount(2)`). The mount is
//! accessible only through its file descriptor, and ends when that is closed.

pub(crate) mod cpu;
pub(crate) mod net_class;
pub(crate) mod queue_files;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use thiserror::Error;

use crate::InterfaceName;
use crate::link::{Link, Links};
use crate::netns::{Namespace, NamespaceError};
use crate::proc::Malformed;

pub use cpu::{CpuIdleState, NumaNode};
pub use net_class::NetClass;

/// The sysfs of a network namespace, for the lifetime of this value.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// The mount that `root` refers to via `/proc/self/fd`. It must stay open.
    _mount: Option<OwnedFd>,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SysfsError {
    #[error("{action} {path}: {source}; this needs root")]
    Denied { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{action} {path}: {source}")]
    Refused { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path}, {source}")]
    Parse { path: PathBuf, source: Malformed },
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

impl SysfsError {
    pub(crate) fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { action, path, source },
            _ => Self::Refused { action, path, source },
        }
    }

    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR))
    }

    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Denied { .. } => true,
            Self::Namespace(error) => error.is_denied(),
            _ => false,
        }
    }

    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Denied { source, .. } | Self::Refused { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }
}

impl Default for Sysfs {
    /// Uses `/sys`. It usually shows the network namespace in which it was mounted at boot.
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// Uses a sysfs that is mounted at this path, or a copy of it in a test.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), _mount: None }
    }

    /// Opens the sysfs of a namespace, with a new mount. Without `CAP_SYS_ADMIN`, it falls back to `/sys` for the
    /// caller's namespace, if `/sys` shows the same devices. After `nsenter --net` it does not, because `/sys` shows
    /// the namespace in which it was mounted. A namespace other than the caller's needs `CAP_SYS_ADMIN`.
    pub fn of(namespace: &Namespace) -> Result<Self, SysfsError> {
        match Self::mount_of(namespace) {
            Err(error) if error.is_denied() && *namespace == Namespace::current()? => {
                let sys = Self::default();
                if sys.shows_devices_of(namespace) { Ok(sys) } else { Err(error) }
            }
            mounted => mounted,
        }
    }

    /// Whether this sysfs shows every device of the namespace, with the same ifindex and address.
    fn shows_devices_of(&self, namespace: &Namespace) -> bool {
        let shows = |link: Link| {
            let Ok(name) = InterfaceName::new(link.name.as_str()) else { return false };
            let here = self.net_class(&name);
            here.ifindex().is_ok_and(|index| index == link.index.get())
                && here.address().is_ok_and(|mac| mac == link.mac)
        };
        Links::open_in(namespace).and_then(|mut links| links.list()).is_ok_and(|links| links.into_iter().all(shows))
    }

    /// Mounts the sysfs of a namespace. Mounting needs `CAP_SYS_ADMIN`.
    fn mount_of(namespace: &Namespace) -> Result<Self, SysfsError> {
        let mount = namespace.run(mount_nowhere)??;
        // The file descriptor belongs to the process, so this path is valid in all threads.
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Self { root, _mount: Some(mount) })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    pub(crate) fn read<T>(
        &self,
        file: impl AsRef<Path>,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, SysfsError> {
        let path = self.root.join(file);
        match fs::read(&path) {
            Ok(bytes) => parse(&bytes).map_err(|source| SysfsError::Parse { path, source }),
            Err(source) => Err(SysfsError::new("read", &path, source)),
        }
    }
}

/// Creates a sysfs mount of the calling thread's namespace, without a mount point.
fn mount_nowhere() -> Result<OwnedFd, SysfsError> {
    let failed = |action| move |errno: Errno| SysfsError::new(action, Path::new("sysfs"), errno.into());
    let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("prepare a mount of"))?;
    rustix::mount::fsconfig_create(&context).map_err(failed("create a mount of"))?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(failed("mount"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NamespaceName;
    use quell_test_support::{Lacks, skip};

    #[test]
    fn sys_shows_only_the_devices_of_the_namespace_that_mounted_it() {
        let here = Namespace::current().unwrap();
        assert!(Sysfs::of(&here).unwrap().shows_devices_of(&here));
        let shown_elsewhere = std::thread::spawn(move || {
            // SAFETY: only this thread leaves its network namespace.
            let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            unshared.map(|()| {
                let own = Namespace::current().unwrap();
                // If both namespaces have only `lo`, they are indistinguishable.
                let lo_alone = Links::open_in(&here).unwrap().list().unwrap().len() == 1;
                let sysfs = Sysfs::of(&own).unwrap();
                (lo_alone || !sysfs.shows_devices_of(&here)) && sysfs.shows_devices_of(&own)
            })
        });
        match shown_elsewhere.join().unwrap() {
            Ok(right) => assert!(right),
            Err(error) => skip(Lacks::Root, error),
        }
    }

    #[test]
    fn the_sysfs_of_another_namespace_shows_only_its_interfaces() {
        let name = NamespaceName::new(format!("qt-{}-sysfs", std::process::id())).unwrap();
        let namespace = match Namespace::create_named(&name) {
            Err(error) if error.is_denied() => return skip(Lacks::Root, &error),
            made => made.unwrap(),
        };
        Namespace::delete_named(&name).unwrap();
        let sysfs = Sysfs::of(&namespace).unwrap();
        let interfaces = fs::read_dir(sysfs.path().join("class/net")).unwrap();
        let names: Vec<_> = interfaces.map(|entry| entry.unwrap().file_name()).collect();
        // A kernel module may add its own interfaces to every namespace. Hardware stays in its namespace.
        assert!(names.iter().any(|name| name == "lo") && !names.iter().any(|name| name == "eth0"), "{names:?}");
    }

    #[test]
    fn a_missing_file_is_absent() {
        let empty = tempfile::tempdir().unwrap();
        let error = Sysfs::at(empty.path()).read("class/net/eth0/mtu", |_| Ok(())).unwrap_err();
        assert!(error.is_absent() && !error.is_denied(), "{error}");
    }
}
