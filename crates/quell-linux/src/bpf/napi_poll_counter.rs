//! Counts the polls of chosen NAPIs at the tracepoint `napi:napi_poll`, from attaching to dropping.
//! It observes; nothing about the polling changes but for the instructions that it costs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use thiserror::Error;

use super::btf::{Btf, BtfError};
use super::napi_poll_program::{COUNTERS, Counter, Layout, assemble};
use super::syscall::{self, LoadError, PerCpuHash};
use crate::NapiId;

/// What the program is long; a test holds it to that.
#[cfg(test)]
pub(super) const INSTRUCTIONS: usize = 44;

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
    /// Polls by the NAPI's kernel thread.
    pub by_thread: u64,
    /// Polls by a user's thread within a busy poll. The last poll of a busy poll is not among them:
    /// the kernel leaves the state before it (`busy_poll_stop`).
    pub by_busy_poll: u64,
}

impl NapiPolls {
    /// Polls in softirq, and the last poll of each busy poll, which cannot be told from them.
    #[must_use]
    pub fn by_softirq_or_last_of_busy_poll(&self) -> u64 {
        self.polls.saturating_sub(self.by_thread).saturating_sub(self.by_busy_poll)
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
        }
    }
}

/// Why polls could not be counted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NapiPollError {
    /// No NAPI was named.
    #[error("counting polls: no NAPI to watch")]
    NothingToWatch,
    /// The kernel has no types or not the tracepoint: it cannot count.
    #[error("counting polls: {0}")]
    Unsupported(#[source] BtfError),
    /// The kernel's types could not be read or are malformed.
    #[error("counting polls: {0}")]
    Types(#[source] BtfError),
    /// The kernel has no `bpf()`.
    #[error("counting polls: {action}: this kernel is built without CONFIG_BPF_SYSCALL")]
    NoBpf {
        /// What was tried.
        action: &'static str,
    },
    /// The caller lacks the right.
    #[error(
        "counting polls: {action}: {source}; needs CAP_BPF and CAP_PERFMON in the initial user \
         namespace, and a kernel that is not locked down"
    )]
    Denied {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's verifier did not accept the program.
    #[error("counting polls: the kernel refused the program: {source}; it says: {log}")]
    Rejected {
        /// The kernel's answer.
        source: io::Error,
        /// The verifier's words.
        log: String,
    },
    /// Another answer.
    #[error("counting polls: {action}: {source}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl NapiPollError {
    fn new(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSYS) => Self::NoBpf { action },
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action, source },
            _ => Self::Refused { action, source },
        }
    }
}

impl From<BtfError> for NapiPollError {
    fn from(error: BtfError) -> Self {
        match error {
            BtfError::Absent { .. } | BtfError::NotFound { .. } => Self::Unsupported(error),
            other => Self::Types(other),
        }
    }
}

impl From<LoadError> for NapiPollError {
    fn from(LoadError { source, log }: LoadError) -> Self {
        // The verifier also answers EACCES, but then it says why.
        if log.is_empty() { Self::new("loading the program", source) } else { Self::Rejected { source, log } }
    }
}

/// A program that counts at the tracepoint, until it is dropped.
///
/// What it costs: for a poll of a NAPI that is not watched 14 BPF instructions, a hash look-up
/// included; for a watched one at most 35, two calls included. Every NAPI of the machine pays the
/// former. Measured for a watched one on a virtual machine at 2.1 GHz, one packet a poll: 85 ns, the
/// two clock readings of the kernel's own BPF statistics included.
#[derive(Debug)]
pub struct NapiPollCounter {
    counters: PerCpuHash<COUNTERS>,
    watched: Vec<NapiId>,
    /// The program stays loaded and attached while this is open.
    _attachment: OwnedFd,
}

impl NapiPollCounter {
    /// Loads and attaches the counting program for these NAPIs, all starting from zero. `sys` is
    /// mostly `/sys`; the kernel's types are read from there.
    ///
    /// # Errors
    /// When the kernel cannot count or the caller may not, told apart; see [`NapiPollError`].
    pub fn attach(sys: &Path, watched: &[NapiId]) -> Result<Self, NapiPollError> {
        let entries = u32::try_from(watched.len()).unwrap_or(u32::MAX);
        if entries == 0 {
            return Err(NapiPollError::NothingToWatch);
        }
        let layout = Layout::find(&Btf::of_kernel(sys)?)?;
        let counters = PerCpuHash::create(entries).map_err(|source| NapiPollError::new("making a map", source))?;
        for id in watched {
            counters.insert_zero(id.get()).map_err(|source| NapiPollError::new("adding a NAPI to the map", source))?;
        }
        let program = assemble(layout, counters.as_fd().as_raw_fd());
        let program = syscall::load_tracepoint_program("quell_napi_poll", &program, layout.tracepoint)?;
        let attachment = syscall::attach_tracepoint(program.as_fd())
            .map_err(|source| NapiPollError::new("attaching to napi:napi_poll", source))?;
        Ok(Self { counters, watched: watched.to_vec(), _attachment: attachment })
    }

    /// Reads the counters of all watched NAPIs; one system call each.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn read(&self) -> Result<BTreeMap<NapiId, NapiPolls>, NapiPollError> {
        let mut polls = BTreeMap::new();
        for &id in &self.watched {
            let sum = self.counters.sum(id.get()).map_err(|source| NapiPollError::new("reading the map", source))?;
            polls.extend(sum.map(|sum| (id, by_name(sum))));
        }
        Ok(polls)
    }
}

fn by_name(sum: [u64; COUNTERS]) -> NapiPolls {
    let of = |counter: Counter| sum[counter as usize];
    NapiPolls {
        polls: of(Counter::Polls),
        packets: of(Counter::Packets),
        empty: of(Counter::Empty),
        full_budget: of(Counter::Full),
        by_thread: of(Counter::ByThread),
        by_busy_poll: of(Counter::ByBusyPoll),
    }
}
