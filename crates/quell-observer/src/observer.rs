//! Combines samples of polls with snapshots of the host. A snapshot of a large host takes many times longer than reading
//! the samples, so snapshots are taken less often, within a share of one CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_change::journal::Journal;
use quell_host::attach::Targets;
use quell_host::attach::attached::{Attached, AttachedMode, attachments, experiments};
use quell_host::attach::effect::{EffectOnQueue, ModeVerdict, judge};
use quell_host::attach::no_poll::{NoPollCause, no_poll_cause};
use quell_host::attach::own_work::{WorkReading, has_backlog, worked_ns};
use quell_host::attach::payoff::ModePayoff;
use quell_host::attach::views::{with_attachments, with_devices};
use quell_host::behavior::ReadQueues;
use quell_host::findings::{cpus_lacking_for_pollers, one_queue_if_attached, unpolled_queues};
use quell_host::snapshot::{
    self, Device, Files, Process, Snapshot, SnapshotNapi, SnapshotScope, TakeError, napis_of_files,
};
use quell_linux::proc::{ControlGroups, ProcDir, ProcRoot, Schedstat};
use quell_linux::sysfs::Sysfs;
use quell_linux::{NapiId, Pid, clock, kernel};
use quell_mode::{DeliveryMode, EpollParams};
use quell_sampler::{PollCounters, QueueSample, Sampler, SamplerError, Unsampled};
use tracing::{info, warn};

use crate::drops::{self, DeviceCounters};
use crate::skipped::{ModeCondition, QueuesInForce, conditions};
use crate::xdp;
use quell_result::Document as _;
use quell_result::top::{
    IntervalReport, ObservedEpolls, ObservedIdleState, ObservedProgram, ObservedQueue, RootProgram, SkipReason,
    SkippedPart,
};

/// A snapshot is taken after this many times the CPU time of the previous one: at most 0.5 % of one CPU.
const PAUSE_PER_CPU_TIME: u32 = 200;

#[derive(Debug, Default)]
struct Readings {
    counters: BTreeMap<NapiId, PollCounters>,
    /// Interrupts, by instance and number of the interrupt.
    interrupts: BTreeMap<(NapiId, u32), u64>,
    /// Run time of NAPI threads, by instance and thread ID.
    threads_ns: BTreeMap<(NapiId, Pid), u64>,
    /// CPU time of attached programs.
    attached_cpu: BTreeMap<ProgramKey, Schedstat>,
    attached_work: WorkReading,
    devices: DeviceCounters,
    /// Entries of each idle state, by the name of the state. All CPUs together.
    idle: Vec<(String, u64)>,
}

/// Process ID and start time.
pub(crate) type ProgramKey = (Pid, u64);

#[derive(Debug)]
pub struct Observer {
    scope: SnapshotScope,
    /// Programs to which the scope is restricted, with their children of the moment.
    programs: Option<Targets>,
    journal: Journal,
    sampler: Result<Sampler, SamplerError>,
    /// Instances that the sampler has no room for.
    unsampled: BTreeMap<NapiId, Unsampled>,
    snapshot: Snapshot,
    before: Option<Snapshot>,
    /// Queues from which attached programs without an open connection read at the beginning. They are in every snapshot.
    reads: ReadQueues,
    /// Conditions of the modes of attached programs at the time of the snapshot.
    conditions: BTreeMap<ProgramKey, ModeCondition>,
    causes: BTreeMap<(Pid, NapiId), NoPollCause>,
    next_snapshot: Instant,
    /// Packets of each instance since its selection, at the time of the snapshot.
    packets: BTreeMap<NapiId, u64>,
    /// The same at the time of the snapshot before.
    packets_before: BTreeMap<NapiId, u64>,
    read_at: Instant,
    read: Readings,
    /// Run time of the programs at the beginning, until there are two snapshots.
    begun: (Instant, BTreeMap<ProgramKey, u64>),
}

