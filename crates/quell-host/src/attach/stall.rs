//! Finds queues that stall under suspension and frees them. A queue stalls if nobody polls it while its program re-arms
//! the suspension with each `epoll_wait`, for example because a file stays ready. No timeout ends that, and packets in the
//! ring cannot be seen without a poll. So the owner of a mode polls a suspect queue itself, and counts what the poll finds.
//!
//! `Suspicion` and [`StallTally`] decide from counters and times, without a clock. [`StallWatch`] acts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use quell_change::change::Change;
use quell_change::journal::History;
use quell_change::namespaces;
use quell_change::resume::{Freed, poll_queue};
use quell_linux::netdev::Netdev;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid, kernel};
use quell_sampler::{PollCounters, Sampler, SamplerError};
use tracing::{debug, warn};

use super::plan::QueueStep;

pub const LOOKED_EVERY: Duration = Duration::from_millis(100);
/// Minimum time without a poll. A healthy suspension ends after its timeout, so twice that time must have passed, too.
pub(crate) const UNPOLLED_MIN: Duration = Duration::from_millis(50);
/// Time without a poll that is a stall under every timeout.
const UNPOLLED_MAX: Duration = Duration::from_secs(1);
/// Maximum interval between polls of a suspect queue. The interval doubles with each poll that finds nothing, because a
/// poll causes up to `defer-hard-irqs` timer polls.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Stalls in quick succession after which a mode is reverted.
pub const STALLS_MAX: usize = 3;
const STALLS_WITHIN: Duration = Duration::from_secs(10);

/// A queue whose interrupt a mode suspends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuspendedQueue {
    pub napi: NapiId,
    pub namespace_cookie: u64,
}

impl SuspendedQueue {
    pub fn of_steps<'a>(steps: impl IntoIterator<Item = &'a QueueStep>) -> Vec<Self> {
        let is_suspended = |step: &&QueueStep| step.new.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        let queue = |step: &QueueStep| Self { napi: step.napi, namespace_cookie: step.namespace_cookie };
        steps.into_iter().filter(is_suspended).map(queue).collect()
    }

    #[must_use]
    pub fn of_journal(history: &History) -> Vec<Self> {
        let queue = |change: &Change| {
            let Change::NapiSettings(change) = change else { return None };
            change.new.irq_suspend_timeout_ns.filter(|&timeout| timeout > 0)?;
            Some(Self { napi: NapiId::from_kernel(change.napi_id)?, namespace_cookie: change.namespace_cookie })
        };
        history.pending().filter_map(|(_, entry)| queue(&entry.change)).collect()
    }
}

/// Begins to count polls of these queues, at less cost than [`Sampler::of`].
pub fn watching_sampler(queues: &[SuspendedQueue]) -> Result<Sampler, SamplerError> {
    Sampler::watching(kernel::sysfs(), queues.iter().map(|queue| queue.napi).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    pub napi: NapiId,
    /// Minimum time without a poll.
    pub unpolled: Duration,
    pub packets: u64,
    pub freed: Freed,
}

#[derive(Debug, Default)]
pub struct StallLook {
    pub freed: Vec<Stalled>,
    /// Whether stalls are so frequent that the mode must be reverted.
    pub persists: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    polls: u64,
    packets: u64,
    /// Absent before the first poll since the selection.
    interrupt_enabled: Option<bool>,
}

impl From<&PollCounters> for Counted {
    fn from(counters: &PollCounters) -> Self {
        let sample = counters.since(None);
        let interrupt_enabled = counters.interrupt_enabled();
        Self { polls: sample.polls.total(), packets: sample.packets, interrupt_enabled }
    }
}

#[derive(Debug, Clone, Copy)]
struct Suspicion {
    seen: Counted,
    /// Latest possible time of the last poll.
    last_poll: Duration,
    checked: Duration,
    patience: Duration,
}

impl Suspicion {
    fn new(seen: Counted, now: Duration) -> Self {
        Self { seen, last_poll: now, checked: now, patience: Duration::ZERO }
    }

    /// Takes in the counters. Returns whether the queue is suspect: masked, unpolled for too long, and not checked lately.
    fn is_suspect(&mut self, counted: Counted, now: Duration) -> bool {
        // The counters have no times. A poll happened at some time since the last look; `now` is the latest one, so a
        // stall is never reported too early.
        if counted.polls != self.seen.polls {
            self.last_poll = now;
        }
        // The timer polls after a check find no packets, and must not shorten the pause.
        if counted.packets != self.seen.packets {
            self.patience = Duration::ZERO;
        }
        self.seen = counted;
        // A queue whose interrupt is enabled wakes by itself. The sampler does not know the state before the first poll
        // after its selection; such a queue is checked too.
        counted.interrupt_enabled != Some(true)
            && self.unpolled(now) >= UNPOLLED_MIN
            && now.saturating_sub(self.checked) >= self.patience
    }

    fn unpolled(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_poll)
    }

    /// Records a check that ended with these counters. Its polls do not count as activity.
    fn checked(&mut self, after: Counted, found_packets: bool, now: Duration) {
        self.patience = match found_packets {
            true => Duration::ZERO,
            false => (self.patience * 2).clamp(UNPOLLED_MIN, PATIENCE_MAX),
        };
        self.last_poll = if after.polls == self.seen.polls { self.last_poll } else { now };
        (self.seen, self.checked) = (after, now);
    }
}

