//! Busy polls queues from outside their programs (`userbusy`). An io_uring polls the NAPI instance of a queue by its ID, so
//! that programs of every kind have a poller: also those that wait in poll(2) or recv(2).
//!
//! - [`threads`] polls, with one thread per queue.
//! - [`process`] is the process of an attachment. It polls the queues that the journal of the attachment lists.
//! - [`watch`] is used by the owner of the attachment. It finds out that the process no longer polls.
//!
//! The queue defers interrupts. Without a poller, the queue's timer polls it after `gro-flush-timeout`, which is the safety
//! net until the owner has restored the queue.

pub mod process;
pub mod threads;
pub mod watch;

use std::io::{self, BufRead as _, BufReader, PipeReader};
use std::num::NonZeroU64;
use std::time::Duration;

use quell_linux::io_uring::{NapiPollError, NapiPoller};
use quell_linux::sched::{self, SchedError};
use quell_linux::visible::counted;
use quell_linux::{CpuList, CpuSetReadError, NapiId, Pid, kernel};
use quell_mode::DeliveryMode;

use super::plan::AttachPlan;
use crate::snapshot::Snapshot;
use crate::snapshot::query::SnapshotQuery;

/// Part of a ring that may fill before the queue's timer polls it, if the poller has died.
const RING_SHARE: u64 = 4;
/// Packets in the ring of a veth (`VETH_RING_SIZE` in `drivers/net/veth.c`), which reports none.
const VETH_RING: u64 = 255;
/// Minimum of the timer. More frequent polls cost more than lost packets.
const TIMER_MIN_NS: u64 = 20_000;

/// Consequence of polling threads that share CPUs.
pub const SHARED_CPUS: &str =
    "the mode costs more than it gives, and is undone if a thread gets less than a quarter of a CPU";

