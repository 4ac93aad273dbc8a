//! What was observed of a scenario, the same for every arm. What an arm cannot see is absent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::Counter;

/// Everything that was observed. Moments are ns since the scenario began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Observations {
    /// Every `epoll_wait` that returned before the end, in each application's order.
    pub waits: Vec<Wait>,
    /// Every message that was sent, in the order of the file.
    pub messages: Vec<Message>,
    /// Each queue.
    pub queues: Vec<Queue>,
    /// `TcpExt BusyPollRxPackets` of the application's namespace.
    pub busy_poll_rx_packets: Option<u64>,
    /// `SO_INCOMING_NAPI_ID` of each descriptor at the end, as its queue.
    pub incoming_napi: Vec<Option<usize>>,
}

/// An `epoll_wait` that returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Wait {
    /// Whose, by its place in the file.
    pub application: usize,
    /// When it was called.
    pub called_ns: u64,
    /// When it returned.
    pub returned_ns: u64,
    /// How many events it returned.
    pub events: usize,
}

/// A message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Message {
    /// Of which packet row, by its place in the file.
    pub packet: usize,
    /// Its place in the row.
    pub index: usize,
    /// When it was sent.
    pub sent_ns: u64,
    /// When an application read it; absent: not before the end.
    pub read_ns: Option<u64>,
}

/// What a queue did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Queue {
    /// Polls, whoever polled.
    pub polls: Option<u64>,
    /// Of these, polls that received nothing.
    pub empty_polls: Option<u64>,
    /// Of these, polls within a busy loop, the final poll left out.
    pub busy_polls: Option<u64>,
    /// Of these, polls of the queue's own kernel thread.
    pub thread_polls: Option<u64>,
    /// Of these, polls in softirq. A kernel distinguishes them from the final polls of busy loops only where no busy poll
    /// has the budget of a softirq's poll, 64.
    pub softirq_polls: Option<u64>,
    /// The rest: softirq, and the final polls of busy loops.
    pub other_polls: Option<u64>,
    /// Device interrupts.
    pub interrupts: Option<u64>,
    /// Firings of its timer.
    pub timer_interrupts: Option<u64>,
    /// Of these, firings that were lost because the poll was owned.
    pub lost_timers: Option<u64>,
    /// Times that `epoll_wait` put the timer off.
    pub suspensions: Option<u64>,
}

impl Queue {
    /// Every counter by its name, in the order of the fields; absent: this arm cannot count it.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        Counter::ALL.into_iter().map(|counter| (counter.name(), counter.of(self)))
    }
}
