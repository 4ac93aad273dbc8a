//! Costs of a host in whole nanoseconds, precomputed for the simulation loop.

use super::{HostProfile, IdleState};
use crate::engine::Ns;
use crate::mechanism::PacketKind;
use crate::run::MessageSize;

/// Latency of a cache line from another last-level cache, relative to a cache line from the same one. This is the usual
/// ratio of core-to-core latencies on Zen 2.
const CROSS_CACHE_FACTOR: Ns = 3;

/// Power of the utilisation with which costs of contention grow. It is empirical: the training modes fit better with 4
/// than with 2 or 3.
const CONTENTION_POWER: i32 = 4;

/// Size in bytes from which a message does not fit the linear part of a socket buffer.
const LARGE_MESSAGE_BYTES: u32 = 2048;

#[derive(Debug, Clone)]
pub(crate) struct Costs {
    pub(crate) device_irq_ns: Ns,
    pub(crate) preempting_irq_ns: Ns,
    pub(crate) timer_irq_ns: Ns,
    pub(crate) busy_stop_ns: Ns,
    pub(crate) napi_poll_ns: Ns,
    pub(crate) busy_poll_ns: Ns,
    pub(crate) poll_migration_ns: Ns,
    rx_request_ns: Ns,
    rx_ack_ns: Ns,
    pub(crate) tx_completion_ns: Ns,
    pub(crate) wake_ns: Ns,
    pub(crate) idle_exit_ns: Ns,
    pub(crate) idle_entry_ns: Ns,
    pub(crate) epoll_wait_ns: Ns,
    pub(crate) epoll_event_ns: Ns,
    request_ns: f64,
    batch_extra_ns: f64,
    batch_packet_ns: f64,
    batch_half: f64,
    pub(crate) interference_ns: Ns,
    cross_cpu_ns: Ns,
    contention_ns: f64,
    contention_packet_ns: f64,
    cpus_per_cache: u32,
    pub(crate) recv_ns: Ns,
    pub(crate) ring_ns: Ns,
    pub(crate) user_loop_ns: Ns,
    pub(crate) kernel_loop_ns: Ns,
    /// Cost of reading a full segment.
    segment_ns: Ns,
    idle_states: Vec<IdleState>,
}

impl Costs {
    pub(crate) fn new(host: &HostProfile) -> Self {
        let constants = &host.constants;
        let ns = |value: f64| value.max(0.0).round() as Ns;
        Self {
            device_irq_ns: ns(constants.device_irq_ns),
            preempting_irq_ns: ns(constants.preempting_irq_ns),
            timer_irq_ns: ns(constants.timer_irq_ns),
            busy_stop_ns: ns(constants.busy_stop_ns),
            napi_poll_ns: ns(constants.napi_poll_ns),
            busy_poll_ns: ns(constants.busy_poll_ns).max(1),
            poll_migration_ns: ns(constants.poll_migration_ns),
            rx_request_ns: ns(constants.rx_request_ns),
            rx_ack_ns: ns(constants.rx_ack_ns),
            tx_completion_ns: ns(constants.tx_completion_ns),
            wake_ns: ns(constants.wake_ns),
            idle_exit_ns: ns(constants.idle_exit_ns),
            idle_entry_ns: ns(constants.idle_entry_ns),
            epoll_wait_ns: ns(constants.epoll_wait_ns),
            epoll_event_ns: ns(constants.epoll_event_ns),
            request_ns: constants.request_ns,
            batch_extra_ns: constants.batch_extra_ns,
            batch_packet_ns: constants.batch_packet_ns,
            batch_half: constants.batch_half,
            interference_ns: ns(constants.interference_ns),
            cross_cpu_ns: ns(constants.cross_cpu_ns),
            contention_ns: constants.contention_ns,
            contention_packet_ns: constants.contention_packet_ns,
            cpus_per_cache: u32::try_from(host.cpus_per_cache).unwrap_or(u32::MAX),
            recv_ns: ns(constants.recv_ns),
            ring_ns: ns(constants.ring_ns).max(1),
            user_loop_ns: ns(constants.user_loop_ns).max(1),
            kernel_loop_ns: ns(constants.kernel_loop_ns).max(1),
            segment_ns: 0,
            idle_states: host.idle_states.clone(),
        }
    }

    /// Adds the costs of a message size. They consist of reading the last segment of a request and writing a response
    /// of the same size.
    pub(crate) fn with_message(mut self, message: Option<MessageSize>, host: &HostProfile) -> Self {
        let Some(message) = message else { return self };
        let copy_ns = |bytes: u32| host.constants.copy_ns_per_kib * f64::from(bytes) / 1024.0;
        let last_bytes = message.bytes - (message.segments() - 1) * message.segment_bytes;
        let large_ns = if message.bytes < LARGE_MESSAGE_BYTES { 0.0 } else { host.constants.large_message_ns };
        self.request_ns += copy_ns(last_bytes) + copy_ns(message.bytes) + large_ns;
        self.segment_ns = copy_ns(message.segment_bytes) as Ns;
        self
    }

    /// Cost of reading segments of an incomplete request, together with `requests` complete requests or alone.
    #[inline]
    pub(crate) fn parts_ns(&self, parts: u32, requests: u32) -> Ns {
        let call_ns = if parts > 0 && requests == 0 { self.recv_ns } else { 0 };
        u64::from(parts) * self.segment_ns + call_ns
    }

