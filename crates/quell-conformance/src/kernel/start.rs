//! Common start of the threads of a run. Every thread is pinned and has its scheduling class before the start. One of
//! the threads sets the start time.

use std::sync::{Barrier, OnceLock};
use std::time::Duration;

use quell_linux::clock;

/// Time from the readiness of all threads to the start of the scenario. The threads sleep for most of it.
const RUN_UP: Duration = Duration::from_millis(5);

pub(super) struct Start {
    ready: Barrier,
    begins_ns: OnceLock<u64>,
}

impl Start {
    pub(super) fn of_threads(threads: usize) -> Self {
        Self { ready: Barrier::new(threads), begins_ns: OnceLock::new() }
    }

    /// Waits for all threads and returns the start time of the scenario in ns on the monotonic clock. Every thread must
    /// call this, even after an error.
    pub(super) fn together(&self) -> u64 {
        if self.ready.wait().is_leader() {
            return *self.begins_ns.get_or_init(|| clock::monotonic_ns() + RUN_UP.as_nanos() as u64);
        }
        *self.begins_ns.wait()
    }
}

/// Sleeps until shortly before a time on the monotonic clock, then spins.
pub(super) fn wait_until(moment_ns: u64) {
    const SPIN_NS: u64 = 100_000;
    loop {
        match moment_ns.saturating_sub(clock::monotonic_ns()) {
            0 => return,
            1..=SPIN_NS => std::hint::spin_loop(),
            left_ns => std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS / 2)),
        }
    }
}