impl Observer {
    /// Takes a snapshot, selects its NAPI instances and takes the first readings. Modes of programs are those of the
    /// attachments in `journal`. With `programs`, the scope has their processes of the moment. Fails if no snapshot can be
    /// taken. Polls that cannot be sampled are not an error: reports contain the reason.
    pub fn begin(mut scope: SnapshotScope, mut programs: Option<Targets>, journal: Journal) -> Result<Self, TakeError> {
        let (mut snapshot, mut conditions, pause) =
            take(&mut scope, programs.as_mut(), &journal, &ReadQueues::default())?;
        let wider = with_devices(scope.clone(), &snapshot);
        if wider != scope {
            scope = wider;
            (snapshot, conditions, _) = take(&mut scope, programs.as_mut(), &journal, &ReadQueues::default())?;
        }
        let without_queue = without_queue(&snapshot, &conditions);
        let reads = ReadQueues::observe(&snapshot, |pid| without_queue.contains(&pid));
        if !without_queue.is_empty() {
            reads.add_to(&mut snapshot);
            conditions = self::conditions(&journal, &snapshot);
        }
        let now = Instant::now();
        let mut this = Self {
            scope,
            programs,
            sampler: attach(),
            unsampled: BTreeMap::new(),
            conditions,
            journal,
            snapshot,
            before: None,
            reads,
            causes: BTreeMap::new(),
            next_snapshot: now + pause,
            packets: BTreeMap::new(),
            packets_before: BTreeMap::new(),
            read_at: now,
            read: Readings::default(),
            begun: (now, BTreeMap::new()),
        };
        this.begun = (Instant::now(), this.run_of_programs());
        this.select();
        (this.read_at, this.read) = (Instant::now(), this.readings());
        this.packets = packets(&this.read.counters);
        Ok(this)
    }