/// Whether a queue with this suspension timeout would have been polled by now if it were healthy.
fn is_overdue(unpolled: Duration, suspend_timeout: Duration) -> bool {
    unpolled > suspend_timeout.saturating_mul(2).clamp(UNPOLLED_MIN, UNPOLLED_MAX)
}

/// Counts stalls. Several queues that stall at one time count once, because they can have one cause.
#[derive(Debug, Clone, Default)]
pub struct StallTally(VecDeque<Duration>);

impl StallTally {
    /// Records a stall. Returns whether the mode must be reverted.
    pub fn add(&mut self, now: Duration) -> bool {
        self.0.push_back(now);
        while self.0.front().is_some_and(|&oldest| now.saturating_sub(oldest) > STALLS_WITHIN) {
            self.0.pop_front();
        }
        self.0.len() >= STALLS_MAX
    }
}

#[derive(Debug)]
pub struct StallWatch {
    began: Instant,
    queues: BTreeMap<NapiId, Suspicion>,
    tally: StallTally,
}

impl Default for StallWatch {
    fn default() -> Self {
        Self { began: Instant::now(), queues: BTreeMap::new(), tally: StallTally::default() }
    }
}

impl StallWatch {
    /// Looks at the counters of these queues, polls those that are suspect if `may_poll` permits, and reports stalls. The
    /// sampler has selected all of them. Sockets of `programs` help to poll where io_uring is not available.
    ///
    /// # Errors
    /// When the counters cannot be read. Without them, a stalled queue looks like an idle one.
    pub fn look(
        &mut self,
        sampler: &Sampler,
        queues: &[SuspendedQueue],
        programs: &BTreeSet<Pid>,
        may_poll: &dyn Fn() -> bool,
    ) -> Result<StallLook, SamplerError> {
        let counters = sampler.read()?;
        self.queues.retain(|napi, _| queues.iter().any(|queue| queue.napi == *napi));
        let mut freed = Vec::new();
        for queue in queues {
            let Some(counted) = counters.get(&queue.napi).map(Counted::from) else { continue };
            let now = self.began.elapsed();
            let suspicion = self.queues.entry(queue.napi).or_insert_with(|| Suspicion::new(counted, now));
            if suspicion.is_suspect(counted, now) {
                freed.extend(check(queue, suspicion, sampler, (programs, may_poll), self.began)?);
            }
        }
        let persists = !freed.is_empty() && self.tally.add(self.began.elapsed());
        Ok(StallLook { freed, persists })
    }
}

