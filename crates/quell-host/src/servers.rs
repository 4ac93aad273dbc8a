//! The servers of a host, from snapshots and findings: programs that listen and receive packets from queues, with the
//! present mode of each and its next step. Pure, except [`origins`].

mod earlier;
mod local;
mod measured;
mod next_step;
mod suspension;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_change::journal::{StallRecord, TargetProgram};
use quell_linux::proc::{ProcRoot, ProgramPlace};
use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;
use quell_sampler::QueueSample;
use schemars::JsonSchema;
use serde::Serialize;

use measured::{MeasuredSetting, ServerSetting, sorting};
use next_step::{Answered, of_attached, of_unattached};

pub use earlier::{EarlierAnswer, EarlierMeasurement, EarlierVerdict, OpenQuestion, OwnLoad};
pub use local::{LocalServer, local_servers};
pub use measured::{JudgedMode, MeasuredStep, measured_step};
pub use next_step::NextStep;
pub use suspension::Suspension;

use crate::attach::effect::{EffectOnQueue, judge};
use crate::attach::no_poll::{NoPollCause, cause};
use crate::attach::no_queue::{NoQueueCause, no_queue_cause};
use crate::attach::own_work::{OwnWork, has_backlog, worked_by, worked_ns};
use crate::attach::owners::QueueSharers;
use crate::attach::payoff::{DoesItPay, ModePayoff};
use crate::attach::receivers::{OutsideWait, receives_outside_epolls, receives_watched, wait_outside_epolls};
use crate::attach::{Attached, AttachedMode};
use crate::behavior::Behavior;
use crate::findings::{
    Finding, FixText, GRO_OFF_ID, MISSING_QUEUE_ID, Node, QueuePerEpoll, Severity, UDP_KEEPS_FIRST_QUEUE,
    WITHOUT_NAPI_ID, can_be_pinned, expected_device, kinds_of, lacking, modes_without_epolls, next_will_mix,
};
use crate::snapshot::arrival::receiving_napis;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{FileWait, Files, NetworkNamespace, Process, Protocol, Snapshot, SocketState};

/// Packets per second of a server below which their delivery, at some 20 µs each, takes less than 1 % of a CPU.
const FEW_PACKETS_PER_S: u64 = 500;

/// A program that receives from queues.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct HostServer {
    /// Its first process: the parent of the others.
    pub pid: Pid,
    /// Name of that process.
    pub name: String,
    /// Its processes that have sockets, in ascending order.
    pub processes: Vec<Pid>,
    /// Pod, container or unit; absent if it is in none, or unknown.
    pub place: Option<ProgramPlace>,
    /// Name, or inode, of its network namespace; absent if it is unknown, or that of this command without a name.
    pub netns: Option<String>,
    /// Whether this command runs in a named network namespace, and the server in another one. Such servers come last.
    #[serde(skip)]
    pub is_aside: bool,
    /// How it waits for packets.
    pub waits: ServerWait,
    /// Its attachment; absent if it is not attached.
    pub attached: Option<AttachedMode>,
    /// Whether its workers can be pinned: a queue of its devices has an interrupt or a kernel thread.
    pub can_pin: bool,
    /// Present setting of its queues and epolls; absent if it differs between them or is unknown.
    pub present: Option<DeliveryMode>,
    /// Number of queues from which it has received.
    pub queues: usize,
    /// Number of threads that wait for packets; of epolls with connections, if it is larger.
    pub workers: usize,
    /// How each of its epolls can get the connections of one queue. Absent if each has them, and if they are steered.
    pub queue_per_epoll: Option<QueuePerEpoll>,
    /// The same if it has few connections, and more will come from several queues to one epoll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub will_mix: Option<QueuePerEpoll>,
    /// Modes that can be compared on it, if those are not the ones that `quell bench` chooses; otherwise empty.
    pub modes: Vec<DeliveryMode>,
    /// CPUs that it used between the snapshots; absent with one snapshot.
    pub cpus: Option<f64>,
    /// Packets per second from its queues, if these are too few to gain from a mode. Absent otherwise, and if they were not
    /// counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub few_packets_per_s: Option<u64>,
    /// Whether unread requests were in its sockets at both times: it answers more slowly than they come.
    pub requests_wait: bool,
    /// Local address of most of its connections from queues; without one, an address on which it listens, also a wildcard.
    pub address: Option<SocketAddr>,
    /// Whether only a restart lets its epoll poll its queue: its UDP socket keeps one that is gone.
    pub must_restart: bool,
    /// Number of kinds of serious findings about it.
    pub serious: usize,
    /// Number of kinds of warnings about it.
    pub warnings: usize,
    /// Number of kinds of notes about it.
    pub notes: usize,
    /// Whether its attached mode pays; absent if it is not attached, and if polls cannot be sampled.
    pub payoff: Option<ModePayoff>,
    /// Attachments of other programs that use its queues; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<QueueSharers>,
    /// What suspended interrupts would do to it; absent if it was not observed, and if it is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// What to do next.
    pub next: NextStep,
    /// The first fix of the finding that is to be fixed next; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<FixText>,
}