    pub fn report(&mut self) -> Result<IntervalReport, TakeError> {
        let (now, read) = (Instant::now(), self.readings());
        let interval_ns = u64::try_from((now - self.read_at).as_nanos()).unwrap_or(u64::MAX);
        let earlier = std::mem::replace(&mut self.read, read);
        self.read_at = now;
        if now >= self.next_snapshot {
            let (snapshot, conditions, pause) =
                take(&mut self.scope, self.programs.as_mut(), &self.journal, &self.reads)?;
            self.before = Some(std::mem::replace(&mut self.snapshot, snapshot));
            self.packets_before = std::mem::replace(&mut self.packets, packets(&self.read.counters));
            self.conditions = conditions;
            self.causes.clear();
            self.next_snapshot = now + pause + self.retry();
        }
        let queues = self.queues(&earlier);
        let mut causes = std::mem::take(&mut self.causes);
        let programs = self.programs(&queues, &earlier, interval_ns, &mut causes);
        self.causes = causes;
        // After the report: an instance without an earlier reading would look as if it had no polls.
        self.select();
        Ok(IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: clock::realtime_ns(),
            interval_ns,
            polls_unknown: self.sampler.as_ref().err().map(ToString::to_string),
            queues,
            devices: drops::between(&self.snapshot, &earlier.devices, &self.read.devices),
            programs,
            idle_states: self.idle_states(&earlier),
            hidden_processes: self.snapshot.hidden_processes.len(),
        })
    }

    /// The latest snapshot.
    #[must_use]
    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }

    fn select(&mut self) {
        let napis = napis(&self.snapshot).map(|(_, napi)| napi.id).collect();
        self.unsampled.clear();
        if let Ok(sampler) = &mut self.sampler {
            match sampler.select(napis) {
                Ok(unsampled) => self.unsampled = unsampled,
                Err(error) => self.failed(error),
            }
        }
    }

    /// Records why polls cannot be sampled until the next snapshot.
    fn failed(&mut self, error: SamplerError) {
        warn!(error = %error, "polls cannot be sampled");
        self.sampler = Err(error);
    }

    /// Tries to sample again after an error. Returns the pause for the CPU time of this.
    fn retry(&mut self) -> Duration {
        if self.sampler.is_ok() {
            return Duration::ZERO;
        }
        let before_ns = clock::process_cpu_ns();
        self.sampler = attach();
        pause_since(before_ns)
    }

    fn readings(&mut self) -> Readings {
        let counters = match self.sampler.as_ref().map(Sampler::read) {
            Ok(Ok(counters)) => counters,
            Ok(Err(error)) => {
                self.failed(error);
                BTreeMap::new()
            }
            Err(_) => BTreeMap::new(),
        };
        let interrupts = ProcRoot::default().interrupts().ok();
        let count = |napi: &SnapshotNapi| {
            let number = napi.irq_number()?;
            Some(((napi.id, number), interrupts.as_ref()?.irq(number)?.total))
        };
        let interrupts = napis(&self.snapshot).filter_map(|(_, napi)| count(napi)).collect();
        let ran = |napi: &SnapshotNapi| {
            let tid = thread_of(napi)?;
            Some(((napi.id, tid), ProcRoot::default().process(tid).schedstat().ok()?.run_ns))
        };
        let threads_ns = napis(&self.snapshot).filter_map(|(_, napi)| ran(napi)).collect();
        let attached_cpu = self.conditions.keys().filter_map(|key| Some((*key, cpu_of(*key)?))).collect();
        let attached_work = WorkReading::of(&self.conditions.keys().map(|(pid, _)| *pid).collect());
        let devices = drops::read(&self.snapshot);
        Readings { counters, interrupts, threads_ns, attached_cpu, attached_work, devices, idle: idle(&self.snapshot) }
    }

    fn queues(&self, earlier: &Readings) -> Vec<ObservedQueue> {
        let interrupts =
            |napi: &SnapshotNapi| increase(&earlier.interrupts, &self.read.interrupts, &(napi.id, napi.irq_number()?));
        let thread_ns =
            |napi: &SnapshotNapi| increase(&earlier.threads_ns, &self.read.threads_ns, &(napi.id, thread_of(napi)?));
        let queue = |(device, napi): (&Device, &SnapshotNapi)| {
            let sample = self.sample(earlier, napi.id);
            ObservedQueue {
                namespace: device.namespace,
                device: device.name.clone(),
                rx_queues: rx_queues(device, napi.id),
                napi: napi.id,
                settings: napi.settings(),
                interrupts: interrupts(napi),
                thread_ns: thread_ns(napi),
                sample,
                unsampled: self.unsampled.get(&napi.id).copied(),
                stalled: sample.map(|sample| sample.wait.has_stalled()),
            }
        };
        napis(&self.snapshot).map(queue).collect()
    }

    fn idle_states(&self, earlier: &Readings) -> Vec<ObservedIdleState> {
        let pairs = self.read.idle.iter().zip(&earlier.idle).filter(|(now, before)| now.0 == before.0);
        pairs
            .filter_map(|(now, before)| {
                Some(ObservedIdleState { name: now.0.clone(), entered: now.1.checked_sub(before.1)? })
            })
            .collect()
    }

    /// Polls since the earlier reading, or since the selection of an instance that is new.
    fn sample(&self, earlier: &Readings, napi: NapiId) -> Option<QueueSample> {
        Some(self.read.counters.get(&napi)?.since(earlier.counters.get(&napi)))
    }

    /// Run time of the programs of reports: those that receive from instances of the snapshot, and attached ones.
    fn run_of_programs(&self) -> BTreeMap<ProgramKey, u64> {
        let index = self.snapshot.index();
        let receives = |files: &Files| !napis_of_files(&self.snapshot, &index, files).is_empty();
        let of = |process: &Process| {
            let key = (process.pid, process.start_time_ticks);
            let is_reported = self.conditions.contains_key(&key) || process.files.known().is_some_and(receives);
            Some((key, is_reported.then(|| cpu_of(key))??.run_ns))
        };
        self.snapshot.processes.iter().filter_map(of).collect()
    }

    /// Run time of a program since the beginning, and the time since then.
    fn ran_since_begin(&self, program: ProgramKey) -> Option<(u64, u64)> {
        let (at, ran) = &self.begun;
        let ran_ns = cpu_of(program)?.run_ns.checked_sub(*ran.get(&program)?)?;
        let elapsed_ns = u64::try_from(at.elapsed().as_nanos()).ok().filter(|&elapsed| elapsed > 0)?;
        Some((ran_ns, elapsed_ns))
    }

    fn programs(
        &self,
        queues: &[ObservedQueue],
        earlier: &Readings,
        interval_ns: u64,
        causes: &mut BTreeMap<(Pid, NapiId), NoPollCause>,
    ) -> Vec<ObservedProgram> {
        let by_napi: BTreeMap<NapiId, &ObservedQueue> = queues.iter().map(|queue| (queue.napi, queue)).collect();
        let attached = attachments(&self.journal).unwrap_or_default();
        let (experiments, mut modes) = (experiments(&attached), modes(&attached));
        // Processes of a reload have the mode of the process that they descend from, until it is detached.
        for (program, condition) in self.conditions.iter().filter(|(_, condition)| condition.started_since) {
            let mode = modes.get(&condition.root_key()).copied();
            mode.map(|mode| modes.entry(*program).or_insert(mode));
        }
        let unpolled = if modes.is_empty() { BTreeMap::new() } else { unpolled_queues(&self.snapshot) };
        let index = self.snapshot.index();
        let napis = |process: &Process| -> Option<BTreeSet<NapiId>> {
            Some(napis_of_files(&self.snapshot, &index, process.files.known()?))
        };
        let mut users: BTreeMap<NapiId, QueueUsers> = BTreeMap::new();
        for process in &self.snapshot.processes {
            for napi in napis(process).into_iter().flatten() {
                let users = users.entry(napi).or_default();
                users.all += 1;
                users.polling += usize::from(can_poll(process));
            }
        }
        let worked = self.read.attached_work.since(&earlier.attached_work);
        let sees_all = sees_all_programs(&self.scope, &self.snapshot);
        let packets = |napis: &BTreeSet<NapiId>| {
            let is_alone = sees_all && napis.iter().all(|napi| users.get(napi).is_some_and(|users| users.all == 1));
            is_alone.then(|| packets_between(&self.packets_before, &self.packets, napis))?
        };
        let mut program = |process: &Process| {
            let napis = napis(process)?;
            let identity = (process.pid, process.start_time_ticks);
            let mode = modes.get(&identity);
            if napis.is_empty() && mode.is_none() {
                return None;
            }
            let condition = mode.and_then(|_| self.conditions.get(&identity));
            // A queue that the attachment has not set is no evidence about the mode.
            let is_set = |napi: &&NapiId| {
                let not_set = SkippedPart { napi: Some(**napi), reason: SkipReason::QueueNotSet };
                condition.is_none_or(|condition| !condition.skipped.contains(&not_set))
            };
            let of_program = napis.iter().filter(is_set).filter_map(|napi| by_napi.get(napi).copied());
            let ran = match &self.before {
                Some(before) => ran_between(process, &self.snapshot, before),
                None => self.ran_since_begin(identity),
            };
            let pids = BTreeSet::from([process.pid]);
            let mut cause = |napi| {
                let found = || {
                    let cause = no_poll_cause(&self.snapshot, self.before.as_ref(), &pids, napi);
                    match mode {
                        Some(mode) => cause.if_attached(mode),
                        None => cause,
                    }
                };
                causes.entry((process.pid, napi)).or_insert_with(found).clone()
            };
            let used = self.read.attached_cpu.get(&identity);
            let used = used.zip(earlier.attached_cpu.get(&identity)).and_then(|(now, before)| now.since(*before));
            // Only attached programs are judged.
            let has_backlog = mode.is_some() && has_backlog(&self.snapshot, &pids);
            let worked_ns = worked_ns(has_backlog, used.map(|used| used.run_ns), worked.get(&process.pid).copied());
            let polling = |napi| PollingPrograms {
                itself: can_poll(process) && used.is_none_or(|used| used.run_ns > 0),
                others: users.get(&napi).is_some_and(|users| users.polling > usize::from(can_poll(process))),
            };
            let dir = ProcRoot::default().process(process.pid);
            let groups = dir.control_groups().unwrap_or_default();
            // Read after the groups: if the process ID belongs to another process now, so may the groups.
            let cpu_ns = cpu_ns(&dir, process.start_time_ticks);
            let ControlGroups { pod, container, unit } =
                if cpu_ns.is_some() { groups } else { ControlGroups::default() };
            let experiment = experiments.get(&process.pid);
            let in_force = mode.filter(|_| experiment.is_none());
            let judged = in_force
                .map(|it| (it.mode, judged(&it.mode, of_program, interval_ns, (used, worked_ns), polling, &mut cause)));
            let fix = mode.zip(unpolled.get(&process.pid));
            let fix = fix.map(|(mode, fix)| one_queue_if_attached(fix.clone(), mode));
            let payoff = judged.as_ref().filter(|(_, queues)| !queues.is_empty());
            let payoff = payoff.map(|(mode, queues)| {
                let lacking = mode.poller().and_then(|_| {
                    let attached = modes.keys().map(|(pid, _)| *pid).collect();
                    cpus_lacking_for_pollers(&self.snapshot, &attached, queues.len())
                });
                let lacks_mode = condition.is_some_and(ModeCondition::lacks_mode);
                ModePayoff::of(*mode, queues, fix.as_ref(), lacking)
                    .on_unset_epolls(lacks_mode)
                    .drifted(condition.is_some_and(|condition| condition.queues == QueuesInForce::Changed))
            });
            let paused = |by| format!("paused: an experiment (PID {by}) compares modes on it");
            let effect = judged.and_then(|(_, queues)| worst(queues));
            let effect = match (experiment.filter(|_| mode.is_some()), condition) {
                (Some(by), _) => Some(ModeVerdict::CannotTell(paused(by))),
                (None, Some(condition)) => condition.effect(effect),
                (None, None) => effect,
            };
            Some(ObservedProgram {
                pid: process.pid,
                name: process.name.clone(),
                unit,
                pod,
                container,
                cpus: ran.map(|(ran_ns, for_ns)| ran_ns as f64 / for_ns as f64),
                cpu_ns_per_packet: ran.and_then(|(ran_ns, _)| per_packet(ran_ns, packets(&napis)?)),
                cpu_ns,
                effect,
                payoff,
                drifted: condition.and_then(|condition| condition.drifted),
                skipped: condition.map(|condition| condition.skipped.clone()),
                mode: mode.map(|it| it.mode.to_string()),
                root: condition
                    .map(|condition| RootProgram { pid: condition.root.pid, name: condition.root.name.clone() }),
                epolls: epolls(process),
                xdp: xdp::losses(process, &self.snapshot, self.before.as_ref()),
                napis: napis.into_iter().collect(),
            })
        };
        self.snapshot.processes.iter().filter_map(&mut program).collect()
    }
}

