//! What an attachment changes: of a picture and a mode, the queues and epolls that get values, what is left alone, what
//! cannot be had from outside, and whom else it touches. Pure: it asks and changes nothing.

use std::collections::BTreeSet;

use quell_linux::netdev::NapiThreading;
use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, NapiSettings, ProgramWait, Requirement, Threaded};
use serde::Serialize;

use super::neighbours::{Neighbour, neighbours};
use super::pollers::{self, RingStep, SocketId, SocketsStep};
use super::quiet::{self, QuietEpoll};
use crate::findings::view::{EpollView, View, irq_of, napi_of};
use crate::picture::{Device, Napi, Picture, Process, Reading, WatchedFile, Why};
use crate::settings::values::{EpollValues, NapiValues};

/// Who sets the parameters of the program's epolls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EpollsSetBy {
    /// The attachment, from outside.
    #[default]
    Attachment,
    /// The program itself, which was launched for it; only its queues are left to be set.
    Program,
}

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// How packets are to be delivered.
    pub mode: DeliveryMode,
    /// Who sets the epolls.
    pub epolls: EpollsSetBy,
}

/// What an attachment comes to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// What gets values, the queues first: an epoll that prefers busy polling is to find a queue that defers.
    pub steps: Vec<Step>,
    /// Epolls of which no queue is known yet, also those that get values.
    pub quiet: Vec<QuietEpoll>,
    /// What cannot be done here, because of which nothing is.
    pub impossible: Vec<Impossible>,
    /// What of the mode the program does not get from outside, or not yet.
    pub partly: Vec<Partly>,
    /// Whom else it touches.
    pub neighbours: Vec<Neighbour>,
    /// Processes whose files may not be seen, so that whether it touches them is not known.
    pub hidden: Vec<Pid>,
}

/// One thing that gets values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Step {
    /// A queue, by its NAPI instance.
    Queue(QueueStep),
    /// An epoll of the program.
    Epoll(EpollStep),
    /// Sockets of the program that poll by themselves.
    Sockets(SocketsStep),
    /// An io_uring of the program that polls by itself.
    Ring(RingStep),
}

/// Values of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueueStep {
    /// The cookie of the device's namespace.
    pub namespace_cookie: u64,
    /// The device.
    pub device: String,
    /// Its receive queues that the instance polls, where that is known.
    pub queues: Vec<u32>,
    /// The instance.
    pub napi: NapiId,
    /// Its interrupt; absent where it has none, or it is not known.
    pub irq: Option<u32>,
    /// As it is; absent what the kernel does not report.
    pub old: NapiValues,
    /// As it is to be; absent what stays as it is.
    pub new: NapiValues,
}

/// Parameters of an epoll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EpollStep {
    /// Whose.
    pub pid: Pid,
    /// When that process started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The name of the process.
    pub process: String,
    /// The epoll's number there.
    pub fd: i32,
    /// TCP and UDP sockets that it watches.
    pub sockets: usize,
    /// The oldest of these sockets, by which the epoll is recognised when it is set.
    #[serde(skip)]
    pub watched: Vec<SocketId>,
    /// The instances that they arrive by.
    pub napis: Vec<NapiId>,
    /// As they are.
    pub old: EpollValues,
    /// As they are to be.
    pub new: EpollValues,
}

/// Something that cannot be done here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Impossible {
    /// What.
    pub what: String,
    /// Why, in the kernel's words where it has some.
    pub why: String,
}

/// Something of a mode that a program does not get from outside, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Partly {
    /// A mode that keeps a program awake has it wait for at most this long, which only a launched program can be told.
    WaitsAsWritten {
        /// How long at most, milliseconds.
        at_most_ms: u64,
    },
    /// Sockets that poll by themselves are watched by an epoll, whose waits do not poll by them.
    WatchedByEpoll {
        /// Whose.
        pid: Pid,
        /// How many.
        sockets: usize,
    },
    /// A process has no epoll with network sockets.
    NoEpoll {
        /// Which.
        pid: Pid,
    },
    /// The process receives by a way that suspends no interrupts.
    OtherWays {
        /// Which.
        pid: Pid,
        /// AF_XDP sockets.
        xdp_sockets: usize,
        /// io_urings.
        io_urings: usize,
    },
    /// A socket arrives by an instance of no device that can be seen from here.
    UnknownQueue {
        /// The instance.
        napi: NapiId,
    },
    /// A queue's kernel thread stays, though the mode has none.
    ThreadStays {
        /// The instance.
        napi: NapiId,
    },
}

