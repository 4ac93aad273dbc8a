//! What kernel this is, for display and for result files, where it shows its sysfs, and whether its threads are in sight.
//! What the kernel can do is never inferred from its version: features are probed where they are used.

use std::path::Path;

use crate::Pid;
use crate::proc::ProcRoot;

/// The kernel's words about itself (`uname(2)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Like `6.18.4-amd64`.
    pub release: String,
    /// Build number, options and date, like `#1 SMP PREEMPT_DYNAMIC …`.
    pub version: String,
    /// The architecture, like `x86_64`.
    pub machine: String,
}

impl Kernel {
    /// The running kernel.
    #[must_use]
    pub fn running() -> Self {
        let uname = rustix::system::uname();
        let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
        Self { release: text(uname.release()), version: text(uname.version()), machine: text(uname.machine()) }
    }
}

/// Where sysfs is mounted, for those functions that take its root.
#[must_use]
pub fn sysfs() -> &'static Path {
    Path::new("/sys")
}

/// Whether the kernel's threads can be named here: in the initial PID namespace, where the second process is the parent of
/// them all (`rest_init`, `init/main.c`). In a container with a PID namespace of its own netlink names no NAPI thread, and
/// the kernel's programs know processes by other numbers than this one does.
#[must_use]
pub fn threads_are_in_sight(proc: &ProcRoot) -> bool {
    let second = Pid::new(2).unwrap_or_else(|| unreachable!("two is positive"));
    proc.process(second).stat().is_ok_and(|stat| stat.comm == b"kthreadd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_the_kernels_threads_is_told_from_a_host() {
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
