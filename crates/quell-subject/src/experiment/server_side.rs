//! Measures the server during a slice: kernel counters of its processes and queues, and the figures of the judges.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quell_experiment::{SliceFlag, SliceObservation};
use quell_host::snapshot::{Snapshot, SnapshotNapi};
use quell_linux::proc::ProcRoot;
use quell_linux::{CpuList, NapiId, Pid, kernel};
use quell_mode::{DeliveryMode, Threaded};

use super::figures;
use super::judge::{BESIDE, JudgeError, JudgeOutcome, Judges};
use crate::counters::{CpuUse, Instruments, TrialCounters, Watched};

/// Interval at which the code checks whether the experiment was stopped.
const TICK: Duration = Duration::from_millis(20);

/// Share of other programs in the busy time of the server's CPUs above which that time is not the server's.
const FOREIGN_MAX: f64 = 0.5;
/// Share of time in which the server's CPUs were not idle, above which a program has to wait for one of them.
const BUSY_MAX: f64 = 0.95;
/// Share of the time in which the server wanted to run, from which waiting for a CPU is a part of its latencies.
const WAIT_MAX: f64 = 0.1;

/// Observes a slice of at least `slice_ms`, which lasts until all judges have exited. Returns the observation and the
/// judges' outcome, whose figures are also among its metrics. Returns `None` if `stopped` returned true before the end. The
/// caller sets `spent_ms`.
///
/// # Errors
/// Fails if a judge fails or prints no figures.
pub fn observe(
    watched: &Watched,
    instruments: &mut Instruments,
    judges: &Judges,
    slice_ms: u32,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<(SliceObservation, JudgeOutcome)>, JudgeError> {
    let proc = ProcRoot::default();
    let first = watched.snapshot(&proc, instruments);
    let began = Instant::now();
    let outcome = match judges.is_empty() {
        true => JudgeOutcome::default(),
        false => match judges.run(slice_ms, stopped)? {
            Some(outcome) => outcome,
            None => return Ok(None),
        },
    };
    let left = Duration::from_millis(slice_ms.into()).saturating_sub(began.elapsed());
    if !sleep(left, stopped) {
        return Ok(None);
    }
    let counters = watched.between(&first, &watched.snapshot(&proc, instruments));
    let printed = &outcome.figures;
    let requests = printed.get(quell_result::figures::PRINTED_REQUESTS).filter(|_| judges.counts_all_requests);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "judges print no negative figures")]
    let requests = requests.map(|requests| *requests as u64);
    let mut metrics = figures::of_counters(&counters, requests, began.elapsed().as_secs_f64());
    metrics.extend(printed.clone());
    let foreign_cpu = foreign_cpu(watched, &counters);
    let has_failed = |(name, count): (&String, &f64)| {
        name.strip_prefix(BESIDE).unwrap_or(name) == quell_result::figures::PRINTED_ERRORS && *count > 0.0
    };
    let has_failed = printed.iter().any(has_failed);
    let mut flags = flags_of_other_programs(watched, &counters);
    flags.extend(has_failed.then_some(SliceFlag::RequestsFailed));
    Ok(Some((SliceObservation { metrics, foreign_cpu, flags, ..SliceObservation::default() }, outcome)))
}

/// Flags of a slice in which other programs used most of the time of the server's CPUs.
pub(crate) fn flags_of_other_programs(watched: &Watched, counters: &TrialCounters) -> BTreeSet<SliceFlag> {
    let Some(used) = &counters.server_cpus else { return BTreeSet::new() };
    if used.foreign_share_of_busy().is_none_or(|share| share <= FOREIGN_MAX) {
        return BTreeSet::new();
    }
    // With NAPI threads, CPU time is that of threads.
    let distorts_cpu_time = watched.server_napi.is_empty();
    let none_is_idle = used.busy_share().is_some_and(|share| share > BUSY_MAX);
    // A server with a higher priority than the others does not wait for them.
    let has_waited = none_is_idle && wait_share(counters).is_none_or(|share| share > WAIT_MAX);
    let flags = [distorts_cpu_time.then_some(SliceFlag::ForeignCpu), has_waited.then_some(SliceFlag::NoIdleCpu)];
    flags.into_iter().flatten().collect()
}

/// Share of the time in which the server wanted to run but waited for a CPU, 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one slice are far below 2^53")]
fn wait_share(counters: &TrialCounters) -> Option<f64> {
    let (waited, ran) = (counters.server_wait_ns?, counters.server_run_ns? + counters.napi_run_ns.unwrap_or(0));
    (waited + ran > 0).then(|| waited as f64 / (waited + ran) as f64)
}

/// Sleeps for `duration`. Returns false if `stopped` returned true before the end.
pub fn sleep(duration: Duration, stopped: &dyn Fn() -> bool) -> bool {
    let until = Instant::now() + duration;
    loop {
        if stopped() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(TICK));
    }
}

