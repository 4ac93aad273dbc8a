//! `/sys/class/net/NAME`: speed, bus, NUMA node and interrupts of an interface, and the NAPI settings from before each
//! instance had its own. Queues and their CPU masks are elsewhere.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Sysfs, SysfsError};
use crate::interface::{InterfaceName, MacAddress};
use crate::proc::Malformed;
use crate::proc::text::{Line, first_line, number};

/// The directory of one interface.
#[derive(Debug, Clone)]
pub struct NetClass<'a> {
    sysfs: &'a Sysfs,
    directory: PathBuf,
}

impl Sysfs {
    /// The directory of an interface; that there is one is found out when something in it is read.
    #[must_use]
    pub fn net_class(&self, name: &InterfaceName) -> NetClass<'_> {
        NetClass { sysfs: self, directory: Path::new("class/net").join(name.as_str()) }
    }
}

impl Sysfs {
    /// The interface whose directory has this inode ([`NetClass::inode`]).
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn interface_of_inode(&self, inode: u64) -> Result<Option<InterfaceName>, SysfsError> {
        let directory = self.path().join("class/net");
        let failed = |error| SysfsError::new("list", &directory, error);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // `bonding_masters` is a file here, and no interface.
            let Some(name) = name.to_str().and_then(|name| InterfaceName::new(name).ok()) else { continue };
            match self.net_class(&name).inode() {
                Ok(found) if found == inode => return Ok(Some(name)),
                Err(error) if !error.is_absent() => return Err(error),
                // Deleted or renamed after it was listed.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(None)
    }
}

impl NetClass<'_> {
    /// The inode of the directory: the device's identity for the time of one boot. The kernel numbers the nodes of sysfs
    /// with 64 bits and gives no number again (`__kernfs_new_node` in `fs/kernfs/dir.c`). Renaming a device and moving
    /// it to another network namespace keep the node (`kernfs_rename_ns`).
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn inode(&self) -> Result<u64, SysfsError> {
        let path = self.sysfs.path().join(&self.directory);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.ino()),
            Err(error) => Err(SysfsError::new("look at", &path, error)),
        }
    }

    /// The ifindex.
    pub(super) fn ifindex(&self) -> Result<u32, SysfsError> {
        self.read("ifindex", parse_number)
    }

    /// The hardware address; `None` for anything but an Ethernet address of one interface.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn address(&self) -> Result<Option<MacAddress>, SysfsError> {
        self.read("address", |text| Ok(String::from_utf8_lossy(text).trim_end().to_owned().try_into().ok()))
    }

    /// The speed in Mbit/s; `None` where the driver knows none: without a cable, on virtual interfaces.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn speed_mbit(&self) -> Result<Option<u32>, SysfsError> {
        match self.read("speed", parse_or_minus_one) {
            // `speed_show` in `net/core/net-sysfs.c`: the driver has no such operation, or the interface is down.
            Err(error) if error.errno() == Some(Errno::INVAL) => Ok(None),
            speed => speed,
        }
    }

    /// The NUMA node of its bus; `None` where the platform does not say, and for interfaces without a bus.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn numa_node(&self) -> Result<Option<u32>, SysfsError> {
        let Some(device) = self.bus_device()? else { return Ok(None) };
        match self.sysfs.read(device.join("numa_node"), parse_or_minus_one) {
            Err(error) if error.is_absent() => Ok(None),
            node => node,
        }
    }

    /// The interrupts of its bus device, ascending: one a queue on most hardware, and some that serve no queue. `None`
    /// for interfaces without a bus.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn irqs(&self) -> Result<Option<Vec<u32>>, SysfsError> {
        let Some(device) = self.bus_device()? else { return Ok(None) };
        let directory = self.sysfs.path().join(&device).join("msi_irqs");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.line_irq(&device).map(Some),
            Err(error) => return Err(SysfsError::new("list", &directory, error)),
        };
        let mut irqs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| SysfsError::new("list", &directory, error))?;
            irqs.extend(number::<u32>(entry.file_name().as_bytes()));
        }
        irqs.sort_unstable();
        Ok(Some(irqs))
    }

    /// The name of its device on the bus, such as `0000:3b:00.0` or `virtio2`, as drivers use it in the names of
    /// interrupts; `None` for interfaces without a bus.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn bus_name(&self) -> Result<Option<String>, SysfsError> {
        self.link_name("device")
    }

    /// `napi_defer_hard_irqs`: what new NAPI instances get. A value that one instance has is not seen here.
    ///
    /// # Errors
    /// [`SysfsError`], absent before Linux 5.11.
    pub fn napi_defer_hard_irqs(&self) -> Result<u32, SysfsError> {
        self.read("napi_defer_hard_irqs", parse_number)
    }

    /// `gro_flush_timeout`, nanoseconds: what new NAPI instances get. A value that one instance has is not seen here.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn gro_flush_timeout_ns(&self) -> Result<u64, SysfsError> {
        self.read("gro_flush_timeout", parse_number)
    }

    /// Sets `napi_defer_hard_irqs`. **Every** NAPI instance of the device gets the value, also one that was told
    /// otherwise by netlink: only where netlink cannot tell instances apart is there a reason to.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn set_napi_defer_hard_irqs(&self, polls: u32) -> Result<(), SysfsError> {
        self.write(Path::new("napi_defer_hard_irqs"), &polls.to_string())
    }

    /// Sets `gro_flush_timeout`, nanoseconds, of every NAPI instance of the device, as
    /// [`Self::set_napi_defer_hard_irqs`] does.
    ///
    /// # Errors
    /// [`SysfsError`].
    pub fn set_gro_flush_timeout_ns(&self, timeout_ns: u64) -> Result<(), SysfsError> {
        self.write(Path::new("gro_flush_timeout"), &timeout_ns.to_string())
    }

    /// `threaded`: whether NAPI instances are polled by threads.
    ///
    /// # Errors
    /// [`SysfsError`], absent before Linux 5.12.
    pub fn threaded(&self) -> Result<bool, SysfsError> {
        self.read("threaded", |bytes| Ok(parse_number::<u32>(bytes)? != 0))
    }

    /// The device below the interface on which its interrupts and its NUMA node are noted. A virtio device has neither:
    /// they are those of the PCI function that carries it.
    fn bus_device(&self) -> Result<Option<PathBuf>, SysfsError> {
        let Some(subsystem) = self.link_name("device/subsystem")? else { return Ok(None) };
        let device = self.directory.join("device");
        // The kernel resolves `..` from where the link `device` leads to.
        Ok(Some(if subsystem == "virtio" { device.join("..") } else { device }))
    }

    /// The interrupt of a device without message-signalled ones; those that have none say 0.
    fn line_irq(&self, device: &Path) -> Result<Vec<u32>, SysfsError> {
        match self.sysfs.read(device.join("irq"), parse_number::<u32>) {
            Ok(0) => Ok(Vec::new()),
            Ok(irq) => Ok(vec![irq]),
            Err(error) if error.is_absent() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The last part of where a link leads; `None` when there is no such link.
    fn link_name(&self, link: &str) -> Result<Option<String>, SysfsError> {
        let path = self.sysfs.path().join(&self.directory).join(link);
        match fs::read_link(&path) {
            Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SysfsError::new("read link", &path, error)),
        }
    }

    pub(super) fn read<T>(
        &self,
        file: impl AsRef<Path>,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, SysfsError> {
        self.sysfs.read(self.directory.join(file), parse)
    }

    pub(super) fn write(&self, file: &Path, value: &str) -> Result<(), SysfsError> {
        let path = self.absolute(file);
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut open| io::Write::write_all(&mut open, value.as_bytes()))
            .map_err(|error| SysfsError::new("write", &path, error))
    }

    /// A file of the interface, from the root of the file system.
    pub(super) fn absolute(&self, file: &Path) -> PathBuf {
        self.sysfs.path().join(&self.directory).join(file)
    }
}

