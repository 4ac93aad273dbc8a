//! Finds a network device after it was renamed or moved to another network namespace. The journal identifies a device
//! by the cookie of its namespace, its ifindex and the inode of its sysfs directory. A later device with the same name
//! or ifindex has another inode.

use quell_linux::link::{Link, Links};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::sysfs::{Sysfs, SysfsError};
use quell_linux::{Ifindex, InterfaceName};

use crate::namespaces;
use crate::settings::SettingsError;

#[derive(Debug, Clone, Copy)]
pub struct RecordedDevice {
    /// `SO_NETNS_COOKIE` of its namespace when the change was made.
    pub(crate) namespace_cookie: u64,
    pub(crate) ifindex: Ifindex,
    /// Inode of its sysfs directory; absent if sysfs could not be mounted.
    pub(crate) sysfs_inode: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct FoundDevice {
    pub(crate) namespace: Namespace,
    pub(crate) link: Link,
}

/// Inode of the device's sysfs directory; `None` if sysfs is not accessible.
pub(crate) fn sysfs_inode(namespace: &Namespace, link: &Link) -> Option<u64> {
    inode(namespace, link).ok().flatten()
}

/// `None` for a name that is not UTF-8: its displayed form differs from the name of the sysfs directory.
fn inode(namespace: &Namespace, link: &Link) -> Result<Option<u64>, SysfsError> {
    let Ok(name) = InterfaceName::new(link.name.as_str()) else { return Ok(None) };
    Sysfs::of(namespace)?.net_class(&name).inode().map(Some)
}

/// Finds the device in any namespace. `None` means that it was deleted, or that only an open file keeps its namespace
/// alive.
pub(crate) fn find(proc: &ProcRoot, key: &RecordedDevice) -> Result<Option<FoundDevice>, SettingsError> {
    if let Some(namespace) = namespaces::by_cookie(proc, key.namespace_cookie)?
        && let Some(link) = link_of(&namespace, key)?
        && is_same(&namespace, &link, key)?
    {
        return Ok(Some(FoundDevice { namespace, link }));
    }
    match key.sysfs_inode {
        Some(inode) => find_moved(proc, inode),
        None => Ok(None),
    }
}

fn link_of(namespace: &Namespace, key: &RecordedDevice) -> Result<Option<Link>, NetlinkError> {
    present(Links::open_in(namespace)?.by_index(key.ifindex))
}

fn is_same(namespace: &Namespace, link: &Link, key: &RecordedDevice) -> Result<bool, SysfsError> {
    if key.sysfs_inode.is_none() {
        return Ok(true);
    }
    match inode(namespace, link) {
        Ok(now) => Ok(now == key.sysfs_inode),
        // The device was renamed after it was listed; the search by inode follows.
        Err(error) if error.is_absent() => Ok(false),
        // Without permission to mount sysfs, the cookie and the ifindex must suffice: the kernel reuses an ifindex only
        // on request.
        Err(error) if error.is_denied() => Ok(true),
        Err(error) => Err(error),
    }
}

fn find_moved(proc: &ProcRoot, inode: u64) -> Result<Option<FoundDevice>, SettingsError> {
    let mut seen = std::collections::HashSet::new();
    let mut found = None;
    let mut failed = None;
    let namespace = namespaces::find(proc, |namespace| {
        if !seen.insert(namespace.inode()) {
            return Ok(false);
        }
        match link_of_inode(namespace, inode) {
            Ok(link) => found = link,
            Err(error) => failed = Some(error),
        }
        Ok(found.is_some())
    })?;
    match (namespace, found, failed) {
        (Some(namespace), Some(link), _) => Ok(Some(FoundDevice { namespace, link })),
        // The device may be in an unreadable namespace, so it may still exist.
        (_, _, Some(error)) => Err(error),
        _ => Ok(None),
    }
}

fn link_of_inode(namespace: &Namespace, inode: u64) -> Result<Option<Link>, SettingsError> {
    match Sysfs::of(namespace)?.interface_of_inode(inode)? {
        Some(name) => Ok(present(Links::open_in(namespace)?.by_name(&name))?),
        None => Ok(None),
    }
}

fn present(link: Result<Link, NetlinkError>) -> Result<Option<Link>, NetlinkError> {
    match link {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.failure() == Failure::Absent => Ok(None),
        Err(error) => Err(error),
    }
}
