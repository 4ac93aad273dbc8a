//! Counts the polls of selected NAPI instances at the tracepoint `napi:napi_poll`. It only observes; its
//! instructions are its only effect on polling.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use super::btf::Btf;
use super::counter::{CounterError, TracepointCounter};
use super::napi_poll_program::{COUNTERS, Counter, Layout, assemble};
use crate::{NapiId, kernel};

/// Upper limit of the instructions for a poll of a watched instance; a test enforces it.
#[cfg(test)]
pub(super) const LONGEST_RUN: usize = 48;

/// Polls of a NAPI instance since the counter was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiPolls {
    /// Number of polls.
    pub polls: u64,
    /// Packets that the polls reported as work done. A driver that also frees transmitted packets in its poll does
    /// not count them.
    pub packets: u64,
    /// Polls that reported no work.
    pub empty: u64,
    /// Polls that used their full budget.
    pub full_budget: u64,
    /// Polls by the instance's kernel thread, including one that busy polls (`threaded` of 2, Linux 6.19).
    pub by_thread: u64,
    /// Busy polls by a user thread. The last poll of a busy poll is not counted here: the kernel clears the state
    /// before it (`busy_poll_stop`).
    pub by_busy_poll: u64,
    /// Last polls of busy polls, recognized by their budget. 0 if that equals the weight of the instance (64 for
    /// most drivers), because softirqs poll with the weight. Before Linux 7.3, a busy poll that yields to another
    /// thread ends with one each time.
    pub last_of_busy_poll: u64,
    /// Polls by a user thread that found IRQs suspended: the timer that ends a suspension was running and due later
    /// than deferral ever sets it. `None` where the kernel does not suspend IRQs (before Linux 6.13).
    ///
    /// The counter is 0 for an instance without IRQ deferral, which cannot suspend. It is also 0 if the suspension
    /// timeout does not exceed the deferral timeout, because the two are then indistinguishable.
    pub found_suspended: Option<u64>,
}

impl NapiPolls {
    /// Polls in softirq, plus the last poll of each busy poll.
    #[must_use]
    pub fn by_softirq_or_last_of_busy_poll(&self) -> u64 {
        self.polls.saturating_sub(self.by_thread).saturating_sub(self.by_busy_poll)
    }

    /// Sum of the counters of two instances.
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

    /// Difference to an earlier reading of the same counter.
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

/// A program that counts at the tracepoint until it is dropped.
///
/// Cost: 14 BPF instructions, including a hash lookup, for a poll of an instance that is not watched. Every
/// instance of the machine pays this. A poll of a watched instance costs at most 48, including three calls.
///
/// Measured for a watched instance on a virtual machine at 2.1 GHz, one packet per poll: 79 ns, the median of
/// ten runs (60 to 92). On a busier day it was 96 ns (90 to 133). These times include two clock reads of the
/// kernel's BPF statistics.
#[derive(Debug)]
pub struct NapiPollCounter {
    counter: TracepointCounter<COUNTERS>,
    sees_suspension: bool,
}

impl NapiPollCounter {
    /// Loads and attaches the counting program for these instances. All counters start at zero. The kernel's BTF is
    /// read below `sys`, normally `/sys`.
    ///
    /// # Errors
    /// [`CounterError`] distinguishes an unsupported kernel from a missing capability.
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

    /// Reads the counters of all watched instances, with one system call each.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn read(&self) -> Result<BTreeMap<NapiId, NapiPolls>, CounterError> {
        let counters = self.counter.read()?.into_iter();
        let named = |(id, sum)| Some((NapiId::from_kernel(id)?, by_name(sum, self.sees_suspension)));
        Ok(counters.filter_map(named).collect())
    }
}

/// Offsets in the kernel's structures. BTF of the running kernel is parsed once, because it is large and does
/// not change.
fn layout(sys: &Path) -> Result<Layout, CounterError> {
    static OF_THIS_KERNEL: OnceLock<Layout> = OnceLock::new();
    if let Some(layout) = OF_THIS_KERNEL.get().filter(|_| sys == kernel::sysfs()) {
        return Ok(*layout);
    }
    let layout = Layout::find(&Btf::of_kernel(sys)?)?;
    if sys == kernel::sysfs() {
        // If another thread was first, it stored the same layout.
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
