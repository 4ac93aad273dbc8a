//! Adaptive interrupt moderation: the hill climbing of the kernel's DIM library (`lib/dim/net_dim.c`) over five
//! profiles. A window ends with the first poll after 64 completion events. DIM compares the rates of bytes, packets and
//! events with those of the previous window, and steps towards more bytes, more packets or fewer events.

use super::packet_size::{PacketCounts, PacketSizer};
use crate::engine::Ns;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Time from a completion to the interrupt, in µs.
    pub(crate) usecs: u32,
    /// Number of completions that raise the interrupt immediately.
    pub(crate) frames: u32,
}

const fn profile(usecs: u32, frames: u32) -> Profile {
    Profile { usecs, frames }
}

/// Profiles of one direction and mode, from most to fewest interrupts.
pub(crate) type Profiles = [Profile; 5];

/// `NET_DIM_RX_CQE_PROFILES` of `lib/dim/net_dim.c`.
pub(crate) const RX_CQE: Profiles =
    [profile(2, 256), profile(8, 128), profile(16, 64), profile(32, 64), profile(64, 64)];

pub(crate) const RX_EQE: Profiles =
    [profile(1, 256), profile(8, 256), profile(64, 256), profile(128, 256), profile(256, 256)];

pub(crate) const TX_CQE: Profiles =
    [profile(5, 128), profile(8, 64), profile(16, 32), profile(32, 32), profile(64, 32)];

pub(crate) const TX_EQE: Profiles =
    [profile(1, 128), profile(8, 128), profile(32, 128), profile(64, 128), profile(128, 128)];

const EVENTS_PER_WINDOW: u32 = 64;
/// `IS_SIGNIFICANT_DIFF`: percentage of a difference, without its fraction, above which it counts.
const SIGNIFICANT_PERCENT: u64 = 10;
const STEPS_BEFORE_TIRED: u32 = 2 * RX_CQE.len() as u32;
const FIRST_PROFILE: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tune {
    ParkedOnTop,
    ParkedTired,
    Right,
    Left,
}

/// Rates per ms (`struct dim_stats`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rates {
    bytes: u64,
    packets: u64,
    events: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Better,
    Same,
    Worse,
}

impl Rates {
    /// `net_dim_stats_compare`: the first rate that differs significantly decides.
    fn compared_with(self, before: Self) -> Compared {
        let better_if = |better| if better { Compared::Better } else { Compared::Worse };
        if before.bytes == 0 {
            return if self.bytes > 0 { Compared::Better } else { Compared::Same };
        }
        if significant(self.bytes, before.bytes) {
            return better_if(self.bytes > before.bytes);
        }
        if significant(self.packets, before.packets) {
            return better_if(self.packets > before.packets);
        }
        if significant(self.events, before.events) {
            return better_if(self.events < before.events);
        }
        Compared::Same
    }
}

fn significant(now: u64, before: u64) -> bool {
    before > 0 && 100 * now.abs_diff(before) / before > SIGNIFICANT_PERCENT
}

#[derive(Debug, Clone)]
pub(crate) struct Moderation {
    profiles: Profiles,
    /// Profile of the last decision.
    index: usize,
    /// Profile that the NIC uses.
    applied: usize,
    /// Time at which the NIC uses the profile of the last decision.
    applies_at_ns: Ns,
    /// Time from a decision until the NIC uses its profile.
    apply_ns: Ns,
    tune: Tune,
    steps_right: u32,
    steps_left: u32,
    tired: u32,
    before: Rates,
    window_since_ns: Ns,
    window_packets: PacketCounts,
    window_events: u32,
}