    #[inline]
    pub(crate) fn receive_ns(&self, kind: PacketKind) -> Ns {
        if kind == PacketKind::Ack { self.rx_ack_ns } else { self.rx_request_ns }
    }

    /// Cost of serving one request of a batch. It grows with the batch, because more requests lie between two uses of
    /// the same memory, and less of that memory remains in the caches.
    #[inline]
    pub(crate) fn request_ns(&self, batch: usize) -> Ns {
        (self.request_ns + self.batch_extra_ns * self.displaced_share(batch)) as Ns
    }

    /// Additional cost of receiving a packet on a CPU that serves a batch of this size.
    #[inline]
    pub(crate) fn packet_displaced_ns(&self, batch: usize) -> Ns {
        (self.batch_packet_ns * self.displaced_share(batch)) as Ns
    }

    /// Share of recently used memory that a batch has displaced from the caches.
    fn displaced_share(&self, batch: usize) -> f64 {
        let others = batch.saturating_sub(1) as f64;
        others / (others + self.batch_half)
    }

    /// Latency of a cache line between two CPUs, relative to that within one last-level cache.
    #[inline]
    pub(crate) fn distance(&self, from: Option<usize>, to: usize) -> Ns {
        // Divisions of 32 bits take about half the time of those of 64 bits.
        let cache = |cpu: usize| cpu as u32 / self.cpus_per_cache;
        match from {
            None => 0,
            Some(from) if from == to => 0,
            Some(from) if cache(from) == cache(to) => 1,
            Some(_) => CROSS_CACHE_FACTOR,
        }
    }

    /// Additional cost of a request on `cpu` whose packet was received on `rx_cpu`.
    #[inline]
    pub(crate) fn crossing_ns(&self, rx_cpu: usize, cpu: usize) -> Ns {
        self.distance(Some(rx_cpu), cpu) * self.cross_cpu_ns
    }

    /// Increase of that cost on a busy host. A large batch has displaced the lines from the other CPU's caches, so that
    /// it contends for none.
    #[inline]
    pub(crate) fn contended_crossing_ns(&self, rx_cpu: usize, cpu: usize, contention: f64, batch: usize) -> Ns {
        let each_ns = self.contention_ns * contention * (1.0 - self.displaced_share(batch));
        self.distance(Some(rx_cpu), cpu) * each_ns as Ns
    }

    /// Additional cost of packets whose sockets are served at these distances.
    #[inline]
    pub(crate) fn contended_packets_ns(
        &self,
        distances: impl Iterator<Item = Ns>,
        contention: f64,
        batch: usize,
    ) -> Ns {
        if self.contention_packet_ns == 0.0 {
            return 0;
        }
        let each_ns = self.contention_packet_ns * contention * (1.0 - self.displaced_share(batch));
        (each_ns * distances.sum::<Ns>() as f64) as Ns
    }

    /// Factor of the costs of contention at a utilisation of the host between 0 and 1.
    pub(crate) fn contention(utilisation: f64) -> f64 {
        // The result of `powi` may differ between machines.
        (0..CONTENTION_POWER).fold(1.0, |product, _| product * utilisation)
    }

    /// Exit latency of the idle state that the governor selects for an expected idle time.
    pub(crate) fn idle_latency_ns(&self, expected_ns: Ns) -> Ns {
        let chosen = self.idle_states.iter().rev().find(|state| state.target_residency_ns <= expected_ns);
        chosen.or(self.idle_states.first()).map_or(0, |state| state.exit_latency_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Constants;

    fn costs() -> Costs {
        let mut host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        host.constants = Constants {
            cross_cpu_ns: 100.0,
            contention_ns: 1000.0,
            contention_packet_ns: 500.0,
            batch_half: 9.0,
            ..host.constants
        };
        Costs::new(&host)
    }

    #[test]
    fn another_cache_is_three_times_as_far_as_another_cpu() {
        let distance = |to| costs().distance(Some(0), to);
        assert_eq!([distance(0), distance(3), distance(4)], [0, 1, 3]);
        assert_eq!(costs().distance(None, 4), 0);
    }

    #[test]
    fn crossing_costs_more_on_a_busy_host_and_nothing_without_crossing() {
        let costs = costs();
        let crossing_ns = |to, utilisation| {
            costs.crossing_ns(0, to) + costs.contended_crossing_ns(0, to, Costs::contention(utilisation), 1)
        };
        assert_eq!(
            [crossing_ns(0, 1.0), crossing_ns(3, 0.0), crossing_ns(3, 1.0), crossing_ns(4, 1.0)],
            [0, 100, 1100, 3300]
        );
        assert_eq!(crossing_ns(3, 0.5), 100 + 62);
        assert_eq!(costs.contended_packets_ns([1, 3].into_iter(), 1.0, 1), 2000);
    }

    #[test]
    fn a_batch_that_displaces_the_lines_of_others_does_not_contend_for_them() {
        assert_eq!(costs().contended_crossing_ns(0, 3, 1.0, 10), 500);
        assert_eq!(costs().contended_packets_ns([1, 3].into_iter(), 1.0, 10), 1000);
    }
}
