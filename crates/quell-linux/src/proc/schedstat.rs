//! `/proc/PID/schedstat` and `/proc/PID/task/TID/schedstat`: measured (not sampled) run time of one
//! thread. The file of a process is that of its main thread alone; the process is the sum over its
//! threads, see [`ProcDir::schedstat_of_all_threads`].

use std::time::Duration;

use super::text::{Malformed, first_line};
use super::{ProcDir, ProcError};

/// Scheduling of one thread since it started (`kernel/sched/stats.c`, `proc_pid_schedstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Time on a CPU, nanoseconds.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU, nanoseconds.
    pub wait_ns: u64,
    /// How many times it was put on a CPU.
    pub timeslices: u64,
}

impl Schedstat {
    /// Parses the file.
    ///
    /// # Errors
    /// When it does not start with three numbers.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let line = first_line(bytes);
        let fields = &mut line.fields();
        Ok(Self {
            run_ns: line.next_number(fields, "run time in ns")?,
            wait_ns: line.next_number(fields, "waiting time in ns")?,
            timeslices: line.next_number(fields, "a number of time slices")?,
        })
    }

    /// Time on a CPU.
    #[must_use]
    pub fn run(self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_add(other.run_ns),
            wait_ns: self.wait_ns.saturating_add(other.wait_ns),
            timeslices: self.timeslices.saturating_add(other.timeslices),
        }
    }
}

impl ProcDir {
    /// Reads `schedstat` of this thread, or of the process's main thread.
    ///
    /// # Errors
    /// When it cannot be read or parsed; absent also on a kernel without `CONFIG_SCHED_INFO`.
    pub fn schedstat(&self) -> Result<Schedstat, ProcError> {
        self.read("schedstat", Schedstat::parse)
    }

    /// The sum over the threads that the process has now. What threads used that ended before is
    /// not in it: over a window in which threads ended, the difference of two sums is too small.
    ///
    /// # Errors
    /// When the threads cannot be listed, or a thread's file cannot be read although it exists.
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
