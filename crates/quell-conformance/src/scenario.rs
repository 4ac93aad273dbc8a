//! A scenario as it is played: settings, packets at moments, what applications do, what must be
//! observed. References are indices that exist; [`parse`](crate::parse) makes no other.

use quell_mode::{EpollSettings, NapiSettings, Threaded};

use crate::duration::Nanos;
use crate::expect::Expectations;

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its file's name without the ending.
    pub name: String,
    /// What it shows, as a sentence.
    pub statement: String,
    /// Where the kernel does that: function and file, or document.
    pub source: String,
    /// How long it lasts.
    pub lasts: Nanos,
    /// What a kernel arm's device must have.
    pub needs: Vec<Need>,
    /// Whether packets reach sockets past NAPI, as on a veth whose peer has TSO on.
    pub past_napi: bool,
    /// What each queue is told before anything happens.
    pub queues: Vec<NapiSettings>,
    /// The epolls.
    pub epolls: Vec<Epoll>,
    /// The sockets, and events that stay ready once they are raised.
    pub descriptors: Vec<Descriptor>,
    /// The applications.
    pub applications: Vec<Application>,
    /// Packets, in the order of the file.
    pub packets: Vec<Packet>,
    /// Changes from outside, in the order of the file.
    pub changes: Vec<Change>,
    /// How a real kernel is judged.
    pub kernel: KernelRule,
    /// What must be observed.
    pub expect: Expectations,
}

/// What a device must have for a scenario to be played on it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Need {
    /// An interrupt that can be counted.
    Interrupt,
}

/// An epoll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoll {
    /// Its name in the file.
    pub name: String,
    /// Its parameters.
    pub settings: EpollSettings,
    /// Whether they were set before the sockets were added, so that it knows a NAPI id.
    pub napi_known: bool,
    /// The epoll that it is nested in, one before it.
    pub inside: Option<usize>,
}

/// What can be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Its name in the file; the sockets of a row are `NAME.0`, `NAME.1`, …
    pub name: String,
    /// The epoll that has it; absent: an application receives from it directly.
    pub epoll: Option<usize>,
    /// What it is.
    pub kind: DescriptorKind,
}

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A UDP socket.
    Socket(Socket),
    /// An eventfd.
    Event,
}

/// A UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    /// The queue that its packets arrive by.
    pub queue: usize,
    /// `EPOLLET`.
    pub edge_triggered: bool,
    /// `UDP_GRO`: datagrams may be held to be merged.
    pub gro: bool,
    /// `SO_BUSY_POLL`, in µs of 1,024 ns.
    pub busy_poll_usecs: u32,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer_busy_poll: bool,
}

/// An application: a thread of its own on a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// Its name in the file.
    pub name: String,
    /// The epoll that its steps are about; it holds a reference of its own.
    pub epoll: usize,
    /// `maxevents` of its waits.
    pub max_events: usize,
    /// What it does.
    pub steps: Vec<Step>,
}

/// A step of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `epoll_wait`.
    Wait {
        /// Absent: for ever.
        timeout: Option<Nanos>,
    },
    /// Reads what the sockets hold that the last wait reported.
    Read,
    /// One message by a blocking `recv` from a socket.
    Receive(usize),
    /// Works without system calls.
    Work(Nanos),
    /// Reads the sockets of its epoll again and again, past the epoll.
    Watch(Nanos),
    /// `EPIOCSPARAMS`.
    SetEpoll(EpollSettings),
    /// Adds a duplicate of a socket with an empty interest mask.
    AddWithoutInterest(usize),
    /// Closes its reference to the epoll.
    CloseEpoll,
    /// Begins anew.
    Repeat,
}

/// A packet, or several at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its name in the file.
    pub name: String,
    /// When it is sent.
    pub at: Nanos,
    /// The sockets that get one each, in this order.
    pub to: Vec<usize>,
}

/// A change from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Nanos,
    /// What.
    pub what: ChangeKind,
}

/// What is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// `napi-set`: the queue's settings become these.
    Napi {
        /// The queue.
        queue: usize,
        /// Its new settings.
        settings: NapiSettings,
    },
    /// `EPIOCSPARAMS` by another process.
    Epoll {
        /// The epoll.
        epoll: usize,
        /// Its new parameters.
        settings: EpollSettings,
    },
    /// An event is raised and stays so.
    Raise(usize),
}

/// How often a scenario is played on a kernel, and how far moments may be off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRule {
    /// How far a moment may be from the one stated.
    pub tolerance: Nanos,
    /// How often everything has to hold.
    pub holds: u32,
    /// How often it is played at most.
    pub of: u32,
}

impl Scenario {
    /// Whether a queue is told more than its device could be told by sysfs, at any time.
    pub(crate) fn takes_netlink(&self) -> bool {
        let changed = self.changes.iter().filter_map(|change| match &change.what {
            ChangeKind::Napi { settings, .. } => Some(settings),
            _ => None,
        });
        let more = |settings: &NapiSettings| settings.irq_suspend_timeout_ns > 0 || settings.threaded != Threaded::Off;
        self.queues.iter().chain(changed).any(more)
    }

    /// Whether an epoll has other parameters than a new one, at any time.
    pub(crate) fn takes_epoll_parameters(&self) -> bool {
        let default = EpollSettings::default();
        let changed = self.changes.iter().any(|change| matches!(change.what, ChangeKind::Epoll { .. }));
        let steps = self.applications.iter().flat_map(|application| &application.steps);
        let set = steps.into_iter().any(|step| matches!(step, Step::SetEpoll(_)));
        changed || set || self.epolls.iter().any(|epoll| epoll.settings != default)
    }

    /// Whether an epoll busy polls with this budget, at any time. Sockets always have another
    /// (`BUSY_POLL_BUDGET`, include/net/busy_poll.h).
    pub(crate) fn busy_polls_with_budget(&self, budget: u16) -> bool {
        let changed = self.changes.iter().filter_map(|change| match &change.what {
            ChangeKind::Epoll { settings, .. } => Some(settings),
            _ => None,
        });
        let steps = self.applications.iter().flat_map(|application| &application.steps);
        let set = steps.filter_map(|step| if let Step::SetEpoll(settings) = step { Some(settings) } else { None });
        let mut all = self.epolls.iter().map(|epoll| &epoll.settings).chain(changed).chain(set);
        all.any(|settings| settings.busy_poll_budget == budget)
    }

    /// How many packets are sent in all.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.packets.iter().map(|packet| packet.to.len()).sum()
    }
}
