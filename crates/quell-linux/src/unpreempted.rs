//! Short stretches in which a thread gives its CPU to nobody: what it holds then is held for microseconds, however busy the
//! machine is. Best effort: it takes `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, and real-time threads and interrupts still come first.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::Pid;
use crate::sched::{Policy, Scheduling, scheduling, set_scheduling};

/// Enough to come before every thread that is not real-time.
const LOWEST_PRIORITY: u32 = 1;

thread_local! {
    static STRETCH: Cell<Stretch> = const { Cell::new(Stretch { nested: 0, before: None }) };
}

#[derive(Clone, Copy)]
struct Stretch {
    nested: u32,
    /// How the thread is scheduled otherwise; absent when that stays so.
    before: Option<Scheduling>,
}

/// While it lives, the calling thread is not preempted by threads that are not real-time. For some system calls that do
/// not wait: whatever else is to run on its CPU does not.
#[derive(Debug)]
pub(crate) struct Unpreempted(PhantomData<*const ()>);

impl Unpreempted {
    /// Begins a stretch, or goes on with the one that the thread is in.
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
    // Who is real-time already stays as it is.
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
            // What was allowed a moment ago still is: going back takes no privilege.
            let _ = set_scheduling(Pid::of_this_thread(), before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_scheduled_as_before_once_the_last_stretch_is_over() {
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