/// Attached programs that have no open connection through a queue.
fn without_queue(snapshot: &Snapshot, attached: &BTreeMap<ProgramKey, ModeCondition>) -> BTreeSet<Pid> {
    let index = snapshot.index();
    let has_no_queue = |process: &&Process| {
        let is_attached = attached.contains_key(&(process.pid, process.start_time_ticks));
        is_attached && process.files.known().is_some_and(|files| napis_of_files(snapshot, &index, files).is_empty())
    };
    snapshot.processes.iter().filter(has_no_queue).map(|process| process.pid).collect()
}

/// Takes a snapshot with these queues. Returns the pause until the next one, for its CPU time.
fn take(
    scope: &mut SnapshotScope,
    programs: Option<&mut Targets>,
    journal: &Journal,
    reads: &ReadQueues,
) -> Result<(Snapshot, BTreeMap<ProgramKey, ModeCondition>, Duration), TakeError> {
    let before_ns = clock::process_cpu_ns();
    if let Some(programs) = programs {
        // Without processes the scope keeps those that have exited, so that the snapshot fails.
        let _ = programs.refresh();
        let pids: Vec<Pid> = programs.pids().into_iter().collect();
        scope.pids = if pids.is_empty() { std::mem::take(&mut scope.pids) } else { pids };
    }
    let (mut snapshot, _) = snapshot::take(&with_attachments(scope.clone(), journal))?;
    reads.add_to(&mut snapshot);
    let conditions = conditions(journal, &snapshot);
    Ok((snapshot, conditions, pause_since(before_ns)))
}

