//! Decides the changes of an attachment from a snapshot and a mode: queues and epolls that get values, objects that are
//! left alone, parts that are not possible from outside, and other affected processes. Pure.

use std::collections::BTreeSet;
use std::fmt;

use quell_change::settings::epoll::EpollPlace;
use quell_change::settings::socket::SocketId;
use quell_linux::netdev::NapiThreading;
use quell_linux::{NapiId, Pid};
use quell_mode::{
    DeliveryMode, EpollParams, ModeKind, NapiSettings, PartialNapiSettings, ProgramWait, Requirement, Threaded,
};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::{debug, info};

use super::affected_processes::{AffectedProcess, affected_processes};
pub use super::limitation::Limitation;
use super::no_queue::{NoQueueCause, no_queue_cause};
use super::owners::CoveredOwner;
use super::pollers::{self, RingStep, SocketsStep, of_xdp_sockets, without_napi};
use super::receivers::{
    WhyUnpolled, in_receives_only, names_without_epolls, will_poll, without_blocking_receive, without_epoll,
};
use super::shared_epolls::EpollPlaces;
use super::unassigned_epolls::{self, UnassignedEpoll};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Device, Files, Process, Reading, Snapshot, SnapshotNapi, UnknownReason, WatchedFile};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EpollsSetBy {
    #[default]
    Attachment,
    /// The launched program sets them itself; the attachment sets only its queues.
    Program,
}

