//! How the threads of a play begin together: each is pinned and has its class before any of them
//! starts, and one of them, which nothing delays any more, says when.

use std::sync::{Barrier, OnceLock};
use std::time::Duration;

use quell_linux::clock;

/// From when every thread is ready to the scenario's beginning: all are asleep until shortly before.
const RUN_UP: Duration = Duration::from_millis(5);

/// A common beginning.
pub(super) struct Start {
    ready: Barrier,
    begins_ns: OnceLock<u64>,
}

impl Start {
    pub(super) fn of_threads(threads: usize) -> Self {
        Self { ready: Barrier::new(threads), begins_ns: OnceLock::new() }
    }

    /// Waits until every thread is here; the moment of the monotonic clock at which the scenario begins. Every thread
    /// has to come here, whatever became of it before.
    pub(super) fn together(&self) -> u64 {
        if self.ready.wait().is_leader() {
            return *self.begins_ns.get_or_init(|| clock::monotonic_ns() + RUN_UP.as_nanos() as u64);
        }
        *self.begins_ns.wait()
    }
}

/// Sleeps until shortly before a moment of the monotonic clock, and spins the rest.
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