/// Polls a suspect queue. Returns the stall if the poll found packets that waited for too long.
fn check(
    queue: &SuspendedQueue,
    suspicion: &mut Suspicion,
    sampler: &Sampler,
    (programs, may_poll): (&BTreeSet<Pid>, &dyn Fn() -> bool),
    began: Instant,
) -> Result<Option<Stalled>, SamplerError> {
    let counted = || Ok(sampler.read()?.get(&queue.napi).map(Counted::from));
    let (proc, napi) = (&ProcRoot::default(), queue.napi);
    let instance = namespaces::by_cookie(proc, queue.namespace_cookie).ok().flatten();
    let instance = instance.and_then(|namespace| Netdev::open_in(&namespace).ok()?.napi(napi).ok());
    let timeout = instance.as_ref().and_then(|napi| napi.settings.irq_suspend_timeout_ns).map(Duration::from_nanos);
    let seen = suspicion.seen;
    let (Some(instance), Some(timeout)) = (&instance, timeout.filter(|timeout| !timeout.is_zero())) else {
        // The queue is gone, or nothing suspends it any more.
        suspicion.checked(seen, false, began.elapsed());
        return Ok(None);
    };
    // Finding the queue took time. Packets that somebody polled in the meantime were not stalled.
    let (Some(before), now) = (counted()?, began.elapsed()) else { return Ok(None) };
    if !suspicion.is_suspect(before, now) {
        return Ok(None);
    }
    let unpolled = suspicion.unpolled(now);
    if !is_overdue(unpolled, timeout) || !may_poll() {
        suspicion.checked(before, false, now);
        return Ok(None);
    }
    debug!(napi = napi.get(), ?unpolled, "nobody polls the suspended queue: polling it");
    let polled = poll_queue(proc, instance, programs);
    let Some(after) = counted()? else { return Ok(None) };
    // Packets that this poll found had waited since the last poll, which was overdue: that is the stall. An empty poll
    // shows a queue that was idle.
    let packets = after.packets.saturating_sub(before.packets);
    suspicion.checked(after, packets > 0, began.elapsed());
    let Some(freed) = polled.filter(|_| packets > 0) else { return Ok(None) };
    warn!(napi = napi.get(), packets, ?unpolled, ?freed, "freed a stalled queue");
    Ok(Some(Stalled { napi, unpolled, packets, freed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKED: Counted = Counted { polls: 7, packets: 9, interrupt_enabled: Some(false) };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Times at which a queue with these counters is suspect, if it is looked at every 100 ms and checks find nothing.
    fn checks(mut counted: impl FnMut(u64) -> Counted, until: u64) -> Vec<u64> {
        let mut suspicion = Suspicion::new(counted(0), ms(0));
        let mut checks = Vec::new();
        for now in (100..=until).step_by(100) {
            let seen = counted(now);
            if suspicion.is_suspect(seen, ms(now)) {
                checks.push(now);
                suspicion.checked(seen, false, ms(now));
            }
        }
        checks
    }

    #[test]
    fn a_masked_queue_that_nobody_polls_is_suspect_at_once_and_then_less_often() {
        let checks = checks(|_| MASKED, 3_600_000);
        assert_eq!(checks[..3], [100, 200, 300]);
        let longest = checks.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert_eq!(longest, Some(1_000), "a stall is found within a second, even after an hour");
    }

    #[test]
    fn a_queue_whose_interrupt_is_enabled_or_that_is_polled_is_not_suspect() {
        assert_eq!(checks(|_| Counted { interrupt_enabled: Some(true), ..MASKED }, 60_000), [0; 0]);
        assert_eq!(checks(|now| Counted { polls: now, ..MASKED }, 60_000), [0; 0]);
    }

    #[test]
    fn a_queue_without_a_poll_since_the_watch_began_is_suspect() {
        let unknown = Counted { polls: 0, packets: 0, interrupt_enabled: None };
        assert_eq!(checks(|_| unknown, 100), [100]);
    }

    #[test]
    fn packets_end_the_pause_and_empty_timer_polls_do_not() {
        let mut suspicion = Suspicion { patience: PATIENCE_MAX, ..Suspicion::new(MASKED, ms(0)) };
        let timer = Counted { polls: 8, ..MASKED };
        assert!(!suspicion.is_suspect(timer, ms(100)) && suspicion.patience == PATIENCE_MAX);
        assert!(!suspicion.is_suspect(Counted { packets: 10, polls: 9, ..MASKED }, ms(200)));
        assert!(suspicion.is_suspect(suspicion.seen, ms(300)));
    }

    #[test]
    fn a_stall_lasts_longer_than_50_ms_and_twice_the_timeout_but_not_longer_than_a_second() {
        assert!(!is_overdue(ms(50), ms(20)) && is_overdue(ms(51), ms(20)));
        assert!(!is_overdue(ms(400), ms(200)) && is_overdue(ms(401), ms(200)));
        assert!(is_overdue(ms(1_001), Duration::MAX), "the kernel accepts a timeout without an end");
    }

    #[test]
    fn three_stalls_within_ten_seconds_are_too_many() {
        let mut tally = StallTally::default();
        let added = [0, 6_000, 10_001, 10_002].map(|at| tally.add(ms(at)));
        assert_eq!(added, [false, false, false, true]);
    }
}
