//! `/proc/cpuinfo` and `/proc/cmdline`, for the machine description in result files.

use super::text::{Malformed, lines};
use super::{ProcError, ProcRoot};

/// Parses the processor's name (`model name` of the first CPU). Returns `None` on architectures without that field, for
/// example arm64.
#[must_use]
pub fn parse_model_name(bytes: &[u8]) -> Option<String> {
    lines(bytes).find_map(|line| {
        let value = line.bytes.strip_prefix(b"model name")?.trim_ascii_start();
        let name = value.strip_prefix(b":")?.trim_ascii();
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    })
}

impl ProcRoot {
    /// Reads the processor's name; `None` if the kernel does not report it.
    pub fn cpu_model_name(&self) -> Result<Option<String>, ProcError> {
        self.read("cpuinfo", |bytes| Ok::<_, Malformed>(parse_model_name(bytes)))
    }

    /// Reads the kernel command line. It may contain private information about the machine.
    pub fn kernel_cmdline(&self) -> Result<String, ProcError> {
        self.read("cmdline", |bytes| {
            let text = String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
            Ok::<_, Malformed>(text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_first_cpu_is_read() {
        let text = b"processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor\n";
        assert_eq!(parse_model_name(text).unwrap(), "Intel(R) Xeon(R) Processor");
    }

    #[test]
    fn a_processor_without_a_model_name_has_no_name() {
        assert_eq!(parse_model_name(b"processor\t: 0\nCPU implementer\t: 0x41\n"), None);
    }
}
