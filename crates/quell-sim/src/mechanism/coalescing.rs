//! Interrupt coalescing of the NIC: it decides when completions of received or transmitted packets raise the interrupt
//! of an armed vector. One vector serves both directions of a queue, as with mlx5.

use serde::{Deserialize, Serialize};

use super::moderation::{Moderation, Profile, RX_CQE, RX_EQE, TX_CQE, TX_EQE};
use super::packet_size::{PacketCounts, PacketSizer};
use crate::engine::{NEVER, Ns};

/// Event at which the coalescing time starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoalescingPeriod {
    /// The last completion: each packet restarts the time (`cqe-mode-rx on`).
    LastCompletion,
    /// The first completion since the vector was armed.
    FirstCompletion,
    /// The last interrupt (`cqe-mode-rx off`, and throttling of Intel NICs). The first packet after a quiet time
    /// interrupts immediately.
    LastInterrupt,
}

/// Interrupt coalescing, with the names of `ethtool -C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SimCoalescing {
    /// `adaptive-rx`: DIM selects the receive values.
    pub adaptive_rx: bool,
    /// `adaptive-tx`: DIM selects the transmit values.
    pub adaptive_tx: bool,
    /// `rx-usecs`, in µs. With 0, every packet interrupts immediately.
    pub rx_usecs: u32,
    /// `rx-frames`, in packets. 0 means that there is no limit.
    pub rx_frames: u32,
    /// `tx-usecs`, in µs. With 0, every completion interrupts immediately.
    pub tx_usecs: u32,
    /// `tx-frames`, in packets. 0 means that there is no limit.
    pub tx_frames: u32,
    /// Event at which the receive time starts.
    pub rx_period: CoalescingPeriod,
    /// Event at which the transmit time starts.
    pub tx_period: CoalescingPeriod,
    /// Whether an interrupt masks only the direction that raised it, as with mlx5, whose completion queues are armed
    /// one by one. The other direction can interrupt the poll.
    #[serde(default)]
    pub separate_arming: bool,
    /// Time from a decision of DIM until the NIC uses the new values, in µs: a work item and a command to the firmware.
    #[serde(default)]
    pub apply_usecs: u32,
}

impl SimCoalescing {
    /// No coalescing: every received packet interrupts immediately, and transmit completions never interrupt.
    pub const NONE: Self = Self {
        adaptive_rx: false,
        adaptive_tx: false,
        rx_usecs: 0,
        rx_frames: 0,
        tx_usecs: u32::MAX,
        tx_frames: 0,
        rx_period: CoalescingPeriod::FirstCompletion,
        tx_period: CoalescingPeriod::FirstCompletion,
        separate_arming: false,
        apply_usecs: 0,
    };
}

/// One completion queue of a vector.
#[derive(Debug, Clone)]
struct Direction {
    fixed: Profile,
    period: CoalescingPeriod,
    adaptive: Option<Moderation>,
    armed: bool,
    since_armed: u32,
    due_ns: Ns,
    /// Time of the last interrupt that this direction raised.
    fired_ns: Ns,
}

impl Direction {
    fn new(fixed: Profile, period: CoalescingPeriod, adaptive: Option<Moderation>) -> Self {
        Self { fixed, period, adaptive, armed: true, since_armed: 0, due_ns: NEVER, fired_ns: 0 }
    }

    fn profile(&self) -> Profile {
        self.adaptive.as_ref().map_or(self.fixed, Moderation::profile)
    }

    fn completed(&mut self, now_ns: Ns, count: u32) {
        if count == 0 || !self.armed {
            return;
        }
        self.since_armed += count;
        let Profile { usecs, frames } = self.profile();
        if frames > 0 && self.since_armed >= frames {
            self.due_ns = self.due_ns.min(now_ns);
        } else if usecs == u32::MAX {
        } else if self.period == CoalescingPeriod::LastInterrupt {
            self.due_ns = now_ns.max(self.fired_ns + u64::from(usecs) * 1000).min(self.due_ns);
        } else if self.period == CoalescingPeriod::LastCompletion || self.due_ns == NEVER {
            self.due_ns = now_ns + u64::from(usecs) * 1000;
        }
    }

