//! The TOML structure of a scenario file, before names are resolved. Unknown keys are rejected.

use quell_mode::EpollParams;
use serde::Deserialize;
use toml::Spanned;

use crate::duration::Nanos;
use crate::expect::Backend;
use crate::scenario::Need;

pub(super) type Name = Spanned<String>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct File {
    pub(super) statement: String,
    pub(super) source: String,
    pub(super) lasts: Nanos,
    #[serde(default)]
    pub(super) needs: Vec<Need>,
    pub(super) kernel: Kernel,
    #[serde(default)]
    pub(super) device: Device,
    pub(super) queue: Vec<Queue>,
    pub(super) epoll: Vec<Epoll>,
    pub(super) socket: Vec<Socket>,
    #[serde(default)]
    pub(super) event: Vec<Event>,
    pub(super) application: Vec<Application>,
    #[serde(default)]
    pub(super) packet: Vec<Packet>,
    #[serde(default)]
    pub(super) change: Vec<Spanned<Change>>,
    pub(super) expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Kernel {
    pub(super) tolerance: Nanos,
    pub(super) holds: u32,
    pub(super) of: Spanned<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Device {
    #[serde(default)]
    pub(super) peer_tso: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Queue {
    #[serde(default)]
    pub(super) defer_hard_irqs: u32,
    #[serde(default)]
    pub(super) gro_flush_timeout: Nanos,
    #[serde(default)]
    pub(super) irq_suspend_timeout: Nanos,
    #[serde(default)]
    pub(super) threaded: Threaded,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged, expecting = "true, false or \"busy-poll\"")]
pub(super) enum Threaded {
    /// True: a NAPI thread that sleeps when idle. False: softirq.
    ByThread(bool),
    Named(ThreadedBy),
    #[default]
    Unspecified,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ThreadedBy {
    BusyPoll,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Epoll {
    pub(super) name: String,
    #[serde(default)]
    pub(super) busy_poll_usecs: u32,
    #[serde(default)]
    pub(super) busy_poll_budget: u16,
    #[serde(default)]
    pub(super) prefer_busy_poll: bool,
    #[serde(default)]
    pub(super) napi_known: bool,
    pub(super) inside: Option<Name>,
}

/// [`EpollParams`] in a scenario file. An omitted value is the kernel's default.
#[derive(Deserialize)]
#[serde(remote = "EpollParams", rename_all = "kebab-case", deny_unknown_fields)]
struct EpollRow {
    #[serde(default)]
    busy_poll_usecs: u32,
    #[serde(default)]
    busy_poll_budget: u16,
    #[serde(default)]
    prefer_busy_poll: bool,
}

fn epoll_row<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<EpollParams>, D::Error> {
    EpollRow::deserialize(deserializer).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Socket {
    pub(super) name: String,
    pub(super) queue: Spanned<usize>,
    pub(super) epoll: Option<Name>,
    pub(super) count: Option<Spanned<usize>>,
    #[serde(default)]
    pub(super) edge_triggered: bool,
    #[serde(default)]
    pub(super) gro: bool,
    #[serde(default)]
    pub(super) busy_poll_usecs: u32,
    #[serde(default)]
    pub(super) prefer_busy_poll: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) epoll: Name,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Application {
    pub(super) name: String,
    pub(super) epoll: Name,
    pub(super) maxevents: Option<Spanned<usize>>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    Wait(Timeout),
    Read,
    Receive(Name),
    PollQueueOf(Name),
    Work(Nanos),
    Watch(Nanos),
    SetEpoll(#[serde(with = "EpollRow")] EpollParams),
    AddWithoutInterest(Name),
    CloseEpoll,
    Repeat,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Timeout(pub(super) Option<Nanos>);

impl<'de> Deserialize<'de> for Timeout {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "forever" {
            return Ok(Self(None));
        }
        let time = text.parse().map_err(|error| serde::de::Error::custom(format!("{error}; or forever")))?;
        Ok(Self(Some(time)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Packet {
    pub(super) name: String,
    pub(super) at: Spanned<Nanos>,
    pub(super) to: Name,
    pub(super) count: Option<Spanned<usize>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Change {
    pub(super) at: Nanos,
    pub(super) queue: Option<Spanned<usize>>,
    pub(super) napi: Option<Queue>,
    pub(super) epoll: Option<Name>,
    #[serde(default, deserialize_with = "epoll_row")]
    pub(super) params: Option<EpollParams>,
    pub(super) raise: Option<Name>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Expect {
    #[serde(default)]
    pub(super) packet: Vec<ExpectPacket>,
    #[serde(default)]
    pub(super) wait: Vec<ExpectWait>,
    #[serde(default)]
    pub(super) queue: Vec<ExpectQueue>,
    #[serde(default)]
    pub(super) namespace: Vec<ExpectNamespace>,
    #[serde(default)]
    pub(super) socket: Vec<ExpectSocket>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ExpectPacket {
    #[serde(default)]
    pub(super) on: Vec<Backend>,
    pub(super) name: Name,
    pub(super) seen_after: Option<Nanos>,
    pub(super) unseen: Option<Count>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ExpectWait {
    #[serde(default)]
    pub(super) on: Vec<Backend>,
    pub(super) application: Name,
    pub(super) number: Spanned<usize>,
    pub(super) events: Option<Count>,
    pub(super) took: Option<Nanos>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ExpectQueue {
    #[serde(default)]
    pub(super) on: Vec<Backend>,
    pub(super) queue: Spanned<usize>,
    pub(super) polls: Option<Count>,
    pub(super) empty_polls: Option<Count>,
    pub(super) busy_polls: Option<Count>,
    pub(super) thread_polls: Option<Count>,
    pub(super) softirq_polls: Option<Count>,
    pub(super) other_polls: Option<Count>,
    pub(super) interrupts: Option<Count>,
    pub(super) timer_interrupts: Option<Count>,
    pub(super) lost_timers: Option<Count>,
    pub(super) suspensions: Option<Count>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ExpectNamespace {
    #[serde(default)]
    pub(super) on: Vec<Backend>,
    pub(super) busy_poll_rx_packets: Count,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ExpectSocket {
    #[serde(default)]
    pub(super) on: Vec<Backend>,
    pub(super) name: Name,
    /// Queue that corresponds to the socket's `SO_INCOMING_NAPI_ID`; absent if the value must be 0.
    pub(super) napi_of_queue: Option<Spanned<usize>>,
}

/// `7`, or `{ at-least = 3, at-most = 9 }` with one or both bounds.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(super) enum Count {
    Exactly(u64),
    Between(Between),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Between {
    #[serde(default)]
    pub(super) at_least: u64,
    #[serde(default = "without_bound")]
    pub(super) at_most: u64,
}

fn without_bound() -> u64 {
    u64::MAX
}
