//! Reads the kernel counters of a trial at the start and at the end of the measured time, and returns the differences.
//! If a counter could not be read both times, its difference is absent.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use quell_linux::netns::Namespace;
use quell_linux::perf_event::{HardwareCounters, HardwareReading};
use quell_linux::proc::{CpuTimes, Interrupts, ProcDir, ProcError, ProcRoot, Schedstat, Stat};
use quell_linux::queue_drops::QueueDrops;
use quell_linux::{CpuList, InterfaceName, NapiId, Pid, clock, kernel};
use quell_sampler::{PollCounters, QueueSample, Sampler};
use serde::Deserialize;

/// What happened on each queue.
pub type QueueSamples = Vec<(NapiId, QueueSample)>;

/// Differences of the kernel counters over the measured time of a trial.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct TrialCounters {
    /// Run time of the server's threads, in nanoseconds, from `/proc/PID/task/TID/schedstat`.
    pub server_run_ns: Option<u64>,
    /// Run time of the NAPI threads of the server's queues, in nanoseconds. Absent if softirqs poll the queues, because
    /// the kernel charges softirq time to no thread.
    pub napi_run_ns: Option<u64>,
    /// Run time of the threads of Quell that poll the server's queues, in nanoseconds.
    pub poller_run_ns: Option<u64>,
    /// Time for which these threads, and NAPI threads, wanted to run and waited for a CPU, in nanoseconds.
    pub server_wait_ns: Option<u64>,
    /// Time accounting of the server's CPUs.
    pub server_cpus: Option<CpuUse>,
    /// Time accounting of the client's CPUs.
    pub client_cpus: Option<CpuUse>,
    /// Number of times that a thread of the server went to sleep, counted as voluntary context switches.
    pub server_sleeps: Option<u64>,
    /// Number of device interrupts of the server's queues. Absent on a veth, which has no interrupts.
    pub irqs: Option<u64>,
    /// Number of NET_RX softirqs on the server's CPUs.
    pub net_rx_softirqs: Option<u64>,
    /// Number of timer interrupts on the server's CPUs.
    pub timer_irqs: Option<u64>,
    /// Number of polls of the server's queues by threads and softirqs, counted at the tracepoint `napi:napi_poll`.
    pub polls: Option<u64>,
    /// Number of polls that found no packet.
    pub empty_polls: Option<u64>,
    /// Number of packets that the polls found.
    pub polled_packets: Option<u64>,
    /// Mean upper bound of the time that a packet waited in a ring, in nanoseconds. See [`quell_sampler::WaitBounds`].
    pub wait_mean_ns: Option<u64>,
    /// 99th percentile of that bound in the queue where it is largest, in nanoseconds.
    pub wait_p99_ns: Option<u64>,
    /// Number of queues that nobody polled for [`quell_sampler::STALLED_NS`] while packets waited.
    pub stalls: Option<u64>,
    /// What happened on each queue. Empty if polls are not counted.
    #[serde(skip)]
    pub queues: QueueSamples,
    /// Number of packets from and to the server that a full queue lost, including the backlogs of the CPUs. Frames that
    /// no protocol wanted do not count.
    pub drops: Option<u64>,
    /// Number of cycles of the server's CPUs. Absent if they have no hardware counter.
    pub cycles: Option<u64>,
    /// Number of instructions of the server's CPUs. Absent if they have no hardware counter.
    pub instructions: Option<u64>,
}

/// Counters that exist only on some machines. Metrics of a missing counter are absent.
#[derive(Default)]
pub struct Instruments {
    /// Counts polls. Absent if the kernel does not permit it.
    pub sampler: Option<Sampler>,
    hardware: Option<HardwareCounters>,
    /// Threads that run softirqs on these CPUs if there are too many.
    ksoftirqd: Vec<Pid>,
}

impl Instruments {
    /// Starts to count the polls of `napis` and the cycles of `cpus`, if this machine permits it.
    #[must_use]
    pub fn new(napis: BTreeSet<NapiId>, cpus: &CpuList) -> Self {
        Self {
            sampler: Sampler::of(kernel::sysfs(), napis).ok(),
            hardware: HardwareCounters::open(cpus).ok(),
            ksoftirqd: ksoftirqd(cpus),
        }
    }
}