/// Line by which the polling process says that it may poll.
pub const READY: &str = "ready";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollerError {
    #[error(transparent)]
    Poll(#[from] NapiPollError),
    #[error("the polling thread of NAPI {napi}: {source}")]
    Sched { napi: NapiId, source: SchedError },
    #[error("could not start the polling thread of NAPI {napi}: {source}")]
    Thread { napi: NapiId, source: io::Error },
    #[error("the polling thread of NAPI {0} panicked")]
    Panicked(NapiId),
    #[error("could not start the polling process: {0}")]
    Process(String),
    #[error("the polling process {pid} did not begin to poll NAPI {napi} within {} s", within.as_secs())]
    DidNotBegin { pid: Pid, napi: NapiId, within: Duration },
    #[error("poller-cpu={first} with {}: CPU {missing} is not online (online: {online})", counted(*queues, "queue"))]
    NoCpu { first: u32, queues: usize, missing: u32, online: CpuList },
    #[error("{} for {}: {SHARED_CPUS}", counted(*cpus, "CPU"), counted(*queues, "polling thread"))]
    TooFewCpus { cpus: usize, queues: usize },
    #[error("could not read which CPUs are online: {0}")]
    OnlineCpus(#[from] CpuSetReadError),
    #[error("{0}")]
    Stopped(String),
}

/// Checks that the polling threads of the mode, one for each of `queues` queues, can have a CPU each.
pub fn check_cpus(mode: &DeliveryMode, queues: usize) -> Result<(), PollerError> {
    let Some(settings) = mode.poller() else { return Ok(()) };
    let online = CpuList::online(kernel::sysfs())?;
    // The polling process inherits the affinity of this one.
    let own = sched::affinity(Pid::of_this_process()).unwrap_or_else(|_| online.clone());
    have_cpus(settings.cpu, queues, &online, &own)
}

/// Decides whether each of `queues` threads can have a CPU: from CPU `first` on, or one of `own`. Threads that share a CPU
/// with each other get so little of it that their owner takes the mode back ([`watch`]).
fn have_cpus(first: Option<u32>, queues: usize, online: &CpuList, own: &CpuList) -> Result<(), PollerError> {
    let Some(first) = first else {
        let cpus = own.iter().filter(|cpu| online.contains(*cpu)).count();
        return if queues > cpus { Err(PollerError::TooFewCpus { cpus, queues }) } else { Ok(()) };
    };
    match (first..).take(queues).find(|cpu| !online.contains(*cpu)) {
        Some(missing) => Err(PollerError::NoCpu { first, queues, missing, online: online.clone() }),
        None => Ok(()),
    }
}

/// Checks that this process may poll queues by their NAPI IDs, if the mode needs it.
pub fn check(mode: &DeliveryMode) -> Result<(), NapiPollError> {
    mode.poller().map_or(Ok(()), |_| NapiPoller::new(Duration::ZERO).map(drop))
}

/// Waits until the polling process, which writes to this pipe, may poll.
pub(super) fn wait_until_ready(output: PipeReader) -> Result<(), PollerError> {
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    match (read, line.trim_end()) {
        (Ok(_), READY) => Ok(()),
        (Ok(_), "") => Err(PollerError::Process("it exited immediately".to_owned())),
        (Ok(_), why) => Err(PollerError::Process(why.to_owned())),
        (Err(error), _) => Err(PollerError::Process(error.to_string())),
    }
}

/// The mode with a timer that is at most a quarter of the time in which a ring of the plan fills at the observed rate. The
/// timer polls the queues if their poller dies.
#[must_use]
pub fn with_safe_timer(mode: DeliveryMode, before: &Snapshot, now: &Snapshot, plan: &AttachPlan) -> DeliveryMode {
    let query = SnapshotQuery::new(now, Some(before));
    let fills_within = |napi: NapiId| {
        let (device, _) = query.napi(napi)?;
        let packets = query.queue_packets(device, napi).or_else(|| query.device_packets(device))?;
        let veth = || (device.kind.as_deref() == Some("veth")).then_some(VETH_RING);
        let ring = device.rings.known().and_then(|rings| rings.rx).map(u64::from).or_else(veth)?;
        query.interval_ns()?.checked_mul(ring)?.checked_div(packets)
    };
    let fills_within = plan.queues().filter_map(|step| fills_within(step.napi)).min();
    let timer = fills_within.and_then(|ns| NonZeroU64::new((ns / RING_SHARE).max(TIMER_MIN_NS)));
    timer.filter(|_| mode.poller().is_some()).map_or(mode, |timer| mode.with_timer_at_most(timer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_threads_need_a_cpu_each_among_those_that_are_online_and_permitted() {
        let cpus = |cpus: std::ops::Range<u32>| cpus.collect::<CpuList>();
        let check = |queues, online, own| have_cpus(None, queues, &cpus(online), &cpus(own));
        assert!(check(2, 0..2, 0..2).is_ok(), "beside a worker, a thread still gets half of a CPU");
        assert!(matches!(check(4, 0..2, 0..2), Err(PollerError::TooFewCpus { cpus: 2, queues: 4 })));
        assert!(matches!(check(2, 0..8, 0..1), Err(PollerError::TooFewCpus { cpus: 1, queues: 2 })), "taskset(1)");
        assert!(matches!(check(3, 0..2, 0..8), Err(PollerError::TooFewCpus { cpus: 2, queues: 3 })), "offline CPUs");
        let error = check(4, 0..2, 0..2).unwrap_err().to_string();
        assert!(error.starts_with("2 CPUs for 4 polling threads: the mode costs more than it gives"), "{error}");
    }

    #[test]
    fn a_first_cpu_is_followed_by_those_of_further_queues() {
        let online: CpuList = (0..4).collect();
        assert!(have_cpus(Some(2), 2, &online, &online).is_ok());
        let error = have_cpus(Some(2), 3, &online, &online).unwrap_err();
        assert!(matches!(error, PollerError::NoCpu { missing: 4, .. }), "{error}");
    }
}