impl HostServer {
    /// Name of its network namespace; absent without one.
    #[must_use]
    pub fn named_netns(&self) -> Option<&str> {
        self.netns.as_deref().filter(|name| !name.starts_with("net:["))
    }
}

/// How a server waits for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerWait {
    /// In `epoll_wait`: every mode applies.
    Epoll,
    /// By an AF_XDP socket.
    Xdp,
    /// By an io_uring.
    IoUring,
    /// In `poll` or `select`.
    Poll,
    /// In a blocking receive, or in `accept` before one.
    Receive,
    /// For no data: it accepts connections, and did not read them between the snapshots.
    Nothing,
    /// In another call, or it did not wait when the snapshots were taken.
    Unknown,
}

/// A process by its PID and name.
pub type NamedProcess = (Pid, String);

/// Answers of measurements for processes, the newest first.
pub type EarlierAnswers = BTreeMap<NamedProcess, Vec<EarlierAnswer>>;

/// Data of `/proc` that snapshots do not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessOrigin {
    pub parent: Option<Pid>,
    pub place: Option<ProgramPlace>,
}

/// Parent and place of the processes of a snapshot that still run.
#[must_use]
pub fn origins(snapshot: &Snapshot) -> BTreeMap<Pid, ProcessOrigin> {
    let of = |process: &Process| {
        let dir = ProcRoot::default().process(process.pid);
        let place = dir.place().ok().flatten();
        let stat = dir.stat().ok().filter(|stat| stat.starttime.0 == process.start_time_ticks)?;
        Some((process.pid, ProcessOrigin { parent: stat.ppid, place }))
    };
    snapshot.processes.iter().filter_map(of).collect()
}

/// Adds the processes that attached ones have started since, such as the workers of a reload: the mode is meant for them,
/// too, although it may not be set on them.
#[must_use]
pub fn with_started_since(
    mut attached: BTreeMap<Pid, AttachedMode>,
    now: &Snapshot,
    origins: &BTreeMap<Pid, ProcessOrigin>,
) -> BTreeMap<Pid, AttachedMode> {
    if attached.is_empty() {
        return attached;
    }
    let parent = |pid: &Pid| origins.get(pid).and_then(|origin| origin.parent);
    for process in &now.processes {
        let ancestors = std::iter::successors(parent(&process.pid), parent).take(now.processes.len());
        let mode = ancestors.filter_map(|pid| attached.get(&pid)).next().copied();
        if let Some(mode) = mode.filter(|_| !attached.contains_key(&process.pid)) {
            attached.insert(process.pid, mode);
        }
    }
    attached
}

