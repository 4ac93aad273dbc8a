//! `/proc/stat`: CPU time by kind, in ticks of `USER_HZ`. Only idle time is measured; the other kinds are
//! sampled at the timer tick, unless the kernel has precise accounting (`VIRT_CPU_ACCOUNTING_GEN`). Over short
//! windows the values do not prove CPU use.

use std::collections::BTreeMap;
use std::time::Duration;

use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// A time in units of 1/`USER_HZ` seconds (usually 10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The time as a duration, with this kernel's `USER_HZ` (`getauxval(AT_CLKTCK)`).
    #[must_use]
    pub fn duration(self) -> Duration {
        let user_hz = rustix::param::clock_ticks_per_second().max(1);
        let nanos = u128::from(self.0) * 1_000_000_000 / u128::from(user_hz);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Difference to an earlier reading. Zero if the kernel's counter decreased, as documented for `iowait` and
    /// `idle`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// Times of a CPU since boot; `None` if this kernel does not report a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// User mode, including `guest`.
    pub user: Ticks,
    /// User mode of niced tasks, including `guest_nice`.
    pub nice: Ticks,
    /// Kernel mode, without interrupts.
    pub system: Ticks,
    /// Idle.
    pub idle: Ticks,
    /// Idle while a task of this CPU waits for a block device.
    pub iowait: Option<Ticks>,
    /// Interrupt handlers.
    pub irq: Option<Ticks>,
    /// Softirqs outside `ksoftirqd`.
    pub softirq: Option<Ticks>,
    /// Runnable while the hypervisor ran another guest.
    pub steal: Option<Ticks>,
    /// Running a guest; included in `user`.
    pub guest: Option<Ticks>,
    /// Running a niced guest; included in `nice`.
    pub guest_nice: Option<Ticks>,
}

/// The parts of `/proc/stat` that Quell uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Times of each online CPU by number.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// Context switches since boot.
    pub context_switches: Option<u64>,
}

impl Stat {
    /// Parses the file.
    ///
    /// # Errors
    /// When the line of a CPU lacks its number or one of its first four times, or contains an invalid number.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut stat = Self { cpus: BTreeMap::new(), context_switches: None };
        for line in lines(bytes) {
            let mut fields = line.fields();
            let Some(key) = fields.next() else { continue };
            if key == b"ctxt" {
                let switches = line.next_number(&mut fields, "the number of context switches")?;
                stat.context_switches = Some(switches);
            } else if let Some(cpu) = key.strip_prefix(b"cpu").filter(|cpu| !cpu.is_empty()) {
                let cpu = line.number(cpu, "a CPU number after `cpu`")?;
                stat.cpus.insert(cpu, cpu_times(line, fields)?);
            }
        }
        Ok(stat)
    }
}

fn cpu_times<'a>(line: Line<'a>, mut fields: impl Iterator<Item = &'a [u8]>) -> Result<CpuTimes, Malformed> {
    const EXPECTED: &str = "a time in ticks";
    let mut first = || line.next_number(&mut fields, EXPECTED).map(Ticks);
    let (user, nice, system, idle) = (first()?, first()?, first()?, first()?);
    let mut further = || {
        let field = fields.next();
        field.map(|field| line.number(field, EXPECTED).map(Ticks)).transpose()
    };
    Ok(CpuTimes {
        user,
        nice,
        system,
        idle,
        iowait: further()?,
        irq: further()?,
        softirq: further()?,
        steal: further()?,
        guest: further()?,
        guest_nice: further()?,
    })
}

impl ProcRoot {
    /// Reads `/proc/stat`.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn stat(&self) -> Result<Stat, ProcError> {
        self.read("stat", Stat::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_line_is_not_a_cpu() {
        let stat = Stat::parse(b"cpu  3 0 0 9\ncpu0 1 2 3 4 5 6 7 8 9 10\nctxt 77\n").unwrap();
        assert_eq!(stat.cpus.keys().collect::<Vec<_>>(), [&0]);
        assert_eq!(stat.cpus[&0].guest_nice, Some(Ticks(10)));
        assert_eq!(stat.context_switches, Some(77));
    }

    #[test]
    fn an_unreported_column_is_absent() {
        let stat = Stat::parse(b"cpu1 1 2 3 4 5\n").unwrap();
        assert_eq!((stat.cpus[&1].iowait, stat.cpus[&1].steal), (Some(Ticks(5)), None));
    }

    #[test]
    fn an_error_contains_the_line_and_the_expected_content() {
        let error = Stat::parse(b"cpu 1 2 3 4\ncpu0 1 2 three 4\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected a time in ticks, found `three`");
    }
}