fn ksoftirqd(cpus: &CpuList) -> Vec<Pid> {
    let proc = ProcRoot::default();
    let names: BTreeSet<String> = cpus.iter().map(|cpu| format!("ksoftirqd/{cpu}")).collect();
    let is_one = |pid: &Pid| proc.process(*pid).stat().is_ok_and(|stat| names.contains(&stat.name()));
    proc.pids().unwrap_or_default().into_iter().filter(is_one).collect()
}

/// Standard deviation of the idle time of a CPU between two readings: the kernel rounds each down to a tick of 10 ms.
const TICKS_ERROR_MS: f64 = 4.1;

/// Time accounting of a set of CPUs over the measured time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CpuUse {
    /// Measured time multiplied by the number of CPUs, in nanoseconds.
    pub capacity_ns: u64,
    /// Idle and I/O wait time from `/proc/stat`, in nanoseconds.
    pub idle_ns: u64,
    /// Time stolen by the hypervisor, in nanoseconds.
    pub steal_ns: u64,
    /// Run time of the lab's threads on these CPUs, in nanoseconds: server or generator, and NAPI threads.
    pub lab_ns: u64,
    /// Run time of all tasks but `ksoftirqd` on these CPUs, from `/proc/stat`, in nanoseconds: without interrupts and
    /// softirqs.
    pub tasks_ns: u64,
}

impl CpuUse {
    /// CPU share of other programs and of the hypervisor (steal time), 0 to 1. It includes interrupts, because the
    /// kernel charges interrupt time to no thread.
    #[must_use]
    pub fn foreign_share(&self) -> Option<f64> {
        let used = self.capacity_ns.saturating_sub(self.idle_ns);
        share(used.saturating_sub(self.lab_ns), self.capacity_ns)
    }

    /// Share of other programs in the time in which these CPUs were not idle, 0 to 1.
    #[must_use]
    pub fn foreign_share_of_busy(&self) -> Option<f64> {
        share(self.tasks_ns.saturating_sub(self.lab_ns), self.capacity_ns.saturating_sub(self.idle_ns + self.steal_ns))
    }

    /// Time in ms after which the ticks of the idle time are an error of `share` of the busy time, if that goes on. Infinite
    /// if nothing was busy.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trial are far below 2^53")]
    pub(crate) fn resolved_after_ms(&self, cpus: &CpuList, share: f64) -> f64 {
        let cpus = cpus.iter().count() as f64;
        let busy_ns = self.capacity_ns.saturating_sub(self.idle_ns + self.steal_ns);
        let busy_cpus = cpus * busy_ns as f64 / self.capacity_ns as f64;
        TICKS_ERROR_MS * cpus.sqrt() / (share * busy_cpus)
    }