/// Returns the CPU share of other programs and of the hypervisor (steal time) on the server's CPUs, 0 to 1. Without
/// NAPI threads, other programs cannot be distinguished from softirqs of the queues, so only steal time counts.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one slice are far below 2^53")]
pub fn foreign_cpu(watched: &Watched, counters: &TrialCounters) -> Option<f64> {
    let used = counters.server_cpus.as_ref()?;
    if !watched.server_napi.is_empty() {
        return used.foreign_share();
    }
    Some(used)
        .filter(|used| used.capacity_ns > 0)
        .map(|&CpuUse { steal_ns, capacity_ns, .. }| steal_ns as f64 / capacity_ns as f64)
}

/// Selects the processes, CPUs, NAPI threads and interrupts whose counters are read for the programs `pids` on the
/// queues `napis`.
#[must_use]
pub fn watched(snapshot: &Snapshot, pids: &BTreeSet<Pid>, napis: &BTreeSet<NapiId>) -> Watched {
    let of_queues = |napi: &&SnapshotNapi| napis.contains(&napi.id);
    let instances: Vec<&SnapshotNapi> =
        snapshot.devices.iter().flat_map(|device| device.napis.known_elements()).filter(of_queues).collect();
    let devices = snapshot.devices.iter().filter(|device| device.napis.known_elements().any(|napi| of_queues(&napi)));
    let irqs: BTreeSet<u32> = instances.iter().filter_map(|napi| napi.irq_number()).collect();
    let kthreads = instances.iter().filter_map(|napi| napi.thread.known()?.as_ref());
    let processes = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let threads = processes.flat_map(|process| process.threads.known_elements());
    let of_threads = threads.chain(kthreads.clone()).filter_map(|thread| thread.affinity.known());
    let of_irqs = snapshot.irqs.known_elements().filter(|irq| irqs.contains(&irq.number));
    let of_irqs = of_irqs.filter_map(|irq| irq.effective_affinity.known().or(irq.affinity.known()));
    let cpus: CpuList = of_threads.chain(of_irqs).flat_map(CpuList::iter).collect();
    Watched {
        server: pids.iter().copied().collect(),
        server_napi: kthreads.map(|thread| thread.tid).collect(),
        pollers: Vec::new(),
        supervisors: Vec::new(),
        generator: Vec::new(),
        client_napi: Vec::new(),
        server_cpus: online(cpus),
        client_cpus: CpuList::default(),
        server_devices: devices.map(|device| device.name.clone()).collect(),
        irqs: irqs.into_iter().collect(),
    }
}

/// Widens the measured CPUs to all if a mode creates NAPI threads: these are bound to no CPU, and the time of the CPUs on
/// which they run belongs to the mode.
#[must_use]
pub fn with_cpus_of(modes: &[DeliveryMode], watched: Watched) -> Watched {
    let creates_threads = modes.iter().any(|mode| mode.napi().threaded != Threaded::Off);
    match CpuList::online(kernel::sysfs()) {
        Ok(server_cpus) if creates_threads && watched.server_napi.is_empty() => Watched { server_cpus, ..watched },
        _ => watched,
    }
}

/// Removes offline CPUs, which an affinity may include.
fn online(cpus: CpuList) -> CpuList {
    match CpuList::online(kernel::sysfs()) {
        Ok(online) => cpus.intersection(&online),
        Err(_) => cpus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(napi_threads: &[Pid], idle_ns: u64, own_ns: u64) -> Vec<SliceFlag> {
        flags_of(napi_threads, idle_ns, own_ns, (None, None))
    }

    fn flags_of(
        napi_threads: &[Pid],
        idle_ns: u64,
        own_ns: u64,
        (server_run_ns, server_wait_ns): (Option<u64>, Option<u64>),
    ) -> Vec<SliceFlag> {
        let watched = Watched {
            server: Vec::new(),
            server_napi: napi_threads.to_vec(),
            pollers: Vec::new(),
            supervisors: Vec::new(),
            generator: Vec::new(),
            client_napi: Vec::new(),
            server_cpus: CpuList::default(),
            client_cpus: CpuList::default(),
            server_devices: Vec::new(),
            irqs: Vec::new(),
        };
        let used = CpuUse { capacity_ns: 100, idle_ns, steal_ns: 0, lab_ns: own_ns, tasks_ns: 100 - idle_ns };
        let counters =
            TrialCounters { server_cpus: Some(used), server_run_ns, server_wait_ns, ..TrialCounters::default() };
        flags_of_other_programs(&watched, &counters).into_iter().collect()
    }

    #[test]
    fn a_server_that_did_not_wait_for_a_cpu_is_not_disturbed_by_programs_of_a_lower_priority() {
        let waited = |waited_ns| flags_of(&[], 0, 30, (Some(30), Some(waited_ns)));
        assert_eq!(waited(1), [SliceFlag::ForeignCpu]);
        assert_eq!(waited(10), [SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]);
    }

    #[test]
    fn other_programs_that_leave_no_cpu_idle_distort_latency_with_napi_threads_too() {
        let thread = [Pid::of_this_thread()];
        assert_eq!(flags(&[], 0, 30), [SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]);
        assert_eq!(flags(&thread, 0, 30), [SliceFlag::NoIdleCpu], "CPU time is that of threads");
        assert_eq!(flags(&[], 40, 10), [SliceFlag::ForeignCpu], "the server finds an idle CPU");
        assert_eq!(flags(&[], 0, 60), [], "most of the time is the server's own");
    }
}
