//! What kernel this is, for display and for result files, and where it shows its sysfs. What the
//! kernel can do is never inferred from it: features are probed where they are used.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_a_release() {
        let proc = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(Kernel::running().release, proc.trim_end());
    }
}
