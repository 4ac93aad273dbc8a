//! `/sys/class/net/NAME`: speed, bus, NUMA node and IRQs of an interface, and the NAPI settings of its device. The
//! device settings are older than those of single instances. `queue_files` handles queues and their CPU masks.

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

#[derive(Debug, Clone)]
pub struct NetClass<'a> {
    sysfs: &'a Sysfs,
    directory: PathBuf,
}

impl Sysfs {
    /// Returns the directory of an interface. The first read detects whether the interface exists.
    #[must_use]
    pub fn net_class(&self, name: &InterfaceName) -> NetClass<'_> {
        NetClass { sysfs: self, directory: Path::new("class/net").join(name.as_str()) }
    }
}

impl Sysfs {
    /// Finds the interface whose directory has this inode number ([`NetClass::inode`]).
    pub fn interface_of_inode(&self, inode: u64) -> Result<Option<InterfaceName>, SysfsError> {
        let directory = self.path().join("class/net");
        let failed = |error| SysfsError::new("list", &directory, error);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // `bonding_masters` is a file in this directory, not an interface.
            let Some(name) = name.to_str().and_then(|name| InterfaceName::new(name).ok()) else { continue };
            match self.net_class(&name).inode() {
                Ok(found) if found == inode => return Ok(Some(name)),
                Err(error) if !error.is_absent() => return Err(error),
                // The interface was deleted or renamed after the directory was listed.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(None)
    }
}

impl NetClass<'_> {
    /// Inode number of the directory, which identifies the device during a boot. The kernel numbers sysfs nodes with 64
    /// bits and never reuses a number (`__kernfs_new_node` in `fs/kernfs/dir.c`). Renaming a device, or moving it to
    /// another network namespace, keeps the node (`kernfs_rename_ns`).
    pub fn inode(&self) -> Result<u64, SysfsError> {
        let path = self.sysfs.path().join(&self.directory);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.ino()),
            Err(error) => Err(SysfsError::new("examine", &path, error)),
        }
    }

    pub(super) fn ifindex(&self) -> Result<u32, SysfsError> {
        self.read("ifindex", parse_number)
    }

    /// MAC address; `None` if the interface has another type of address.
    pub fn address(&self) -> Result<Option<MacAddress>, SysfsError> {
        self.read("address", |text| Ok(String::from_utf8_lossy(text).trim_end().to_owned().try_into().ok()))
    }

    /// Link speed in Mbit/s. `None` if it is unknown, as without a cable and on virtual interfaces.
    pub fn speed_mbit(&self) -> Result<Option<u32>, SysfsError> {
        match self.read("speed", parse_or_minus_one) {
            // `speed_show` in `net/core/net-sysfs.c` returns this error if the driver lacks the operation or the
            // interface is down.
            Err(error) if error.errno() == Some(Errno::INVAL) => Ok(None),
            speed => speed,
        }
    }

    /// NUMA node of the bus device. `None` if the platform does not report it, or the interface has no bus.
    pub fn numa_node(&self) -> Result<Option<u32>, SysfsError> {
        let Some(device) = self.bus_device()? else { return Ok(None) };
        match self.sysfs.read(device.join("numa_node"), parse_or_minus_one) {
            Err(error) if error.is_absent() => Ok(None),
            node => node,
        }
    }

    /// IRQs of the bus device in ascending order. Most hardware has one IRQ per queue, and others that serve no queue.
    /// `None` if the interface has no bus.
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

    /// Name of the device on its bus, for example `0000:3b:00.0` or `virtio2`. Drivers use it in the names of IRQs.
    /// `None` if the interface has no bus.
    pub fn bus_name(&self) -> Result<Option<String>, SysfsError> {
        self.link_name("device")
    }

    /// `napi_defer_hard_irqs`: the default for new NAPI instances. The values of existing instances can differ. The
    /// file does not exist before Linux 5.11.
    pub fn napi_defer_hard_irqs(&self) -> Result<u32, SysfsError> {
        self.read("napi_defer_hard_irqs", parse_number)
    }

    /// `gro_flush_timeout` in ns: the default for new NAPI instances. The values of existing instances can differ.
    pub fn gro_flush_timeout_ns(&self) -> Result<u64, SysfsError> {
        self.read("gro_flush_timeout", parse_number)
    }

    /// Sets `napi_defer_hard_irqs`. This overwrites the value of **every** NAPI instance of the device, including
    /// values that were set via netlink. Use it only if netlink cannot configure single instances.
    pub fn set_napi_defer_hard_irqs(&self, polls: u32) -> Result<(), SysfsError> {
        self.write(Path::new("napi_defer_hard_irqs"), &polls.to_string())
    }

    /// Sets `gro_flush_timeout` in ns for every NAPI instance of the device, as [`Self::set_napi_defer_hard_irqs`]
    /// does.
    pub fn set_gro_flush_timeout_ns(&self, timeout_ns: u64) -> Result<(), SysfsError> {
        self.write(Path::new("gro_flush_timeout"), &timeout_ns.to_string())
    }

    /// `threaded`: whether kernel threads poll the NAPI instances. The file does not exist before Linux 5.12.
    pub fn threaded(&self) -> Result<bool, SysfsError> {
        self.read("threaded", |bytes| Ok(parse_number::<u32>(bytes)? != 0))
    }

    /// Bus device that has the IRQs and the NUMA node of the interface. A virtio device has neither, so this is the PCI
    /// function below it.
    fn bus_device(&self) -> Result<Option<PathBuf>, SysfsError> {
        let Some(subsystem) = self.link_name("device/subsystem")? else { return Ok(None) };
        let device = self.directory.join("device");
        // The kernel resolves `..` relative to the target of the link `device`.
        Ok(Some(if subsystem == "virtio" { device.join("..") } else { device }))
    }

    /// IRQ of a device without message-signalled interrupts. A device without an IRQ reports 0.
    fn line_irq(&self, device: &Path) -> Result<Vec<u32>, SysfsError> {
        match self.sysfs.read(device.join("irq"), parse_number::<u32>) {
            Ok(0) => Ok(Vec::new()),
            Ok(irq) => Ok(vec![irq]),
            Err(error) if error.is_absent() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Last component of a link's target; `None` if the link does not exist.
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

    pub(super) fn absolute(&self, file: &Path) -> PathBuf {
        self.sysfs.path().join(&self.directory).join(file)
    }
}

pub(crate) fn parse_number<T: std::str::FromStr>(bytes: &[u8]) -> Result<T, Malformed> {
    let line = first_line(bytes);
    line.number(line.bytes.trim_ascii(), "a number")
}

/// Parses a number; -1 means that there is none.
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
    fn the_node_and_irqs_of_a_pci_device_are_read() {
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
    fn a_virtio_device_has_the_irqs_of_its_pci_function() {
        let (_root, sysfs) = fixture();
        let nic = sysfs.net_class(&InterfaceName::new("eth1").unwrap());
        assert_eq!((nic.numa_node().unwrap(), nic.irqs().unwrap()), (None, Some(vec![37])));
        assert_eq!((nic.speed_mbit().unwrap(), nic.bus_name().unwrap().unwrap().as_str()), (None, "virtio2"));
    }

    #[test]
    fn a_virtual_device_has_no_bus_and_missing_files_are_absent() {
        let (_root, sysfs) = fixture();
        let nic = sysfs.net_class(&InterfaceName::new("veth0").unwrap());
        assert_eq!((nic.irqs().unwrap(), nic.numa_node().unwrap(), nic.bus_name().unwrap()), (None, None, None));
        assert_eq!(nic.gro_flush_timeout_ns().unwrap(), 20_000);
        assert!(nic.napi_defer_hard_irqs().unwrap_err().is_absent());
    }

    #[test]
    fn only_a_number_or_minus_one_is_parsed() {
        assert_eq!(parse_or_minus_one(b"-1\n"), Ok(None));
        assert_eq!(parse_or_minus_one(b"10000\n"), Ok(Some(10_000)));
        for malformed in [&b""[..], b"-2\n", b"+1\n", b"fast\n"] {
            assert!(parse_or_minus_one(malformed).is_err());
        }
    }
}
