//! `/proc/PID/status`: context switches, thread count, peak memory, capabilities and allowed CPUs of a process
//! or thread.

use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};
use crate::CpuList;
use crate::capability::CapabilitySet;

/// Fields of `/proc/PID/status` that Quell uses. A field is `None` if this kernel does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PidStatus {
    pub threads: Option<u64>,
    /// Peak resident memory in KiB (`VmHWM`); `None` for kernel threads.
    pub peak_rss_kib: Option<u64>,
    /// Signals that are pending for this thread, and for its process: bit 0 is signal 1.
    pub pending_signals: Option<u64>,
    pub cap_eff: Option<CapabilitySet>,
    pub cpus_allowed: Option<CpuList>,
    /// Number of voluntary context switches, in which the task waited.
    pub voluntary_ctxt_switches: Option<u64>,
    /// Number of involuntary context switches, in which the task was preempted.
    pub nonvoluntary_ctxt_switches: Option<u64>,
}

impl PidStatus {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut status = Self::default();
        for line in lines(bytes) {
            let Some(colon) = line.bytes.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let value = line.bytes[colon + 1..].trim_ascii();
            match &line.bytes[..colon] {
                b"Threads" => status.threads = Some(line.number(value, "a thread count")?),
                b"VmHWM" => {
                    let number = value.strip_suffix(b" kB").unwrap_or(value).trim_ascii();
                    status.peak_rss_kib = Some(line.number(number, "a size in kB")?);
                }
                // One of the two lines is for the thread, the other for the process.
                b"SigPnd" | b"ShdPnd" => {
                    let pending = hexadecimal(line, value, "a set of signals as a hexadecimal number")?;
                    *status.pending_signals.get_or_insert_default() |= pending;
                }
                b"CapEff" => status.cap_eff = Some(capabilities(line, value)?),
                b"Cpus_allowed_list" => status.cpus_allowed = Some(cpu_list(line, value)?),
                b"voluntary_ctxt_switches" => {
                    status.voluntary_ctxt_switches = Some(line.number(value, "a count")?);
                }
                b"nonvoluntary_ctxt_switches" => {
                    status.nonvoluntary_ctxt_switches = Some(line.number(value, "a count")?);
                }
                _ => {}
            }
        }
        Ok(status)
    }
}

fn capabilities(line: Line<'_>, value: &[u8]) -> Result<CapabilitySet, Malformed> {
    hexadecimal(line, value, "capabilities as a hexadecimal number").map(CapabilitySet::from_bits)
}

pub(super) fn hexadecimal(line: Line<'_>, value: &[u8], expected: &'static str) -> Result<u64, Malformed> {
    let digits = std::str::from_utf8(value).ok();
    digits.and_then(|hex| u64::from_str_radix(hex, 16).ok()).ok_or_else(|| line.malformed(expected, value))
}

fn cpu_list(line: Line<'_>, value: &[u8]) -> Result<CpuList, Malformed> {
    std::str::from_utf8(value)
        .ok()
        .and_then(|list| list.parse().ok())
        .ok_or_else(|| line.malformed("a CPU list", value))
}

impl ProcDir {
    pub fn status(&self) -> Result<PidStatus, ProcError> {
        self.read("status", PidStatus::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = b"Name:\tx: y\nThreads:\t3\nCpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t9\n";
        let status = PidStatus::parse(text).unwrap();
        assert_eq!((status.threads, status.voluntary_ctxt_switches), (Some(3), Some(9)));
        assert_eq!(status.cpus_allowed, Some("0-1".parse().unwrap()));
        assert_eq!(status.nonvoluntary_ctxt_switches, None);
    }

    #[test]
    fn a_name_of_any_bytes_does_not_hide_the_fields() {
        let status = PidStatus::parse(b"Name:\ta)\xff Threads:\t9\nThreads:\t3\n").unwrap();
        assert_eq!(status.threads, Some(3));
    }

    #[test]
    fn pending_signals_are_those_of_the_thread_and_of_its_process() {
        let status = PidStatus::parse(b"SigPnd:\t0000000000000001\nShdPnd:\t0000000000000200\n").unwrap();
        assert_eq!(status.pending_signals, Some(0x201));
        assert!(PidStatus::parse(b"SigPnd:\tx\n").is_err());
    }

    #[test]
    fn an_invalid_number_is_an_error() {
        let error = PidStatus::parse(b"Name:\tx\nThreads:\tmany\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected a thread count, found `many`");
    }
}
