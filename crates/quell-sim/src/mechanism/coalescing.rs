//! The NIC's side of an interrupt: when, after the vector was armed, completions of received or
//! transmitted packets bring it about. One vector serves both directions of a queue, as with mlx5.

use serde::{Deserialize, Serialize};

use super::moderation::{Moderation, Profile, RX_PROFILES, TX_PROFILES};
use crate::engine::{NEVER, Ns};

/// From when the coalescing time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoalescingPeriod {
    /// From the last completion: quiet time (CQE mode).
    LastCompletion,
    /// From the first completion since the vector was armed (EQE mode).
    FirstCompletion,
    /// From the last interrupt, as Intel's throttling has it: the first packet after a quiet time
    /// interrupts at once.
    LastInterrupt,
}

/// Interrupt coalescing, in the terms of `ethtool -C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Coalescing {
    /// `adaptive-rx`: the receive values below are only where it begins.
    pub adaptive_rx: bool,
    /// `adaptive-tx`.
    pub adaptive_tx: bool,
    /// `rx-usecs`, in µs; 0: every packet interrupts.
    pub rx_usecs: u32,
    /// `rx-frames`, in packets; 0: no limit.
    pub rx_frames: u32,
    /// `tx-usecs`, in µs; 0: every completion interrupts.
    pub tx_usecs: u32,
    /// `tx-frames`, in packets; 0: no limit.
    pub tx_frames: u32,
    /// From when the time counts.
    pub period: CoalescingPeriod,
}

impl Coalescing {
    /// Every received packet interrupts, transmit completions never do by themselves.
    pub const NONE: Self = Self {
        adaptive_rx: false,
        adaptive_tx: false,
        rx_usecs: 0,
        rx_frames: 0,
        tx_usecs: u32::MAX,
        tx_frames: 0,
        period: CoalescingPeriod::FirstCompletion,
    };
}

#[derive(Debug, Clone)]
struct Direction {
    fixed: Profile,
    adaptive: Option<Moderation>,
    since_armed: u32,
    due_ns: Ns,
}

impl Direction {
    fn new(usecs: u32, frames: u32, adaptive: Option<Moderation>) -> Self {
        Self { fixed: Profile { usecs, frames }, adaptive, since_armed: 0, due_ns: NEVER }
    }

    fn profile(&self) -> Profile {
        self.adaptive.as_ref().map_or(self.fixed, Moderation::profile)
    }

    fn completed(&mut self, now_ns: Ns, count: u32, period: CoalescingPeriod, fired_ns: Ns) {
        if count == 0 {
            return;
        }
        self.since_armed += count;
        let Profile { usecs, frames } = self.profile();
        if frames > 0 && self.since_armed >= frames {
            self.due_ns = self.due_ns.min(now_ns);
        } else if usecs == u32::MAX {
            // Never by time.
        } else if period == CoalescingPeriod::LastInterrupt {
            self.due_ns = now_ns.max(fired_ns + u64::from(usecs) * 1000).min(self.due_ns);
        } else if period == CoalescingPeriod::LastCompletion || self.due_ns == NEVER {
            self.due_ns = now_ns + u64::from(usecs) * 1000;
        }
    }

    fn arm(&mut self) {
        (self.since_armed, self.due_ns) = (0, NEVER);
    }
}

/// The coalescing state of one vector.
#[derive(Debug, Clone)]
pub(crate) struct Coalescer {
    period: CoalescingPeriod,
    rx: Direction,
    tx: Direction,
    armed: bool,
    fired_ns: Ns,
}

impl Coalescer {
    /// Armed from the beginning, as after `ip link set up`.
    pub(crate) fn new(config: &Coalescing) -> Self {
        let moderated = |on: bool, profiles| on.then(|| Moderation::new(profiles));
        Self {
            period: config.period,
            rx: Direction::new(config.rx_usecs, config.rx_frames, moderated(config.adaptive_rx, RX_PROFILES)),
            tx: Direction::new(config.tx_usecs, config.tx_frames, moderated(config.adaptive_tx, TX_PROFILES)),
            armed: true,
            fired_ns: 0,
        }
    }

    /// Whether the interrupt is enabled.
    pub(crate) fn armed(&self) -> bool {
        self.armed
    }

