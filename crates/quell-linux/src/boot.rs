//! Tasks of the init process: mounts kernel file systems, loads driver modules, opens a serial port and restarts the
//! machine. Only the guest of the vm lab uses this module, because Quell runs as init there.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};
use thiserror::Error;

/// `MODULE_INIT_COMPRESSED_FILE` of `include/uapi/linux/module.h`.
const MODULE_INIT_COMPRESSED_FILE: i32 = 4;

/// Kernel file systems that programs expect, each with its type and mount point, in mount order.
const FILE_SYSTEMS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// File systems that are optional, because a kernel may be built without them.
const OPTIONAL: &[&str] = &["tracefs"];

#[derive(Debug, Error)]
#[error("could not {action} {path}: {source}")]
pub struct BootError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl BootError {
    fn on(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// Mounts the kernel file systems, and tmpfs on `/run` and `/tmp`. A kernel without tracefs is not an error.
pub fn mount_kernel_file_systems() -> Result<(), BootError> {
    for &(kind, place) in FILE_SYSTEMS {
        let place = Path::new(place);
        let mounted =
            fs::create_dir_all(place).and_then(|()| Ok(mount(kind, place, kind, MountFlags::empty(), None::<&CStr>)?));
        match mounted {
            // A kernel with `CONFIG_DEVTMPFS_MOUNT` already mounted devtmpfs.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {}
            Err(_) if OPTIONAL.contains(&kind) => {}
            other => other.map_err(BootError::on("mount", place))?,
        }
    }
    Ok(())
}

/// Brings online the CPUs that `maxcpus=` left offline at boot.
pub fn start_further_cpus() -> Result<(), BootError> {
    let cpus = Path::new("/sys/devices/system/cpu");
    for entry in fs::read_dir(cpus).map_err(BootError::on("list", cpus))? {
        // The boot CPU of most machines has no file `online`, because it cannot be taken offline.
        let switch = entry.map_err(BootError::on("list", cpus))?.path().join("online");
        if fs::read(&switch).is_ok_and(|state| state.starts_with(b"0")) {
            fs::write(&switch, "1").map_err(BootError::on("start the CPU of", &switch))?;
        }
    }
    Ok(())
}

/// Loads a driver module from a file. The kernel decompresses `.ko.xz` and `.ko.zst`. An already loaded module is not
/// an error. Errors: those of `finit_module(2)`. `ENOENT` means that a module it depends on is missing; the kernel log
/// names that module.
pub fn load_module(path: &Path) -> Result<(), BootError> {
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let flags = if compressed { MODULE_INIT_COMPRESSED_FILE } else { 0 };
    match File::open(path).and_then(|file| Ok(finit_module(file, c"", flags)?)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(BootError::on("load the module", path)),
    }
}

/// Opens a serial port in raw mode, in both directions.
pub fn open_serial_port(path: &Path) -> Result<File, BootError> {
    let open = || {
        let no_controlling_terminal = OFlags::NOCTTY.bits().cast_signed();
        let port = OpenOptions::new().read(true).write(true).custom_flags(no_controlling_terminal).open(path)?;
        let mut modes = tcgetattr(&port)?;
        modes.make_raw();
        tcsetattr(&port, OptionalActions::Now, &modes)?;
        Ok(port)
    };
    open().map_err(BootError::on("open the serial port", path))
}

pub fn drain_serial_port(port: &File) -> io::Result<()> {
    Ok(tcdrain(port)?)
}

/// Restarts the machine at once, without writing back file systems, because the guest stores no data.
pub fn restart() -> io::Result<()> {
    Ok(reboot(RebootCommand::Restart)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_not_a_terminal_is_refused_by_name() {
        let error = open_serial_port(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.starts_with("could not open the serial port /dev/null: "), "{error}");
    }

    #[test]
    fn a_missing_module_file_is_refused_by_name() {
        let error = load_module(Path::new("/nonexistent/a.ko.xz")).unwrap_err().to_string();
        assert!(error.starts_with("could not load the module /nonexistent/a.ko.xz: "), "{error}");
    }
}