fn pause_since(before_ns: u64) -> Duration {
    Duration::from_nanos(clock::process_cpu_ns().saturating_sub(before_ns)) * PAUSE_PER_CPU_TIME
}

fn attach() -> Result<Sampler, SamplerError> {
    Sampler::attach(kernel::sysfs()).inspect_err(|error| info!(error = %error, "polls cannot be sampled"))
}

/// User and system time of a process, unless its ID belongs to another one now.
fn cpu_ns(dir: &ProcDir, start_time_ticks: u64) -> Option<u64> {
    let stat = dir.stat().ok().filter(|stat| stat.starttime.0 == start_time_ticks)?;
    u64::try_from((stat.utime.duration() + stat.stime.duration()).as_nanos()).ok()
}

/// CPU time of the threads of a program, more precise than [`cpu_ns`]. Absent if the process is another one now.
fn cpu_of((pid, start_time_ticks): ProgramKey) -> Option<Schedstat> {
    let dir = ProcRoot::default().process(pid);
    let cpu = dir.schedstat_of_all_threads().ok()?;
    cpu_ns(&dir, start_time_ticks).map(|_| cpu)
}

/// Epolls of a process by their parameters, as far as these can be read.
fn epolls(process: &Process) -> Vec<ObservedEpolls> {
    let mut counts: BTreeMap<EpollParams, usize> = BTreeMap::new();
    let all = process.files.known().into_iter().flat_map(|files| &files.epolls);
    for epoll in all.filter(|epoll| epoll.same_as.is_none()) {
        epoll.params.known().into_iter().for_each(|params| *counts.entry(*params).or_default() += 1);
    }
    counts.into_iter().map(|(params, count)| ObservedEpolls { params, count }).collect()
}

