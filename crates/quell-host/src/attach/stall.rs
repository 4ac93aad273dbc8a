//! Watches suspended queues of an attachment and frees stalled ones. A queue stalls if its program stops polling it
//! while a file that stays ready in its epoll re-arms the suspension, so no timeout ends it. Quell then polls the queue
//! and reports the packets that it found. A queue whose interrupt is enabled does not stall. An idle queue whose interrupt
//! is masked looks as a stalled one, but contains no packets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_linux::netdev::Netdev;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};
use quell_sampler::{PollCounters, QueueSample, Sampler, SamplerError};
use tracing::{debug, warn};

use super::effect::run_times;
use super::plan::QueueStep;
use crate::namespaces;
use crate::resume::{Freed, Resumer};

/// A queue is suspect if nobody polls it for this long although its program runs.
const SUSPICIOUS_AFTER: Duration = Duration::from_millis(200);
/// Maximum interval between checks of a suspect. The interval doubles after each check that finds no packets, because a
/// check costs `defer-hard-irqs` timer polls.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(3);

/// A stalled queue that was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    /// NAPI instance of the queue.
    pub napi: NapiId,
    /// Minimum time without a poll.
    pub unpolled: Duration,
    /// Number of packets that it contained.
    pub packets: u64,
    /// Method that freed it.
    pub freed: Freed,
}

/// Watches queues for stalls.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    queues: BTreeMap<NapiId, Watched>,
    /// Counters of the queues at the previous look.
    counters: BTreeMap<NapiId, PollCounters>,
    ran_ns: BTreeMap<Pid, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    namespace_cookie: u64,
    polls: u64,
    last_poll: Instant,
    looked_at: Instant,
    patience: Duration,
}

impl StallWatch {
    /// Watches the suspended ones of `queues`. Those that are already watched keep their state.
    fn watch(&mut self, queues: &[QueueStep]) {
        let is_suspended = |step: &&QueueStep| step.new.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        let suspended = queues.iter().filter(is_suspended);
        let wanted: BTreeMap<NapiId, u64> = suspended.map(|step| (step.napi, step.namespace_cookie)).collect();
        if wanted.keys().eq(self.queues.keys()) {
            return;
        }
        let now = Instant::now();
        let watched = |(napi, namespace_cookie)| {
            let (last_poll, looked_at, patience) = (now, now, SUSPICIOUS_AFTER);
            let new = Watched { namespace_cookie, polls: 0, last_poll, looked_at, patience };
            (napi, self.queues.get(&napi).copied().unwrap_or(new))
        };
        self.queues = wanted.into_iter().map(watched).collect();
    }

    /// Checks the suspended ones of `queues` with these counters, and frees stalled ones. `programs` are the processes for
    /// which they are suspended. `sampler` observes what a check finds.
    pub(super) fn look(
        &mut self,
        sampler: &Sampler,
        counted: &BTreeMap<NapiId, PollCounters>,
        queues: &[QueueStep],
        programs: &BTreeSet<Pid>,
    ) -> Result<Vec<Stalled>, SamplerError> {
        self.watch(queues);
        if self.queues.is_empty() {
            return Ok(Vec::new());
        }
        let (proc, now) = (&ProcRoot::default(), Instant::now());
        let they_ran = ran(programs, &mut self.ran_ns);
        let mut stalled = Vec::new();
        let its = |napi: &NapiId| Some((*napi, counted.get(napi)?.clone()));
        let before = std::mem::replace(&mut self.counters, self.queues.keys().filter_map(its).collect());
        for (napi, watched) in &mut self.queues {
            let polls = counted.get(napi).map_or(0, |counters| counters.since(None).polls.total());
            if watched.was_polled(polls, now) {
                continue;
            }
            let since_before = before.get(napi).zip(counted.get(napi)).map(|(before, now)| now.since(Some(before)));
            if since_before.is_some_and(|sample| has_enabled_interrupt(&sample)) {
                continue;
            }
            // A program that does not run cannot re-arm its suspension, which then times out.
            if !they_ran || now - watched.last_poll.max(watched.looked_at) < watched.patience {
                continue;
            }
            let Some(resumer) = resumer(proc, *napi, watched.namespace_cookie, programs) else { continue };
            // Preparing the resumer took time. Packets that the kernel polled during that time were not stalled.
            let before = samples(sampler)?.get(napi).copied().unwrap_or_default();
            if watched.was_polled(before.polls.total(), Instant::now()) {
                continue;
            }
            debug!(napi = napi.get(), unpolled = ?(now - watched.last_poll), "nobody polls the queue although its program runs");
            let Ok(freed) = resumer.poll() else { continue };
            let after = samples(sampler)?.get(napi).copied().unwrap_or_default();
            let packets = after.packets.saturating_sub(before.packets);
            if packets > 0 {
                warn!(napi = napi.get(), packets, ?freed, "freed a stalled queue");
                stalled.push(Stalled { napi: *napi, unpolled: now - watched.last_poll, packets, freed });
            }
            // The polls of this check itself must not count as activity.
            let patience = if packets > 0 { SUSPICIOUS_AFTER } else { (watched.patience * 2).min(LOOKED_AT_EVERY) };
            *watched = Watched { polls: after.polls.total(), looked_at: now, patience, ..*watched };
        }
        Ok(stalled)
    }
}