#[derive(Debug, Clone, Copy)]
pub struct AttachRequest {
    pub mode: DeliveryMode,
    pub epolls: EpollsSetBy,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AttachPlan {
    /// Objects that get values, queues first. When an epoll gets `prefer_busy_poll`, its queue is therefore already
    /// deferring interrupts.
    pub steps: Vec<AttachStep>,
    /// Epolls without a known queue, including those that get values.
    pub unassigned_epolls: Vec<UnassignedEpoll>,
    /// Why no queue is known; absent if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_queue: Option<NoQueueCause>,
    /// Obstacles. A single one prevents the whole attachment.
    pub impossible: Vec<AttachObstacle>,
    pub limitations: Vec<Limitation>,
    pub affected_processes: Vec<AffectedProcess>,
    /// Other owners of its queues, some of whose values are not in force while it is made. Not known from snapshots:
    /// see [`covered_by`](super::owners::covered_by).
    pub covers: Vec<CoveredOwner>,
    /// Processes whose files Quell may not read, so it is unknown whether they are affected.
    pub hidden: Vec<Pid>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AttachStep {
    Queue(QueueStep),
    Epoll(EpollStep),
    Sockets(SocketsStep),
    Ring(RingStep),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct QueueStep {
    /// `SO_NETNS_COOKIE` of the device's namespace.
    pub namespace_cookie: u64,
    pub device: String,
    /// Receive queues that the instance polls, if known.
    pub queues: Vec<u32>,
    pub napi: NapiId,
    /// IRQ number; absent if the instance has no interrupt or it is unknown.
    pub irq: Option<u32>,
    /// Current values; absent if the kernel reports none.
    pub old: PartialNapiSettings,
    /// Values to set; absent if a value is unchanged.
    pub new: PartialNapiSettings,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EpollStep {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub process: String,
    pub fd: i32,
    pub sockets: usize,
    /// The oldest sockets of the epoll. They identify it when the parameters are set.
    #[serde(skip)]
    pub watched: Vec<SocketId>,
    /// Further descriptors of the epoll, which processes inherit by fork(2). It is set and restored once.
    #[serde(skip)]
    pub duplicates: Vec<EpollPlace>,
    pub napis: Vec<NapiId>,
    pub old: EpollParams,
    pub new: EpollParams,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AttachObstacle {
    pub what: String,
    /// Reason, in the kernel's words where available.
    pub reason: String,
}

impl fmt::Display for AttachObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.reason)
    }
}

/// Plans `request` for the processes `targets` of a snapshot. The earlier snapshot `before` gives the time that the
/// program takes per event.
#[must_use]
pub fn plan(
    snapshot: &Snapshot,
    before: Option<&Snapshot>,
    targets: &BTreeSet<Pid>,
    request: &AttachRequest,
) -> AttachPlan {
    let query = SnapshotQuery::new(snapshot, before);
    let mut plan = AttachPlan::default();
    plan.refuse_modes_that_need_a_launch(&request.mode);
    let processes = snapshot.processes.iter().filter(|process| targets.contains(&process.pid));
    let places = EpollPlaces::new(&query, targets);
    processes.for_each(|process| plan.add_process(&query, process, &places, request));
    for pid in snapshot.hidden_processes.iter().filter(|pid| targets.contains(pid)) {
        let why = "access to its files was denied; needs CAP_SYS_PTRACE".to_owned();
        plan.impossible.push(AttachObstacle { what: format!("inspect process {pid}"), reason: why });
    }
    if plan.refuse_without_queue(&query, targets, request) || plan.refuse_without_epoll(&query, targets, request) {
        // The reason is all there is to say.
        return AttachPlan { impossible: plan.impossible, ..AttachPlan::default() };
    }
    plan.refuse_without_blocking_receive(&query, targets, request);
    for id in plan.queues_to_set(&query, targets, &request.mode) {
        match query.napi(id) {
            Some((device, napi)) => plan.add_queue(&query, device, napi, &request.mode),
            None => plan.limitations.push(Limitation::UnknownQueue { napi: id }),
        }
    }
    if plan.queues().next().is_none() {
        plan.without_queue = Some(no_queue_cause(&query, targets));
    }
    plan.refuse_without_privilege(snapshot);
    plan.steps.sort_by_key(|step| !matches!(step, AttachStep::Queue(_)));
    plan.affected_processes = affected_processes(&query, targets, &plan);
    plan.hidden.clone_from(&snapshot.hidden_processes);
    plan
}

/// Whether the mode busy polls in `epoll_wait`.
#[must_use]
pub fn polls_epolls(mode: &DeliveryMode) -> bool {
    mode.epoll().is_some_and(|epoll| epoll.busy_poll_usecs > 0 || epoll.prefer_busy_poll)
}

/// Names the first of these processes and counts the others.
pub(super) fn first_of(processes: &[&Process]) -> String {
    match processes {
        [] => String::new(),
        [only] => format!("{} {}", only.name, only.pid),
        [first, others @ ..] => format!("{} {} and {} more", first.name, first.pid, others.len()),
    }
}

pub(super) fn is_receiver(socket: &crate::snapshot::SnapshotSocket) -> bool {
    socket.state != crate::snapshot::SocketState::Listen
}

impl AttachPlan {
    /// Whether epolls have to poll queues, because their interrupts will be masked.
    #[must_use]
    pub fn polls_queues(&self) -> bool {
        let suspends = |step: &QueueStep| step.new.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        let polls = |step: &AttachStep| match step {
            AttachStep::Epoll(step) => step.new.prefer_busy_poll || step.new.busy_poll_usecs > 0,
            _ => false,
        };
        self.queues().any(suspends) || (self.queues().next().is_some() && self.steps.iter().any(polls))
    }

    pub fn queues(&self) -> impl Iterator<Item = &QueueStep> {
        self.steps.iter().filter_map(|step| match step {
            AttachStep::Queue(step) => Some(step),
            _ => None,
        })
    }

    pub fn epolls(&self) -> impl Iterator<Item = &EpollStep> {
        self.steps.iter().filter_map(|step| match step {
            AttachStep::Epoll(step) => Some(step),
            _ => None,
        })
    }

    pub fn sockets(&self) -> impl Iterator<Item = &SocketsStep> {
        self.steps.iter().filter_map(|step| match step {
            AttachStep::Sockets(step) => Some(step),
            _ => None,
        })
    }

    pub fn rings(&self) -> impl Iterator<Item = &RingStep> {
        self.steps.iter().filter_map(|step| match step {
            AttachStep::Ring(step) => Some(step),
            _ => None,
        })
    }

    pub fn log(&self) {
        for step in &self.steps {
            let is_there = step.is_there();
            match step {
                AttachStep::Queue(step) => info!(
                    device = ?step.device,
                    rx_queues = ?step.queues,
                    napi = step.napi.get(),
                    irq = step.irq,
                    from = %step.old,
                    to = %step.new,
                    is_there,
                    "planned queue: sockets of the programs receive from it"
                ),
                AttachStep::Epoll(step) => info!(
                    pid = step.pid.get(),
                    comm = ?step.process,
                    fd = step.fd,
                    sockets = step.sockets,
                    napis = ?step.napis.iter().map(|napi| napi.get()).collect::<Vec<_>>(),
                    from = %step.old,
                    to = %step.new,
                    is_there,
                    "planned epoll: it watches network sockets"
                ),
                AttachStep::Sockets(step) => info!(
                    pid = step.pid.get(),
                    sockets = step.sockets.len(),
                    to = %step.new.values,
                    is_there,
                    "planned sockets"
                ),
                AttachStep::Ring(step) => {
                    info!(pid = step.pid.get(), fd = step.fd, to = ?step.new, "planned io_uring")
                }
            }
        }
        for epoll in &self.unassigned_epolls {
            debug!(?epoll, "epoll without a known queue");
        }
        for AttachObstacle { what, reason: why } in &self.impossible {
            info!(?what, why, "the attachment is not possible");
        }
        for limitation in &self.limitations {
            info!(?limitation, "a part of the mode cannot be provided");
        }
        for affected in &self.affected_processes {
            info!(?affected, "another process uses these queues");
        }
        if !self.hidden.is_empty() {
            let pids: Vec<i32> = self.hidden.iter().map(|pid| pid.get()).collect();
            debug!(?pids, "processes skipped: no permission to read their files");
        }
    }

    fn refuse_modes_that_need_a_launch(&mut self, mode: &DeliveryMode) {
        let launch = |requirement: &Requirement| *requirement == Requirement::SpinBeforeSleep;
        for requirement in mode.requirements().into_iter().filter(launch) {
            self.impossible.push(AttachObstacle { what: mode.to_string(), reason: requirement.to_string() });
        }
        if let ProgramWait::AtMost(longest) = mode.program_wait() {
            let at_most_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            self.limitations.push(Limitation::EpollWaitUnlimited { at_most_ms });
        }
    }

    pub(super) fn refuse_without_privilege(&mut self, snapshot: &Snapshot) {
        let what = match (self.queues().all(QueueStep::is_there), self.sockets().next().is_some()) {
            (false, _) => "configure the queues",
            // `SO_BUSY_POLL` and `SO_PREFER_BUSY_POLL` need the same privilege.
            (true, true) => "set the sockets",
            (true, false) => return,
        };
        let privileges = &snapshot.privileges;
        let why = match (privileges.capabilities.known(), privileges.in_initial_user_namespace.known()) {
            (Some(have), _) if !have.contains(&quell_linux::capability::Capability::NetAdmin) => {
                "CAP_NET_ADMIN is missing"
            }
            (_, Some(false)) => "needs CAP_NET_ADMIN in the initial user namespace, which root in a container lacks",
            _ => return,
        };
        self.impossible.push(AttachObstacle { what: what.to_owned(), reason: why.to_owned() });
    }

    fn add_process(
        &mut self,
        query: &SnapshotQuery<'_>,
        process: &Process,
        places: &EpollPlaces,
        request: &AttachRequest,
    ) {
        let pid = process.pid;
        let files = match &process.files {
            Reading::Known(files) => files,
            Reading::Unknown(reading) => {
                let what = format!("inspect {} {pid}", process.name);
                self.impossible.push(AttachObstacle { what, reason: reading.unknown.message.clone() });
                return;
            }
        };
        self.limit_other_ways(pid, files, &request.mode);
        if request.epolls == EpollsSetBy::Attachment {
            self.steps
                .extend(pollers::steps(query, process, files, &request.mode).into_iter().map(AttachStep::Sockets));
            self.steps.extend(pollers::rings(process, files, &request.mode).into_iter().map(AttachStep::Ring));
        }
        let sockets_poll = pollers::of_inet_sockets(&request.mode).is_some();
        let (mut with_sockets, mut watched) = (0, 0);
        for epoll in query.epolls_by_descriptor.iter().filter(|epoll| epoll.process.pid == pid) {
            let sockets = watched_sockets(epoll);
            if let Reading::Unknown(reading) = &epoll.epoll.targets {
                let what = format!("inspect epoll {} of {} {pid}", epoll.epoll.fd, process.name);
                self.impossible.push(AttachObstacle { what, reason: reading.unknown.message.clone() });
                continue;
            }
            let duplicates = places.duplicates_of(epoll);
            // Connections inherit the setting of their listening socket.
            if !sockets_poll && duplicates.is_some() {
                self.unassigned_epolls.extend(unassigned_epolls::look_at(query, epoll));
            }
            // An epoll that has no network sockets, and had none, is left alone.
            if sockets > 0 || !epoll.epoll.read_queues.is_empty() {
                with_sockets += 1;
                watched += sockets;
                if let Some(duplicates) = duplicates {
                    self.add_epoll(epoll, duplicates, sockets, request);
                }
            }
        }
        if sockets_poll && watched > 0 {
            self.limitations.push(Limitation::WatchedByEpoll { pid, sockets: watched });
        }
        if with_sockets == 0 && !files.sockets.is_empty() && polls_epolls(&request.mode) {
            self.limitations.push(Limitation::NoEpoll { pid });
        }
    }

    /// Reports how the mode treats receivers that wait without an epoll.
    fn limit_other_ways(&mut self, pid: Pid, files: &Files, mode: &DeliveryMode) {
        let suspends = mode.napi().irq_suspend_timeout_ns > 0;
        let is_known = |fd: &i32| files.rings_with_sockets.contains(fd);
        let (known, unknown): (Vec<i32>, Vec<i32>) = files.receiving_rings().partition(is_known);
        let (xdp_sockets, io_urings) = (files.xdp_sockets.len(), known.len());
        if suspends && xdp_sockets + io_urings > 0 {
            self.limitations.push(Limitation::NotSuspended { pid, xdp_sockets, io_urings });
        }
        let unable = without_napi(files).filter(|_| of_xdp_sockets(mode).is_some()).count();
        if unable > 0 {
            self.limitations.push(Limitation::XdpCannotBusyPoll { pid, xdp_sockets: unable });
        }
        let is_deferred = mode.napi().defers() && mode.kind() != ModeKind::UserBusy;
        let waiting = files.xdp_details.iter().filter(|socket| is_deferred && !will_poll(socket, mode)).count();
        if waiting > 0 {
            let up_to_ns = mode.napi().gro_flush_timeout_ns;
            self.limitations.push(Limitation::XdpFramesWait { pid, xdp_sockets: waiting, up_to_ns });
        }
        if !unknown.is_empty() && polls_epolls(mode) {
            self.limitations.push(Limitation::UnknownRings { pid, io_urings: unknown.len(), suspends });
        }
    }

    /// Refuses a mode that polls in `epoll_wait` for programs that receive packets without it. Returns whether it did.
    fn refuse_without_epoll(
        &mut self,
        query: &SnapshotQuery<'_>,
        targets: &BTreeSet<Pid>,
        request: &AttachRequest,
    ) -> bool {
        if request.epolls != EpollsSetBy::Attachment || !polls_epolls(&request.mode) {
            return false;
        }
        let before = self.impossible.len();
        self.impossible.extend(without_epoll(query, targets, &request.mode).into_iter().map(|(why, processes)| {
            let of_sockets = if why.is_for_sockets() { "sockpoll50, which polls in recv(2), and " } else { "" };
            let others = match why {
                WhyUnpolled::ReadsNothing => "no mode has an effect on what is not read".to_owned(),
                _ => format!(
                    "{of_sockets}modes in which the program does not poll ({}) work",
                    names_without_epolls(query, targets)
                ),
            };
            let what = format!("{} for {}", request.mode, first_of(&processes));
            AttachObstacle { what, reason: format!("{why}; {others}") }
        }));
        self.impossible.len() > before
    }

    /// Refuses a mode of sockets for programs that never wait in a blocking receive.
    fn refuse_without_blocking_receive(
        &mut self,
        query: &SnapshotQuery<'_>,
        targets: &BTreeSet<Pid>,
        request: &AttachRequest,
    ) {
        if request.epolls != EpollsSetBy::Attachment || request.mode.socket_busy_poll().is_none() {
            return;
        }
        self.impossible.extend(without_blocking_receive(query, targets).into_iter().map(|(why, processes)| {
            let what = format!("{} for {}", request.mode, first_of(&processes));
            AttachObstacle { what, reason: in_receives_only(query, targets, why) }
        }));
    }

    /// NAPI instances of the queues that deliver to the targets.
    fn queues_to_set(
        &mut self,
        query: &SnapshotQuery<'_>,
        targets: &BTreeSet<Pid>,
        mode: &DeliveryMode,
    ) -> BTreeSet<NapiId> {
        let mut queues = BTreeSet::new();
        for process in query.now.processes.iter().filter(|process| targets.contains(&process.pid)) {
            let Some(files) = process.files.known() else { continue };
            queues.extend(query.napis_of(files));
            let why = files.xdp_details.iter().find_map(|socket| query.napi_of_xdp(socket).err());
            if let Some(reason) = why.filter(|_| mode.napi() != NapiSettings::default()) {
                let xdp_sockets = files.xdp_sockets.len();
                self.limitations.push(Limitation::UnknownXdpQueues { pid: process.pid, xdp_sockets, reason });
            }
        }
        queues
    }

    fn add_epoll(
        &mut self,
        epoll: &EpollContext<'_>,
        duplicates: &[EpollPlace],
        sockets: usize,
        request: &AttachRequest,
    ) {
        let (pid, fd) = (epoll.process.pid, epoll.epoll.fd);
        let Some(new) = request.mode.epoll().filter(|_| request.epolls == EpollsSetBy::Attachment) else { return };
        match &epoll.epoll.params {
            Reading::Known(params) => self.steps.push(AttachStep::Epoll(EpollStep {
                pid,
                start_time_ticks: epoll.process.start_time_ticks,
                process: epoll.process.name.clone(),
                fd,
                sockets,
                watched: oldest_sockets(epoll),
                duplicates: duplicates.to_vec(),
                napis: epoll.by_napi.keys().copied().collect(),
                old: *params,
                new,
            })),
            // If the kernel reports no parameters, assume the default, which is no busy polling.
            Reading::Unknown(reading)
                if reading.unknown.reason == UnknownReason::UnsupportedByKernel && new == EpollParams::default() => {}
            Reading::Unknown(reading) => {
                let what = format!("set epoll {fd} of {} {pid}", epoll.process.name);
                self.impossible.push(AttachObstacle { what, reason: reading.unknown.message.clone() });
            }
        }
    }

    pub(super) fn add_queue(
        &mut self,
        query: &SnapshotQuery<'_>,
        device: &Device,
        napi: &SnapshotNapi,
        mode: &DeliveryMode,
    ) {
        let what = || format!("set NAPI {} of {}", napi.id, device.name);
        let wanted = mode.napi();
        let taken = query.now.refuses_threading(wanted.threaded).map_or(Ok(()), |why| Err(why.to_owned()));
        let (old, new) = match taken.and_then(|()| values(napi, &wanted)) {
            Ok(values) => values,
            Err(why) => return self.impossible.push(AttachObstacle { what: what(), reason: why }),
        };
        let threaded = napi.threading.known().is_some_and(|threading| *threading != NapiThreading::Disabled);
        if threaded && mode.napi().threaded == Threaded::Off {
            self.limitations.push(Limitation::NapiThreadRemains { napi: napi.id });
        }
        let namespace = query.now.namespace(device.namespace);
        let Some(&namespace_cookie) = namespace.and_then(|namespace| namespace.cookie.known()) else {
            let why = "the network namespace of its device cannot be identified".to_owned();
            return self.impossible.push(AttachObstacle { what: what(), reason: why });
        };
        let queues = device.rx_queues.known_elements().filter(|queue| queue.napi_id() == Some(napi.id));
        self.steps.push(AttachStep::Queue(QueueStep {
            namespace_cookie,
            device: device.name.clone(),
            queues: queues.map(|queue| queue.id).collect(),
            napi: napi.id,
            irq: napi.irq_number(),
            old,
            new,
        }));
    }
}

/// Returns the current and the planned values of a queue, or the reason why the kernel cannot set them. An unreported
/// value counts as its default. Only modes with NAPI threads change `threaded`; otherwise the administrator decides.
fn values(napi: &SnapshotNapi, wanted: &NapiSettings) -> Result<(PartialNapiSettings, PartialNapiSettings), String> {
    let needed = [
        (wanted.defer_hard_irqs > 0, napi.defer_hard_irqs.why_unknown()),
        (wanted.gro_flush_timeout_ns > 0, napi.gro_flush_timeout_ns.why_unknown()),
        (wanted.irq_suspend_timeout_ns > 0, napi.irq_suspend_timeout_ns.why_unknown()),
        (wanted.threaded != Threaded::Off, napi.threading.why_unknown()),
    ];
    if let Some(unknown) = needed.into_iter().find_map(|(is_needed, unknown)| unknown.filter(|_| is_needed)) {
        return Err(unknown.message.clone());
    }
    let current = napi.settings();
    let mut new = PartialNapiSettings::from(*wanted).where_present_in(&current);
    if wanted.threaded == Threaded::Off {
        new.threaded = None;
    }
    Ok((current.where_present_in(&new), new))
}

impl QueueStep {
    /// Whether the queue has these values already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.new.unlike(&self.old).is_empty()
    }

    /// Whether its instance polls a queue that an earlier one has polled.
    pub(super) fn replaces(&self, earlier: &Self) -> bool {
        let is_same_device = (self.namespace_cookie, &self.device) == (earlier.namespace_cookie, &earlier.device);
        is_same_device && self.queues.iter().any(|queue| earlier.queues.contains(queue))
    }
}

impl EpollStep {
    /// Other processes that have the epoll.
    #[must_use]
    pub fn shared_with(&self) -> BTreeSet<Pid> {
        self.duplicates.iter().map(|place| place.pid).filter(|pid| *pid != self.pid).collect()
    }