/// Entries of each idle state on all CPUs. Names are those of the first CPU that has idle states.
fn idle(snapshot: &Snapshot) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    let sysfs = Sysfs::default();
    for cpu in &snapshot.cpus.each {
        let Some(states) = cpu.idle_states.known() else { continue };
        let Ok(entries) = sysfs.cpu_idle_entries(cpu.number) else { continue };
        if sums.is_empty() {
            sums = states.iter().map(|state| (state.name.clone(), 0)).collect();
        }
        sums.iter_mut().zip(entries).for_each(|((_, sum), entries)| *sum += entries);
    }
    sums
}

/// Increase of a counter. Absent if it was read only once, or went backwards: it was reset, or counts something else now.
pub(crate) fn increase<K: Ord>(before: &BTreeMap<K, u64>, after: &BTreeMap<K, u64>, key: &K) -> Option<u64> {
    after.get(key)?.checked_sub(*before.get(key)?)
}

fn thread_of(napi: &SnapshotNapi) -> Option<Pid> {
    Some(napi.thread.known()?.as_ref()?.tid)
}

fn napis(snapshot: &Snapshot) -> impl Iterator<Item = (&Device, &SnapshotNapi)> {
    snapshot.devices.iter().flat_map(|device| device.napis.known_elements().map(move |napi| (device, napi)))
}

fn rx_queues(device: &Device, napi: NapiId) -> Vec<u32> {
    let queues = device.rx_queues.known_elements();
    let of_napi = |linked: &Option<snapshot::Linked<NapiId>>| linked.as_ref().is_some_and(|linked| linked.to == napi);
    queues.filter(|queue| queue.napi.known().is_some_and(of_napi)).map(|queue| queue.id).collect()
}

fn modes(attached: &[Attached]) -> BTreeMap<ProgramKey, AttachedMode> {
    let of_attachment = attached.iter().flat_map(|attached| {
        let mode = attached.mode();
        let targets = attached.history.targets.iter();
        targets.filter_map(move |target| Some(((target.pid, target.start_time_ticks), mode?)))
    });
    of_attachment.collect()
}

