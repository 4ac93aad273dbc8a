//! A resolved scenario: settings, packets with their times, steps of applications, required observations. All indices
//! are valid, because only [`parse`](crate::parse) creates scenarios.

use quell_mode::{EpollParams, NapiSettings, Threaded};

use crate::duration::Nanos;
use crate::expect::Expectations;

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    /// Behaviour that the scenario demonstrates, as a sentence.
    pub statement: String,
    /// Source of this behaviour: kernel function and file, or document.
    pub source: String,
    pub lasts: Nanos,
    pub needs: Vec<Need>,
    /// Whether packets bypass NAPI, as on a veth whose peer has TSO on.
    pub past_napi: bool,
    /// NAPI settings of each queue at the start.
    pub queues: Vec<NapiSettings>,
    pub epolls: Vec<ScenarioEpoll>,
    /// Sockets, and events that stay ready after they are raised.
    pub descriptors: Vec<Descriptor>,
    pub applications: Vec<Application>,
    pub packets: Vec<ScenarioPacket>,
    pub changes: Vec<ScenarioChange>,
    pub kernel: KernelRule,
    pub expect: Expectations,
}

/// A required feature of a device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Need {
    /// An interrupt that can be counted.
    Interrupt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioEpoll {
    pub name: String,
    pub settings: EpollParams,
    /// Whether the parameters were set before the sockets were added. The kernel records a NAPI ID only in that case.
    pub napi_known: bool,
    /// Index of the outer epoll, which is smaller than its own.
    pub inside: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Name in the file. Sockets of a row are called `NAME.0`, `NAME.1` and so on.
    pub name: String,
    /// Index of the epoll that contains it; absent if an application receives from it directly.
    pub epoll: Option<usize>,
    pub kind: DescriptorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    Socket(ScenarioSocket),
    Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScenarioSocket {
    pub queue: usize,
    /// `EPOLLET`.
    pub edge_triggered: bool,
    /// `UDP_GRO`: the kernel may hold datagrams to merge them.
    pub gro: bool,
    /// `SO_BUSY_POLL`, in units of 1,024 ns.
    pub busy_poll_usecs: u32,
    pub prefer_busy_poll: bool,
}

/// An application: one thread on its own CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    pub name: String,
    /// Index of the epoll that its steps use. The application has its own reference to the epoll.
    pub epoll: usize,
    pub max_events: usize,
    pub steps: Vec<ApplicationStep>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplicationStep {
    Wait {
        /// Timeout; absent if the call waits without a limit.
        timeout: Option<Nanos>,
    },
    /// Reads all data of the sockets that the last `epoll_wait` returned.
    Read,
    /// Reads one message from a socket with a blocking `recv`.
    Receive(usize),
    /// Polls the queue of a socket by its NAPI ID, through an io_uring, for the socket's `busy_poll_usecs`.
    PollQueueOf(usize),
    /// Uses the CPU for this time, without system calls.
    Work(Nanos),
    /// Reads the sockets of its epoll repeatedly for this time, without `epoll_wait`.
    Watch(Nanos),
    /// Sets the parameters of its epoll (`EPIOCSPARAMS`).
    SetEpoll(EpollParams),
    /// Adds a duplicate of a socket with an empty interest mask.
    AddWithoutInterest(usize),
    CloseEpoll,
    Repeat,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioPacket {
    pub name: String,
    pub at: Nanos,
    /// Sockets that receive one packet each, in this order.
    pub to: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScenarioChange {
    pub at: Nanos,
    pub what: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Napi {
        queue: usize,
        settings: NapiSettings,
    },
    /// Sets parameters of an epoll from another process (`EPIOCSPARAMS`).
    Epoll {
        epoll: usize,
        settings: EpollParams,
    },
    /// Raises an event, which then stays ready.
    Raise(usize),
}

/// How often a scenario runs on a kernel, and how far times may deviate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRule {
    pub tolerance: Nanos,
    /// Required number of successful runs.
    pub holds: u32,
    /// Maximum number of runs.
    pub of: u32,
}

impl Scenario {
    /// Whether a queue needs, at any time, settings that sysfs does not support. Polling by NAPI ID is as old as settings by
    /// netlink.
    pub(crate) fn takes_netlink(&self) -> bool {
        let changed = self.changes.iter().filter_map(|change| match &change.what {
            ChangeKind::Napi { settings, .. } => Some(settings),
            _ => None,
        });
        let more = |settings: &NapiSettings| settings.irq_suspend_timeout_ns > 0 || settings.threaded != Threaded::Off;
        let mut steps = self.applications.iter().flat_map(|application| &application.steps);
        let polls = steps.any(|step| matches!(step, ApplicationStep::PollQueueOf(_)));
        polls || self.queues.iter().chain(changed).any(more)
    }

    /// Whether an epoll needs, at any time, parameters other than the default.
    pub(crate) fn takes_epoll_parameters(&self) -> bool {
        let default = EpollParams::default();
        let changed = self.changes.iter().any(|change| matches!(change.what, ChangeKind::Epoll { .. }));
        let steps = self.applications.iter().flat_map(|application| &application.steps);
        let set = steps.into_iter().any(|step| matches!(step, ApplicationStep::SetEpoll(_)));
        changed || set || self.epolls.iter().any(|epoll| epoll.settings != default)
    }

    /// Whether an epoll busy polls with this budget at any time. Sockets never use the budget of softirq polls
    /// (`BUSY_POLL_BUDGET` in `include/net/busy_poll.h`).
    pub(crate) fn busy_polls_with_budget(&self, budget: u16) -> bool {
        let changed = self.changes.iter().filter_map(|change| match &change.what {
            ChangeKind::Epoll { settings, .. } => Some(settings),
            _ => None,
        });
        let steps = self.applications.iter().flat_map(|application| &application.steps);
        let set =
            steps.filter_map(|step| if let ApplicationStep::SetEpoll(settings) = step { Some(settings) } else { None });
        let mut all = self.epolls.iter().map(|epoll| &epoll.settings).chain(changed).chain(set);
        all.any(|settings| settings.busy_poll_budget == budget)
    }

    #[must_use]
    pub fn messages(&self) -> usize {
        self.packets.iter().map(|packet| packet.to.len()).sum()
    }
}
