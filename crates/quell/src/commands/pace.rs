//! Pace of passes over programs: rare, with a limited share of a CPU, and frequent for a short time after something has
//! changed.

use std::time::{Duration, Instant};

/// Maximum number of early passes, until a pass at the normal pace finds no change: for programs that change all the time.
const EARLY_MAX: u32 = 10;
/// Minimum ratio of the pause before an early pass to the time that the last pass took.
const EARLY_PAUSE: u32 = 2;

#[derive(Debug, Clone, Copy)]
pub(super) struct PaceLimits {
    /// The first interval, and the shortest one.
    pub(super) first: Duration,
    /// Each interval is twice the last one, up to this.
    pub(super) longest: Duration,
    /// Minimum ratio of an interval to the time that the last pass took.
    pub(super) pause: u32,
}

#[derive(Debug)]
pub(super) struct Pace {
    limits: PaceLimits,
    interval: Duration,
    ended: Instant,
    due: Instant,
    /// Time that the last pass took.
    used: Duration,
    /// Whether the next pass is early.
    is_early: bool,
    early: u32,
}

impl Pace {
    pub(super) fn new(limits: PaceLimits) -> Self {
        let now = Instant::now();
        let due = now + limits.first;
        Self { limits, interval: limits.first, ended: now, due, used: Duration::ZERO, is_early: false, early: 0 }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Makes the next pass early, because something has changed.
    pub(super) fn hurry(&mut self) {
        let early = self.ended + self.early_interval();
        if self.early < EARLY_MAX && early < self.due {
            (self.due, self.is_early) = (early, true);
        }
    }

    /// Ends a pass that took `used`. `is_changing`: something has changed, so that the next pass should be early.
    pub(super) fn spend(&mut self, used: Duration, is_changing: bool) {
        self.early = if is_changing || self.is_early { self.early.saturating_add(1) } else { 0 };
        self.used = used;
        self.is_early = is_changing && self.early <= EARLY_MAX;
        self.interval = match self.is_early {
            true => self.early_interval(),
            false => (self.interval * 2).min(self.limits.longest).max(used * self.limits.pause),
        };
        self.ended = Instant::now();
        self.due = self.ended + self.interval;
    }

    fn early_interval(&self) -> Duration {
        self.limits.first.max(self.used * EARLY_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PaceLimits =
        PaceLimits { first: Duration::from_millis(20), longest: Duration::from_secs(2), pause: 50 };
    const PASS: Duration = Duration::from_millis(100);

    fn quiet() -> Pace {
        let mut pace = Pace::new(LIMITS);
        (0..12).for_each(|_| pace.spend(Duration::ZERO, false));
        pace
    }

    #[test]
    fn passes_become_rarer_up_to_a_limit() {
        let mut pace = Pace::new(LIMITS);
        let mut intervals = Vec::new();
        for _ in 0..12 {
            pace.spend(Duration::ZERO, false);
            intervals.push(pace.interval);
        }
        assert!(intervals.is_sorted() && intervals.last() == Some(&LIMITS.longest), "{intervals:?}");
    }

    #[test]
    fn a_change_causes_another_pass_soon() {
        let mut pace = quiet();
        pace.spend(Duration::ZERO, true);
        assert_eq!(pace.interval, LIMITS.first);
        (0..40).for_each(|_| pace.spend(Duration::ZERO, true));
        assert_eq!(pace.interval, LIMITS.longest, "a program that always changes does not keep the pace high");
    }

    #[test]
    fn passes_have_a_limited_share_of_a_cpu_but_a_new_worker_gets_the_mode_soon() {
        let mut pace = quiet();
        pace.spend(PASS, false);
        assert_eq!(pace.due - pace.ended, PASS * 50);
        pace.hurry();
        assert_eq!(pace.due - pace.ended, PASS * 2, "the last pass was long ago, so that this one is at once");
    }

    #[test]
    fn workers_that_start_and_exit_all_the_time_do_not_keep_the_pace_high() {
        let mut pace = quiet();
        for _ in 0..40 {
            pace.hurry();
            // The process that caused this pass has exited before it.
            pace.spend(PASS, false);
        }
        assert_eq!(pace.due - pace.ended, PASS * 50);
        pace.hurry();
        assert_eq!(pace.due - pace.ended, PASS * 2, "after a pass without hurry and change");
    }
}
