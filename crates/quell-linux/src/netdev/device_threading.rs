//! Threaded NAPI of a whole device, via `/sys/class/net/NAME/threaded`. Linux 6.17 introduced the setting per NAPI
//! instance via netlink; older kernels have only the sysfs file. A write changes every instance of the device. Quell
//! therefore refuses it if netlink supports the setting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Netdev;
use crate::interface::InterfaceName;
use crate::link::Links;
use crate::netlink::NetlinkError;
use crate::netns::Namespace;
use crate::sysfs::{Sysfs, SysfsError};
use crate::visible;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceThreadingError {
    #[error(
        "set threaded of interface {name} via sysfs: refused, because this kernel supports the setting per NAPI via netlink"
    )]
    NetlinkHasIt { name: InterfaceName },
    #[error("set threaded of interface {name} via sysfs: it has no NAPI; set it up and, on veth, enable GRO")]
    NoNapi { name: InterfaceName },
    #[error("{action} {path}: {text}", path = visible::path(path), text = io::Error::from_raw_os_error(*errno))]
    System { action: &'static str, path: PathBuf, errno: i32 },
    #[error("read {path}: {text:?} is neither 0 nor 1", path = visible::path(path))]
    Unknown { path: PathBuf, text: String },
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl DeviceThreadingError {
    fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::System { action, path: path.to_owned(), errno }
    }
}

/// Whether threaded NAPI is enabled for a device. A namespace other than the caller's needs `CAP_SYS_ADMIN`.
pub fn device_threading(namespace: &Namespace, name: &InterfaceName) -> Result<bool, DeviceThreadingError> {
    let sysfs = Sysfs::of(namespace)?;
    let path = threaded_file(&sysfs, name);
    let text = fs::read_to_string(&path).map_err(|error| DeviceThreadingError::io("read", &path, &error))?;
    match text.trim_end() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(DeviceThreadingError::Unknown { path: path.clone(), text: other.to_owned() }),
    }
}

/// Enables or disables threaded NAPI for all instances of a device. Fails with `NetlinkHasIt` since Linux 6.17.
pub fn set_device_threading(
    namespace: &Namespace,
    name: &InterfaceName,
    threaded: bool,
) -> Result<(), DeviceThreadingError> {
    let index = Links::open_in(namespace)?.by_name(name)?.index;
    let napis = match Netdev::open_in(namespace).and_then(|mut netdev| netdev.napis(index)) {
        // Before Linux 6.8, netlink does not report NAPI instances.
        Err(error) if error.is_family_absent() => return write_threaded(namespace, name, threaded),
        napis => napis?,
    };
    if napis.is_empty() {
        return Err(DeviceThreadingError::NoNapi { name: name.clone() });
    }
    if napis.iter().any(|napi| napi.settings.threaded.is_some()) {
        return Err(DeviceThreadingError::NetlinkHasIt { name: name.clone() });
    }
    write_threaded(namespace, name, threaded)
}

fn write_threaded(namespace: &Namespace, name: &InterfaceName, threaded: bool) -> Result<(), DeviceThreadingError> {
    let sysfs = Sysfs::of(namespace)?;
    let path = threaded_file(&sysfs, name);
    let value = if threaded { "1" } else { "0" };
    fs::write(&path, value).map_err(|error| DeviceThreadingError::io("write", &path, &error))
}

fn threaded_file(sysfs: &Sysfs, name: &InterfaceName) -> PathBuf {
    sysfs.path().join("class/net").join(name.as_str()).join("threaded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::Ethtool;
    use crate::kernel;
    use crate::link::VethEnd;
    use crate::netdev::NapiThreading;
    use crate::netns::NamespaceName;
    use crate::proc::ProcRoot;
    use quell_test_support::{Lacks, skip};

    /// Creates a namespace with a veth pair; both are deleted when the value is dropped. Returns `None` without root.
    fn lab() -> Option<(Namespace, InterfaceName)> {
        let name = NamespaceName::new(format!("qt-{}-threaded", std::process::id())).unwrap();
        let namespace = match Namespace::create_named(&name) {
            Err(error) if error.is_denied() => {
                skip(Lacks::Root, &error);
                return None;
            }
            made => made.unwrap(),
        };
        Namespace::delete_named(&name).unwrap();
        let interface = |name| InterfaceName::new(name).unwrap();
        let end = |name| VethEnd { namespace: &namespace, name: interface(name), mac: None, queues: 2 };
        let mut links = Links::open_in(&namespace).unwrap();
        let pair = links.create_veth(&end("left"), &end("right")).unwrap();
        links.set_up(pair.left).unwrap();
        links.set_up(pair.right).unwrap();
        Ethtool::open_in(&namespace).unwrap().set_features(pair.left, &[("rx-gro", true)]).unwrap();
        Some((namespace, interface("left")))
    }

    #[test]
    fn a_device_of_another_namespace_is_written_only_if_netlink_lacks_the_setting() {
        let Some((namespace, name)) = lab() else { return };
        let index = Links::open_in(&namespace).unwrap().by_name(&name).unwrap().index;
        let mut netdev = Netdev::open_in(&namespace).unwrap();
        assert!(!device_threading(&namespace, &name).unwrap());
        write_threaded(&namespace, &name, true).unwrap();
        assert!(device_threading(&namespace, &name).unwrap());
        let napis = netdev.napis(index).unwrap();
        if kernel::threads_are_in_sight(&ProcRoot::default()) {
            assert!(napis.iter().all(|napi| napi.pid.is_some()), "{napis:?}");
        }
        if napis.iter().all(|napi| napi.settings.threaded == Some(NapiThreading::Enabled)) {
            let refused = set_device_threading(&namespace, &name, false).unwrap_err();
            assert!(matches!(refused, DeviceThreadingError::NetlinkHasIt { .. }), "{refused}");
            assert!(device_threading(&namespace, &name).unwrap());
        }
        write_threaded(&namespace, &name, false).unwrap();
        assert!(!device_threading(&namespace, &name).unwrap());
        assert!(!Path::new("/sys/class/net/left").exists(), "the caller's /sys is unchanged");
    }

    #[test]
    fn a_missing_interface_has_no_file() {
        let here = Namespace::current().unwrap();
        let error = device_threading(&here, &InterfaceName::new("qt-none").unwrap()).unwrap_err();
        assert!(matches!(error, DeviceThreadingError::System { errno: libc::ENOENT, .. }), "{error}");
    }
}
