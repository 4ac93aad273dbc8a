//! Prevents preemption of a thread for a short time, so that it holds a resource only for microseconds on a busy
//! machine. Best effort: it needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, and real-time threads and interrupts still
//! have precedence.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::Pid;
use crate::sched::{Policy, Scheduling, scheduling, set_scheduling};

/// Sufficient to preempt every thread that is not real-time.
const LOWEST_PRIORITY: u32 = 1;

thread_local! {
    static STRETCH: Cell<Stretch> = const { Cell::new(Stretch { nested: 0, before: None }) };
}

#[derive(Clone, Copy)]
struct Stretch {
    nested: u32,
    /// Scheduling to restore; `None` if it was not changed.
    before: Option<Scheduling>,
}

/// Guard: until it is dropped, only real-time threads preempt the calling thread. Use it for a few non-blocking
/// system calls, because other threads of the CPU do not run.
#[derive(Debug)]
pub(crate) struct Unpreempted(PhantomData<*const ()>);

impl Unpreempted {
    /// Starts the protection, or nests in that of the thread.
    pub(crate) fn begin() -> Self {
        let Stretch { nested, before } = STRETCH.get();
        let before = if nested == 0 { raise() } else { before };
        STRETCH.set(Stretch { nested: nested + 1, before });
        Self(PhantomData)
    }
}

fn raise() -> Option<Scheduling> {
    let this = Pid::of_this_thread();
    let before = scheduling(this).ok()?;
    // A real-time thread needs no change.
    if !matches!(before.policy, Policy::Other { .. } | Policy::Batch { .. } | Policy::Idle { .. }) {
        return None;
    }
    let raised = Scheduling { policy: Policy::Fifo { priority: LOWEST_PRIORITY }, ..before };
    set_scheduling(this, raised).ok().map(|()| before)
}

impl Drop for Unpreempted {
    fn drop(&mut self) {
        let Stretch { nested, before } = STRETCH.get();
        STRETCH.set(Stretch { nested: nested.saturating_sub(1), before });
        if let (1, Some(before)) = (nested, before) {
            // Lowering the priority needs no privilege, so this does not fail.
            let _ = set_scheduling(Pid::of_this_thread(), before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_guard_restores_the_scheduling_of_the_thread() {
        let now = || scheduling(Pid::of_this_thread()).unwrap();
        let before = now();
        let outer = Unpreempted::begin();
        let during = now();
        let inner = Unpreempted::begin();
        drop(outer);
        assert_eq!(now(), during);
        drop(inner);
        assert_eq!(now(), before);
    }
}
