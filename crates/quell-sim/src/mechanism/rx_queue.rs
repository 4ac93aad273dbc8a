//! An RX queue: the NIC's ring, its interrupt vector, the NAPI instance that owns it, and what GRO
//! holds back. Rings are bounded; a packet that finds no place is dropped and counted.

use std::collections::VecDeque;

use super::{Coalescer, Coalescing, Napi};
use crate::engine::Ns;
use quell_mode::NapiSettings;

/// What a packet is to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// A request: data that makes its socket readable.
    Request,
    /// A request that GRO may hold back (no PSH), waiting for more of its flow.
    HeldRequest,
    /// A segment of a request that is not its last: its socket becomes readable, and what is read is
    /// not answered yet.
    Part,
    /// An acknowledgement: costs a receive, wakes nobody.
    Ack,
}

/// A received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The socket that it is for, by its index.
    pub socket: u32,
    /// What it is.
    pub kind: PacketKind,
    /// When the client sent the request, in ns.
    pub sent_ns: Ns,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) packet: Packet,
    pub(crate) since_ns: Ns,
}

/// One RX queue with its NAPI instance.
#[derive(Debug, Clone)]
pub(crate) struct RxQueue {
    pub(crate) napi: Napi,
    pub(crate) vector: Coalescer,
    /// The CPU that takes the interrupt.
    pub(crate) irq_cpu: usize,
    /// The CPU that polled it last.
    pub(crate) polled_on: usize,
    /// The kernel thread that polls it when threaded.
    pub(crate) thread: Option<usize>,
    pub(crate) ring: VecDeque<Packet>,
    ring_size: usize,
    /// Transmit completions that wait for a poll.
    pub(crate) tx_completions: u32,
    /// What the poll under way took from the ring and has not delivered yet.
    pub(crate) taken: Vec<Packet>,
    pub(crate) held: Vec<Held>,
    /// When the earliest coalescing event that is scheduled happens.
    pub(crate) vector_event_ns: Ns,
    /// When the earliest timer event that is scheduled happens.
    pub(crate) timer_event_ns: Ns,
    /// The CPU on which its timer runs: the one that armed it.
    pub(crate) timer_cpu: usize,
}

impl RxQueue {
    pub(crate) fn new(settings: NapiSettings, coalescing: &Coalescing, ring_size: usize, irq_cpu: usize) -> Self {
        Self {
            napi: Napi::new(settings),
            vector: Coalescer::new(coalescing),
            irq_cpu,
            polled_on: irq_cpu,
            thread: None,
            ring: VecDeque::with_capacity(ring_size),
            ring_size,
            tx_completions: 0,
            taken: Vec::with_capacity(usize::from(u8::MAX)),
            held: Vec::new(),
            vector_event_ns: crate::engine::NEVER,
            timer_event_ns: crate::engine::NEVER,
            timer_cpu: irq_cpu,
        }
    }

    /// Puts a packet into the ring; false when the ring is full and the packet lost.
    pub(crate) fn receive(&mut self, packet: Packet) -> bool {
        if self.ring.len() == self.ring_size {
            return false;
        }
        self.ring.push_back(packet);
        true
    }

    /// Moves up to `budget` packets from the ring into `taken`; how many.
    pub(crate) fn take(&mut self, budget: u32) -> u32 {
        let count = self.ring.len().min(budget as usize);
        self.taken.extend(self.ring.drain(..count));
        count as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet = Packet { socket: 0, kind: PacketKind::Request, sent_ns: 0 };

    #[test]
    fn a_full_ring_drops_what_comes() {
        let mut queue = RxQueue::new(NapiSettings::default(), &Coalescing::NONE, 2, 0);
        assert!(queue.receive(PACKET) && queue.receive(PACKET));
        assert!(!queue.receive(PACKET));
    }

    #[test]
    fn a_poll_takes_no_more_than_its_budget() {
        let mut queue = RxQueue::new(NapiSettings::default(), &Coalescing::NONE, 8, 0);
        for _ in 0..5 {
            queue.receive(PACKET);
        }
        assert_eq!((queue.take(3), queue.take(3)), (3, 2));
    }
}