    /// Share of time in which the CPUs were not idle, 0 to 1.
    #[must_use]
    pub fn busy_share(&self) -> Option<f64> {
        share(self.capacity_ns.saturating_sub(self.idle_ns), self.capacity_ns)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trial are far below 2^53")]
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Processes, CPUs and devices whose counters are read.
#[derive(Debug)]
pub struct Watched {
    /// Processes of the server.
    pub server: Vec<Pid>,
    /// NAPI threads of the server's queues.
    pub server_napi: Vec<Pid>,
    /// Threads of Quell that poll these queues under the present mode.
    pub pollers: Vec<Pid>,
    /// Processes of Quell that supervise the server on these CPUs, whose time counts as idle.
    pub supervisors: Vec<Pid>,
    /// Threads of the generator.
    pub generator: Vec<Pid>,
    /// NAPI threads of the client's queues.
    pub client_napi: Vec<Pid>,
    /// CPUs that the server may use.
    pub server_cpus: CpuList,
    /// CPUs that the client may use.
    pub client_cpus: CpuList,
    /// Devices of the server's queues, in the network namespace of its first process.
    pub server_devices: Vec<String>,
    /// IRQ numbers of the server's queues. Empty on a veth.
    pub irqs: Vec<u32>,
}

/// Values of the counters at one time.
#[derive(Debug, Default)]
pub struct CounterReading {
    at_ns: u64,
    server_run_ns: Option<u64>,
    napi_run_ns: Option<u64>,
    poller_run_ns: Option<u64>,
    supervisor_run_ns: Option<u64>,
    server_wait_ns: Option<u64>,
    client_run_ns: Option<u64>,
    server_sleeps: Option<u64>,
    irqs: Option<u64>,
    net_rx_softirqs: Option<u64>,
    timer_irqs: Option<u64>,
    cpus: Option<Stat>,
    polls: Option<BTreeMap<NapiId, PollCounters>>,
    drops: Option<u64>,
    hardware: Option<HardwareReading>,
    ksoftirqd_run_ns: Option<u64>,
}

impl CounterReading {
    /// Returns whether the time from this reading to `end` is that of a window of `length`, within a tenth. On a busy
    /// machine a reading can be so late that the counters are those of another, much shorter time.
    #[must_use]
    pub fn covers(&self, end: &Self, length: Duration) -> bool {
        let covered = Duration::from_nanos(end.at_ns.saturating_sub(self.at_ns));
        covered.abs_diff(length) <= length / 10
    }
}

impl Watched {
    /// Processes and NAPI threads whose CPU time is that of the server.
    pub(crate) fn server_threads(&self) -> impl Iterator<Item = Pid> {
        self.server.iter().chain(&self.server_napi).copied()
    }

    /// Reads all counters.
    #[must_use]
    pub fn snapshot(&self, proc: &ProcRoot, instruments: &mut Instruments) -> CounterReading {
        let interrupts = proc.interrupts().ok();
        let server = total(self.server.iter().map(|pid| proc.process(*pid).schedstat_of_all_threads()));
        let napi = total(self.server_napi.iter().map(|tid| proc.process(*tid).schedstat()));
        CounterReading {
            at_ns: clock::monotonic_ns(),
            server_run_ns: server.map(|server| server.run_ns),
            napi_run_ns: napi.filter(|_| self.has_napi_threads()).map(|napi| napi.run_ns),
            server_wait_ns: server.zip(napi).map(|(server, napi)| server.plus(napi).wait_ns),
            poller_run_ns: run_ns(proc, &self.pollers),
            supervisor_run_ns: run_ns(proc, &self.supervisors),
            client_run_ns: run_ns(proc, &self.generator).zip(run_ns(proc, &self.client_napi)).map(|(a, b)| a + b),
            server_sleeps: sum(&self.server, |pid| sleeps(&proc.process(pid))),
            irqs: interrupts.as_ref().and_then(|interrupts| self.irqs(interrupts)),
            net_rx_softirqs: proc
                .softirqs()
                .ok()
                .and_then(|softirqs| self.server_cpus.iter().map(|cpu| softirqs.count("NET_RX", cpu)).sum()),
            timer_irqs: interrupts.as_ref().and_then(|interrupts| self.timer_irqs(interrupts)),
            cpus: proc.stat().ok(),
            polls: instruments.sampler.as_ref().and_then(|sampler| sampler.read().ok()),
            drops: self.drops(proc),
            hardware: instruments.hardware.as_mut().and_then(|hardware| hardware.read().ok()),
            ksoftirqd_run_ns: run_ns(proc, &instruments.ksoftirqd),
        }
    }

    /// Whether NAPI threads poll the server's queues. Otherwise softirqs poll on the sending CPU, and the kernel
    /// charges their time to no thread. The NAPI run time is then absent, not zero.
    fn has_napi_threads(&self) -> bool {
        !self.server_napi.is_empty()
    }

    /// Packets that full queues of the server's devices lost, and those of the backlogs. Returns `None` without devices.
    fn drops(&self, proc: &ProcRoot) -> Option<u64> {
        if self.server_devices.is_empty() {
            return None;
        }
        let namespace = Namespace::open_pid(proc.path(), *self.server.first()?).ok()?;
        // Entering the own namespace would need a capability, too.
        let is_here = Namespace::current().is_ok_and(|current| current == namespace);
        let opened = if is_here { QueueDrops::open() } else { QueueDrops::open_in(&namespace) };
        let mut counters = opened.ok()?;
        let of_device = |name: &String| counters.both_ways(&InterfaceName::new(name.clone()).ok()?).ok();
        let of_devices: u64 = self.server_devices.iter().map(of_device).sum::<Option<u64>>()?;
        let backlogs: u64 = proc.softnet_stat().ok()?.cpus.iter().map(|cpu| u64::from(cpu.dropped)).sum();
        Some(of_devices + backlogs)
    }

    fn irqs(&self, interrupts: &Interrupts) -> Option<u64> {
        if self.irqs.is_empty() {
            return None;
        }
        self.irqs.iter().map(|irq| Some(interrupts.irq(*irq)?.total)).sum()
    }

    fn timer_irqs(&self, interrupts: &Interrupts) -> Option<u64> {
        let per_cpu = interrupts.kind("LOC")?.per_cpu.as_ref()?;
        self.server_cpus.iter().map(|cpu| per_cpu.get(&cpu).copied()).sum()
    }

    /// Returns the differences between two readings.
    #[must_use]
    pub fn between(&self, from: &CounterReading, to: &CounterReading) -> TrialCounters {
        let elapsed_ns = to.at_ns.saturating_sub(from.at_ns);
        let server_run_ns = increase(from.server_run_ns, to.server_run_ns);
        let napi_run_ns = increase(from.napi_run_ns, to.napi_run_ns);
        let client_run_ns = increase(from.client_run_ns, to.client_run_ns);
        let poller_run_ns = increase(from.poller_run_ns, to.poller_run_ns);
        let known_napi_run_ns = if self.has_napi_threads() { napi_run_ns } else { Some(0) };
        let server_lab_ns: Option<u64> = [server_run_ns, known_napi_run_ns, poller_run_ns].into_iter().sum();
        let cpu_use = |cpus: &CpuList, lab_ns: Option<u64>| {
            cpu_use(cpus, from.cpus.as_ref()?, to.cpus.as_ref()?, elapsed_ns, lab_ns?)
        };
        let mut server_cpus = cpu_use(&self.server_cpus, server_lab_ns);
        if let Some(used) = &mut server_cpus {
            let softirqs_ns = increase(from.ksoftirqd_run_ns, to.ksoftirqd_run_ns).unwrap_or(0);
            let supervisors_ns = increase(from.supervisor_run_ns, to.supervisor_run_ns).unwrap_or(0);
            used.idle_ns += supervisors_ns;
            used.tasks_ns = used.tasks_ns.saturating_sub(softirqs_ns + supervisors_ns);
        }
        let samples: Option<QueueSamples> = from
            .polls
            .as_ref()
            .zip(to.polls.as_ref())
            .map(|(from, to)| to.iter().map(|(napi, counters)| (*napi, counters.since(from.get(napi)))).collect());
        // Without queues, polls are not counted.
        let samples = samples.filter(|samples| !samples.is_empty());
        let hardware = from.hardware.as_ref().zip(to.hardware.as_ref());
        let polls =
            |count: fn(&QueueSample) -> u64| Some(samples.as_ref()?.iter().map(|(_, sample)| count(sample)).sum());
        TrialCounters {
            server_run_ns,
            napi_run_ns,
            poller_run_ns,
            server_wait_ns: increase(from.server_wait_ns, to.server_wait_ns),
            server_cpus,
            client_cpus: cpu_use(&self.client_cpus, client_run_ns),
            server_sleeps: increase(from.server_sleeps, to.server_sleeps),
            irqs: increase(from.irqs, to.irqs),
            net_rx_softirqs: increase(from.net_rx_softirqs, to.net_rx_softirqs),
            timer_irqs: increase(from.timer_irqs, to.timer_irqs),
            polls: polls(|sample| sample.polls.total()),
            empty_polls: polls(|sample| sample.empty),
            polled_packets: polls(|sample| sample.packets),
            wait_mean_ns: samples.as_deref().and_then(mean_wait_ns),
            wait_p99_ns: samples
                .as_ref()
                .and_then(|samples| samples.iter().filter_map(|(_, one)| one.wait.p99_ns).max()),
            stalls: polls(|sample| u64::from(sample.wait.has_stalled())),
            drops: increase(from.drops, to.drops),
            queues: samples.unwrap_or_default(),
            cycles: hardware.and_then(|(from, to)| to.cycles_since(from)),
            instructions: hardware.and_then(|(from, to)| to.instructions_since(from)),
        }
    }
}

/// Mean over all packets that have a bound.
fn mean_wait_ns(samples: &[(NapiId, QueueSample)]) -> Option<u64> {
    let bounded: Vec<(u64, u64)> =
        samples.iter().filter_map(|(_, sample)| Some((sample.wait.packets, sample.wait.mean_ns?))).collect();
    let sum: u128 = bounded.iter().map(|(packets, mean_ns)| u128::from(*packets) * u128::from(*mean_ns)).sum();
    let packets: u128 = bounded.iter().map(|(packets, _)| u128::from(*packets)).sum();
    u64::try_from(sum.checked_div(packets)?).ok()
}

/// Sum of statistics. Absent if one of them cannot be read.
fn total(mut all: impl Iterator<Item = Result<Schedstat, ProcError>>) -> Option<Schedstat> {
    all.try_fold(Schedstat::default(), |sum, one| Some(sum.plus(one.ok()?)))
}

fn run_ns(proc: &ProcRoot, threads: &[Pid]) -> Option<u64> {
    sum(threads, |tid| Some(proc.process(tid).schedstat().ok()?.run_ns))
}

/// Returns the number of voluntary context switches of all threads of a process.
fn sleeps(process: &ProcDir) -> Option<u64> {
    let tids = process.tids().ok()?;
    tids.into_iter().map(|tid| process.thread(tid).status().ok()?.voluntary_ctxt_switches).sum()
}

/// Sums a value over all threads. Returns `None` if one value could not be read, because a partial sum would mislead.
fn sum(pids: &[Pid], read: impl Fn(Pid) -> Option<u64>) -> Option<u64> {
    pids.iter().map(|&pid| read(pid)).sum()
}

fn increase(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    Some(to?.saturating_sub(from?))
}

/// What all programs use of these CPUs during the next `period`.
pub(crate) fn use_during(cpus: &CpuList, period: Duration) -> Result<Option<CpuUse>, ProcError> {
    let proc = ProcRoot::default();
    let (from, began) = (proc.stat()?, Instant::now());
    thread::sleep(period);
    let to = proc.stat()?;
    let elapsed_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(cpu_use(cpus, &from, &to, elapsed_ns, 0))
}

fn cpu_use(cpus: &CpuList, from: &Stat, to: &Stat, elapsed_ns: u64, lab_ns: u64) -> Option<CpuUse> {
    let mut used = CpuUse { lab_ns, ..CpuUse::default() };
    for cpu in cpus.iter() {
        let (from, to) = (from.cpus.get(&cpu)?, to.cpus.get(&cpu)?);
        used.capacity_ns += elapsed_ns;
        used.idle_ns += idle_ns(to).saturating_sub(idle_ns(from));
        used.steal_ns += steal_ns(to)?.saturating_sub(steal_ns(from)?);
        used.tasks_ns += tasks_ns(to).saturating_sub(tasks_ns(from));
    }
    Some(used)
}

fn idle_ns(times: &CpuTimes) -> u64 {
    let iowait = times.iowait.map_or(0, ns);
    ns(times.idle) + iowait
}

fn tasks_ns(times: &CpuTimes) -> u64 {
    ns(times.user) + ns(times.nice) + ns(times.system)
}

fn steal_ns(times: &CpuTimes) -> Option<u64> {
    times.steal.map(ns)
}

fn ns(ticks: quell_linux::proc::Ticks) -> u64 {
    u64::try_from(ticks.duration().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(text: &str) -> Stat {
        Stat::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn busy_time_outside_the_lab_counts_as_other_programs() {
        let from = stat("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n");
        let to = stat("cpu  0 0 0 60 0 0 0 10 0 0\ncpu0 30 0 0 60 0 0 0 10 0 0\n");
        let cpus = [0].into_iter().collect();
        let second = 1_000_000_000;
        let used = cpu_use(&cpus, &from, &to, second, second / 4).unwrap();
        assert_eq!(used.idle_ns, second * 6 / 10);
        assert_eq!(used.steal_ns, second / 10);
        assert!((used.foreign_share().unwrap() - 0.15).abs() < 1e-9);
        assert!((used.busy_share().unwrap() - 0.4).abs() < 1e-9);
        assert!((used.foreign_share_of_busy().unwrap() - 0.05 / 0.3).abs() < 1e-9, "250 of 300 ms are the server's");
    }

    #[test]
    fn the_cpu_use_is_absent_if_a_cpu_goes_offline() {
        let from = stat("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n");
        let cpus = [0, 1].into_iter().collect();
        assert_eq!(cpu_use(&cpus, &from, &from, 1, 0), None);
    }

    #[test]
    fn a_late_reading_does_not_cover_its_window() {
        let at_ms = |ms: u64| CounterReading { at_ns: ms * 1_000_000, ..CounterReading::default() };
        let window = Duration::from_millis(50);
        assert!(at_ms(100).covers(&at_ms(150), window));
        assert!(at_ms(103).covers(&at_ms(152), window), "both are late by a few milliseconds");
        assert!(!at_ms(149).covers(&at_ms(150), window), "the first is late");
        assert!(!at_ms(100).covers(&at_ms(170), window), "the last is late");
    }

    fn this_process() -> Watched {
        Watched {
            server: vec![Pid::of_this_process()],
            server_napi: vec![],
            pollers: Vec::new(),
            supervisors: Vec::new(),
            generator: vec![Pid::of_this_thread()],
            client_napi: vec![],
            server_cpus: CpuList::default(),
            client_cpus: CpuList::default(),
            server_devices: vec!["lo".to_owned()],
            irqs: vec![],
        }
    }

    #[test]
    fn the_time_of_supervisors_is_not_that_of_the_server() {
        let reading = |at_ns, text: &str, supervisor_run_ns| CounterReading {
            at_ns,
            cpus: Some(stat(text)),
            server_run_ns: Some(0),
            napi_run_ns: Some(0),
            poller_run_ns: Some(0),
            supervisor_run_ns: Some(supervisor_run_ns),
            ..CounterReading::default()
        };
        let second = 1_000_000_000;
        let from = reading(0, "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n", 0);
        let to = reading(second, "cpu  0 0 0 60 0 0 0 0 0 0\ncpu0 40 0 0 60 0 0 0 0 0 0\n", second * 3 / 10);
        let watched = Watched { server_cpus: [0].into_iter().collect(), ..this_process() };
        let used = watched.between(&from, &to).server_cpus.unwrap();
        assert!((used.busy_share().unwrap() - 0.1).abs() < 1e-9, "300 of 400 ms are those of the supervisor");
        assert_eq!(used.tasks_ns, second / 10);
    }

    #[test]
    fn without_napi_threads_their_counters_are_absent() {
        let watched = this_process();
        let proc = ProcRoot::default();
        let mut none = Instruments::default();
        let counted = watched.between(&watched.snapshot(&proc, &mut none), &watched.snapshot(&proc, &mut none));
        assert_eq!((counted.napi_run_ns, counted.polls), (None, None));
        assert!(counted.server_run_ns.is_some() && counted.server_cpus.is_some());
        assert!(counted.drops.is_some());
        let elsewhere = Watched { server_devices: vec!["gone0".to_owned()], ..watched };
        assert_eq!(elsewhere.snapshot(&proc, &mut none).drops, None);
    }

    #[test]
    fn the_mean_wait_weighs_packets_of_all_queues_and_is_absent_without_them() {
        let sample = |packets, mean_ns| {
            let wait = quell_sampler::WaitBounds { packets, mean_ns, ..Default::default() };
            (NapiId::from_kernel(9000).unwrap(), QueueSample { wait, ..QueueSample::default() })
        };
        let samples = [sample(10, Some(1_000)), sample(30, Some(3_000)), sample(0, None)];
        assert_eq!(mean_wait_ns(&samples), Some(2_500));
        assert_eq!(mean_wait_ns(&samples[2..]), None);
    }

    #[test]
    fn a_sum_with_an_unreadable_value_is_absent() {
        let pids = [Pid::of_this_process(), Pid::of_this_thread()];
        assert_eq!(sum(&pids, |_| None), None);
        assert_eq!(sum(&[], |_| None), Some(0), "the sum over no threads is zero");
    }
}
