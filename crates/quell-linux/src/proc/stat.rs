//! `/proc/stat`: CPU time by kind, in ticks of `USER_HZ`. The kernel measures idle time. It samples the other kinds at
//! the timer tick, unless it has precise accounting (`VIRT_CPU_ACCOUNTING_GEN`). The sampled values are too coarse for
//! short intervals.

use std::collections::BTreeMap;
use std::time::Duration;

use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// A time in units of 1/`USER_HZ` seconds (usually 10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

impl Ticks {
    /// Converts the time to a duration with this kernel's `USER_HZ` (`getauxval(AT_CLKTCK)`).
    #[must_use]
    pub fn duration(self) -> Duration {
        let user_hz = rustix::param::clock_ticks_per_second().max(1);
        let nanos = u128::from(self.0) * 1_000_000_000 / u128::from(user_hz);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Difference from an earlier reading. It is zero if the counter decreased, which the kernel's documentation allows
    /// for `iowait` and `idle`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// Times of a CPU since boot, by kind. A time is `None` if this kernel does not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// Time in user mode, including `guest`.
    pub user: Ticks,
    /// Time of niced tasks in user mode, including `guest_nice`.
    pub nice: Ticks,
    /// Time in kernel mode, without interrupts and softirqs.
    pub system: Ticks,
    pub idle: Ticks,
    /// Idle time while a task of this CPU waits for a block device.
    pub iowait: Option<Ticks>,
    /// Time in hardware interrupt handlers.
    pub irq: Option<Ticks>,
    /// Time in softirqs outside `ksoftirqd`.
    pub softirq: Option<Ticks>,
    /// Time that the virtual CPU was runnable while the hypervisor ran something else.
    pub steal: Option<Ticks>,
    /// Time running a guest; `user` includes it.
    pub guest: Option<Ticks>,
    /// Time running a niced guest; `nice` includes it.
    pub guest_nice: Option<Ticks>,
}

/// The parts of `/proc/stat` that Quell uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub cpus: BTreeMap<u32, CpuTimes>,
    pub context_switches: Option<u64>,
}

impl Stat {
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
