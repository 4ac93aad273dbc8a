//! `/proc/net/softnet_stat`: what each CPU took in from queues and from its backlog (`softnet_seq_show` in
//! `net/core/net-procfs.c`). The file is of the whole host, in every namespace.

use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// The counters of one CPU since boot; they are 32 bits wide and start again at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftnetCpu {
    /// The CPU; `None` on kernels before 5.10, which do not say it.
    pub cpu: Option<u32>,
    /// Packets that the stack took in.
    pub processed: u32,
    /// Packets for which its backlog had no room.
    pub dropped: u32,
    /// Rounds of the receiving softirq that ended with work left.
    pub time_squeeze: u32,
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftnetStat {
    /// One entry for each online CPU.
    pub cpus: Vec<SoftnetCpu>,
}

impl SoftnetStat {
    /// Parses the file.
    ///
    /// # Errors
    /// When a line lacks one of the first three columns, or what is there is no hexadecimal number.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(Self { cpus: lines(bytes).map(cpu).collect::<Result<_, _>>()? })
    }

    /// The counters of a CPU; `None` when it is offline or the kernel does not say which is whose.
    #[must_use]
    pub fn cpu(&self, number: u32) -> Option<SoftnetCpu> {
        self.cpus.iter().find(|cpu| cpu.cpu == Some(number)).copied()
    }
}

fn cpu(line: Line<'_>) -> Result<SoftnetCpu, Malformed> {
    /// Which column says the CPU.
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
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
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
    fn an_old_kernel_does_not_say_which_cpu_it_is() {
        let stat = SoftnetStat::parse(b"00000002 00000000 00000000 00000000\n").unwrap();
        assert_eq!((stat.cpus[0].cpu, stat.cpus[0].processed), (None, 2));
    }

    #[test]
    fn a_line_without_its_counters_is_an_error() {
        assert_eq!(SoftnetStat::parse(b"1 2 3\n1 2\n").unwrap_err().line, 2);
    }
}
