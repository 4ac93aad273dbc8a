//! Watches programs that an experiment switches between modes, in a thread of its own, because the experiment waits for
//! the end of a slice meanwhile. Each mode has its own stalls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_sampler::{Sampler, SamplerError};
use tracing::warn;

use super::stall::{LOOKED_EVERY, StallTally, StallWatch, SuspendedQueue, watching_sampler};
use super::stall_log::cause;

/// Watches queues until it is dropped.
#[derive(Debug)]
pub struct StallGuard {
    modes: Arc<Mutex<StallsByMode>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Stalls of each mode. Pure.
#[derive(Debug, Default)]
struct StallsByMode {
    current: Option<usize>,
    of: BTreeMap<usize, StallsOfMode>,
}

#[derive(Debug, Default)]
struct StallsOfMode {
    /// Time for which the mode was set.
    time: Duration,
    tally: StallTally,
    cause: Option<Option<String>>,
    /// Why the mode must not be set again.
    refused: Option<String>,
}

impl StallsByMode {
    /// Adds time to the present mode, and a stall if there was one. `cause` searches for its cause.
    fn add(&mut self, time: Duration, has_stalled: bool, cause: impl FnOnce() -> Option<String>) {
        let Some(current) = self.current else { return };
        let of = self.of.entry(current).or_default();
        of.time += time;
        if !has_stalled || of.refused.is_some() {
            return;
        }
        let known = of.cause.get_or_insert_with(cause);
        if of.tally.add(of.time) {
            let cause = known.as_ref().map_or("the cause is unknown".to_owned(), |cause| format!("cause: {cause}"));
            of.refused = Some(format!("its queues stalled again and again; {cause}"));
        }
    }
}

impl StallGuard {
    /// Begins to watch these queues of `programs`.
    ///
    /// # Errors
    /// When polls cannot be counted.
    pub fn start(queues: Vec<SuspendedQueue>, programs: BTreeSet<Pid>) -> Result<Self, SamplerError> {
        let sampler = watching_sampler(&queues)?;
        let (modes, is_over) = (Arc::<Mutex<StallsByMode>>::default(), Arc::<AtomicBool>::default());
        let (shared, over) = (Arc::clone(&modes), Arc::clone(&is_over));
        let thread = thread::spawn(move || watch(&sampler, &queues, &programs, &shared, &over));
        Ok(Self { modes, is_over, thread: Some(thread) })
    }

    /// Records that this mode is set now; `None` if none is.
    pub fn set(&self, mode: Option<usize>) {
        locked(&self.modes).current = mode;
    }

    /// Why the mode that is set must be taken back.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        let modes = locked(&self.modes);
        modes.of.get(&modes.current?)?.refused.clone()
    }
}

impl Drop for StallGuard {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn watch(
    sampler: &Sampler,
    queues: &[SuspendedQueue],
    programs: &BTreeSet<Pid>,
    modes: &Mutex<StallsByMode>,
    is_over: &AtomicBool,
) {
    let (mut watch, mut looked) = (StallWatch::default(), Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(LOOKED_EVERY);
        let look = match watch.look(sampler, queues, programs) {
            Ok(look) => look,
            Err(error) => return warn!(%error, "no longer watching for stalls"),
        };
        let now = Instant::now();
        locked(modes).add(now - looked, !look.freed.is_empty(), || cause(programs));
        looked = now;
    }
}

fn locked(modes: &Mutex<StallsByMode>) -> MutexGuard<'_, StallsByMode> {
    modes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_of_short_slices_of_one_mode_add_up_and_others_are_not_affected() {
        let mut modes = StallsByMode::default();
        let slice = Duration::from_millis(500);
        for _ in 0..3 {
            modes.current = Some(0);
            (0..20).for_each(|_| modes.add(slice, false, || None));
            modes.current = Some(1);
            assert!(modes.of.get(&1).is_none_or(|of| of.refused.is_none()));
            modes.add(slice, true, || Some("a file stays ready".to_owned()));
        }
        assert!(modes.of[&0].refused.is_none());
        assert!(modes.of[&1].refused.as_ref().is_some_and(|why| why.contains("a file stays ready")));
    }

    #[test]
    fn rare_stalls_do_not_refuse_a_mode() {
        let mut modes = StallsByMode { current: Some(0), ..StallsByMode::default() };
        for _ in 0..20 {
            modes.add(Duration::from_secs(6), true, || None);
        }
        assert!(modes.of[&0].refused.is_none());
    }
}
