//! Prevents preemption of a thread for a short time, so that it holds a resource only for microseconds on a busy
//! machine. This is best effort. It needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, and does not prevent preemption by
//! real-time threads and interrupts.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::Pid;
use crate::sched::{Policy, Scheduling, scheduling, set_scheduling};

/// The lowest real-time priority, which is sufficient to preempt every other thread.
const LOWEST_PRIORITY: u32 = 1;

thread_local! {
    static STRETCH: Cell<Stretch> = const { Cell::new(Stretch { nested: 0, before: None }) };
}

#[derive(Clone, Copy)]
struct Stretch {
    nested: u32,
    /// Scheduling parameters to restore; `None` if they were not changed.
    before: Option<Scheduling>,
}

/// A guard: until it is dropped, only real-time threads preempt the calling thread. Use it for a few non-blocking
/// system calls only, because no other thread can run on the CPU.
#[derive(Debug)]
pub(crate) struct Unpreempted(PhantomData<*const ()>);

impl Unpreempted {
    /// Starts the protection. Guards of the same thread can be nested.
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
            // This does not fail, because lowering the priority needs no privilege.
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
