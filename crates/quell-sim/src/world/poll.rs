//! Common parts of all NAPI polls: taking packets from the ring, the cost of packets, and the end of a poll
//! (`__napi_poll`, `napi_complete_done`, packets held by GRO).

use super::World;
use crate::engine::Ns;
use crate::mechanism::{Completion, PacketCounts, PacketKind, Schedule};

/// `NAPI_POLL_WEIGHT`: maximum number of packets per poll in the softirq.
pub(crate) const NAPI_POLL_WEIGHT: u32 = quell_mode::NAPI_POLL_WEIGHT as u32;

/// `gro_normal_batch`: number of packets that are delivered together during a poll.
pub(crate) const GRO_NORMAL_BATCH: u32 = 8;

impl World {
    /// Takes up to `budget` packets and all transmit completions. Returns the number of packets and the cost.
    pub(crate) fn poll_begin(&mut self, queue: usize, cpu: usize, budget: u32) -> (u32, Ns) {
        let batch = self.cpus[cpu].current.map_or(0, |thread| self.threads[thread].batch);
        let contention = self.contention();
        let (costs, now_ns) = (&self.costs, self.now_ns);
        let rx = &mut self.queues[queue];
        let transmitted = std::mem::take(&mut rx.tx_completions);
        let before = rx.taken.len();
        let work = rx.take(budget, now_ns);
        let taken = &rx.taken[before..];
        let packets: Ns = taken.iter().map(|packet| costs.receive_ns(packet.kind)).sum();
        let served_on = taken.iter().map(|packet| self.sockets[packet.socket as usize].served_on.get());
        let distances = served_on.map(|served_on| costs.distance(served_on, cpu));
        let contended_ns = costs.contended_packets_ns(distances, contention, batch);
        if rx.vector.adaptive() {
            let received = PacketCounts::received(taken.iter().map(|packet| packet.kind));
            rx.vector.polled(received, PacketCounts { responses: transmitted.into(), ..PacketCounts::default() });
        }
        let moved_ns = if rx.polled_on == cpu { 0 } else { costs.poll_migration_ns };
        rx.polled_on = cpu;
        let displaced_ns = u64::from(work) * costs.packet_displaced_ns(batch);
        let completions_ns = u64::from(transmitted) * costs.tx_completion_ns;
        (work, moved_ns + packets + contended_ns + displaced_ns + completions_ns)
    }

    /// Counts a poll that ends after `work` packets, and bounds their waits as `quell-sampler` does in the kernel.
    pub(crate) fn count_poll(&mut self, queue: usize, work: u32, budget: u32) {
        let now_ns = self.now_ns;
        let (counters, waits) = (&mut self.counters[queue], &mut self.queues[queue].waits);
        counters.polls += 1;
        counters.empty_polls += u64::from(work == 0);
        counters.polled_packets += u64::from(work);
        let taken_ns = std::mem::take(&mut waits.taken_ns);
        if let Some(since_ns) = waits.masked_since_ns {
            counters.bounded_packets += u64::from(work);
            counters.wait_ns += taken_ns;
            let bound_ns = u64::from(work) * (now_ns - since_ns);
            debug_assert!(taken_ns <= bound_ns, "packets waited {taken_ns} ns, the bound is {bound_ns} ns");
            counters.wait_bound_ns += bound_ns;
        }
        if work < budget {
            waits.masked_since_ns = Some(now_ns);
        }
    }

    /// Ends a poll in the softirq or in a NAPI thread. Returns whether the same poller polls again.
    pub(crate) fn finish_poll(&mut self, queue: usize, work: u32, cpu: usize) -> bool {
        self.count_poll(queue, work, NAPI_POLL_WEIGHT);
        if work < NAPI_POLL_WEIGHT {
            return self.complete(queue, work, cpu);
        }
        if !self.queues[queue].napi.state.prefer_busy_poll {
            self.flush_held(queue, cpu, false);
            return true;
        }
        // A busy poller wants the instance, so release it although packets remain.
        let armed_before = self.queues[queue].vector.armed();
        if self.complete(queue, work, cpu) {
            return true;
        }
        let enabled = !armed_before && self.queues[queue].vector.armed();
        enabled && self.queues[queue].napi.schedule_prep() == Schedule::Taken
    }

    /// Completes the instance. Returns whether it stays scheduled because of `MISSED`.
    pub(crate) fn complete(&mut self, queue: usize, work: u32, cpu: usize) -> bool {
        let held = !self.queues[queue].held.is_empty();
        let completion = self.queues[queue].napi.complete_done(work, held);
        match completion {
            Completion::Refused => false,
            Completion::Again => {
                self.flush_held(queue, cpu, false);
                true
            }
            Completion::Deferred { timeout_ns } => {
                self.flush_held(queue, cpu, true);
                self.arm_timer(queue, timeout_ns, cpu);
                self.released(queue);
                false
            }
            Completion::InterruptEnabled { timeout_ns } => {
                self.flush_held(queue, cpu, timeout_ns.is_some());
                if let Some(timeout_ns) = timeout_ns {
                    self.arm_timer(queue, timeout_ns, cpu);
                }
                self.enable_interrupt(queue);
                self.released(queue);
                false
            }
        }
    }

    fn enable_interrupt(&mut self, queue: usize) {
        let now_ns = self.now_ns;
        let rx = &mut self.queues[queue];
        rx.waits.masked_since_ns = None;
        let (received, transmitted) = (rx.ring.len() as u32, rx.tx_completions);
        rx.vector.arm(now_ns, received, transmitted, &mut self.sizes);
        self.mark(queue, "interrupt enabled");
        self.vector_changed(queue);
    }

    /// Notifies busy pollers that wait for an instance that was released.
    pub(crate) fn released(&mut self, queue: usize) {
        for index in 0..self.queue_spinners[queue].len() {
            self.poke(self.queue_spinners[queue][index]);
        }
    }

    /// Delivers packets held by GRO (`napi_gro_flush`). With `only_old`, GRO continues to hold packets of this jiffy.
    pub(crate) fn flush_held(&mut self, queue: usize, cpu: usize, only_old: bool) {
        if self.queues[queue].held.is_empty() {
            return;
        }
        let jiffy = |ns: Ns| ns / self.rules.jiffy_ns;
        let this_jiffy = jiffy(self.now_ns);
        let rx = &mut self.queues[queue];
        let held = std::mem::take(&mut rx.held);
        let (stay, go): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|held| only_old && jiffy(held.since_ns) == this_jiffy);
        rx.held = stay;
        for held in go {
            self.reach_socket(queue, cpu, held.packet.socket, held.packet.sent_ns);
        }
    }

    pub(crate) fn gro_holds(kind: PacketKind) -> bool {
        kind == PacketKind::HeldRequest
    }
}