    /// Whether the epoll has these parameters already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.old == self.new
    }
}

impl AttachStep {
    /// Whether the object has these values already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match self {
            Self::Queue(step) => step.is_there(),
            Self::Epoll(step) => step.is_there(),
            Self::Sockets(step) => step.sockets.is_empty(),
            // The current setting of a ring is unknown until it is set.
            Self::Ring(_) => false,
        }
    }
}

/// Number of sockets that identify an epoll. One is not enough, because a program may remove a socket from its epoll.
const RECOGNISED_BY: usize = 4;

/// Returns the oldest sockets of an epoll, which are the least likely to be closed soon. Socket inodes ascend with
/// time, except for per-CPU batches (`get_next_ino` in `fs/inode.c`).
fn oldest_sockets(epoll: &EpollContext<'_>) -> Vec<SocketId> {
    let watched = epoll.epoll.targets.known_elements().filter_map(|target| match target.file {
        WatchedFile::Socket { inode } => Some((inode, target.fd)),
        WatchedFile::Other { .. } => None,
    });
    let by_age: BTreeSet<(u64, i32)> = watched.collect();
    by_age.into_iter().take(RECOGNISED_BY).map(|(inode, fd)| SocketId { fd, inode: Some(inode) }).collect()
}

/// Number of TCP and UDP sockets, each counted once.
pub(super) fn watched_sockets(epoll: &EpollContext<'_>) -> usize {
    epoll.sockets().collect::<BTreeSet<u64>>().len()
}