/// What is known about a host besides its snapshots.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub findings: &'a [Finding],
    pub origins: &'a BTreeMap<Pid, ProcessOrigin>,
    /// Modes of attached processes.
    pub attached: &'a BTreeMap<Pid, AttachedMode>,
    /// Processes whose settings an experiment switches, with the PID of its command.
    pub experiments: &'a BTreeMap<Pid, Pid>,
    /// Attached processes whose settings another program has changed since.
    pub drifted: &'a BTreeSet<Pid>,
    /// Journals that are not reverted.
    pub owners: &'a [Attached],
    /// Settings of attached processes without their attachments, as far as they are known.
    pub below: &'a BTreeMap<Pid, DeliveryMode>,
    /// Answers of measurements for a process with this PID and name, the newest first.
    pub measured: &'a EarlierAnswers,
    /// Records of modes whose queues stalled.
    pub stalls: &'a [StallRecord],
    /// Polls of each queue. Empty if they cannot be sampled.
    pub polls: &'a BTreeMap<NapiId, QueueSample>,
    /// Time for which they were sampled, in nanoseconds.
    pub sampled_ns: u64,
    /// CPU time of each process in that time, of its threads that slept in between. Empty if it was not read.
    pub worked_ns: &'a BTreeMap<Pid, u64>,
    /// What programs did in that time; absent if none was observed.
    pub behavior: Option<&'a Behavior>,
}

/// Servers of the host: first those that need a fix, then those that used the most CPU time. If this command runs in a
/// named network namespace, servers of others come last. Programs that only have connections of the present SSH session,
/// and Quell's own (`quell load`, `export`), are left out.
#[must_use]
pub fn servers(now: &Snapshot, before: Option<&Snapshot>, known: &Known<'_>) -> Vec<HostServer> {
    let query = SnapshotQuery::new(now, before);
    let by_root = by_root(now, known.origins);
    let is_in_named = now.own_namespace().is_some_and(|own| own.name().is_some());
    let of_root = |processes: Vec<&Process>| {
        (receives(&query, &processes) && !is_left_out(&query, &processes)).then(|| {
            let mut its = processes.iter().filter_map(|process| now.namespace(*process.namespace.known()?));
            let is_aside = is_in_named && its.clone().all(|one| !one.is_current);
            let netns = its.find(|one| one.is_entered()).map(NetworkNamespace::label);
            HostServer { netns, is_aside, ..server(&query, &processes, known) }
        })
    };
    let mut servers: Vec<HostServer> = by_root.into_values().filter_map(of_root).collect();
    let order = |server: &HostServer| (server.serious > 0, server.cpus.unwrap_or(0.0));
    servers.sort_by(|one, other| {
        let ((one_serious, one_cpus), (other_serious, other_cpus)) = (order(one), order(other));
        one.is_aside
            .cmp(&other.is_aside)
            .then(other_serious.cmp(&one_serious))
            .then(other_cpus.total_cmp(&one_cpus))
            .then(one.pid.cmp(&other.pid))
    });
    servers
}

/// Processes of each program by its first process: the last ancestor with the same name.
fn by_root<'a>(now: &'a Snapshot, origins: &BTreeMap<Pid, ProcessOrigin>) -> BTreeMap<Pid, Vec<&'a Process>> {
    let by_pid: BTreeMap<Pid, &Process> = now.processes.iter().map(|process| (process.pid, process)).collect();
    let mut programs: BTreeMap<Pid, Vec<&Process>> = BTreeMap::new();
    for process in &now.processes {
        let parent = |of: &&'a Process| {
            let parent = by_pid.get(&origins.get(&of.pid)?.parent?)?;
            (parent.name == process.name).then_some(*parent)
        };
        // Bounds the walk, should parents form a cycle.
        let root = std::iter::successors(Some(process), parent).take(now.processes.len()).last().unwrap_or(process);
        programs.entry(root.pid).or_default().push(process);
    }
    programs
}

/// Whether clients on other hosts can send first to a program, or a queue delivers frames to it.
fn receives(query: &SnapshotQuery<'_>, processes: &[&Process]) -> bool {
    processes.iter().any(|process| query.serves(process) || receives_frames(query, process))
}

/// Whether a program is Quell's own, or has connections of the present SSH session.
fn is_left_out(query: &SnapshotQuery<'_>, processes: &[&Process]) -> bool {
    let managed: BTreeSet<u64> = query.now.management_sockets.known_elements().copied().collect();
    let mut held = processes.iter().flat_map(|process| query.sockets_of(process));
    processes.iter().all(|process| process.is_own()) || held.any(|socket| managed.contains(&socket.inode))
}

