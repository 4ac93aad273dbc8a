//! Observations of a scenario, with the same structure for every backend. A value that a backend cannot observe is
//! absent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::Counter;

/// All observations of a run. Times are in ns since the start of the scenario.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Observations {
    /// Every `epoll_wait` that returned before the end, ordered per application.
    pub waits: Vec<ObservedWait>,
    /// Every message that was sent, in file order.
    pub messages: Vec<SentMessage>,
    pub queues: Vec<ScenarioQueueCounters>,
    /// `TcpExt BusyPollRxPackets` of the application's namespace.
    pub busy_poll_rx_packets: Option<u64>,
    /// Queue that corresponds to the `SO_INCOMING_NAPI_ID` of each descriptor at the end.
    pub incoming_napi: Vec<Option<usize>>,
}

/// An `epoll_wait` that returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedWait {
    /// Index of the application in the file.
    pub application: usize,
    pub called_ns: u64,
    pub returned_ns: u64,
    /// Number of events that it returned.
    pub events: usize,
}

/// A message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SentMessage {
    /// Index of the packet row in the file.
    pub packet: usize,
    /// Index within the row.
    pub index: usize,
    pub sent_ns: u64,
    /// Time at which an application read it; absent if it was not read before the end.
    pub read_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ScenarioQueueCounters {
    /// Polls by any poller.
    pub polls: Option<u64>,
    /// Polls that received no packets.
    pub empty_polls: Option<u64>,
    /// Polls in a busy loop, without the final poll.
    pub busy_polls: Option<u64>,
    /// Polls by the queue's NAPI thread.
    pub thread_polls: Option<u64>,
    /// Polls in softirq. A kernel distinguishes them from the final polls of busy loops only if no busy poll has a
    /// budget of 64, that of a softirq poll.
    pub softirq_polls: Option<u64>,
    /// Remaining polls: softirq, and the final polls of busy loops.
    pub other_polls: Option<u64>,
    /// Device interrupts.
    pub interrupts: Option<u64>,
    /// Expirations of the queue's timer.
    pub timer_interrupts: Option<u64>,
    /// Timer expirations without effect, because another context owned the poll.
    pub lost_timers: Option<u64>,
    /// Number of times that `epoll_wait` suspended the interrupt again, which postpones the timer.
    pub suspensions: Option<u64>,
}

impl ScenarioQueueCounters {
    /// Every counter with its name, in field order. The value is absent if the backend cannot count it.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        Counter::ALL.into_iter().map(|counter| (counter.name(), counter.of(self)))
    }
}
