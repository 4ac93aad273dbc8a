//! An RX queue: its ring, interrupt vector and NAPI instance, and packets held by GRO. A packet that arrives at a full
//! ring is dropped and counted.

use std::collections::VecDeque;

use super::{Coalescer, Napi, SimCoalescing};
use crate::engine::Ns;
use quell_mode::NapiSettings;

/// Kind of packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// A request, which makes its socket readable.
    Request,
    /// A request without PSH, which GRO may hold until more packets of its flow arrive.
    HeldRequest,
    /// A segment of a request that is not the last one. The socket becomes readable, but there is no response yet.
    Part,
    /// An acknowledgement, which wakes no thread.
    Ack,
}

/// A received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Index of its socket.
    pub socket: u32,
    /// Kind of the packet.
    pub kind: PacketKind,
    /// Time at which the client sent the request, in ns.
    pub sent_ns: Ns,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) packet: Packet,
    pub(crate) since_ns: Ns,
}

/// What is known of the waits of packets in the ring, as by `quell-sampler` in the kernel, and the true waits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RingWaits {
    /// End of the last poll that emptied the ring, in ns, unless the interrupt was enabled since then.
    pub(crate) masked_since_ns: Option<Ns>,
    /// Sum of the true waits of the packets that the current poll took, in ns.
    pub(crate) taken_ns: Ns,
}

#[derive(Debug, Clone)]
pub(crate) struct RxQueue {
    pub(crate) napi: Napi,
    pub(crate) vector: Coalescer,
    pub(crate) irq_cpu: usize,
    pub(crate) polled_on: usize,
    pub(crate) thread: Option<usize>,
    /// Packets in the ring, with the time of their arrival in ns.
    pub(crate) ring: VecDeque<(Packet, Ns)>,
    ring_size: usize,
    pub(crate) waits: RingWaits,
    /// Number of transmit completions that were not processed yet.
    pub(crate) tx_completions: u32,
    /// Packets that the current poll took from the ring and has not delivered yet.
    pub(crate) taken: Vec<Packet>,
    pub(crate) held: Vec<Held>,
    /// Time of the earliest scheduled coalescing event.
    pub(crate) vector_event_ns: Ns,
    pub(crate) timer_event_ns: Ns,
    /// CPU that armed the timer. The timer fires on that CPU.
    pub(crate) timer_cpu: usize,
}

impl RxQueue {
    pub(crate) fn new(settings: NapiSettings, coalescing: &SimCoalescing, ring_size: usize, irq_cpu: usize) -> Self {
        Self {
            napi: Napi::new(settings),
            vector: Coalescer::new(coalescing),
            irq_cpu,
            polled_on: irq_cpu,
            thread: None,
            ring: VecDeque::with_capacity(ring_size),
            ring_size,
            waits: RingWaits::default(),
            tx_completions: 0,
            taken: Vec::with_capacity(usize::from(u8::MAX)),
            held: Vec::new(),
            vector_event_ns: crate::engine::NEVER,
            timer_event_ns: crate::engine::NEVER,
            timer_cpu: irq_cpu,
        }
    }

    /// Adds a packet that arrives now to the ring; returns false if the ring is full.
    pub(crate) fn receive(&mut self, packet: Packet, now_ns: Ns) -> bool {
        if self.ring.len() == self.ring_size {
            return false;
        }
        self.ring.push_back((packet, now_ns));
        true
    }

    /// Moves up to `budget` packets from the ring to `taken`; returns their number.
    pub(crate) fn take(&mut self, budget: u32, now_ns: Ns) -> u32 {
        let count = self.ring.len().min(budget as usize);
        for (packet, arrived_ns) in self.ring.drain(..count) {
            self.waits.taken_ns += now_ns - arrived_ns;
            self.taken.push(packet);
        }
        count as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet = Packet { socket: 0, kind: PacketKind::Request, sent_ns: 0 };

    #[test]
    fn a_full_ring_drops_packets() {
        let mut queue = RxQueue::new(NapiSettings::default(), &SimCoalescing::NONE, 2, 0);
        assert!(queue.receive(PACKET, 0) && queue.receive(PACKET, 0));
        assert!(!queue.receive(PACKET, 0));
    }

    #[test]
    fn a_poll_takes_at_most_its_budget() {
        let mut queue = RxQueue::new(NapiSettings::default(), &SimCoalescing::NONE, 8, 0);
        for _ in 0..5 {
            queue.receive(PACKET, 0);
        }
        assert_eq!((queue.take(3, 0), queue.take(3, 0)), (3, 2));
    }
}