/// Whether an AF_XDP socket of the process receives from a queue.
fn receives_frames(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    let mut sockets = process.files.known().into_iter().flat_map(|files| &files.xdp_details);
    sockets.any(|socket| matches!(query.napi_of_xdp(socket), Ok(Some(_))))
}

fn server(query: &SnapshotQuery<'_>, processes: &[&Process], known: &Known<'_>) -> HostServer {
    let first = processes.iter().min_by_key(|process| process.start_time_ticks).unwrap_or(&processes[0]);
    let pids: BTreeSet<Pid> = processes.iter().map(|process| process.pid).collect();
    let epolls: Vec<&EpollContext<'_>> = query.epolls().filter(|epoll| pids.contains(&epoll.process.pid)).collect();
    let is_outside = receives_watched(query, &pids);
    let receives = |epoll: &&EpollContext<'_>| !is_outside && !epoll.by_napi.is_empty();
    let receiving: Vec<&EpollContext<'_>> = epolls.iter().copied().filter(receives).collect();
    let files = processes.iter().filter_map(|process| process.files.known());
    let queues: BTreeSet<NapiId> =
        files.flat_map(|files| query.napis_of(files)).filter(|&napi| query.napi(napi).is_some()).collect();
    let waits = if receiving.is_empty() { other_wait(query, processes, &epolls) } else { ServerWait::Epoll };
    let in_epolls = receiving.iter().flat_map(|epoll| &epoll.waiters).map(|(thread, _)| thread.tid);
    let in_calls = processes.iter().flat_map(|process| process.threads.known_elements());
    let in_calls = in_calls.filter(|thread| thread.file_wait.is_some() && waits != ServerWait::Epoll);
    let waiters: BTreeSet<Pid> = in_epolls.chain(in_calls.map(|thread| thread.tid)).collect();
    let attached = pids.iter().find_map(|pid| known.attached.get(pid)).copied();
    let is_idle = queues.is_empty();
    let expected = || processes.iter().filter_map(|process| expected_device(query, process)).flat_map(receiving_napis);
    let its_queues = if is_idle { expected().collect() } else { queues.clone() };
    let is_about = |finding: &&Finding| {
        let is_of_receivers = is_idle && finding.judges_settings();
        !is_of_receivers && concerns(query, finding, processes, &its_queues)
    };
    let about: Vec<&Finding> = known.findings.iter().filter(is_about).collect();
    let count = |severity| kinds_of(severity, about.iter().copied());
    let answers = processes.iter().find_map(|process| known.measured.get(&(process.pid, process.name.clone())));
    let is_steered = attached.is_some_and(|it| it.steers);
    let (mixing, can_steer) = sorting(query, processes, &receiving, is_steered);
    let modes = match waits {
        ServerWait::Epoll if mixing.is_none() || can_steer => Vec::new(),
        _ => modes_without_epolls(query, &pids, queues.len()),
    };
    let samples: Vec<(NapiId, &QueueSample)> =
        queues.iter().filter_map(|&napi| Some((napi, known.polls.get(&napi)?))).collect();
    let packets: u64 = samples.iter().map(|(_, sample)| sample.packets).sum();
    let load = (samples.len() == queues.len() && known.sampled_ns > 0)
        .then(|| (packets as f64 * 1e9 / known.sampled_ns as f64).round() as u64);
    let programs_cpu_ns = processes.iter().map(|process| query.cpu_ns(process)).sum::<Option<u64>>();
    let programs_cpu_wait_ns = processes.iter().map(|process| query.cpu_wait_ns(process)).sum::<Option<u64>>();
    let requests_wait_now = has_backlog(query.now, &pids);
    let programs_worked_ns = worked_ns(requests_wait_now, programs_cpu_ns, worked_by(&pids, known.worked_ns));
    let has_drifted = !known.drifted.is_disjoint(&pids);
    let payoff = attached.filter(|_| !samples.is_empty() || has_drifted).map(|attached| {
        let mode = attached.mode;
        let mut is_unset = !has_drifted && are_unset(query, &queues, &mode);
        let judged = |(napi, sample): &(NapiId, &QueueSample)| {
            let seen = EffectOnQueue {
                programs_cpu_ns,
                programs_cpu_wait_ns,
                programs_worked_ns,
                ..EffectOnQueue::of(*napi, known.sampled_ns, sample)
            };
            let verdict = judge(&mode, &seen, || {
                let cause = cause(query, &pids, *napi).if_attached(&attached);
                is_unset |= matches!(cause, NoPollCause::NotEnabled { .. });
                cause
            });
            (seen, verdict)
        };
        let judged: Vec<_> = samples.iter().map(judged).collect();
        let fix = about.iter().find(|finding| finding.leaves_queues_unpolled()).and_then(|finding| finding.fix.first());
        ModePayoff::of(mode, &judged, fix, lacking(query, &pids, queues.len()))
            .on_unset_epolls(is_unset)
            .drifted(has_drifted)
    });
    // Of equally severe findings, the first one can be the cause of the others.
    let worst = about.iter().filter(|finding| finding.severity >= Severity::Warning).rev().max_by_key(|it| it.severity);
    // The payoff of an attached mode is worth more than a warning. Findings under other settings are not about the mode,
    // unless its queues are missing.
    let says_more = |worst: &Finding, payoff: &ModePayoff| match payoff.pays {
        DoesItPay::Drifted => worst.id != MISSING_QUEUE_ID,
        DoesItPay::LeavesQueuesUnpolled { .. } if worst.leaves_queues_unpolled() => true,
        _ => worst.severity < Severity::Serious,
    };
    let no_queue = is_idle.then(|| no_queue_cause(query, &pids));
    // What else is said about queues that are gone does not help.
    let is_gone = no_queue == Some(NoQueueCause::DeviceGone);
    let to_fix = worst.filter(|worst| {
        (!is_gone || worst.id == MISSING_QUEUE_ID) && !payoff.as_ref().is_some_and(|payoff| says_more(worst, payoff))
    });
    // What polls show concerns the other packets only.
    let bypass = about.iter().find(|finding| finding.id == WITHOUT_NAPI_ID && finding.severity >= Severity::Warning);
    let may_pay = payoff.as_ref().is_some_and(|payoff| !payoff.pays.is_no());
    let to_fix = bypass.filter(|_| may_pay).or(to_fix);
    let sharing = QueueSharers::of(&pids, &queues, known.owners, |pid| known.origins.get(&pid)?.parent);
    let sharers = sharing.iter().flat_map(|sharing| &sharing.programs);
    // A measurement of a program on the same queues was made without their attachments, too.
    let below = pids.iter().chain(sharers).find_map(|pid| known.below.get(pid)).copied();
    let setting = MeasuredSetting {
        attached,
        below: (attached.is_some() || sharing.is_some()).then(|| below.into()),
        present: ServerSetting::of(query, &queues, &receiving),
        can_steer,
        mixing: mixing.as_ref(),
    };
    let present = setting.present.mode();
    // An attachment of others on its queues is not its own mode.
    let own = below.filter(|_| sharing.is_some()).or(present);
    let measured = || setting.answered(answers.map_or(&[], Vec::as_slice), load);
    let experiment = pids.iter().find_map(|pid| known.experiments.get(pid));
    let is_one_of = |program: &TargetProgram| {
        processes
            .iter()
            .any(|process| (process.pid, process.start_time_ticks) == (program.pid, program.start_time_ticks))
    };
    let stall = known.stalls.iter().rfind(|stall| stall.reverted && stall.programs.iter().any(is_one_of));
    let stalled =
        stall.and_then(|stall| Some(NextStep::FindStall { mode: stall.purpose.mode()?, cause: stall.cause.clone() }));
    let polls_by_programs = samples.iter().map(|(_, sample)| sample.polls.program + sample.polls.program_last).sum();
    let is_serious = to_fix.is_some_and(|worst| worst.severity == Severity::Serious);
    let suspension = if attached.is_some() { None } else { Suspension::of(query, &pids, known.behavior) };
    // An event that is always there keeps it busy without work.
    let would_stall = matches!(suspension, Some(Suspension::WouldStall { .. }));
    let work = OwnWork::of(programs_worked_ns, packets, polls_by_programs).filter(|_| !is_serious && !would_stall);
    let without_measurement = stalled
        .or((waits == ServerWait::Nothing).then_some(NextStep::NoModeHelps))
        .or(work.map(NextStep::NothingToGain));
    let next = match (experiment, without_measurement.filter(|_| attached.is_none()), to_fix, &attached) {
        (Some(pid), ..) => NextStep::AwaitExperiment { pid: *pid },
        (None, Some(next), ..) => next,
        (None, None, Some(worst), _) => NextStep::Fix { finding: worst.id },
        (None, None, None, Some(attached)) => of_attached(attached, payoff.as_ref(), can_steer, measured()),
        (None, None, None, None) if is_idle => match (&no_queue, measured()) {
            (Some(NoQueueCause::GroOff { .. }), _) => NextStep::Fix { finding: GRO_OFF_ID },
            // The judge of the measurement was its only client.
            (_, Answered::By(answer)) => of_unattached(own, can_steer, Answered::By(answer)),
            (Some(NoQueueCause::NoDatagram), Answered::Missing(_)) => NextStep::AwaitDatagrams,
            (_, Answered::Missing(_)) => NextStep::AwaitClients,
        },
        (None, None, None, None) => of_unattached(own, can_steer, measured()),
    };
    let its_fix =
        |id| about.iter().find(|finding| finding.id == id).and_then(|finding| Some(finding.fix.first()?.text()));
    let fix = match (&next, no_queue) {
        (NextStep::Fix { finding: GRO_OFF_ID }, Some(NoQueueCause::GroOff { fix, .. })) => Some(fix),
        (NextStep::Fix { finding }, _) => its_fix(*finding),
        _ => None,
    };
    HostServer {
        pid: first.pid,
        name: first.name.clone(),
        place: known.origins.get(&first.pid).and_then(|origin| origin.place.clone()),
        netns: None,
        is_aside: false,
        waits,
        attached,
        can_pin: processes.iter().any(|process| can_be_pinned(query, process)),
        present,
        address: address(query, processes),
        queues: queues.len(),
        workers: waiters.len().max(receiving.len()),
        will_mix: next_will_mix(query, &pids, true).filter(|_| mixing.is_none()),
        queue_per_epoll: mixing,
        modes,
        cpus: programs_cpu_ns.zip(query.interval_ns()).map(|(ran, interval)| ran as f64 / interval as f64),
        requests_wait: requests_wait_now && query.before().is_some_and(|before| has_backlog(before, &pids)),
        few_packets_per_s: load.filter(|&rate| !is_idle && rate < FEW_PACKETS_PER_S),
        must_restart: about.iter().any(|finding| finding.id == UDP_KEEPS_FIRST_QUEUE),
        serious: count(Severity::Serious),
        warnings: count(Severity::Warning),
        notes: count(Severity::Note),
        payoff,
        sharing,
        suspension,
        processes: pids.into_iter().collect(),
        next,
        fix,
    }
}

