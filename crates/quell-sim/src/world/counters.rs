//! What is counted of a queue and of those who poll it.

use serde::{Deserialize, Serialize};

/// Counts of one queue since the books were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that found a place in the ring.
    pub received: u64,
    /// Packets that found none.
    pub drops: u64,
    /// Interrupts of the vector.
    pub irqs: u64,
    /// NAPI polls, whoever polled.
    pub polls: u64,
    /// Of these, polls that took no packet.
    pub empty_polls: u64,
    /// Of these, polls of a busy loop, the final ones included.
    pub busy_polls: u64,
    /// Of these, the final polls of busy loops.
    pub final_polls: u64,
    /// `BusyPollRxPackets`: packets taken by busy loops, those of the final polls left out.
    pub busy_poll_packets: u64,
    /// Packets taken by polls.
    pub polled_packets: u64,
    /// Timer interrupts of the NAPI instance.
    pub timer_irqs: u64,
    /// Of these, firings that were lost because the instance was owned.
    pub lost_timers: u64,
    /// `epoll_wait` calls of this queue's worker that returned events.
    pub epoll_waits: u64,
    /// Events that they returned.
    pub epoll_events: u64,
    /// Times that the timer was put off by `irq-suspend-timeout`.
    pub suspensions: u64,
    /// Requests answered.
    pub responses: u64,
}

impl Counters {
    /// Adds another queue's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.received, other.received),
            (&mut self.drops, other.drops),
            (&mut self.irqs, other.irqs),
            (&mut self.polls, other.polls),
            (&mut self.empty_polls, other.empty_polls),
            (&mut self.busy_polls, other.busy_polls),
            (&mut self.final_polls, other.final_polls),
            (&mut self.busy_poll_packets, other.busy_poll_packets),
            (&mut self.polled_packets, other.polled_packets),
            (&mut self.timer_irqs, other.timer_irqs),
            (&mut self.lost_timers, other.lost_timers),
            (&mut self.epoll_waits, other.epoll_waits),
            (&mut self.epoll_events, other.epoll_events),
            (&mut self.suspensions, other.suspensions),
            (&mut self.responses, other.responses),
        ];
        for (mine, others) in pairs {
            *mine += others;
        }
    }
}
