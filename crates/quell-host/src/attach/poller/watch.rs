//! Finds out that a polling process no longer polls: it has exited, is stopped, or hardly gets a CPU (cgroup freezer, CPU
//! limits). A thread that busy polls uses the CPU without end, so that its CPU time shows whether it polls.

use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use quell_change::change::{Change, ChangeOutcome};
use quell_change::journal::History;
use quell_linux::pidfd::PidFd;
use quell_linux::proc::{ProcRoot, ProcessState};
use quell_linux::{NapiId, Pid};
use tracing::warn;

use super::PollerError;
use super::threads::thread_name;

/// Time limit for the first poll of a queue.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);
const BEGIN_LOOKED_EVERY: Duration = Duration::from_millis(2);
/// Intervals, each with the share of a CPU below which a thread counts as not polling. On a busy machine, a thread can
/// lose its CPU for a moment, and the queue's timer polls.
const TOO_LITTLE: [(Duration, f64); 2] = [(Duration::from_millis(500), 0.05), (Duration::from_secs(5), 0.25)];

/// The polling process of an attachment.
#[derive(Debug)]
pub struct PollerWatch {
    pid: Pid,
    /// Absent if the process had exited before.
    process: Option<PidFd>,
    threads: BTreeMap<Pid, CpuShares>,
}

/// CPU time of a thread at several times.
#[derive(Debug, Default)]
struct CpuShares(VecDeque<(Instant, Duration)>);

impl CpuShares {
    /// Records the CPU time. Returns the interval and the share if the thread got too little of a CPU.
    fn add(&mut self, now: Instant, run: Duration) -> Option<(Duration, f64)> {
        self.0.push_back((now, run));
        let longest = TOO_LITTLE.iter().map(|(interval, _)| *interval).max().unwrap_or_default();
        // Keeps one reading from before the longest interval.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= longest) {
            self.0.pop_front();
        }
        TOO_LITTLE.iter().find_map(|&(interval, least)| {
            let (at, before) = self.0.iter().rev().find(|(at, _)| now.duration_since(*at) >= interval)?;
            let passed = now.duration_since(*at);
            let share = run.saturating_sub(*before).as_secs_f64() / passed.as_secs_f64();
            (share < least).then_some((passed, share))
        })
    }
}

impl PollerWatch {
    /// The polling process that the journal lists, if there is one.
    #[must_use]
    pub fn of_journal(history: &History, proc: &ProcRoot) -> Option<Self> {
        let (pid, start_time_ticks) =
            history.pending().find_map(|(_, entry)| match (&entry.change, entry.outcome) {
                (Change::Process(_), Some(ChangeOutcome::Process { pid, start_time_ticks, .. })) => {
                    Some((pid, start_time_ticks))
                }
                _ => None,
            })?;
        // The identity is checked after opening: from then on, the PID cannot refer to another process.
        let process = PidFd::open(pid).ok();
        let is_same = proc.process(pid).stat().is_ok_and(|stat| stat.starttime.0 == start_time_ticks);
        Some(Self { pid, process: process.filter(|_| is_same), threads: BTreeMap::new() })
    }

    /// Becomes readable when the process exits.
    #[must_use]
    pub fn pidfd(&self) -> Option<&PidFd> {
        self.process.as_ref()
    }

    /// Why the process no longer polls, if it does not. To be called every 100 ms.
    pub fn look(&mut self) -> Option<String> {
        let why = self.why_not_polling()?;
        warn!(pid = self.pid.get(), why, "the poller no longer polls");
        Some(why)
    }

    fn why_not_polling(&mut self) -> Option<String> {
        let (pid, proc) = (self.pid, ProcRoot::default());
        let exited = || Some(format!("its polling process {pid} has exited"));
        let is_running = |process: &PidFd| !process.wait_for_exit(Duration::ZERO).unwrap_or(true);
        if !self.process.as_ref().is_some_and(is_running) {
            return exited();
        }
        let process = proc.process(pid);
        let Ok(stat) = process.stat() else { return exited() };
        if stat.state == ProcessState::Stopped {
            return Some(format!("its polling process {pid} is stopped"));
        }
        let tids = process.tids().unwrap_or_default();
        self.threads.retain(|tid, _| tids.contains(tid));
        // The main thread does not poll.
        for tid in tids.into_iter().filter(|tid| *tid != pid) {
            let Ok(schedstat) = process.thread(tid).schedstat() else { continue };
            let shares = self.threads.entry(tid).or_default();
            if let Some((passed, share)) = shares.add(Instant::now(), schedstat.run()) {
                return Some(format!(
                    "its polling process {pid} got {:.0} % of a CPU in {} ms: frozen, or without a CPU",
                    share * 100.0,
                    passed.as_millis()
                ));
            }
        }
        None
    }

    /// Waits until the process polls this instance.
    pub(crate) fn wait_until_polled(&self, napi: NapiId) -> Result<(), PollerError> {
        let (proc, name) = (ProcRoot::default(), thread_name(napi));
        let until = Instant::now() + BEGINS_WITHIN;
        let is_running = |process: &PidFd| !process.wait_for_exit(Duration::ZERO).unwrap_or(true);
        while self.process.as_ref().is_some_and(is_running) {
            let process = proc.process(self.pid);
            let polls = |tid: &Pid| process.thread(*tid).stat().is_ok_and(|stat| stat.name() == name);
            if process.tids().unwrap_or_default().iter().any(polls) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(PollerError::DidNotBegin { pid: self.pid, napi, within: BEGINS_WITHIN });
            }
            thread::sleep(BEGIN_LOOKED_EVERY);
        }
        Err(PollerError::Stopped(format!("the polling process {} has exited", self.pid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time in ms after which a thread with this share of a CPU counts as not polling, if it is looked at every 100 ms.
    fn noticed_after(share: impl Fn(u64) -> f64, until_ms: u64) -> Option<u64> {
        let (began, mut shares, mut run) = (Instant::now(), CpuShares::default(), Duration::ZERO);
        (0..=until_ms).step_by(100).find(|&ms| {
            run += Duration::from_millis(100).mul_f64(share(ms));
            shares.add(began + Duration::from_millis(ms), run).is_some()
        })
    }

    #[test]
    fn a_thread_without_a_cpu_is_noticed_within_half_a_second_and_one_with_a_tenth_within_five() {
        assert_eq!(noticed_after(|_| 0.0, 10_000), Some(500));
        assert_eq!(noticed_after(|ms| if ms < 3_000 { 1.0 } else { 0.0 }, 10_000), Some(3_400));
        assert_eq!(noticed_after(|_| 0.1, 10_000), Some(5_000));
    }

    #[test]
    fn a_thread_that_shares_its_cpu_or_loses_it_for_a_moment_polls() {
        assert_eq!(noticed_after(|_| 0.3, 60_000), None);
        assert_eq!(noticed_after(|ms| if ms % 1_000 < 300 { 0.0 } else { 1.0 }, 60_000), None);
    }
}
