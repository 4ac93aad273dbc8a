//! The running kernel: its version for display and result files, the mount point of sysfs, and the visibility of kernel
//! threads. Quell probes for kernel features and never infers them from the version.

use std::path::Path;

use crate::Pid;
use crate::proc::ProcRoot;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Release, for example `6.18.4-amd64`.
    pub release: String,
    /// Build number, build options and date, for example `#1 SMP PREEMPT_DYNAMIC …`.
    pub version: String,
    pub machine: String,
}

impl Kernel {
    #[must_use]
    pub fn running() -> Self {
        let uname = rustix::system::uname();
        let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
        Self { release: text(uname.release()), version: text(uname.version()), machine: text(uname.machine()) }
    }
}

#[must_use]
pub fn sysfs() -> &'static Path {
    Path::new("/sys")
}

/// Whether kernel threads are visible. In the initial PID namespace, PID 2 is the parent of all kernel threads
/// (`rest_init` in `init/main.c`). A container with its own PID namespace has no such process. Netlink reports no NAPI
/// threads there, and BPF programs see PIDs that differ from those in the container.
#[must_use]
pub fn threads_are_in_sight(proc: &ProcRoot) -> bool {
    let second = Pid::new(2).unwrap_or_else(|| unreachable!("two is positive"));
    proc.process(second).stat().is_ok_and(|stat| stat.comm == b"kthreadd")
}

/// Name of this host in its UTS namespace (`uname(2)`).
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_kernel_threads_is_distinguished_from_a_host() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("2")).unwrap();
        let second = |name: &str| {
            let stat = format!("2 ({name}) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 6 0 0 {}", "0 ".repeat(29));
            std::fs::write(proc.path().join("2/stat"), stat).unwrap();
            threads_are_in_sight(&ProcRoot::new(proc.path()))
        };
        assert!(second("kthreadd"));
        assert!(!second("sh"));
    }

    #[test]
    fn the_running_kernel_has_a_release() {
        let proc = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(Kernel::running().release, proc.trim_end());
    }
}
