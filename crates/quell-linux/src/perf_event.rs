//! Cycles and instructions of whole CPUs by `perf_event_open(2)`. Virtual machines often have no hardware counters.

use std::io;

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};

use crate::CpuList;

/// Hardware counters of a set of CPUs, in user space and in the kernel. Needs CAP_PERFMON, or `perf_event_paranoid` of
/// at most 0.
#[derive(Debug)]
pub struct HardwareCounters {
    cycles: CpuCounter,
    instructions: CpuCounter,
}

#[derive(Debug, Clone)]
pub struct HardwareReading {
    cycles: Vec<CounterValue>,
    instructions: Vec<CounterValue>,
}

#[derive(Debug, thiserror::Error)]
pub enum PerfEventError {
    #[error("CPU {cpu} has no hardware counter of {event} (perf_event_open: {source}); hypervisors often hide it")]
    NoCounter { event: &'static str, cpu: u32, source: io::Error },
    #[error(
        "counting {event} on CPU {cpu}: perf_event_open: {source}; CAP_PERFMON or kernel.perf_event_paranoid=0 permits it"
    )]
    Refused { event: &'static str, cpu: u32, source: io::Error },
}

impl HardwareCounters {
    pub fn open(cpus: &CpuList) -> Result<Self, PerfEventError> {
        Ok(Self {
            cycles: CpuCounter::open("CPU cycles", Hardware::CPU_CYCLES, cpus)?,
            instructions: CpuCounter::open("instructions", Hardware::INSTRUCTIONS, cpus)?,
        })
    }

    /// Reads the counters. Errors: those of `read(2)`, for example after a CPU went offline.
    pub fn read(&mut self) -> io::Result<HardwareReading> {
        Ok(HardwareReading { cycles: self.cycles.read()?, instructions: self.instructions.read()? })
    }
}

impl HardwareReading {
    /// Number of CPU cycles on all CPUs since `earlier`. `None` if a counter did not run in between.
    #[must_use]
    pub fn cycles_since(&self, earlier: &Self) -> Option<u64> {
        increase(&earlier.cycles, &self.cycles)
    }

    /// Number of instructions on all CPUs since `earlier`. `None` if a counter did not run in between.
    #[must_use]
    pub fn instructions_since(&self, earlier: &Self) -> Option<u64> {
        increase(&earlier.instructions, &self.instructions)
    }
}

#[derive(Debug)]
struct CpuCounter(Vec<Counter>);

/// Value of a counter, and for how long the kernel was asked to count and did count. The second time is shorter if
/// several counters share one hardware register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CounterValue {
    count: u64,
    enabled_ns: u64,
    running_ns: u64,
}

impl CpuCounter {
    fn open(name: &'static str, event: impl Event + Clone, cpus: &CpuList) -> Result<Self, PerfEventError> {
        let on_cpu = |cpu: u32| {
            let counter =
                Builder::new(event.clone()).any_pid().one_cpu(cpu as usize).exclude_kernel(false).enabled(true).build();
            counter.map_err(|source| match source.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
                    PerfEventError::NoCounter { event: name, cpu, source }
                }
                _ => PerfEventError::Refused { event: name, cpu, source },
            })
        };
        cpus.iter().map(on_cpu).collect::<Result<_, _>>().map(Self)
    }

    fn read(&mut self) -> io::Result<Vec<CounterValue>> {
        let read = |counter: &mut Counter| {
            let value = counter.read_count_and_time()?;
            Ok(CounterValue { count: value.count, enabled_ns: value.time_enabled, running_ns: value.time_running })
        };
        self.0.iter_mut().map(read).collect()
    }
}

/// Sums the increases over all CPUs. Extrapolates to the time in which the kernel used a register for another counter.
fn increase(from: &[CounterValue], to: &[CounterValue]) -> Option<u64> {
    let of_cpu = |(from, to): (&CounterValue, &CounterValue)| {
        let count = u128::from(to.count.checked_sub(from.count)?);
        let enabled = u128::from(to.enabled_ns.checked_sub(from.enabled_ns)?);
        let running = u128::from(to.running_ns.checked_sub(from.running_ns)?);
        u64::try_from((count * enabled).checked_div(running)?).ok()
    };
    from.iter().zip(to).map(of_cpu).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use quell_test_support::{Lacks, skip};

    fn value(count: u64, enabled_ns: u64, running_ns: u64) -> CounterValue {
        CounterValue { count, enabled_ns, running_ns }
    }

    #[test]
    fn increases_of_all_cpus_are_added() {
        let from = [value(1_000, 50, 50), value(0, 0, 0)];
        let to = [value(4_000, 150, 150), value(500, 100, 100)];
        assert_eq!(increase(&from, &to), Some(3_500));
    }

    #[test]
    fn a_counter_that_ran_for_a_quarter_of_the_time_is_extrapolated() {
        // `perf stat` prints such reads with "(25.00%)".
        let (from, to) = ([value(7_000_000, 1_000, 250)], [value(8_000_000, 5_000, 1_250)]);
        assert_eq!(increase(&from, &to), Some(4_000_000));
    }

    #[test]
    fn a_counter_that_never_ran_has_no_increase() {
        let (from, to) = ([value(0, 1_000, 0), value(1, 1, 1)], [value(0, 9_000, 0), value(2, 2, 2)]);
        assert_eq!(increase(&from, &to), None);
    }

    #[test]
    fn the_cpu_clock_of_a_cpu_advances() {
        let online = CpuList::online(crate::kernel::sysfs()).unwrap();
        let mut counter = match CpuCounter::open("CPU clock", Software::CPU_CLOCK, &online) {
            Ok(counter) => counter,
            Err(error) => return skip(Lacks::Root, error),
        };
        let from = counter.read().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 20 {}
        let advanced = increase(&from, &counter.read().unwrap()).unwrap();
        assert!(advanced >= 20_000_000, "{advanced} ns on {online}");
    }

    #[test]
    fn a_machine_without_hardware_counters_says_so() {
        match HardwareCounters::open(&[0].into_iter().collect()) {
            Ok(mut counters) => {
                let from = counters.read().unwrap();
                let to = counters.read().unwrap();
                assert!(to.cycles_since(&from) > Some(0) && to.instructions_since(&from) > Some(0));
            }
            Err(error) => assert!(error.to_string().contains("CPU cycles"), "{error}"),
        }
    }
}
