//! Counters of a queue and its pollers.

use serde::{Deserialize, Serialize};

/// Counters of a queue since the end of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that were added to the ring.
    pub received: u64,
    /// Packets dropped because the ring was full.
    pub drops: u64,
    /// Interrupts of the vector.
    pub irqs: u64,
    /// NAPI polls.
    pub polls: u64,
    /// Of these, empty polls.
    pub empty_polls: u64,
    /// Of these, polls of busy-poll loops, including final polls.
    pub busy_polls: u64,
    /// Of these, final polls of busy-poll loops.
    pub final_polls: u64,
    /// `BusyPollRxPackets`: packets of busy-poll loops, without those of final polls.
    pub busy_poll_packets: u64,
    /// Packets taken by polls.
    pub polled_packets: u64,
    /// Timer interrupts of the NAPI instance.
    pub timer_irqs: u64,
    /// Of these, interrupts without effect because the instance was owned.
    pub lost_timers: u64,
    /// `epoll_wait` calls of this queue's worker that returned events.
    pub epoll_waits: u64,
    /// Events that these calls returned.
    pub epoll_events: u64,
    /// Number of times that the timer was set to `irq-suspend-timeout`.
    pub suspensions: u64,
    /// Responses.
    pub responses: u64,
}

impl Counters {
    /// Adds the counters of another queue.
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
