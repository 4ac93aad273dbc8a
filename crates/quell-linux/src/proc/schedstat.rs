//! `/proc/PID/schedstat` and `/proc/PID/task/TID/schedstat`: the exact (not sampled) run time of a thread. A process's
//! file covers only its main thread. [`ProcDir::schedstat_of_all_threads`] sums all threads.

use std::time::Duration;

use super::text::{Malformed, first_line};
use super::{ProcDir, ProcError};

/// Scheduling statistics of a thread since its start (`proc_pid_schedstat` in `fs/proc/base.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Time that the thread ran on a CPU, in ns.
    pub run_ns: u64,
    /// Time that the runnable thread waited for a CPU, in ns.
    pub wait_ns: u64,
    /// Number of times that the thread was scheduled on a CPU.
    pub timeslices: u64,
}

impl Schedstat {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let line = first_line(bytes);
        let fields = &mut line.fields();
        Ok(Self {
            run_ns: line.next_number(fields, "run time in ns")?,
            wait_ns: line.next_number(fields, "waiting time in ns")?,
            timeslices: line.next_number(fields, "a number of time slices")?,
        })
    }

    #[must_use]
    pub fn run(self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Increase since an earlier reading. Absent if a value went backwards, as when a thread exits.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<Self> {
        Some(Self {
            run_ns: self.run_ns.checked_sub(earlier.run_ns)?,
            wait_ns: self.wait_ns.checked_sub(earlier.wait_ns)?,
            timeslices: self.timeslices.checked_sub(earlier.timeslices)?,
        })
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_add(other.run_ns),
            wait_ns: self.wait_ns.saturating_add(other.wait_ns),
            timeslices: self.timeslices.saturating_add(other.timeslices),
        }
    }
}

impl ProcDir {
    /// Reads `schedstat` of this thread, or of the main thread of the process. The file does not exist on a kernel
    /// without `CONFIG_SCHED_INFO`.
    pub fn schedstat(&self) -> Result<Schedstat, ProcError> {
        self.read("schedstat", Schedstat::parse)
    }

    /// Sum over the current threads of the process. Threads that have exited are not included. If threads exit between
    /// two readings, the difference of the sums is therefore too small.
    pub fn schedstat_of_all_threads(&self) -> Result<Schedstat, ProcError> {
        let mut sum = Schedstat::default();
        for tid in self.tids()? {
            match self.thread(tid).schedstat() {
                Ok(one) => sum = sum.plus(one),
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_are_read() {
        let parsed = Schedstat::parse(b"721462 5 1\n").unwrap();
        assert_eq!(parsed, Schedstat { run_ns: 721_462, wait_ns: 5, timeslices: 1 });
    }

    #[test]
    fn a_missing_number_is_an_error() {
        let error = Schedstat::parse(b"721462 5").unwrap_err();
        assert_eq!(error.expected, "a number of time slices");
    }
}
