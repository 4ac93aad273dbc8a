//! Servers whose own work takes so much CPU time per packet that no delivery of packets changes it.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::Pid;
use quell_linux::proc::{ProcDir, ProcRoot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::effect::EffectOnQueue;
use crate::snapshot::{Snapshot, SnapshotSocket};

/// CPU time per packet from which on the delivery of the packet is at most a hundredth of it.
const DOMINATES_NS: u64 = 100 * DELIVERY_NS;
/// CPU time of the delivery of one packet, about: its interrupt, its poll and the wake-up of a thread. A request to
/// memcached takes 17 µs in a veth lab at half load, its own work included.
const DELIVERY_NS: u64 = 20_000;
/// Minimum number of packets; fewer suffice for a program that worked for at least [`MUCH_WORK_NS`].
const PACKETS_MIN: u64 = 5;
const MUCH_WORK_NS: u64 = 100_000_000;
/// Polls per packet from which on the CPU time can be that of polling.
const POLLS_OF_SPINNING: u64 = 20;
/// A thread that works sleeps at least once in this CPU time, unless the next request is always there.
const SLEEPS_ONCE_IN_NS: u64 = 1_000_000_000;

/// CPU time per packet of a server whose own work is most of what a request costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OwnWork {
    /// CPU time per received packet, in nanoseconds.
    pub cpu_ns_per_packet: u64,
}

impl OwnWork {
    /// Absent if the delivery of its packets can matter, and if that is unknown. `worked_ns` is without the time of threads
    /// that spin; `polls_by_programs` are polls of its queues.
    #[must_use]
    pub fn of(worked_ns: Option<u64>, packets: u64, polls_by_programs: u64) -> Option<Self> {
        let worked_ns = worked_ns.filter(|&ns| packets >= PACKETS_MIN || ns >= MUCH_WORK_NS)?;
        let cpu_ns_per_packet = worked_ns.checked_div(packets)?;
        let polls = polls_by_programs >= packets.saturating_mul(POLLS_OF_SPINNING);
        (cpu_ns_per_packet >= DOMINATES_NS && !polls).then_some(Self { cpu_ns_per_packet })
    }

    /// The same for programs that these queues serve.
    #[must_use]
    pub fn of_queues<'a>(queues: impl IntoIterator<Item = &'a EffectOnQueue>) -> Option<Self> {
        let sum = |(worked, packets, polls): (Option<u64>, u64, u64), seen: &EffectOnQueue| {
            (worked.max(seen.programs_worked_ns), packets + seen.packets, polls + seen.by_programs())
        };
        let (worked_ns, packets, polls_by_programs) = queues.into_iter().fold((None, 0, 0), sum);
        Self::of(worked_ns, packets, polls_by_programs)
    }

    /// Part of that time that another mode can change, 0 to 1, about.
    #[must_use]
    pub fn changeable(self) -> f64 {
        DELIVERY_NS as f64 / self.cpu_ns_per_packet as f64
    }
}

/// What a thread has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadTimes {
    run_ns: u64,
    /// How often it slept.
    slept: u64,
}

impl ThreadTimes {
    fn of(thread: &ProcDir) -> Option<Self> {
        Some(Self { run_ns: thread.schedstat().ok()?.run_ns, slept: thread.status().ok()?.voluntary_ctxt_switches? })
    }

    /// CPU time since an earlier reading, if it slept in between. A thread that spins does not.
    fn worked_since(self, earlier: Self) -> Option<u64> {
        let ran_ns = self.run_ns.checked_sub(earlier.run_ns)?;
        let slept = self.slept.checked_sub(earlier.slept)?;
        let sleeps = slept > 0 && slept.saturating_mul(SLEEPS_ONCE_IN_NS) >= ran_ns;
        Some(if sleeps { ran_ns } else { 0 })
    }
}

