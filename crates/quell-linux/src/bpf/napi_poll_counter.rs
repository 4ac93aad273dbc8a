//! Counts the polls of chosen NAPIs at the tracepoint `napi:napi_poll`, from attaching to dropping.
//! It observes; nothing about the polling changes but for the instructions that it costs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use super::btf::Btf;
use super::counter::{CounterError, TracepointCounter};
use super::napi_poll_program::{COUNTERS, Counter, Layout, assemble};
use crate::{NapiId, kernel};

/// What a poll of a watched NAPI costs at most, in instructions of the program; a test holds it to that.
#[cfg(test)]
pub(super) const LONGEST_RUN: usize = 48;

/// How a NAPI was polled since the counter was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiPolls {
    /// Polls.
    pub polls: u64,
    /// Packets that the polls returned as work done. A driver that also frees sent packets in its
    /// poll does not count these.
    pub packets: u64,
    /// Polls that received nothing.
    pub empty: u64,
    /// Polls that used their whole budget.
    pub full_budget: u64,
    /// Polls by the NAPI's kernel thread, one that polls without end included (`threaded` of 2, Linux 6.19).
    pub by_thread: u64,
    /// Polls by a user's thread within a busy poll. The last poll of a busy poll is not among them:
    /// the kernel leaves the state before it (`busy_poll_stop`).
    pub by_busy_poll: u64,
    /// Last polls of busy polls, recognized by their budget. 0 for busy polls whose budget is the instance's weight (64 for
    /// most drivers): a softirq polls with the same. A busy poll that has to give way to another thread ends with one each
    /// time (Linux before 7.3).
    pub last_of_busy_poll: u64,
    /// Polls of those by a user's thread that found the interrupt suspended: the timer that ends a suspension was running,
    /// due later than deferral ever sets it. 0 for an instance that does not defer interrupts, and so suspends none, and for
    /// one whose suspension is not longer than its deferral, of which it cannot be told; absent where the kernel does not
    /// suspend interrupts (before Linux 6.13).
    pub found_suspended: Option<u64>,
}

impl NapiPolls {
    /// Polls in softirq, and the last poll of each busy poll.
    #[must_use]
    pub fn by_softirq_or_last_of_busy_poll(&self) -> u64 {
        self.polls.saturating_sub(self.by_thread).saturating_sub(self.by_busy_poll)
    }

    /// What happened to two instances together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            polls: self.polls + other.polls,
            packets: self.packets + other.packets,
            empty: self.empty + other.empty,
            full_budget: self.full_budget + other.full_budget,
            by_thread: self.by_thread + other.by_thread,
            by_busy_poll: self.by_busy_poll + other.by_busy_poll,
            last_of_busy_poll: self.last_of_busy_poll + other.last_of_busy_poll,
            found_suspended: self.found_suspended.zip(other.found_suspended).map(|(one, another)| one + another),
        }
    }

    /// What happened since an earlier reading of the same counter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            polls: self.polls.saturating_sub(earlier.polls),
            packets: self.packets.saturating_sub(earlier.packets),
            empty: self.empty.saturating_sub(earlier.empty),
            full_budget: self.full_budget.saturating_sub(earlier.full_budget),
            by_thread: self.by_thread.saturating_sub(earlier.by_thread),
            by_busy_poll: self.by_busy_poll.saturating_sub(earlier.by_busy_poll),
            last_of_busy_poll: self.last_of_busy_poll.saturating_sub(earlier.last_of_busy_poll),
            found_suspended: self
                .found_suspended
                .zip(earlier.found_suspended)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// A program that counts at the tracepoint, until it is dropped.
///
/// What it costs: for a poll of a NAPI that is not watched 14 BPF instructions, a hash look-up
/// included; for a watched one at most 48, three calls included. Every NAPI of the machine pays the
/// former. Measured for a watched one on a virtual machine at 2.1 GHz, one packet a poll: 79 ns in the
/// median of ten runs (60 to 92), on a busier day 96 (90 to 133), the two clock readings of the kernel's own BPF
/// statistics included.
#[derive(Debug)]
pub struct NapiPollCounter {
    counter: TracepointCounter<COUNTERS>,
    sees_suspension: bool,
}

impl NapiPollCounter {
    /// Loads and attaches the counting program for these NAPIs, all starting from zero. `sys` is
    /// mostly `/sys`; the kernel's types are read from there.
    ///
    /// # Errors
    /// When the kernel cannot count or the caller may not, told apart; see [`CounterError`].
    pub fn attach(sys: &Path, watched: &[NapiId]) -> Result<Self, CounterError> {
        let watched: Vec<u32> = watched.iter().map(|id| id.get()).collect();
        if watched.is_empty() {
            return Err(CounterError::NothingToWatch);
        }
        let layout = layout(sys)?;
        let assemble = |map| assemble(layout, map);
        let counter = TracepointCounter::attach("quell_napi_poll", layout.tracepoint, watched, assemble)?;
        Ok(Self { counter, sees_suspension: layout.suspension.is_some() })
    }

    /// Reads the counters of all watched NAPIs; one system call each.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn read(&self) -> Result<BTreeMap<NapiId, NapiPolls>, CounterError> {
        let counters = self.counter.read()?.into_iter();
        let named = |(id, sum)| Some((NapiId::from_kernel(id)?, by_name(sum, self.sees_suspension)));
        Ok(counters.filter_map(named).collect())
    }
}

/// What the kernel calls where. Its own types are read once: they do not change while it runs, and there are many.
fn layout(sys: &Path) -> Result<Layout, CounterError> {
    static OF_THIS_KERNEL: OnceLock<Layout> = OnceLock::new();
    if let Some(layout) = OF_THIS_KERNEL.get().filter(|_| sys == kernel::sysfs()) {
        return Ok(*layout);
    }
    let layout = Layout::find(&Btf::of_kernel(sys)?)?;
    if sys == kernel::sysfs() {
        // Whoever was first read the same.
        let _ = OF_THIS_KERNEL.set(layout);
    }
    Ok(layout)
}

fn by_name(sum: [u64; COUNTERS], sees_suspension: bool) -> NapiPolls {
    let of = |counter: Counter| sum[counter as usize];
    NapiPolls {
        polls: of(Counter::Polls),
        packets: of(Counter::Packets),
        empty: of(Counter::Empty),
        full_budget: of(Counter::Full),
        by_thread: of(Counter::ByThread),
        by_busy_poll: of(Counter::ByBusyPoll),
        last_of_busy_poll: of(Counter::LastOfBusyPoll),
        found_suspended: sees_suspension.then(|| of(Counter::FoundSuspended)),
    }
}