pub(crate) fn parse_number<T: std::str::FromStr>(bytes: &[u8]) -> Result<T, Malformed> {
    let line = first_line(bytes);
    line.number(line.bytes.trim_ascii(), "a number")
}

/// A number, or the kernel's -1 for "none".
pub(crate) fn parse_or_minus_one(bytes: &[u8]) -> Result<Option<u32>, Malformed> {
    let line: Line<'_> = first_line(bytes);
    match line.bytes.trim_ascii() {
        b"-1" => Ok(None),
        digits => line.number(digits, "a number, or -1").map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs of one PCI NIC and one virtio NIC.
    fn fixture() -> (tempfile::TempDir, Sysfs) {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let link = |path: &str, target: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        };
        file("devices/pci0/0000:3b:00.0/numa_node", "1\n");
        for irq in ["130", "99", "131"] {
            file(&format!("devices/pci0/0000:3b:00.0/msi_irqs/{irq}"), "msix\n");
        }
        link("devices/pci0/0000:3b:00.0/subsystem", "../../../bus/pci");
        file("class/net/eth0/speed", "25000\n");
        link("class/net/eth0/device", "../../../devices/pci0/0000:3b:00.0");
        file("devices/pci0/0000:00:03.0/numa_node", "-1\n");
        file("devices/pci0/0000:00:03.0/msi_irqs/37", "msix\n");
        link("devices/pci0/0000:00:03.0/virtio2/subsystem", "../../../../bus/virtio");
        file("class/net/eth1/speed", "-1\n");
        link("class/net/eth1/device", "../../../devices/pci0/0000:00:03.0/virtio2");
        file("class/net/veth0/gro_flush_timeout", "20000\n");
        let sysfs = Sysfs::at(root.path());
        (root, sysfs)
    }

    #[test]
    fn a_pci_device_tells_its_node_and_its_interrupts() {
        let (_root, sysfs) = fixture();
        let nic = sysfs.net_class(&InterfaceName::new("eth0").unwrap());
        assert_eq!(nic.numa_node().unwrap(), Some(1));
        assert_eq!(nic.irqs().unwrap(), Some(vec![99, 130, 131]));
        assert_eq!(
            (nic.speed_mbit().unwrap(), nic.bus_name().unwrap().unwrap().as_str()),
            (Some(25_000), "0000:3b:00.0")
        );
    }

    #[test]
    fn a_virtio_device_has_the_interrupts_of_the_function_that_carries_it() {
        let (_root, sysfs) = fixture();
        let nic = sysfs.net_class(&InterfaceName::new("eth1").unwrap());
        assert_eq!((nic.numa_node().unwrap(), nic.irqs().unwrap()), (None, Some(vec![37])));
        assert_eq!((nic.speed_mbit().unwrap(), nic.bus_name().unwrap().unwrap().as_str()), (None, "virtio2"));
    }

    #[test]
    fn a_virtual_device_has_no_bus_and_what_is_not_there_is_absent() {
        let (_root, sysfs) = fixture();
        let nic = sysfs.net_class(&InterfaceName::new("veth0").unwrap());
        assert_eq!((nic.irqs().unwrap(), nic.numa_node().unwrap(), nic.bus_name().unwrap()), (None, None, None));
        assert_eq!(nic.gro_flush_timeout_ns().unwrap(), 20_000);
        assert!(nic.napi_defer_hard_irqs().unwrap_err().is_absent());
    }

    #[test]
    fn only_a_number_or_minus_one_is_read() {
        assert_eq!(parse_or_minus_one(b"-1\n"), Ok(None));
        assert_eq!(parse_or_minus_one(b"10000\n"), Ok(Some(10_000)));
        for malformed in [&b""[..], b"-2\n", b"+1\n", b"fast\n"] {
            assert!(parse_or_minus_one(malformed).is_err());
        }
    }
}
