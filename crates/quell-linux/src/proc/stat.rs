//! `/proc/stat`: where each CPU's time went, in ticks of `USER_HZ`. Unless the kernel is built with
//! precise accounting (`VIRT_CPU_ACCOUNTING_GEN`) the kinds are sampled at the timer tick, idle time
//! alone is measured; over short windows this is no proof of CPU use.

use std::collections::BTreeMap;
use std::time::Duration;

use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// A time in units of 1/`USER_HZ` seconds (mostly 10 ms), as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The time as a duration, by this kernel's `USER_HZ` (`getauxval(AT_CLKTCK)`).
    #[must_use]
    pub fn duration(self) -> Duration {
        let user_hz = rustix::param::clock_ticks_per_second().max(1);
        let nanos = u128::from(self.0) * 1_000_000_000 / u128::from(user_hz);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The ticks since an earlier reading; zero when the kernel's counter went backwards, which
    /// `iowait` and `idle` are documented to do.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// The time of one CPU since boot. What this kernel does not report is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// User mode, `guest` included.
    pub user: Ticks,
    /// User mode at a lowered priority, `guest_nice` included.
    pub nice: Ticks,
    /// Kernel mode, interrupts excluded.
    pub system: Ticks,
    /// Idle.
    pub idle: Ticks,
    /// Idle while a task of this CPU waits for a block device.
    pub iowait: Option<Ticks>,
    /// Interrupt handlers.
    pub irq: Option<Ticks>,
    /// Softirqs outside of `ksoftirqd`.
    pub softirq: Option<Ticks>,
    /// Wanted to run while the hypervisor ran something else.
    pub steal: Option<Ticks>,
    /// Ran a guest; already in `user`.
    pub guest: Option<Ticks>,
    /// Ran a guest at a lowered priority; already in `nice`.
    pub guest_nice: Option<Ticks>,
}

/// `/proc/stat`, as far as it is about CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Each online CPU by its number.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// Context switches since boot.
    pub context_switches: Option<u64>,
}

impl Stat {
    /// Parses the file.
    ///
    /// # Errors
    /// When a CPU's line has no number or less than its first four times, or any is no number.
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
    fn a_column_that_the_kernel_does_not_print_is_absent() {
        let stat = Stat::parse(b"cpu1 1 2 3 4 5\n").unwrap();
        assert_eq!((stat.cpus[&1].iowait, stat.cpus[&1].steal), (Some(Ticks(5)), None));
    }

    #[test]
    fn an_error_names_the_line_and_what_was_expected() {
        let error = Stat::parse(b"cpu 1 2 3 4\ncpu0 1 2 three 4\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected a time in ticks, found `three`");
    }
}