/// Whether every program that uses an instance of the snapshot is in it.
fn sees_all_programs(scope: &SnapshotScope, snapshot: &Snapshot) -> bool {
    scope.pids.is_empty() && snapshot.hidden_processes.is_empty()
}

fn packets(counters: &BTreeMap<NapiId, PollCounters>) -> BTreeMap<NapiId, u64> {
    counters.iter().map(|(napi, counters)| (*napi, counters.since(None).packets)).collect()
}

/// Absent if one of the instances was not counted at both times.
fn packets_between(
    before: &BTreeMap<NapiId, u64>,
    after: &BTreeMap<NapiId, u64>,
    napis: &BTreeSet<NapiId>,
) -> Option<u64> {
    napis.iter().map(|napi| increase(before, after, napi)).sum()
}

fn per_packet(ran_ns: u64, packets: u64) -> Option<f64> {
    (packets > 0).then(|| ran_ns as f64 / packets as f64)
}

/// CPU time of the threads of a process between two snapshots, and the time between these. Threads that exited in between
/// are not included.
fn ran_between(process: &Process, now: &Snapshot, before: &Snapshot) -> Option<(u64, u64)> {
    let earlier = before.index().process(process.pid)?;
    if earlier.start_time_ticks != process.start_time_ticks {
        return None;
    }
    let ran_before: BTreeMap<_, _> =
        earlier.threads.known()?.iter().map(|thread| (thread.tid, thread.run_ns.known())).collect();
    let mut ran_ns = 0;
    for thread in process.threads.known()? {
        let before_ns = match ran_before.get(&thread.tid) {
            Some(known) => *(*known)?,
            None => 0,
        };
        ran_ns += thread.run_ns.known()?.saturating_sub(before_ns);
    }
    let elapsed_ns = now.taken.monotonic_ns.checked_sub(before.taken.monotonic_ns).filter(|&elapsed| elapsed > 0)?;
    Some((ran_ns, elapsed_ns))
}

#[derive(Default)]
struct QueueUsers {
    all: usize,
    polling: usize,
}

/// Whether polls of a queue can be of the judged program, and of others.
#[derive(Clone, Copy)]
struct PollingPrograms {
    itself: bool,
    others: bool,
}

/// Whether the process can poll queues, as far as known.
fn can_poll(process: &Process) -> bool {
    process.files.known().is_none_or(Files::can_poll)
}

/// Verdicts on the queues of a program, which used CPUs so and worked for this time.
fn judged<'a>(
    mode: &DeliveryMode,
    queues: impl Iterator<Item = &'a ObservedQueue>,
    for_ns: u64,
    (used, programs_worked_ns): (Option<Schedstat>, Option<u64>),
    polling: impl Fn(NapiId) -> PollingPrograms,
    mut cause: impl FnMut(NapiId) -> NoPollCause,
) -> Vec<(EffectOnQueue, ModeVerdict)> {
    let judged = queues.filter_map(|queue| {
        let sample = queue.sample.as_ref()?;
        let seen = EffectOnQueue::of(queue.napi, for_ns, sample).with_cpu(used);
        let PollingPrograms { itself, others } = polling(queue.napi);
        let seen = EffectOnQueue { interrupts: queue.interrupts, is_shared: others, programs_worked_ns, ..seen };
        let polls_by_epoll = mode.epoll().is_some_and(|epoll| epoll.prefer_busy_poll || epoll.busy_poll_usecs > 0);
        let seen = if itself || !polls_by_epoll { seen } else { seen.without_polls_of_others() };
        Some((seen, judge(mode, &seen, || cause(queue.napi))))
    });
    judged.collect()
}

