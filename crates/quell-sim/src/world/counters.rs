//! Counters of a queue and its pollers.

use serde::{Deserialize, Serialize};

/// Counters of a queue since the end of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Number of packets that were added to the ring.
    pub received: u64,
    /// Number of packets that were dropped because the ring was full.
    pub drops: u64,
    /// Number of interrupts of the vector.
    pub irqs: u64,
    /// Number of NAPI polls.
    pub polls: u64,
    /// Number of empty polls, included in `polls`.
    pub empty_polls: u64,
    /// Number of polls in busy-poll loops including final polls, included in `polls`.
    pub busy_polls: u64,
    /// Number of final polls of busy-poll loops, included in `busy_polls`.
    pub final_polls: u64,
    /// `BusyPollRxPackets`: number of packets from busy-poll loops, excluding final polls.
    pub busy_poll_packets: u64,
    /// Number of packets that polls took from the ring.
    pub polled_packets: u64,
    /// Number of timer interrupts of the NAPI instance.
    pub timer_irqs: u64,
    /// Number of timer interrupts without effect because the instance had an owner, included in `timer_irqs`.
    pub lost_timers: u64,
    /// Number of `epoll_wait` calls by this queue's worker that returned events.
    pub epoll_waits: u64,
    /// Number of events that `epoll_wait` calls of this queue's worker returned.
    pub epoll_events: u64,
    /// Number of times that the timer was set to `irq-suspend-timeout`.
    pub suspensions: u64,
    /// Number of responses that were sent.
    pub responses: u64,
    /// Number of packets that polls took while the interrupt was masked since the ring was last empty.
    pub bounded_packets: u64,
    /// Sum of the waits of these packets in the ring, in ns.
    pub wait_ns: u64,
    /// Sum of the bounds of these waits that `quell-sampler` would compute, in ns.
    pub wait_bound_ns: u64,
}

impl Counters {
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
            (&mut self.bounded_packets, other.bounded_packets),
            (&mut self.wait_ns, other.wait_ns),
            (&mut self.wait_bound_ns, other.wait_bound_ns),
        ];
        for (mine, others) in pairs {
            *mine += others;
        }
    }
}
