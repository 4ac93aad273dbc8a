//! Counters of one NAPI instance, and what happened between two readings of them. The words are those of
//! `struct queue` in `bpf/sampler.bpf.c`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wait::{BUCKETS, WaitBounds};

const POLLERS: usize = 7;
pub(crate) const TIMED_AT: usize = 0;
/// End of the last poll that left the ring empty.
#[cfg(test)]
pub(crate) const EMPTIED_AT: usize = 1;
/// Flags in the low half of the word.
const FLAGS: usize = 2;
/// NAPI ID of the instance in the low half of the word.
pub(crate) const NAPI: usize = 3;
const PACKETS: usize = 6;
const WAIT_NS: usize = 7;
const POLLS: usize = 8;
const SOFTIRQ_NS: usize = POLLS + POLLERS;
const INTERRUPT_PACKETS: usize = 16;
const ENABLED_NS: usize = 17;
const MASKED_NS: usize = 18;
const SUSPENDED_NS: usize = 19;
const FOUND_SUSPENDED: usize = 20;
const EMPTY: usize = 21;
const BUDGET_EXHAUSTED: usize = 22;
const STALLED_POLLS: usize = 23;
const WAITS: usize = 24;
/// Size of `struct queue` in words of 64 bits.
pub(crate) const WORDS: usize = WAITS + BUCKETS;
const ENABLED: u64 = 1;
/// One of so many polls that found packets may use its whole budget for waits to have a bound.
const FULL_PART: u64 = 10;

/// Counters of an instance since it was selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollCounters {
    words: [u64; WORDS],
    can: Abilities,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) sees_suspension: bool,
    pub(crate) times_softirqs: bool,
}

/// Polls of an instance by who polled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PollsByPoller {
    /// Softirq that the interrupt scheduled.
    pub interrupt: u64,
    /// Softirq that the deferral timer scheduled.
    pub timer: u64,
    /// Softirq that neither scheduled: the end of a suspension, or a poll that was requested while another one ran.
    pub rescheduled: u64,
    /// Softirq in the kernel thread `ksoftirqd`.
    pub ksoftirqd: u64,
    /// The instance's own kernel thread (threaded NAPI).
    pub thread: u64,
    /// Loops of busy-polling programs.
    pub program: u64,
    /// Polls after such a loop (`busy_poll_stop`). On kernels without that poll (Linux 7.3), a softirq in the thread that
    /// just busy polled can be among them.
    pub program_last: u64,
}

impl PollsByPoller {
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { interrupt, timer, rescheduled, ksoftirqd, thread, program, program_last } = *self;
        interrupt + timer + rescheduled + ksoftirqd + thread + program + program_last
    }
}

/// Whoever can poll a queue. [`PollsByPoller`] has its polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueuePoller {
    Interrupt,
    Timer,
    Rescheduled,
    Ksoftirqd,
    Thread,
    Program,
}

impl QueuePoller {
    pub const ALL: [Self; 6] =
        [Self::Interrupt, Self::Timer, Self::Rescheduled, Self::Ksoftirqd, Self::Thread, Self::Program];

    /// Name of its field of [`PollsByPoller`].
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Thread => "thread",
            Self::Interrupt => "interrupt",
            Self::Timer => "timer",
            Self::Rescheduled => "rescheduled",
            Self::Ksoftirqd => "ksoftirqd",
        }
    }

    /// Its polls; those of a program with the polls after its loops.
    #[must_use]
    pub fn polls(self, of: &PollsByPoller) -> u64 {
        match self {
            Self::Program => of.program.saturating_add(of.program_last),
            Self::Thread => of.thread,
            Self::Interrupt => of.interrupt,
            Self::Timer => of.timer,
            Self::Rescheduled => of.rescheduled,
            Self::Ksoftirqd => of.ksoftirqd,
        }
    }
}

/// Polls of an instance during an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QueueSample {
    /// Polls by who polled.
    pub polls: PollsByPoller,
    /// Packets that the polls reported as work. Most drivers do not count completed transmissions.
    pub packets: u64,
    /// Polls without packets.
    pub empty: u64,
    /// Polls that used their whole budget, so that packets may have stayed in the ring.
    pub budget_exhausted: u64,
    /// Polls in loops of busy-polling programs that found the interrupt suspended. Null if the kernel cannot suspend
    /// interrupts (before Linux 6.13). 0 if the suspension timeout does not exceed the deferral timeout, because the two
    /// are then indistinguishable.
    pub program_found_suspended: Option<u64>,
    /// Nanoseconds of CPU time of polls in softirqs, with the processing of their packets in the network stack, and
    /// the interrupts during them. Null if they are not measured.
    pub softirq_ns: Option<u64>,
    /// Nanoseconds with the interrupt enabled.
    pub enabled_ns: u64,
    /// Nanoseconds with the interrupt masked but not suspended: deferred, or polled again and again.
    pub masked_ns: u64,
    /// Nanoseconds with the interrupt suspended, up to the poll of a program, or up to the timeout if the program at timers
    /// is attached. Other ends of a suspension, such as the close of the epoll, count as masked.
    pub suspended_ns: u64,
    /// Bounds of the time that packets waited in the ring.
    pub wait: WaitBounds,
}