/// Whether a request waits for one of these programs.
#[must_use]
pub fn has_backlog(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> bool {
    let is_unread = |socket: &SnapshotSocket| socket.receive_queue.is_some_and(|unread| unread > 0);
    snapshot.sockets_of(programs).any(|socket| socket.remote.is_some() && is_unread(socket))
}

/// CPU time in which programs worked: that of the threads that slept in between, or, while a request waits, of all. A thread
/// that spins does not sleep, and reads at once what comes.
#[must_use]
pub fn worked_ns(has_backlog: bool, of_all_ns: Option<u64>, of_sleeping_ns: Option<u64>) -> Option<u64> {
    if has_backlog { of_all_ns } else { of_sleeping_ns }
}

/// What the threads of programs have done since their start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkReading(BTreeMap<Pid, BTreeMap<Pid, ThreadTimes>>);

impl WorkReading {
    #[must_use]
    pub fn of(programs: &BTreeSet<Pid>) -> Self {
        let proc = ProcRoot::default();
        let of = |&pid: &Pid| {
            let process = proc.process(pid);
            let times = |tid| Some((tid, ThreadTimes::of(&process.thread(tid))?));
            Some((pid, process.tids().ok()?.into_iter().filter_map(times).collect()))
        };
        Self(programs.iter().filter_map(of).collect())
    }

    /// CPU time of each program since an earlier reading, of the threads that slept in between. Threads that were not read
    /// twice are left out.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> BTreeMap<Pid, u64> {
        let of = |(pid, threads): (&Pid, &BTreeMap<Pid, ThreadTimes>)| {
            let before = earlier.0.get(pid)?;
            let worked = |(tid, now): (&Pid, &ThreadTimes)| now.worked_since(*before.get(tid)?);
            Some((*pid, threads.iter().filter_map(worked).sum()))
        };
        self.0.iter().filter_map(of).collect()
    }
}

/// CPU time of these programs together; absent if that of one of them is unknown.
pub fn worked_by<'a>(programs: impl IntoIterator<Item = &'a Pid>, worked: &BTreeMap<Pid, u64>) -> Option<u64> {
    programs.into_iter().map(|pid| worked.get(pid).copied()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn per_packet_ms(worked_ms: u64, packets: u64, polls: u64) -> Option<u64> {
        OwnWork::of(Some(worked_ms * MS), packets, polls).map(|work| work.cpu_ns_per_packet / MS)
    }

    #[test]
    fn own_work_dominates_from_two_milliseconds_per_packet_on_if_some_came() {
        assert_eq!(per_packet_ms(1_000, 40, 0), Some(25));
        assert_eq!(per_packet_ms(1_000, 501, 0), None);
        assert_eq!(per_packet_ms(50, 5, 0), Some(10));
        assert_eq!(per_packet_ms(50, 4, 0), None, "a few packets, and little work");
        assert_eq!(per_packet_ms(500, 1, 0), Some(500));
        assert_eq!((per_packet_ms(1_000, 0, 0), OwnWork::of(None, 40, 0)), (None, None));
        assert_eq!(per_packet_ms(1_000, 40, 800), None, "it polls its queue");
        let work = OwnWork::of(Some(1_000 * MS), 500, 0).map(OwnWork::changeable);
        assert_eq!(work, Some(0.01));
    }

    #[test]
    fn the_time_of_a_thread_that_never_sleeps_is_no_work() {
        let none = ThreadTimes { run_ns: 0, slept: 0 };
        let worked = |slept, run_ms| ThreadTimes { run_ns: run_ms * MS, slept }.worked_since(none);
        assert_eq!(worked(20, 1_000), Some(1_000 * MS));
        assert_eq!((worked(0, 1_000), worked(1, 2_000)), (Some(0), Some(0)));
        assert_eq!(none.worked_since(ThreadTimes { run_ns: 1, ..none }), None);
    }

    #[test]
    fn a_program_that_was_read_once_has_no_work() {
        let own = BTreeSet::from([Pid::of_this_process()]);
        let reading = WorkReading::of(&own);
        assert_eq!(worked_by(&own, &reading.since(&WorkReading::default())), None);
        assert!(worked_by(&own, &WorkReading::of(&own).since(&reading)).is_some());
    }
}