/// Name and address of a program that these processes are, as [`HostServer`] has them. Absent without an address.
#[must_use]
pub fn name_and_address(now: &Snapshot, pids: &BTreeSet<Pid>) -> Option<(String, SocketAddr)> {
    let processes: Vec<&Process> = now.processes.iter().filter(|process| pids.contains(&process.pid)).collect();
    let first = processes.iter().min_by_key(|process| process.start_time_ticks)?;
    Some((first.name.clone(), address(&SnapshotQuery::new(now, None), &processes)?))
}

/// Local address of most TCP connections of a program that came from a queue; before the first one, that of a listening
/// socket, which can be a wildcard.
fn address(query: &SnapshotQuery<'_>, processes: &[&Process]) -> Option<SocketAddr> {
    let mut listening = BTreeSet::new();
    let mut connections: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for socket in processes.iter().flat_map(|process| query.sockets_of(process)) {
        let Some(local) = socket.local.filter(|_| socket.protocol == Protocol::Tcp) else { continue };
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        match socket.state {
            SocketState::Listen => drop(listening.insert(local)),
            _ if !query.queues_of(socket).is_empty() => *connections.entry(local).or_default() += 1,
            _ => {}
        }
    }
    let is_accepted = |local: &SocketAddr| listening.iter().any(|listener| listener.port() == local.port());
    let accepted = connections.into_iter().filter(|(local, _)| is_accepted(local));
    let used = accepted.max_by_key(|(_, connections)| *connections).map(|(local, _)| local);
    let reachable = listening.iter().filter(|listener| !listener.ip().is_loopback());
    used.or_else(|| reachable.min_by_key(|listener| listener.ip().is_unspecified()).copied())
}