impl PollCounters {
    /// Takes the words of the map at this time of `CLOCK_MONOTONIC`. The time since the last poll is added to the time
    /// with the interrupt enabled or masked.
    pub(crate) fn at(mut words: [u64; WORDS], can: Abilities, now_ns: u64) -> Self {
        if words[TIMED_AT] > 0 {
            // The programs add time only when a poll ends, so without this an idle queue would have no time at all.
            // Whether it is suspended becomes known with the next poll; until then it counts as masked.
            let since_poll = now_ns.saturating_sub(words[TIMED_AT]);
            words[if words[FLAGS] & ENABLED != 0 { ENABLED_NS } else { MASKED_NS }] += since_poll;
        }
        Self { words, can }
    }

    /// Whether the last poll enabled the interrupt. Absent before the first poll since the selection.
    #[must_use]
    pub fn interrupt_enabled(&self) -> Option<bool> {
        let polled = self.words[POLLS..POLLS + POLLERS].iter().any(|&polls| polls > 0);
        polled.then_some(self.words[FLAGS] & ENABLED != 0)
    }

    /// What happened since an earlier reading; since the selection, if there is none.
    #[must_use]
    pub fn since(&self, earlier: Option<&Self>) -> QueueSample {
        let between = |word: usize| self.words[word].saturating_sub(earlier.map_or(0, |earlier| earlier.words[word]));
        let [interrupt, timer, rescheduled, ksoftirqd, thread, program, program_last] =
            std::array::from_fn(|poller| between(POLLS + poller));
        let waits: [u64; BUCKETS] = std::array::from_fn(|bucket| between(WAITS + bucket));
        let polls = PollsByPoller { interrupt, timer, rescheduled, ksoftirqd, thread, program, program_last };
        let (empty, budget_exhausted) = (between(EMPTY), between(BUDGET_EXHAUSTED));
        let wait = WaitBounds::of(&waits, between(WAIT_NS), between(INTERRUPT_PACKETS));
        let has_bound = budget_exhausted.saturating_mul(FULL_PART) <= polls.total().saturating_sub(empty);
        QueueSample {
            polls,
            packets: between(PACKETS),
            empty,
            budget_exhausted,
            program_found_suspended: self.can.sees_suspension.then(|| between(FOUND_SUSPENDED)),
            softirq_ns: self.can.times_softirqs.then(|| between(SOFTIRQ_NS)),
            enabled_ns: between(ENABLED_NS),
            masked_ns: between(MASKED_NS),
            suspended_ns: between(SUSPENDED_NS),
            wait: WaitBounds {
                stalled_polls: between(STALLED_POLLS),
                ..if has_bound { wait } else { wait.without_bound() }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities { sees_suspension: true, times_softirqs: true };

    /// Counters with these words, read at `now_ns`.
    fn counters(words: &[(usize, u64)], now_ns: u64) -> PollCounters {
        let mut all = [0; WORDS];
        words.iter().for_each(|&(word, value)| all[word] = value);
        PollCounters::at(all, ALL, now_ns)
    }

    #[test]
    fn a_sample_is_the_difference_of_two_readings() {
        let before = counters(&[(POLLS, 5), (POLLS + 1, 7), (PACKETS, 100), (WAITS + 8, 90), (WAIT_NS, 90_000)], 0);
        let after = counters(&[(POLLS, 6), (POLLS + 1, 17), (PACKETS, 130), (WAITS + 8, 120), (WAIT_NS, 120_000)], 0);
        let sample = after.since(Some(&before));
        assert_eq!((sample.polls.interrupt, sample.polls.timer, sample.polls.total()), (1, 10, 11));
        assert_eq!((sample.packets, sample.wait.packets, sample.wait.mean_ns), (30, 30, Some(1000)));
        assert_eq!(after.since(None).packets, 130);
    }

    #[test]
    fn the_time_since_the_last_poll_counts_by_the_state_that_it_left() {
        let idle = |flags| counters(&[(TIMED_AT, 1_000), (FLAGS, flags)], 5_000).since(None);
        assert_eq!((idle(ENABLED).enabled_ns, idle(ENABLED).masked_ns), (4_000, 0));
        assert_eq!((idle(0).enabled_ns, idle(0).masked_ns), (0, 4_000));
        let unpolled = QueueSample { program_found_suspended: Some(0), softirq_ns: Some(0), ..QueueSample::default() };
        assert_eq!(counters(&[], 5_000).since(None), unpolled);
    }

    #[test]
    fn the_state_of_the_interrupt_is_unknown_before_the_first_poll() {
        let enabled = |words: &[(usize, u64)]| counters(words, 0).interrupt_enabled();
        assert_eq!(enabled(&[(FLAGS, ENABLED)]), None);
        assert_eq!(enabled(&[(FLAGS, ENABLED), (POLLS + 6, 1)]), Some(true));
        assert_eq!(enabled(&[(POLLS, 1)]), Some(false));
    }

    #[test]
    fn what_cannot_be_counted_is_absent() {
        let none = Abilities { sees_suspension: false, times_softirqs: false };
        let polled = PollCounters::at([9; WORDS], none, 0).since(None);
        assert_eq!((polled.program_found_suspended, polled.softirq_ns, polled.polls.program), (None, None, 9));
    }

    #[test]
    fn waits_have_no_bound_while_the_ring_is_hardly_ever_emptied() {
        let wait = |full: u64| {
            let words = [(POLLS, 30), (EMPTY, 10), (BUDGET_EXHAUSTED, full), (WAITS + 9, 200), (STALLED_POLLS, 1)];
            counters(&words, 0).since(None).wait
        };
        assert!(wait(2).p99_ns.is_some() && wait(2).max_ns.is_some());
        let full = wait(3);
        assert_eq!((full.mean_ns, full.p50_ns, full.p99_ns, full.max_ns), (None, None, None, None));
        assert_eq!((full.packets, full.stalled_polls), (200, 1));
    }
}