impl Watched {
    /// Whether the queue was polled since the last check; updates the record.
    fn was_polled(&mut self, polls: u64, now: Instant) -> bool {
        let was_polled = polls != self.polls;
        if was_polled {
            *self = Self { polls, last_poll: now, patience: SUSPICIOUS_AFTER, ..*self };
        }
        was_polled
    }
}

/// Whether the interrupt was enabled all the time. Nothing is known of a queue without a poll since its selection.
fn has_enabled_interrupt(sample: &QueueSample) -> bool {
    sample.enabled_ns > 0 && sample.masked_ns == 0 && sample.suspended_ns == 0
}

/// Polls of each queue since its selection.
fn samples(sampler: &Sampler) -> Result<BTreeMap<NapiId, QueueSample>, SamplerError> {
    Ok(sampler.read()?.into_iter().map(|(napi, counters)| (napi, counters.since(None))).collect())
}

/// Whether any of the programs used CPU time since the last check.
fn ran(programs: &BTreeSet<Pid>, before: &mut BTreeMap<Pid, u64>) -> bool {
    let now = run_times(programs);
    let ran = now.iter().any(|(pid, run_ns)| before.get(pid).is_some_and(|before| run_ns > before));
    *before = now;
    ran
}

/// Prepares to free a queue; `None` if the queue is gone.
fn resumer(proc: &ProcRoot, napi: NapiId, namespace_cookie: u64, programs: &BTreeSet<Pid>) -> Option<Resumer> {
    let namespace = namespaces::by_cookie(proc, namespace_cookie).ok()??;
    let napi = Netdev::open_in(&namespace).ok()?.napi(napi).ok()?;
    let programs: Vec<Pid> = programs.iter().copied().collect();
    Some(Resumer::of_queue(proc, &napi, &programs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_whose_interrupt_was_enabled_all_the_time_is_not_suspect() {
        let enabled = QueueSample { enabled_ns: 250_000_000, ..QueueSample::default() };
        assert!(has_enabled_interrupt(&enabled));
        assert!(!has_enabled_interrupt(&QueueSample { masked_ns: 1, ..enabled }));
        assert!(!has_enabled_interrupt(&QueueSample { suspended_ns: 1, ..enabled }));
        assert!(!has_enabled_interrupt(&QueueSample::default()));
    }

    #[test]
    fn a_poll_clears_the_suspicion() {
        let (then, now) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let suspect =
            Watched { namespace_cookie: 1, polls: 7, last_poll: then, looked_at: then, patience: LOOKED_AT_EVERY };
        let mut same = suspect;
        assert!(!same.was_polled(7, now));
        assert_eq!((same.last_poll, same.patience), (then, LOOKED_AT_EVERY));
        let mut polled = suspect;
        assert!(polled.was_polled(8, now));
        assert_eq!((polled.polls, polled.last_poll, polled.patience), (8, now, SUSPICIOUS_AFTER));
    }
}