/// Whether none of the queues has a setting of the mode, as if the program received from them only after it was attached.
fn are_unset(query: &SnapshotQuery<'_>, queues: &BTreeSet<NapiId>, mode: &DeliveryMode) -> bool {
    let is_default = |id: &NapiId| query.napi(*id).is_some_and(|(_, napi)| !napi.defers() && !napi.suspends());
    (mode.napi().defer_hard_irqs > 0 || mode.napi().irq_suspend_timeout_ns > 0) && queues.iter().all(is_default)
}

/// How a program waits that does not receive from a queue in its epolls.
fn other_wait(query: &SnapshotQuery<'_>, processes: &[&Process], epolls: &[&EpollContext<'_>]) -> ServerWait {
    let files = || processes.iter().filter_map(|process| process.files.known());
    if files().any(|files| !files.xdp_sockets.is_empty()) {
        return ServerWait::Xdp;
    }
    let watches = |epoll: &&&EpollContext<'_>| epoll.sockets().any(|inode| query.socket(inode).is_some());
    let programs: BTreeSet<Pid> = processes.iter().map(|process| process.pid).collect();
    if epolls.iter().any(|epoll| watches(&epoll)) && !receives_outside_epolls(query, &programs) {
        return ServerWait::Epoll;
    }
    if files().flat_map(Files::receiving_rings).next().is_some() {
        return ServerWait::IoUring;
    }
    match wait_outside_epolls(query, processes) {
        Some(OutsideWait::In(FileWait::Poll | FileWait::Select)) => ServerWait::Poll,
        Some(OutsideWait::In(FileWait::Receive { .. } | FileWait::Accept { .. })) => ServerWait::Receive,
        Some(OutsideWait::ReadsNothing) => ServerWait::Nothing,
        None => ServerWait::Unknown,
    }
}

