//! What the first program of a freshly started kernel does before anything else can run: mounting the kernel's file
//! systems, loading driver modules, speaking over a serial port, restarting. For the guest of the vm lab, where Quell
//! is that program; on a host none of it is called.

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

/// The kernel's file systems that programs expect, by kind and place, in the order of their mounting.
const FILE_SYSTEMS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// Those that a kernel may be built without.
const OPTIONAL: &[&str] = &["tracefs"];

/// A step that the kernel refused.
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

/// Mounts the kernel's file systems, and memory on `/run` and `/tmp`.
///
/// # Errors
/// When a mount is refused; a kernel without tracefs is none.
pub fn mount_kernel_file_systems() -> Result<(), BootError> {
    for &(kind, place) in FILE_SYSTEMS {
        let place = Path::new(place);
        let mounted =
            fs::create_dir_all(place).and_then(|()| Ok(mount(kind, place, kind, MountFlags::empty(), None::<&CStr>)?));
        match mounted {
            // Initramfs kernels mount devtmpfs by themselves when they are built to.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {}
            Err(_) if OPTIONAL.contains(&kind) => {}
            other => other.map_err(BootError::on("mount", place))?,
        }
    }
    Ok(())
}

/// Starts the CPUs that the kernel was told to leave for later (`maxcpus=`).
///
/// # Errors
/// When one of them does not start.
pub fn start_further_cpus() -> Result<(), BootError> {
    let cpus = Path::new("/sys/devices/system/cpu");
    for entry in fs::read_dir(cpus).map_err(BootError::on("list", cpus))? {
        // The first CPU of most machines has no such file: it cannot be stopped.
        let switch = entry.map_err(BootError::on("list", cpus))?.path().join("online");
        if fs::read(&switch).is_ok_and(|state| state.starts_with(b"0")) {
            fs::write(&switch, "1").map_err(BootError::on("start the CPU of", &switch))?;
        }
    }
    Ok(())
}

/// Loads a driver module from a file; one that is compressed (`.ko.xz`, `.ko.zst`) is decompressed by the kernel. A
/// module that is there already is no error.
///
/// # Errors
/// What `finit_module(2)` said: `ENOENT` when it needs another module first, which the kernel's log names.
pub fn load_module(path: &Path) -> Result<(), BootError> {
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let flags = if compressed { MODULE_INIT_COMPRESSED_FILE } else { 0 };
    match File::open(path).and_then(|file| Ok(finit_module(file, c"", flags)?)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(BootError::on("load the module", path)),
    }
}

/// Opens a serial port such that bytes pass as they are, in both directions.
///
/// # Errors
/// When there is no such port or it is no terminal.
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

/// Waits until all that was written to a serial port has left it.
///
/// # Errors
/// When it is no terminal.
pub fn drain_serial_port(port: &File) -> io::Result<()> {
    Ok(tcdrain(port)?)
}

/// Restarts the machine at once. Nothing is written back: what runs here keeps nothing.
///
/// # Errors
/// When the caller may not, or the kernel does not.
pub fn restart() -> io::Result<()> {
    Ok(reboot(RebootCommand::Restart)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_no_terminal_is_refused_by_name() {
        let error = open_serial_port(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.starts_with("could not open the serial port /dev/null: "), "{error}");
    }

    #[test]
    fn a_module_that_is_not_there_is_refused_by_name() {
        let error = load_module(Path::new("/nonexistent/a.ko.xz")).unwrap_err().to_string();
        assert!(error.starts_with("could not load the module /nonexistent/a.ko.xz: "), "{error}");
    }
}
