//! What the published counter of NAPI polls counted beside the load. It was a system-wide count of
//! the tracepoint `napi:napi_poll` that began before the load and ended after it: polls of other
//! interfaces are in it, and those of the same queues while hardly anything came. Computed from the
//! rules of deferral, not simulated; nothing else of a run depends on it.

use quell_mode::NapiSettings;

use crate::host::Constants;

/// Polls and packets a second and queue, relative to the time with load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CountedBeside {
    pub(crate) polls_per_s: f64,
    /// Of these, polls that found nothing.
    pub(crate) empty_polls_per_s: f64,
    pub(crate) packets_per_s: f64,
}

impl CountedBeside {
    pub(crate) fn new(constants: &Constants, napi: &NapiSettings) -> Self {
        let share = constants.unloaded_share;
        let packets_per_s = constants.unloaded_packets_per_s;
        let sparse = if packets_per_s > 0.0 { SparsePolls::new(packets_per_s, napi) } else { SparsePolls::default() };
        let bystanders_per_s = constants.bystander_polls_per_s;
        Self {
            polls_per_s: bystanders_per_s + share * (sparse.useful_per_s + sparse.empty_per_s),
            empty_polls_per_s: share * sparse.empty_per_s,
            packets_per_s: bystanders_per_s + share * packets_per_s,
        }
    }
}

/// How often a queue is polled when packets come at random and seldom.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct SparsePolls {
    useful_per_s: f64,
    empty_per_s: f64,
}

impl SparsePolls {
    /// From one poll that finds packets to the next, up to `defer-hard-irqs` polls of the timer find
    /// nothing; then the interrupt is back and brings the next packet.
    fn new(packets_per_s: f64, napi: &NapiSettings) -> Self {
        if !napi.defers() {
            return Self { useful_per_s: packets_per_s, empty_per_s: 0.0 };
        }
        let timeout_s = napi.gro_flush_timeout_ns as f64 / 1e9;
        let nothing = libm::exp(-packets_per_s * timeout_s);
        let nothing_at_all = libm::pow(nothing, f64::from(napi.defer_hard_irqs));
        let timers = (1.0 - nothing_at_all) / (1.0 - nothing);
        let cycle_s = timers * timeout_s + nothing_at_all / packets_per_s;
        Self { useful_per_s: 1.0 / cycle_s, empty_per_s: nothing * timers / cycle_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Purpose, RandomStream};

    fn napi(mode: &str) -> NapiSettings {
        mode.parse::<quell_mode::DeliveryMode>().expect("a mode").napi()
    }

    /// The rules, packet by packet.
    fn played(packets_per_s: f64, napi: &NapiSettings) -> SparsePolls {
        let mut random = RandomStream::new(1, Purpose::Arrivals);
        let timeout_s = napi.gro_flush_timeout_ns as f64 / 1e9;
        let (mut now_s, mut useful, mut empty) = (0.0, 0.0, 0.0);
        for _ in 0..20_000 {
            let next_s = random.exponential(1.0 / packets_per_s);
            useful += 1.0;
            let timers = (next_s / timeout_s).floor().min(napi.defer_hard_irqs.into());
            empty += timers;
            // Within the deferral the next timer finds the packet, after it the interrupt brings it.
            now_s += if timers < napi.defer_hard_irqs.into() { (timers + 1.0) * timeout_s } else { next_s };
        }
        SparsePolls { useful_per_s: useful / now_s, empty_per_s: empty / now_s }
    }

    #[test]
    fn sparse_packets_are_polled_as_the_rules_of_deferral_have_it() {
        for mode in ["defer10", "defer200", "fullbusy"] {
            let (napi, near) = (napi(mode), |one: f64, other: f64| (one / other - 1.0).abs() < 0.03);
            let (computed, played) = (SparsePolls::new(200.0, &napi), played(200.0, &napi));
            assert!(near(computed.useful_per_s, played.useful_per_s), "{mode} {computed:?} {played:?}");
            assert!(near(computed.empty_per_s, played.empty_per_s), "{mode} {computed:?} {played:?}");
        }
    }

    #[test]
    fn without_deferral_every_packet_is_one_poll() {
        let sparse = SparsePolls::new(200.0, &napi("base"));
        assert_eq!(sparse, SparsePolls { useful_per_s: 200.0, empty_per_s: 0.0 });
    }
}