/// What `request` comes to for the processes `targets` of a picture. `before` is an earlier one, from which it is told
/// how long the program works on an event.
#[must_use]
pub fn plan(picture: &Picture, before: Option<&Picture>, targets: &BTreeSet<Pid>, request: &Request) -> Plan {
    let view = View::new(picture, before);
    let mut plan = Plan::default();
    plan.refuse_what_takes_a_launch(&request.mode);
    let processes = picture.processes.iter().filter(|process| targets.contains(&process.pid));
    processes.for_each(|process| plan.add_process(&view, process, request));
    for pid in picture.hidden_processes.iter().filter(|pid| targets.contains(pid)) {
        let why = "its files may not be seen; that needs CAP_SYS_PTRACE".to_owned();
        plan.impossible.push(Impossible { what: format!("look into process {pid}"), why });
    }
    for id in queues_of(picture, &view, targets) {
        match view.napi(id) {
            Some((device, napi)) => plan.add_queue(&view, device, napi, &request.mode),
            None => plan.partly.push(Partly::UnknownQueue { napi: id }),
        }
    }
    plan.refuse_without_privilege(picture);
    plan.steps.sort_by_key(|step| !matches!(step, Step::Queue(_)));
    plan.neighbours = neighbours(&view, targets, &plan);
    plan.hidden.clone_from(&picture.hidden_processes);
    plan
}

/// The instances that sockets of the targets arrive by, whether an epoll watches them or not.
fn queues_of(picture: &Picture, view: &View<'_>, targets: &BTreeSet<Pid>) -> BTreeSet<NapiId> {
    let processes = picture.processes.iter().filter(|process| targets.contains(&process.pid));
    let files = processes.filter_map(|process| process.files.known());
    let sockets = files.flat_map(|files| &files.sockets).filter_map(|held| view.socket(held.inode));
    sockets.filter(|socket| is_receiver(socket)).filter_map(|socket| *socket.napi.known()?).collect()
}

pub(super) fn is_receiver(socket: &crate::picture::Socket) -> bool {
    socket.state != crate::picture::SocketState::Listen
}

impl Plan {
    /// The queues that get values.
    pub fn queues(&self) -> impl Iterator<Item = &QueueStep> {
        self.steps.iter().filter_map(|step| match step {
            Step::Queue(step) => Some(step),
            _ => None,
        })
    }

    /// The epolls that get parameters.
    pub fn epolls(&self) -> impl Iterator<Item = &EpollStep> {
        self.steps.iter().filter_map(|step| match step {
            Step::Epoll(step) => Some(step),
            _ => None,
        })
    }

    /// The sockets that are told to poll.
    pub fn sockets(&self) -> impl Iterator<Item = &SocketsStep> {
        self.steps.iter().filter_map(|step| match step {
            Step::Sockets(step) => Some(step),
            _ => None,
        })
    }

    /// The io_urings that are told to poll.
    pub fn rings(&self) -> impl Iterator<Item = &RingStep> {
        self.steps.iter().filter_map(|step| match step {
            Step::Ring(step) => Some(step),
            _ => None,
        })
    }

    fn refuse_what_takes_a_launch(&mut self, mode: &DeliveryMode) {
        let launch = |requirement: &Requirement| *requirement == Requirement::SpinBeforeSleep;
        for requirement in mode.requirements().into_iter().filter(launch) {
            self.impossible.push(Impossible { what: mode.to_string(), why: requirement.to_string() });
        }
        if let ProgramWait::AtMost(longest) = mode.program_wait() {
            let at_most_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            self.partly.push(Partly::WaitsAsWritten { at_most_ms });
        }
    }

    pub(super) fn refuse_without_privilege(&mut self, picture: &Picture) {
        if self.queues().all(QueueStep::is_there) {
            return;
        }
        let privileges = &picture.privileges;
        let why = match (privileges.capabilities.known(), privileges.in_initial_user_namespace.known()) {
            (Some(have), _) if !have.contains(&quell_linux::capability::Capability::NetAdmin) => {
                "it takes CAP_NET_ADMIN, which is missing"
            }
            (_, Some(false)) => "it takes CAP_NET_ADMIN in the initial user namespace, which a container's root lacks",
            _ => return,
        };
        self.impossible.push(Impossible { what: "set the queues".to_owned(), why: why.to_owned() });
    }

