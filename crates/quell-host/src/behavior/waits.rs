//! Counts the waits of programs in the kernel, or samples in which calls their threads sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_linux::proc::ProcRoot;
use quell_linux::{Pid, kernel};
use quell_sampler::{WaitCounts, WaitKey, WaitPlace, WaitSampler};
use tracing::info;

use super::{EpollKey, EpollWaits, OBSERVED};

/// A program that sleeps in its epoll does so in at least one of so many samples. Go's threads, for example, make many
/// calls with timeout 0 while one of them sleeps.
const SLEEPS_IN_ONE_OF: u32 = 10;

#[derive(Debug)]
pub(super) enum Waiting {
    Counted { sampler: Box<WaitSampler>, samples: u32, asleep: BTreeMap<EpollKey, u32>, busy: BusyTimes },
    Read(BTreeMap<EpollKey, EpollWaits>, Duration),
    Sampled { why: String, asleep: BTreeMap<EpollKey, EpollWaits> },
}

impl Waiting {
    pub(super) fn begin(programs: &BTreeSet<Pid>, counts: bool) -> Self {
        let sampled = |why: String| Self::Sampled { why, asleep: BTreeMap::new() };
        if !counts || programs.is_empty() {
            return sampled("not requested".to_owned());
        }
        WaitSampler::attach(kernel::sysfs(), programs).map_or_else(
            |error| {
                info!(%error, "calls of epoll_wait cannot be counted; samples which calls threads sleep in");
                sampled(error.to_string())
            },
            |sampler| {
                let busy = busy_times(programs);
                Self::Counted { sampler: Box::new(sampler), samples: 0, asleep: BTreeMap::new(), busy }
            },
        )
    }

    pub(super) fn sample(&mut self, programs: &BTreeSet<Pid>, elapsed: Duration) {
        match self {
            Self::Counted { sampler, samples, asleep, busy } => {
                *samples += 1;
                for (pid, place) in sampler.asleep() {
                    if let WaitPlace::Epoll(fd) = place {
                        *asleep.entry((pid, fd)).or_default() += 1;
                    }
                }
                if elapsed >= OBSERVED {
                    *self = Self::read(sampler, *samples, asleep, (busy, elapsed));
                }
            }
            Self::Sampled { asleep, .. } => sample_sleepers(programs, asleep),
            _ => {}
        }
    }

    /// Reads the counts, so that the programs in the kernel can be detached.
    fn read(
        sampler: &WaitSampler,
        samples: u32,
        asleep: &BTreeMap<EpollKey, u32>,
        (busy, elapsed): (&BusyTimes, Duration),
    ) -> Self {
        match sampler.read() {
            Ok(counts) => {
                let mut waits = by_epoll(&counts, |thread| busy_since(thread, busy).unwrap_or(elapsed));
                for (epoll, times) in asleep {
                    waits.entry(*epoll).or_default().is_slept_in = times * SLEEPS_IN_ONE_OF >= samples;
                }
                Self::Read(waits, elapsed)
            }
            Err(error) => Self::Sampled { why: error.to_string(), asleep: BTreeMap::new() },
        }
    }

    /// The waits, the duration of their observation, and why calls were not counted.
    pub(super) fn end(self, elapsed: Duration) -> (BTreeMap<EpollKey, EpollWaits>, Duration, Option<String>) {
        match self {
            Self::Read(waits, observed) => (waits, observed, None),
            Self::Sampled { why, asleep } => (asleep, elapsed, Some(why)),
            Self::Counted { sampler, samples, asleep, busy } => {
                Self::read(&sampler, samples, &asleep, (&busy, elapsed)).end(elapsed)
            }
        }
    }
}

/// Counts the epolls in whose waits threads sleep now.
fn sample_sleepers(programs: &BTreeSet<Pid>, asleep: &mut BTreeMap<EpollKey, EpollWaits>) {
    let proc = ProcRoot::default();
    for &pid in programs {
        let process = proc.process(pid);
        // Threads and processes may exit at any time.
        let calls = process.tids().unwrap_or_default().into_iter().filter_map(|tid| process.thread(tid).syscall().ok());
        let epolls: BTreeSet<i32> = calls.filter_map(|call| Some(call.epoll_wait()?.epoll_fd)).collect();
        epolls.into_iter().for_each(|fd| asleep.entry((pid, fd)).or_default().sleeping += 1);
    }
}

/// Times for which threads have run or waited for a CPU since their start.
type BusyTimes = BTreeMap<(Pid, Pid), Duration>;

fn busy_times(programs: &BTreeSet<Pid>) -> BusyTimes {
    let proc = ProcRoot::default();
    let threads = |&pid: &Pid| {
        let tids = proc.process(pid).tids().unwrap_or_default();
        tids.into_iter().map(move |tid| (pid, tid)).collect::<Vec<_>>()
    };
    programs.iter().flat_map(threads).filter_map(|thread| Some((thread, busy_time(thread)?))).collect()
}

fn busy_time((pid, tid): (Pid, Pid)) -> Option<Duration> {
    let stat = ProcRoot::default().process(pid).thread(tid).schedstat().ok()?;
    Some(Duration::from_nanos(stat.run_ns.saturating_add(stat.wait_ns)))
}

fn busy_since(thread: (Pid, Pid), then: &BusyTimes) -> Option<Duration> {
    Some(busy_time(thread)?.saturating_sub(*then.get(&thread)?))
}

/// Adds up the calls of the threads on each epoll.
fn by_epoll(
    counts: &BTreeMap<WaitKey, WaitCounts>,
    busy: impl Fn((Pid, Pid)) -> Duration,
) -> BTreeMap<EpollKey, EpollWaits> {
    let mut epolls: BTreeMap<EpollKey, EpollWaits> = BTreeMap::new();
    for (&(pid, tid, place), counted) in counts {
        let WaitPlace::Epoll(fd) = place else { continue };
        let sleeps = |place| counts.get(&(pid, tid, place)).is_some_and(|counted| counted.sleeping() > 0);
        let waits = epolls.entry((pid, fd)).or_default();
        waits.zero += counted.zero;
        waits.zero_empty += counted.zero_empty;
        waits.sleeping += counted.sleeping();
        waits.threads += 1;
        waits.sleeping_elsewhere += u32::from(sleeps(WaitPlace::Poll) || sleeps(WaitPlace::IoUring));
        waits.busy += busy((pid, tid));
    }
    epolls
}
