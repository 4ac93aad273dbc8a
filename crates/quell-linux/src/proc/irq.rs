//! `/proc/irq/N`: configured and effective CPU affinity of interrupts.

use std::fs::File;
use std::io::{self, Write as _};

use thiserror::Error;

use super::text::{Malformed, first_line};
use super::{ProcError, ProcRoot};
use crate::bit_mask;
use crate::cpu_list::CpuList;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcWriteError {
    #[error("writing {value:?} to {path}: {source}; this needs root")]
    Denied { path: std::path::PathBuf, value: String, source: io::Error },
    #[error("writing {value:?} to {path}: {source}")]
    Refused { path: std::path::PathBuf, value: String, source: io::Error },
}

impl ProcWriteError {
    /// Whether the file does not exist, because this kernel or namespace lacks the interrupt or sysctl.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }
}

pub(crate) fn parse_list(bytes: &[u8]) -> Result<CpuList, Malformed> {
    let line = first_line(bytes);
    let text = std::str::from_utf8(line.bytes).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| line.malformed("a list of CPUs", line.bytes))
}

pub(crate) fn parse_mask(bytes: &[u8]) -> Result<CpuList, Malformed> {
    let line = first_line(bytes);
    let cpus = bit_mask::parse(line.bytes).ok_or_else(|| line.malformed("a mask of CPUs", line.bytes))?;
    Ok(CpuList::from_iter(cpus))
}

impl ProcRoot {
    /// `smp_affinity_list`: the CPUs that may handle an interrupt.
    pub fn irq_affinity(&self, irq: u32) -> Result<CpuList, ProcError> {
        self.read(&format!("irq/{irq}/smp_affinity_list"), parse_list)
    }

    /// `effective_affinity_list`: the CPUs that handle an interrupt, usually a single one. The file does not exist on
    /// architectures that do not report it.
    pub fn irq_effective_affinity(&self, irq: u32) -> Result<CpuList, ProcError> {
        self.read(&format!("irq/{irq}/effective_affinity_list"), parse_list)
    }

    /// `default_smp_affinity`: the initial affinity of new interrupts.
    pub fn default_irq_affinity(&self) -> Result<CpuList, ProcError> {
        self.read("irq/default_smp_affinity", parse_mask)
    }

    /// Sets the CPUs that may handle an interrupt. Errors: `EINVAL` if none of the CPUs is online. `EPERM` (also for
    /// root) or `EIO` if the kernel manages the interrupt's affinity or the chip cannot change it.
    pub fn set_irq_affinity(&self, irq: u32, cpus: &CpuList) -> Result<(), ProcWriteError> {
        self.write(&format!("irq/{irq}/smp_affinity_list"), &cpus.to_string())
    }

    /// Checks whether the caller can set affinities of interrupts, without setting one. Fails if the default affinity,
    /// whose file has the same permissions, cannot be opened for writing.
    pub fn check_irq_affinity_writable(&self) -> io::Result<()> {
        self.check_writable("irq/default_smp_affinity")
    }

    pub(super) fn write(&self, name: &str, value: &str) -> Result<(), ProcWriteError> {
        let opened = File::options().write(true).truncate(true).open(self.path().join(name));
        let written = opened.and_then(|mut open| open.write_all(value.as_bytes()));
        written.map_err(|source| {
            let (path, value) = (self.path().join(name), value.to_owned());
            match source.kind() {
                io::ErrorKind::PermissionDenied => ProcWriteError::Denied { path, value, source },
                _ => ProcWriteError::Refused { path, value, source },
            }
        })
    }

    pub(super) fn check_writable(&self, name: &str) -> io::Result<()> {
        File::options().write(true).open(self.path().join(name)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use quell_test_support::{Lacks, skip};

    fn fixture() -> (tempfile::TempDir, ProcRoot) {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("irq/42");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("smp_affinity_list"), "0-3\n").unwrap();
        fs::write(directory.join("effective_affinity_list"), "2\n").unwrap();
        fs::write(root.path().join("irq/default_smp_affinity"), "f,ffffffff\n").unwrap();
        let proc = ProcRoot::new(root.path());
        (root, proc)
    }

    #[test]
    fn configured_and_effective_affinity_are_two_lists() {
        let (_root, proc) = fixture();
        assert_eq!(proc.irq_affinity(42).unwrap().to_string(), "0-3");
        assert_eq!(proc.irq_effective_affinity(42).unwrap().to_string(), "2");
        assert_eq!(proc.default_irq_affinity().unwrap().len(), 36);
        proc.set_irq_affinity(42, &"1,3".parse().unwrap()).unwrap();
        assert_eq!(proc.irq_affinity(42).unwrap().to_string(), "1,3");
    }

    #[test]
    fn a_missing_interrupt_is_absent_and_no_file_is_created() {
        let (root, proc) = fixture();
        assert!(proc.irq_affinity(43).unwrap_err().is_absent());
        assert!(proc.set_irq_affinity(43, &CpuList::default()).unwrap_err().is_absent());
        assert!(!root.path().join("irq/43").exists());
    }

    #[test]
    fn this_kernel_reports_the_default_affinity() {
        match ProcRoot::default().default_irq_affinity() {
            Ok(cpus) => assert!(!cpus.is_empty()),
            Err(error) => skip(Lacks::KernelFeature, &error),
        }
    }
}