    /// When it fired last; 0: never.
    pub(crate) fn fired_ns(&self) -> Ns {
        self.fired_ns
    }

    /// When the interrupt is due as things are; [`NEVER`] while masked or without completions.
    pub(crate) fn due_ns(&self) -> Ns {
        if self.armed { self.rx.due_ns.min(self.tx.due_ns) } else { NEVER }
    }

    /// `count` received packets were completed.
    pub(crate) fn received(&mut self, now_ns: Ns, count: u32) {
        if self.armed {
            self.rx.completed(now_ns, count, self.period, self.fired_ns);
        }
    }

    /// `count` transmitted packets were completed.
    pub(crate) fn transmitted(&mut self, now_ns: Ns, count: u32) {
        if self.armed {
            self.tx.completed(now_ns, count, self.period, self.fired_ns);
        }
    }

    /// The driver enables the interrupt; what is in the rings by then counts as just completed.
    pub(crate) fn arm(&mut self, now_ns: Ns, received: u32, transmitted: u32) {
        self.armed = true;
        self.rx.arm();
        self.tx.arm();
        self.received(now_ns, received);
        self.transmitted(now_ns, transmitted);
    }

    /// The interrupt goes out and masks itself.
    pub(crate) fn fire(&mut self, now_ns: Ns) {
        self.armed = false;
        self.fired_ns = now_ns;
        for direction in [&mut self.rx, &mut self.tx] {
            if direction.due_ns <= now_ns
                && let Some(adaptive) = &mut direction.adaptive
            {
                adaptive.event(now_ns);
            }
        }
    }

    /// A poll took so many completions.
    pub(crate) fn polled(&mut self, received: u32, transmitted: u32) {
        for (direction, count) in [(&mut self.rx, received), (&mut self.tx, transmitted)] {
            if let Some(adaptive) = &mut direction.adaptive {
                adaptive.packets(u64::from(count));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet_time(period: CoalescingPeriod) -> Coalescer {
        Coalescer::new(&Coalescing { rx_usecs: 8, rx_frames: 3, period, ..Coalescing::NONE })
    }

    #[test]
    fn without_coalescing_every_packet_interrupts_at_once() {
        let mut vector = Coalescer::new(&Coalescing::NONE);
        vector.received(100, 1);
        assert_eq!(vector.due_ns(), 100);
    }

    #[test]
    fn each_packet_puts_a_quiet_time_off_and_the_frame_limit_ends_it() {
        let mut vector = quiet_time(CoalescingPeriod::LastCompletion);
        vector.received(0, 1);
        vector.received(5_000, 1);
        assert_eq!(vector.due_ns(), 13_000);
        vector.received(6_000, 1);
        assert_eq!(vector.due_ns(), 6_000);
    }

    #[test]
    fn counted_from_the_first_packet_the_time_is_not_put_off() {
        let mut vector = quiet_time(CoalescingPeriod::FirstCompletion);
        vector.received(0, 1);
        vector.received(5_000, 1);
        assert_eq!(vector.due_ns(), 8_000);
    }

    #[test]
    fn throttling_lets_the_first_packet_after_a_quiet_time_through() {
        let mut vector = quiet_time(CoalescingPeriod::LastInterrupt);
        vector.received(50_000, 1);
        assert_eq!(vector.due_ns(), 50_000);
        vector.fire(50_000);
        vector.arm(51_000, 1, 0);
        assert_eq!(vector.due_ns(), 58_000);
    }

    #[test]
    fn a_masked_vector_is_silent_until_it_is_armed_again() {
        let mut vector = quiet_time(CoalescingPeriod::LastCompletion);
        vector.fire(0);
        vector.received(10, 5);
        assert_eq!(vector.due_ns(), NEVER);
        vector.arm(1_000, 1, 0);
        assert_eq!(vector.due_ns(), 9_000);
    }

    #[test]
    fn transmit_completions_interrupt_on_the_same_vector() {
        let mut vector = Coalescer::new(&Coalescing { tx_usecs: 16, ..Coalescing::NONE });
        vector.transmitted(0, 1);
        assert_eq!(vector.due_ns(), 16_000);
    }
}
