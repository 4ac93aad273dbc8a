//! Counts the waits of programs in the kernel, or samples in which calls their threads sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid, kernel};
use quell_sampler::{WaitCounts, WaitKey, WaitPlace, WaitSampler};
use tracing::info;

use super::{EpollKey, EpollWaits, OBSERVED};

/// A program that sleeps in its epoll does so in at least one of so many samples. Go's threads, for example, make many
/// calls with timeout 0 while one of them sleeps.
const SLEEPS_IN_ONE_OF: u32 = 10;

#[derive(Debug)]
pub(super) enum Waiting {
    Counted { sampler: Box<WaitSampler>, samples: u32, asleep: BTreeMap<EpollKey, u32>, busy: BusyTimes },
    Read(Waits, Duration),
    Sampled { why: String, asleep: BTreeMap<EpollKey, EpollWaits> },
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) by_epoll: BTreeMap<EpollKey, EpollWaits>,
    pub(super) blocked: BTreeMap<EpollKey, BTreeMap<NapiId, u64>>,
    /// How often the programs read from the given descriptors, or accepted connections.
    pub(super) read: BTreeMap<(Pid, i32), u64>,
}

impl Waiting {
    /// Counts calls of these programs, and those of them that read one of these descriptors.
    pub(super) fn begin(programs: &BTreeSet<Pid>, descriptors: &BTreeSet<(Pid, i32)>, counts: bool) -> Self {
        let sampled = |why: String| Self::Sampled { why, asleep: BTreeMap::new() };
        if !counts || programs.is_empty() {
            return sampled("not requested".to_owned());
        }
        WaitSampler::attach(kernel::sysfs(), programs, descriptors).map_or_else(
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
                sampler.asleep().into_iter().for_each(|epoll| *asleep.entry(epoll).or_default() += 1);
                if elapsed >= OBSERVED {
                    let mut read = Self::read(sampler, *samples, asleep, (busy, elapsed));
                    if let Self::Read(waits, _) = &mut read {
                        add_uncounted_sleepers(programs, &mut waits.by_epoll);
                    }
                    *self = read;
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
        let counted = sampler.read().and_then(|counts| Ok((counts, sampler.descriptors_read()?)));
        match counted {
            Ok((counts, read)) => {
                let mut waits = by_epoll(&counts, |thread| busy_since(thread, busy).unwrap_or(elapsed));
                waits.read = read;
                for (epoll, times) in asleep {
                    waits.by_epoll.entry(*epoll).or_default().is_slept_in = times * SLEEPS_IN_ONE_OF >= samples;
                }
                Self::Read(waits, elapsed)
            }
            Err(error) => Self::Sampled { why: error.to_string(), asleep: BTreeMap::new() },
        }
    }

    pub(super) fn end(self, elapsed: Duration) -> (Waits, Duration, Option<String>) {
        match self {
            Self::Read(waits, observed) => (waits, observed, None),
            Self::Sampled { why, asleep } => (Waits { by_epoll: asleep, ..Waits::default() }, elapsed, Some(why)),
            Self::Counted { sampler, samples, asleep, busy } => {
                Self::read(&sampler, samples, &asleep, (&busy, elapsed)).end(elapsed)
            }
        }
    }
}

/// Adds the epolls in which a thread sleeps since before calls were counted, because no packet has come.
fn add_uncounted_sleepers(programs: &BTreeSet<Pid>, waits: &mut BTreeMap<EpollKey, EpollWaits>) {
    let mut asleep = BTreeMap::new();
    sample_sleepers(programs, &mut asleep);
    for epoll in asleep.into_keys() {
        let counted = waits.entry(epoll).or_default();
        counted.is_slept_in |= counted.calls() == 0;
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

fn by_epoll(counts: &BTreeMap<WaitKey, WaitCounts>, busy: impl Fn((Pid, Pid)) -> Duration) -> Waits {
    let mut waits = Waits::default();
    for (&(pid, tid, place), counted) in counts {
        let WaitPlace::Epoll(fd) = place else { continue };
        let of_thread = |place| counts.get(&(pid, tid, place)).copied().unwrap_or_default();
        let sleeps = |place| of_thread(place).sleeping() > 0;
        let epoll = waits.by_epoll.entry((pid, fd)).or_default();
        epoll.zero += counted.zero;
        epoll.zero_empty += counted.zero_empty;
        epoll.sleeping += counted.sleeping();
        epoll.slept += counted.slept;
        epoll.returned += counted.with_events;
        epoll.after_partial_read += counted.after_partial_read;
        epoll.partial_reading += Duration::from_nanos(counted.partial_read_ns);
        epoll.polled += of_thread(WaitPlace::Polled(fd)).slept;
        epoll.threads += 1;
        epoll.sleeping_elsewhere += u32::from(sleeps(WaitPlace::Poll) || sleeps(WaitPlace::IoUring));
        epoll.busy += busy((pid, tid));
        if counted.with_events > 0 {
            for (queue, calls) in reads(counts, (pid, tid)) {
                match queue {
                    Some(_) => epoll.read_of_queues += calls,
                    None => epoll.read_of_others += calls,
                }
            }
            for (napi, calls) in blocked_on(counts, (pid, tid)) {
                *waits.blocked.entry((pid, fd)).or_default().entry(napi).or_default() += calls;
            }
        }
    }
    let mut reads: BTreeMap<Pid, u64> = BTreeMap::new();
    for ((pid, _, _), counted) in counts.iter().filter(|((_, _, place), _)| matches!(place, WaitPlace::Read(_))) {
        *reads.entry(*pid).or_default() += counted.calls;
    }
    for (&(pid, _), epoll) in &mut waits.by_epoll {
        let all = reads.get(&pid).copied().unwrap_or_default();
        epoll.read_elsewhere = all.saturating_sub(epoll.read_of_queues + epoll.read_of_others);
    }
    waits
}

/// Calls in which a thread read files that epolls watch, by the queue of the file, if it is a socket with one.
fn reads(
    counts: &BTreeMap<WaitKey, WaitCounts>,
    (pid, tid): (Pid, Pid),
) -> impl Iterator<Item = (Option<NapiId>, u64)> {
    counts.iter().filter_map(move |(&(of, thread, place), counted)| match place {
        WaitPlace::Read(queue) if (of, thread) == (pid, tid) => Some((queue, counted.calls)),
        _ => None,
    })
}

/// Calls in which a thread slept for sockets, by the queue of the socket.
fn blocked_on(counts: &BTreeMap<WaitKey, WaitCounts>, (pid, tid): (Pid, Pid)) -> impl Iterator<Item = (NapiId, u64)> {
    counts.iter().filter_map(move |(&(of, thread, place), counted)| match place {
        WaitPlace::Socket(Some(napi)) if (of, thread) == (pid, tid) => Some((napi, counted.slept)),
        _ => None,
    })
}