/// The worst verdict that is certain.
fn worst(queues: Vec<(EffectOnQueue, ModeVerdict)>) -> Option<ModeVerdict> {
    queues.into_iter().map(|(_, verdict)| verdict).reduce(ModeVerdict::worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_id_that_belongs_to_another_process_has_no_cpu_time() {
        let dir = ProcRoot::default().process(Pid::of_this_process());
        let start = dir.stat().unwrap().starttime.0;
        assert!(cpu_ns(&dir, start).is_some() && cpu_ns(&dir, start + 1).is_none());
    }

    #[test]
    fn polls_of_another_program_on_the_queue_are_no_evidence_for_a_program_that_cannot_poll() {
        let mut sample = QueueSample { packets: 1_000, program_found_suspended: Some(290), ..QueueSample::default() };
        (sample.polls.program, sample.polls.timer) = (300, 900);
        let queue = ObservedQueue {
            namespace: 1,
            device: "eth0".to_owned(),
            rx_queues: vec![0],
            napi: NapiId::from_kernel(8193).unwrap(),
            settings: quell_mode::PartialNapiSettings::NONE,
            interrupts: None,
            thread_ns: None,
            sample: Some(sample),
            unsampled: None,
            stalled: Some(false),
        };
        let of = |itself, others| {
            let polling = move |_| PollingPrograms { itself, others };
            let (mode, queues) = ("suspend20".parse().unwrap(), [&queue].into_iter());
            worst(judged(
                &mode,
                queues,
                1_000_000_000,
                (Some(Schedstat { run_ns: 90_000_000, ..Schedstat::default() }), None),
                polling,
                |_| NoPollCause::NoEpoll,
            ))
        };
        let said = |verdict| match verdict {
            Some(ModeVerdict::InEffect(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(said(of(true, false)).starts_with("290 of 300 polls by the program found"));
        assert!(said(of(true, true)).starts_with("290 of 300 polls by the programs on the queue found"));
        let Some(ModeVerdict::NotInEffect(why)) = of(false, true) else { panic!("it cannot poll") };
        assert!(why.starts_with("none of 1,200 polls was by the program"), "{why}");
    }

    #[test]
    fn a_process_whose_epolls_do_not_poll_cannot_poll() {
        let host = include_bytes!("../../quell-host/tests/fixtures/healthy.json");
        let mut process = Snapshot::parse(host).unwrap().processes.remove(0);
        assert!(can_poll(&process));
        let snapshot::Reading::Known(files) = &mut process.files else { panic!("unknown") };
        files.epolls.clear();
        assert!(!can_poll(&process));
    }

    #[test]
    fn programs_that_are_hidden_or_not_asked_for_are_out_of_sight() {
        let host = include_bytes!("../../quell-host/tests/fixtures/healthy.json");
        let mut snapshot = Snapshot::parse(host).unwrap();
        let (all, pid) = (SnapshotScope::default(), Pid::of_this_process());
        assert!(sees_all_programs(&all, &snapshot));
        assert!(!sees_all_programs(&SnapshotScope { pids: vec![pid], ..all.clone() }, &snapshot));
        snapshot.hidden_processes.push(pid);
        assert!(!sees_all_programs(&all, &snapshot));
    }

    #[test]
    fn packets_of_a_program_are_absent_if_one_of_its_instances_was_not_counted_twice() {
        let napi = |number: u32| NapiId::from_kernel(number).unwrap();
        let (before, after) = (
            BTreeMap::from([(napi(8193), 10), (napi(8194), 10)]),
            BTreeMap::from([(napi(8193), 15), (napi(8194), 30), (napi(8195), 7)]),
        );
        let packets = |napis: &[u32]| packets_between(&before, &after, &napis.iter().copied().map(napi).collect());
        assert_eq!(packets(&[8193, 8194]), Some(25));
        assert_eq!(packets(&[8193, 8195]), None, "it is new");
        assert_eq!(packets(&[8193, 8196]), None, "no device in sight has it");
        assert_eq!((per_packet(1_000, 25), per_packet(1_000, 0)), (Some(40.0), None));
    }

    #[test]
    fn the_increase_of_a_counter_that_went_backwards_or_was_read_once_is_absent() {
        let (before, after) = (BTreeMap::from([(1, 10), (2, 10), (3, 10)]), BTreeMap::from([(1, 12), (2, 9), (4, 5)]));
        let increases = [1, 2, 3, 4].map(|key| increase(&before, &after, &key));
        assert_eq!(increases, [Some(2), None, None, None]);
    }
}