    fn add_process(&mut self, view: &View<'_>, process: &Process, request: &Request) {
        let pid = process.pid;
        let files = match &process.files {
            Reading::Known(files) => files,
            Reading::Unknown(reading) => {
                let what = format!("look into {} {pid}", process.name);
                self.impossible.push(Impossible { what, why: reading.unknown.said.clone() });
                return;
            }
        };
        if !files.xdp_sockets.is_empty() || !files.io_urings.is_empty() {
            let (xdp_sockets, io_urings) = (files.xdp_sockets.len(), files.io_urings.len());
            self.partly.push(Partly::OtherWays { pid, xdp_sockets, io_urings });
        }
        if request.epolls == EpollsSetBy::Attachment {
            self.steps.extend(pollers::steps(view, process, files, &request.mode).into_iter().map(Step::Sockets));
            self.steps.extend(pollers::rings(process, files, &request.mode).into_iter().map(Step::Ring));
        }
        let sockets_poll = pollers::of_inet_sockets(&request.mode).is_some();
        let (mut with_sockets, mut watched) = (0, 0);
        for epoll in view.epolls.iter().filter(|epoll| epoll.process.pid == pid) {
            let sockets = watched_sockets(epoll);
            if let Reading::Unknown(reading) = &epoll.epoll.targets {
                let what = format!("look into epoll {} of {} {pid}", epoll.epoll.fd, process.name);
                self.impossible.push(Impossible { what, why: reading.unknown.said.clone() });
                continue;
            }
            // Connections inherit how the socket that accepts them polls.
            if !sockets_poll {
                self.quiet.extend(quiet::look_at(view, epoll));
            }
            // One without network sockets is left alone.
            if sockets > 0 {
                with_sockets += 1;
                watched += sockets;
                self.add_epoll(epoll, sockets, request);
            }
        }
        if sockets_poll && watched > 0 {
            self.partly.push(Partly::WatchedByEpoll { pid, sockets: watched });
        }
        if with_sockets == 0 && !files.sockets.is_empty() && !sockets_poll {
            self.partly.push(Partly::NoEpoll { pid });
        }
    }

    fn add_epoll(&mut self, epoll: &EpollView<'_>, sockets: usize, request: &Request) {
        let (pid, fd) = (epoll.process.pid, epoll.epoll.fd);
        let Some(wanted) = request.mode.epoll().filter(|_| request.epolls == EpollsSetBy::Attachment) else { return };
        let new = EpollValues {
            busy_poll_usecs: wanted.busy_poll_usecs,
            busy_poll_budget: wanted.busy_poll_budget,
            prefer_busy_poll: wanted.prefer_busy_poll,
        };
        match &epoll.epoll.params {
            Reading::Known(params) => self.steps.push(Step::Epoll(EpollStep {
                pid,
                start_time_ticks: epoll.process.start_time_ticks,
                process: epoll.process.name.clone(),
                fd,
                sockets,
                watched: oldest_sockets(epoll),
                napis: epoll.by_napi.keys().copied().collect(),
                old: (*params).into(),
                new,
            })),
            // Without parameters it is as a mode that wants none wants it.
            Reading::Unknown(reading)
                if reading.unknown.why == Why::UnsupportedByKernel && wanted == Default::default() => {}
            Reading::Unknown(reading) => {
                let what = format!("set epoll {fd} of {} {pid}", epoll.process.name);
                self.impossible.push(Impossible { what, why: reading.unknown.said.clone() });
            }
        }
    }

