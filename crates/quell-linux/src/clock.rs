//! The kernel's clocks in nanoseconds, for records that are compared across threads, processes and files. Code
//! that measures intervals in one process uses `std::time::Instant`.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an unspecified time in this boot, without suspend (`CLOCK_MONOTONIC`). BPF programs and
/// tracepoints use this clock.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds since boot, including suspend (`CLOCK_BOOTTIME`). The kernel uses this clock for process start times.
#[must_use]
pub fn boottime_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// Nanoseconds since 1970 (`CLOCK_REALTIME`). The value jumps when the clock is set.
#[must_use]
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// CPU time of all threads of this process in nanoseconds, including threads that exited (`CLOCK_PROCESS_CPUTIME_ID`).
#[must_use]
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread in nanoseconds (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Reads a clock. A 64-bit count of nanoseconds lasts 584 years. If the clock is set to a time before 1970, the result
/// is 0.
fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_never_goes_back() {
        let earlier = monotonic_ns();
        assert!(monotonic_ns() >= earlier);
    }

    #[test]
    fn boottime_includes_suspend() {
        let monotonic = monotonic_ns();
        assert!(boottime_ns() >= monotonic);
    }

    #[test]
    fn realtime_agrees_with_the_standard_library() {
        let earlier = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(u128::from(realtime_ns()) >= earlier.as_nanos());
    }
}
