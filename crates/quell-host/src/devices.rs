//! Finding a network device again after it was renamed or moved to another network namespace. The journal knows a device
//! by its namespace's cookie, its ifindex there, and the inode of its directory in sysfs: a device that is made later, under
//! the same name or the same ifindex, has another inode.

use quell_linux::link::{Link, Links};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::sysfs::{Sysfs, SysfsError};
use quell_linux::{Ifindex, InterfaceName};

use crate::namespaces;
use crate::settings::SettingsError;

/// A device as a journal knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceKey<'a> {
    /// `SO_NETNS_COOKIE` of its namespace when it was changed.
    pub(crate) namespace_cookie: u64,
    /// Its number there; absent in journals of format 4, which have the name alone.
    pub(crate) ifindex: Option<Ifindex>,
    /// Its name then.
    pub(crate) name: &'a str,
    /// The inode of its directory in sysfs; absent where sysfs could not be mounted, and in journals of format 4.
    pub(crate) sysfs_inode: Option<u64>,
}

/// A device, and where it is now.
#[derive(Debug)]
pub(crate) struct FoundDevice {
    pub(crate) namespace: Namespace,
    pub(crate) link: Link,
}

/// The inode by which the device is found again; `None` where its sysfs cannot be had.
pub(crate) fn sysfs_inode(namespace: &Namespace, link: &Link) -> Option<u64> {
    inode(namespace, link).ok().flatten()
}

/// `None` for a name that is not UTF-8, which is shown with substitutes.
fn inode(namespace: &Namespace, link: &Link) -> Result<Option<u64>, SysfsError> {
    let Ok(name) = InterfaceName::new(link.name.as_str()) else { return Ok(None) };
    Sysfs::of(namespace)?.net_class(&name).inode().map(Some)
}

/// The device, wherever it is now. `None`: it was deleted, or is in a namespace that only an open file keeps alive.
///
/// # Errors
/// When a namespace or its devices cannot be read.
pub(crate) fn find(proc: &ProcRoot, key: &DeviceKey<'_>) -> Result<Option<FoundDevice>, SettingsError> {
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

fn link_of(namespace: &Namespace, key: &DeviceKey<'_>) -> Result<Option<Link>, NetlinkError> {
    let mut links = Links::open_in(namespace)?;
    let link = match (key.ifindex, InterfaceName::new(key.name)) {
        (Some(ifindex), _) => links.by_index(ifindex),
        (None, Ok(name)) => links.by_name(&name),
        (None, Err(_)) => return Ok(None),
    };
    present(link)
}

fn is_same(namespace: &Namespace, link: &Link, key: &DeviceKey<'_>) -> Result<bool, SysfsError> {
    if key.sysfs_inode.is_none() {
        return Ok(true);
    }
    match inode(namespace, link) {
        Ok(now) => Ok(now == key.sysfs_inode),
        // Renamed since it was listed: it is looked for by its inode next.
        Err(error) if error.is_absent() => Ok(false),
        // Without the right to mount, cookie and ifindex have to do: the kernel gives an ifindex again on request only.
        Err(error) if error.is_denied() => Ok(true),
        Err(error) => Err(error),
    }
}

/// The device with this inode, in whichever namespace.
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
        // It may be where nothing could be read: that it is gone is not known.
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
