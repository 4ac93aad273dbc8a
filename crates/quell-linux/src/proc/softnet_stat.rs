//! `/proc/net/softnet_stat`: packets that each CPU processed from queues and from its backlog (`softnet_seq_show` in
//! `net/core/net-procfs.c`). The counters cover the whole host, not one network namespace.

use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// Counters of a CPU since boot. They are 32 bits wide and wrap to 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftnetCpu {
    /// CPU number; `None` before Linux 5.10, which does not report it.
    pub cpu: Option<u32>,
    pub processed: u32,
    /// Number of packets dropped because the backlog was full.
    pub dropped: u32,
    /// Number of runs of `net_rx_action` that ended with work remaining.
    pub time_squeeze: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftnetStat {
    pub cpus: Vec<SoftnetCpu>,
}

impl SoftnetStat {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(Self { cpus: lines(bytes).map(cpu).collect::<Result<_, _>>()? })
    }

    /// Counters of a CPU. `None` if the CPU is offline, or the kernel does not report CPU numbers.
    #[must_use]
    pub fn cpu(&self, number: u32) -> Option<SoftnetCpu> {
        self.cpus.iter().find(|cpu| cpu.cpu == Some(number)).copied()
    }
}

fn cpu(line: Line<'_>) -> Result<SoftnetCpu, Malformed> {
    const CPU_COLUMN: usize = 12;
    let hex = |field: &[u8]| {
        let digits = std::str::from_utf8(field).ok();
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        number.ok_or_else(|| line.malformed("a hexadecimal number of 32 bits", field))
    };
    let mut fields = line.fields();
    let mut next = || hex(fields.next().unwrap_or_default());
    let (processed, dropped, time_squeeze) = (next()?, next()?, next()?);
    let cpu = line.fields().nth(CPU_COLUMN).map(hex).transpose()?;
    Ok(SoftnetCpu { cpu, processed, dropped, time_squeeze })
}

impl ProcRoot {
    pub fn softnet_stat(&self) -> Result<SoftnetStat, ProcError> {
        self.read("thread-self/net/softnet_stat", SoftnetStat::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_hexadecimal() {
        let text = b"0c91efa4 00000001 0000001f 0 0 0 0 0 0 0 0 0 0000000a 0 0\n";
        let stat = SoftnetStat::parse(text).unwrap();
        let wanted = SoftnetCpu { cpu: Some(10), processed: 0x0c91_efa4, dropped: 1, time_squeeze: 31 };
        assert_eq!(stat.cpu(10), Some(wanted));
        assert_eq!(stat.cpu(0), None);
    }

    #[test]
    fn an_old_kernel_does_not_report_the_cpu_number() {
        let stat = SoftnetStat::parse(b"00000002 00000000 00000000 00000000\n").unwrap();
        assert_eq!((stat.cpus[0].cpu, stat.cpus[0].processed), (None, 2));
    }

    #[test]
    fn a_line_without_its_counters_is_an_error() {
        assert_eq!(SoftnetStat::parse(b"1 2 3\n1 2\n").unwrap_err().line, 2);
    }
}