/// Whether the finding is about the program: its processes, threads and files, or its queues.
fn concerns(query: &SnapshotQuery<'_>, finding: &Finding, processes: &[&Process], queues: &BTreeSet<NapiId>) -> bool {
    let is_its_queue = |node: &Node| match node {
        Node::Napi { id, .. } => queues.contains(id),
        Node::RxQueue { device, queue, .. } => queues.iter().any(|&id| {
            let found = query.napi(id).filter(|(of, _)| of.name == *device);
            found.is_some_and(|(of, _)| {
                of.rx_queues.known_elements().any(|rx| rx.id == *queue && rx.napi_id() == Some(id))
            })
        }),
        Node::Device { namespace, ifindex, .. } => queues
            .iter()
            .any(|&id| query.napi(id).is_some_and(|(of, _)| (of.namespace, of.ifindex) == (*namespace, *ifindex))),
        Node::Irq { number } => {
            queues.iter().any(|&id| query.napi(id).is_some_and(|(_, napi)| napi.irq_number() == Some(*number)))
        }
        _ => false,
    };
    let named: Vec<bool> = finding.nodes.iter().filter_map(|node| node.is_of_any(processes)).collect();
    match named.is_empty() {
        // A finding about another program on the same queue is not about this one.
        false => named.contains(&true),
        true => finding.nodes.iter().any(is_its_queue),
    }
}
