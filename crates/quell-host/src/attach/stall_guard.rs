//! Watches programs that an experiment switches between modes, in a thread of its own, because the experiment waits for
//! the end of a slice in the meantime. Each mode has its own stalls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_sampler::{Sampler, SamplerError};
use tracing::warn;

use super::stall::{LOOKED_EVERY, StallTally, StallWatch, SuspendedQueue, watching_sampler};
use super::stall_log::CauseSearch;

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
    /// Whether stalls are too frequent.
    persists: bool,
    cause: CauseKnown,
    /// Why the mode must not be set again.
    refused: Option<String>,
}

#[derive(Debug, Default)]
enum CauseKnown {
    #[default]
    NotSearched,
    Searched,
    /// End of the search; absent if it found no cause.
    Found(Option<String>),
}

impl StallsByMode {
    /// Adds time to the present mode, and a stall if there was one. Returns the mode if the cause must be searched for.
    fn add(&mut self, time: Duration, has_stalled: bool) -> Option<usize> {
        let current = self.current?;
        let of = self.of.entry(current).or_default();
        of.time += time;
        if !has_stalled {
            return None;
        }
        of.persists |= of.tally.add(of.time);
        of.refuse_if_persistent();
        let is_first = matches!(of.cause, CauseKnown::NotSearched);
        if is_first {
            of.cause = CauseKnown::Searched;
        }
        is_first.then_some(current)
    }

    fn found(&mut self, mode: usize, cause: Option<String>) {
        let of = self.of.entry(mode).or_default();
        of.cause = CauseKnown::Found(cause);
        of.refuse_if_persistent();
    }
}

impl StallsOfMode {
    /// The cause cannot be found without the mode, so the mode stays until the search is over.
    fn refuse_if_persistent(&mut self) {
        let CauseKnown::Found(cause) = &self.cause else { return };
        if self.persists && self.refused.is_none() {
            let cause = cause.as_ref().map_or("the cause is unknown".to_owned(), |cause| format!("cause: {cause}"));
            self.refused = Some(format!("its queues stalled again and again; {cause}"));
        }
    }
}

impl StallGuard {
    pub fn start(queues: Vec<SuspendedQueue>, programs: BTreeSet<Pid>) -> Result<Self, SamplerError> {
        let sampler = watching_sampler(&queues)?;
        let (modes, is_over) = (Arc::<Mutex<StallsByMode>>::default(), Arc::<AtomicBool>::default());
        let (shared, over) = (Arc::clone(&modes), Arc::clone(&is_over));
        let thread = thread::spawn(move || watch(&sampler, &queues, &programs, &shared, &over));
        Ok(Self { modes, is_over, thread: Some(thread) })
    }

    pub fn set(&self, mode: Option<usize>) {
        locked(&self.modes).current = mode;
    }

    /// Why the mode that is set must be reverted.
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
    let mut search: Option<(usize, CauseSearch)> = None;
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(LOOKED_EVERY);
        let look = match watch.look(sampler, queues, programs, &|| true) {
            Ok(look) => look,
            Err(error) => return warn!(%error, "no longer watching for stalls"),
        };
        let now = Instant::now();
        let mut modes = locked(modes);
        if let Some((mode, search)) = search.take_if(|(_, search)| search.is_over()) {
            modes.found(mode, search.end());
        }
        if let Some(mode) = modes.add(now - looked, !look.freed.is_empty()) {
            search = Some((mode, CauseSearch::begin(programs)));
        }
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
        for number in 0..3 {
            modes.current = Some(0);
            (0..20).for_each(|_| assert_eq!(modes.add(slice, false), None));
            modes.current = Some(1);
            assert!(modes.of.get(&1).is_none_or(|of| of.refused.is_none()));
            assert_eq!(modes.add(slice, true), (number == 0).then_some(1), "the cause is searched for once");
        }
        assert!(modes.of[&1].refused.is_none(), "the search is not over");
        modes.found(1, Some("a file stays ready".to_owned()));
        assert!(modes.of[&1].refused.as_ref().is_some_and(|why| why.contains("a file stays ready")));
        assert!(modes.of[&0].refused.is_none());
    }

    #[test]
    fn rare_stalls_do_not_refuse_a_mode() {
        let mut modes = StallsByMode { current: Some(0), ..StallsByMode::default() };
        for _ in 0..20 {
            modes.add(Duration::from_secs(6), true);
            modes.found(0, None);
        }
        assert!(modes.of[&0].refused.is_none());
    }
}