    fn arm(&mut self, now_ns: Ns, completed: u32, sizes: &mut PacketSizer) {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.sample(now_ns, sizes);
        }
        (self.armed, self.since_armed, self.due_ns) = (true, 0, NEVER);
        self.completed(now_ns, completed);
    }

    fn disarm(&mut self) {
        (self.armed, self.due_ns) = (false, NEVER);
    }

    fn fire(&mut self, now_ns: Ns) {
        if self.due_ns > now_ns {
            return;
        }
        self.disarm();
        self.fired_ns = now_ns;
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.event();
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Coalescer {
    rx: Direction,
    tx: Direction,
    separate_arming: bool,
    fired_ns: Ns,
}

impl Coalescer {
    /// Creates the state of an armed vector, as after `ip link set up`.
    pub(crate) fn new(config: &SimCoalescing) -> Self {
        let quiet = |period| period == CoalescingPeriod::LastCompletion;
        let rx_profiles = if quiet(config.rx_period) { RX_CQE } else { RX_EQE };
        let tx_profiles = if quiet(config.tx_period) { TX_CQE } else { TX_EQE };
        let adaptive = |profiles| Moderation::new(profiles, Ns::from(config.apply_usecs) * 1000);
        let rx = Profile { usecs: config.rx_usecs, frames: config.rx_frames };
        let tx = Profile { usecs: config.tx_usecs, frames: config.tx_frames };
        Self {
            rx: Direction::new(rx, config.rx_period, config.adaptive_rx.then(|| adaptive(rx_profiles))),
            tx: Direction::new(tx, config.tx_period, config.adaptive_tx.then(|| adaptive(tx_profiles))),
            separate_arming: config.separate_arming,
            fired_ns: 0,
        }
    }

    /// Whether the interrupt is enabled in both directions.
    pub(crate) fn armed(&self) -> bool {
        self.rx.armed && self.tx.armed
    }

    /// Whether DIM selects the values of a direction.
    pub(crate) fn adaptive(&self) -> bool {
        self.rx.adaptive.is_some() || self.tx.adaptive.is_some()
    }

    pub(crate) fn fired_ns(&self) -> Ns {
        self.fired_ns
    }

    /// Time at which the interrupt is due. [`NEVER`] while the vector is masked or there are no completions.
    pub(crate) fn due_ns(&self) -> Ns {
        self.rx.due_ns.min(self.tx.due_ns)
    }

    pub(crate) fn received(&mut self, now_ns: Ns, count: u32) {
        self.rx.completed(now_ns, count);
    }

    pub(crate) fn transmitted(&mut self, now_ns: Ns, count: u32) {
        self.tx.completed(now_ns, count);
    }

    /// Enables the interrupt, as the driver does. Packets that are already in the rings count as just completed.
    pub(crate) fn arm(&mut self, now_ns: Ns, received: u32, transmitted: u32, sizes: &mut PacketSizer) {
        self.rx.arm(now_ns, received, sizes);
        self.tx.arm(now_ns, transmitted, sizes);
    }

    /// Raises the interrupt. It masks the directions whose coalescing time is over, or the whole vector.
    pub(crate) fn fire(&mut self, now_ns: Ns) {
        self.fired_ns = now_ns;
        self.rx.fire(now_ns);
        self.tx.fire(now_ns);
        if !self.separate_arming {
            self.rx.disarm();
            self.tx.disarm();
        }
    }

    pub(crate) fn polled(&mut self, received: PacketCounts, transmitted: PacketCounts) {
        for (direction, packets) in [(&mut self.rx, received), (&mut self.tx, transmitted)] {
            if let Some(adaptive) = &mut direction.adaptive {
                adaptive.completed(packets);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PacketSizes;
    use super::*;

    fn sizes() -> PacketSizer {
        PacketSizer::new(PacketSizes::ONE_BYTE, 1)
    }

    fn quiet_time(period: CoalescingPeriod) -> Coalescer {
        Coalescer::new(&SimCoalescing { rx_usecs: 8, rx_frames: 3, rx_period: period, ..SimCoalescing::NONE })
    }

    #[test]
    fn without_coalescing_every_packet_interrupts_immediately() {
        let mut vector = Coalescer::new(&SimCoalescing::NONE);
        vector.received(100, 1);
        assert_eq!(vector.due_ns(), 100);
    }

    #[test]
    fn each_packet_restarts_the_quiet_time_and_the_frame_limit_ends_it() {
        let mut vector = quiet_time(CoalescingPeriod::LastCompletion);
        vector.received(0, 1);
        vector.received(5_000, 1);
        assert_eq!(vector.due_ns(), 13_000);
        vector.received(6_000, 1);
        assert_eq!(vector.due_ns(), 6_000);
    }

    #[test]
    fn a_time_from_the_first_packet_is_not_restarted() {
        let mut vector = quiet_time(CoalescingPeriod::FirstCompletion);
        vector.received(0, 1);
        vector.received(5_000, 1);
        assert_eq!(vector.due_ns(), 8_000);
    }

    #[test]
    fn throttling_does_not_delay_the_first_packet_after_a_quiet_time() {
        let mut vector = quiet_time(CoalescingPeriod::LastInterrupt);
        vector.received(50_000, 1);
        assert_eq!(vector.due_ns(), 50_000);
        vector.fire(50_000);
        vector.arm(51_000, 1, 0, &mut sizes());
        assert_eq!(vector.due_ns(), 58_000);
    }

    #[test]
    fn a_masked_vector_raises_no_interrupt_until_it_is_armed_again() {
        let mut vector = quiet_time(CoalescingPeriod::LastCompletion);
        vector.fire(0);
        vector.received(10, 5);
        assert_eq!(vector.due_ns(), NEVER);
        vector.arm(1_000, 1, 0, &mut sizes());
        assert_eq!(vector.due_ns(), 9_000);
    }

    #[test]
    fn transmit_completions_interrupt_on_the_same_vector() {
        let mut vector = Coalescer::new(&SimCoalescing { tx_usecs: 16, ..SimCoalescing::NONE });
        vector.transmitted(0, 1);
        assert_eq!(vector.due_ns(), 16_000);
    }

    #[test]
    fn with_separate_arming_the_other_direction_interrupts_the_poll() {
        let due_after_receive_interrupt = |separate_arming| {
            let mut vector = Coalescer::new(&SimCoalescing { tx_usecs: 16, separate_arming, ..SimCoalescing::NONE });
            vector.transmitted(0, 1);
            vector.received(1_000, 1);
            vector.fire(1_000);
            vector.received(2_000, 1);
            vector.due_ns()
        };
        assert_eq!(due_after_receive_interrupt(true), 16_000);
        assert_eq!(due_after_receive_interrupt(false), NEVER);
    }

    #[test]
    fn each_direction_is_throttled_by_its_own_interrupts() {
        let throttled = CoalescingPeriod::LastInterrupt;
        let mut vector = Coalescer::new(&SimCoalescing { tx_usecs: 16, tx_period: throttled, ..SimCoalescing::NONE });
        vector.received(50_000, 1);
        vector.fire(50_000);
        vector.arm(51_000, 0, 1, &mut sizes());
        assert_eq!(vector.due_ns(), 51_000);
        vector.fire(51_000);
        vector.arm(52_000, 0, 1, &mut sizes());
        assert_eq!(vector.due_ns(), 67_000);
    }
}