impl Moderation {
    pub(crate) fn new(profiles: Profiles, apply_ns: Ns) -> Self {
        Self {
            profiles,
            index: FIRST_PROFILE,
            applied: FIRST_PROFILE,
            applies_at_ns: 0,
            apply_ns,
            tune: Tune::ParkedOnTop,
            steps_right: 0,
            steps_left: 0,
            tired: 0,
            before: Rates::default(),
            window_since_ns: 0,
            window_packets: PacketCounts::default(),
            window_events: 0,
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        self.profiles[self.applied]
    }

    pub(crate) fn completed(&mut self, packets: PacketCounts) {
        self.window_packets.add(packets);
    }

    pub(crate) fn event(&mut self) {
        self.window_events += 1;
    }

    /// `net_dim`, which the driver calls when it enables the interrupt. Decides on the profile at the end of a window.
    /// The next window starts when the NIC uses the new profile (`DIM_APPLY_NEW_PROFILE`).
    pub(crate) fn sample(&mut self, now_ns: Ns, sizes: &mut PacketSizer) {
        if self.applied != self.index {
            if now_ns >= self.applies_at_ns {
                self.applied = self.index;
                self.start_window(now_ns);
            }
            return;
        }
        let elapsed_us = (now_ns - self.window_since_ns) / 1000;
        if self.window_events < EVENTS_PER_WINDOW || elapsed_us == 0 {
            return;
        }
        let per_ms = |count: u64| (1000 * count).div_ceil(elapsed_us);
        self.decide(Rates {
            bytes: per_ms(sizes.draw(self.window_packets)),
            packets: per_ms(self.window_packets.all()),
            // `dim_calc_stats` divides `DIM_NEVENTS`, not the number of events that it counted.
            events: per_ms(EVENTS_PER_WINDOW.into()),
        });
        self.applies_at_ns = now_ns + self.apply_ns;
        self.start_window(now_ns);
    }

    fn start_window(&mut self, now_ns: Ns) {
        (self.window_packets, self.window_events) = (PacketCounts::default(), 0);
        self.window_since_ns = now_ns;
    }

    fn decide(&mut self, now: Rates) {
        let was_parked = self.tune == Tune::ParkedOnTop;
        let compared = now.compared_with(self.before);
        match self.tune {
            Tune::ParkedOnTop if compared != Compared::Same => self.exit_parking(),
            Tune::ParkedOnTop => {}
            Tune::ParkedTired => {
                self.tired = self.tired.saturating_sub(1);
                if self.tired == 0 {
                    self.exit_parking();
                }
            }
            Tune::Right | Tune::Left => self.climb(compared),
        }
        if !was_parked || self.tune != Tune::ParkedOnTop {
            self.before = now;
        }
    }

    fn climb(&mut self, compared: Compared) {
        if compared != Compared::Better {
            self.turn();
        }
        if self.on_top() {
            self.park_on_top();
        } else {
            self.step();
        }
    }

    fn turn(&mut self) {
        if self.tune == Tune::Right {
            (self.tune, self.steps_left) = (Tune::Left, 0);
        } else {
            (self.tune, self.steps_right) = (Tune::Right, 0);
        }
    }

    fn on_top(&self) -> bool {
        match self.tune {
            Tune::Right => self.steps_left > 1 && self.steps_right == 1,
            Tune::Left => self.steps_right > 1 && self.steps_left == 1,
            Tune::ParkedOnTop | Tune::ParkedTired => true,
        }
    }

    fn park_on_top(&mut self) {
        (self.steps_right, self.steps_left, self.tired) = (0, 0, 0);
        self.tune = Tune::ParkedOnTop;
    }

    fn exit_parking(&mut self) {
        self.tune = if self.index > 0 { Tune::Left } else { Tune::Right };
        self.step();
    }

    fn step(&mut self) {
        if self.tired == STEPS_BEFORE_TIRED {
            (self.steps_right, self.steps_left) = (0, 0);
            self.tune = Tune::ParkedTired;
            return;
        }
        match self.tune {
            Tune::Right if self.index + 1 < self.profiles.len() => {
                self.index += 1;
                self.steps_right += 1;
                self.tired += 1;
            }
            Tune::Left if self.index > 0 => {
                self.index -= 1;
                self.steps_left += 1;
                self.tired += 1;
            }
            _ => self.park_on_top(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PacketSizes;
    use super::*;

    fn sizes() -> PacketSizer {
        PacketSizer::new(PacketSizes { request_bytes: 100, ..PacketSizes::ONE_BYTE }, 1)
    }

    fn requests(requests: u64) -> PacketCounts {
        PacketCounts { requests, ..PacketCounts::default() }
    }

    fn feed(moderation: &mut Moderation, now_ns: &mut Ns, event_every_ns: Ns, packets: u64) {
        for _ in 0..EVENTS_PER_WINDOW {
            *now_ns += event_every_ns;
            moderation.completed(requests(packets));
            moderation.event();
            moderation.sample(*now_ns, &mut sizes());
        }
    }

    #[test]
    fn bytes_are_compared_before_packets_and_packets_before_events() {
        let before = Rates { bytes: 1000, packets: 100, events: 10 };
        let compared = |bytes, packets, events| Rates { bytes, packets, events }.compared_with(before);
        assert_eq!(compared(1200, 50, 20), Compared::Better);
        assert_eq!(compared(800, 200, 5), Compared::Worse);
        assert_eq!(compared(1100, 50, 5), Compared::Worse);
        assert_eq!(compared(1100, 110, 20), Compared::Worse);
        assert_eq!(compared(1100, 110, 5), Compared::Better);
    }

    #[test]
    fn a_difference_counts_from_11_percent() {
        assert!(!significant(1109, 1000) && significant(1110, 1000) && significant(890, 1000));
        assert!(!significant(5, 0));
    }

    #[test]
    fn a_decision_is_applied_later_and_the_next_window_starts_then() {
        let mut moderation = Moderation::new(RX_CQE, 1_000_000);
        let mut now_ns = 0;
        feed(&mut moderation, &mut now_ns, 5_000, 1);
        assert_eq!((moderation.index, moderation.profile()), (0, RX_CQE[1]));
        moderation.event();
        moderation.sample(now_ns + 999_999, &mut sizes());
        assert_eq!(moderation.profile(), RX_CQE[1]);
        moderation.sample(now_ns + 1_000_000, &mut sizes());
        assert_eq!((moderation.profile(), moderation.window_events), (RX_CQE[0], 0));
    }

    #[test]
    fn a_window_ends_with_the_poll_after_its_last_event() {
        let mut moderation = Moderation::new(RX_CQE, 0);
        for _ in 0..EVENTS_PER_WINDOW + 3 {
            moderation.completed(requests(1));
            moderation.event();
        }
        moderation.sample(1_000_000, &mut sizes());
        assert_eq!(moderation.before, Rates { bytes: 6_700, packets: 67, events: 64 });
    }

    #[test]
    fn the_initial_profile_is_the_second_as_in_the_kernel() {
        assert_eq!(Moderation::new(RX_CQE, 0).profile(), RX_CQE[1]);
    }

    #[test]
    fn fewer_events_for_the_same_packets_lead_to_higher_profiles() {
        let mut moderation = Moderation::new(RX_CQE, 0);
        let mut now_ns = 0;
        let mut visited = vec![moderation.profile().usecs];
        for _ in 0..40 {
            // A longer quiet time halves the number of events and doubles the packets of each event.
            let share = 1 << moderation.index;
            feed(&mut moderation, &mut now_ns, 5_000 * share, share);
            visited.push(moderation.profile().usecs);
        }
        assert!(visited.contains(&64), "{visited:?}");
    }

    #[test]
    fn steady_rates_keep_the_profile() {
        let mut moderation = Moderation::new(RX_CQE, 0);
        let mut now_ns = 0;
        for _ in 0..6 {
            feed(&mut moderation, &mut now_ns, 50_000, 4);
        }
        let parked = moderation.profile();
        for _ in 0..20 {
            feed(&mut moderation, &mut now_ns, 50_000, 4);
        }
        assert_eq!(moderation.profile(), parked);
    }
}
