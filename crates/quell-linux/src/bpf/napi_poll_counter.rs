//! Counts the polls of selected NAPI instances at the tracepoint `napi:napi_poll`. The program only observes. Its only
//! effect on polling is the time that its instructions take.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use super::btf::Btf;
use super::counter::{CounterError, TracepointCounter};
use super::napi_poll_program::{COUNTERS, Counter, Layout, assemble};
use crate::{NapiId, kernel};

/// Maximum number of BPF instructions that a poll of a watched instance executes. A test enforces it.
#[cfg(test)]
pub(super) const LONGEST_RUN: usize = 48;

/// Number of polls of a NAPI instance since the counter was attached, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiPolls {
    /// Number of polls.
    pub polls: u64,
    /// Packets that the polls reported as work done. Most drivers do not include freed transmit packets in that number.
    pub packets: u64,
    /// Polls that reported no work.
    pub empty: u64,
    /// Polls that used their full budget.
    pub full_budget: u64,
    /// Polls by the instance's kernel thread. This includes busy polls of the thread (`threaded` of 2, Linux 6.19).
    pub by_thread: u64,
    /// Busy polls by a user thread. The final poll of a busy-poll loop is not included, because the kernel clears the
    /// busy-poll state before it (`busy_poll_stop`).
    pub by_busy_poll: u64,
    /// Final polls of busy-poll loops, recognized by their budget. The counter stays 0 if that budget equals the weight
    /// of the instance (64 for most drivers), because softirqs poll with the weight. Before Linux 7.3, a busy-poll loop
    /// that yields to another thread also ends with a final poll.
    pub last_of_busy_poll: u64,
    /// Polls by a user thread that found IRQs suspended. The program recognizes a suspension by the timer that ends it:
    /// it expires later than the deferral timeout allows. `None` if the kernel cannot suspend IRQs (before Linux 6.13).
    ///
    /// The counter is 0 for an instance without IRQ deferral, which cannot suspend IRQs. It is also 0 if the suspension
    /// timeout does not exceed the deferral timeout, because the two are then indistinguishable.
    pub found_suspended: Option<u64>,
}

impl NapiPolls {
    /// Polls in softirq context, plus the final poll of each busy-poll loop.
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

    /// Difference from an earlier reading of the same counter.
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

/// Counts polls at the tracepoint until it is dropped.
///
/// For a poll of an unwatched instance, the program executes 14 BPF instructions, including a hash lookup. Every NAPI
/// instance of the machine pays this cost. For a poll of a watched instance, it executes at most 48 instructions,
/// including three calls. That took about 80 ns at 2.1 GHz.
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

/// Offsets in the kernel's structures. The BTF is parsed only once per process, because it is large and does not change
/// while the kernel runs.
fn layout(sys: &Path) -> Result<Layout, CounterError> {
    static OF_THIS_KERNEL: OnceLock<Layout> = OnceLock::new();
    if let Some(layout) = OF_THIS_KERNEL.get().filter(|_| sys == kernel::sysfs()) {
        return Ok(*layout);
    }
    let layout = Layout::find(&Btf::of_kernel(sys)?)?;
    if sys == kernel::sysfs() {
        // If another thread stored a layout first, it stored the same one.
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