    pub(super) fn add_queue(&mut self, view: &View<'_>, device: &Device, napi: &Napi, mode: &DeliveryMode) {
        let what = || format!("set NAPI {} of {}", napi.id, device.name);
        let wanted = mode.napi();
        let taken = view.now.refuses_threading(wanted.threaded).map_or(Ok(()), |why| Err(why.to_owned()));
        let (old, new) = match taken.and_then(|()| values(napi, &wanted)) {
            Ok(values) => values,
            Err(why) => return self.impossible.push(Impossible { what: what(), why }),
        };
        let threaded = napi.threading.known().is_some_and(|threading| *threading != NapiThreading::Disabled);
        if threaded && mode.napi().threaded == Threaded::Off {
            self.partly.push(Partly::ThreadStays { napi: napi.id });
        }
        let namespace = view.now.namespaces.iter().find(|namespace| namespace.inode == device.namespace);
        let Some(&namespace_cookie) = namespace.and_then(|namespace| namespace.cookie.known()) else {
            let why = "the network namespace of its device cannot be told from others".to_owned();
            return self.impossible.push(Impossible { what: what(), why });
        };
        let queues = device.rx_queues.known_elements().filter(|queue| napi_of(queue) == Some(napi.id));
        self.steps.push(Step::Queue(QueueStep {
            namespace_cookie,
            device: device.name.clone(),
            queues: queues.map(|queue| queue.id).collect(),
            napi: napi.id,
            irq: irq_of(napi),
            old,
            new,
        }));
    }
}

/// The values of a queue as they are and as they are to be, or why the kernel cannot have them. A value that it does not
/// know is as a mode that does not want it wants it. A queue's thread stays unless the mode is about threads: where
/// packet work is done besides is the host's choice.
fn values(napi: &Napi, wanted: &NapiSettings) -> Result<(NapiValues, NapiValues), String> {
    fn value<T: Copy + PartialEq + Default>(now: &Reading<T>, wanted: T) -> Result<Option<T>, String> {
        match now {
            Reading::Known(_) => Ok(Some(wanted)),
            Reading::Unknown(_) if wanted == T::default() => Ok(None),
            Reading::Unknown(reading) => Err(reading.unknown.said.clone()),
        }
    }
    let threaded = match (wanted.threaded, &napi.threading) {
        (Threaded::Off, _) => None,
        (threaded, Reading::Known(_)) => Some(threaded.kernel_value()),
        (_, Reading::Unknown(reading)) => return Err(reading.unknown.said.clone()),
    };
    let new = NapiValues {
        defer_hard_irqs: value(&napi.defer_hard_irqs, wanted.defer_hard_irqs)?,
        gro_flush_timeout_ns: value(&napi.gro_flush_timeout_ns, wanted.gro_flush_timeout_ns)?,
        irq_suspend_timeout_ns: value(&napi.irq_suspend_timeout_ns, wanted.irq_suspend_timeout_ns)?,
        threaded,
    };
    let old = NapiValues {
        defer_hard_irqs: napi.defer_hard_irqs.known().copied(),
        gro_flush_timeout_ns: napi.gro_flush_timeout_ns.known().copied(),
        irq_suspend_timeout_ns: napi.irq_suspend_timeout_ns.known().copied(),
        threaded: napi.threading.known().map(|threading| threading.as_kernel()),
    };
    Ok((old.where_present_in(&new), new))
}

impl QueueStep {
    /// It has these values already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.new.unlike(&self.old).is_empty()
    }
}

impl EpollStep {
    /// It has these parameters already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.old == self.new
    }
}

impl Step {
    /// It has these values already.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match self {
            Self::Queue(step) => step.is_there(),
            Self::Epoll(step) => step.is_there(),
            Self::Sockets(step) => step.sockets.is_empty(),
            // Whether it polls is known when it is looked at.
            Self::Ring(_) => false,
        }
    }
}

/// Sockets by which an epoll is recognised: several, for a program may take one out of it.
const RECOGNISED_BY: usize = 4;

/// The oldest sockets that an epoll watches, which are the least likely to be closed soon. Inodes of sockets are given out
/// in ascending order, but for blocks by CPU (`get_next_ino` in `fs/inode.c`).
fn oldest_sockets(epoll: &EpollView<'_>) -> Vec<SocketId> {
    let watched = epoll.epoll.targets.known_elements().filter_map(|target| match target.file {
        WatchedFile::Socket { inode } => Some((inode, target.fd)),
        WatchedFile::Other { .. } => None,
    });
    let by_age: BTreeSet<(u64, i32)> = watched.collect();
    by_age.into_iter().take(RECOGNISED_BY).map(|(inode, fd)| SocketId { fd, inode: Some(inode) }).collect()
}

/// TCP and UDP sockets, each counted once.
fn watched_sockets(epoll: &EpollView<'_>) -> usize {
    epoll.sockets().collect::<BTreeSet<u64>>().len()
}
