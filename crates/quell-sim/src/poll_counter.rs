//! NAPI polls that the published counter includes in addition to those of the load. It counted the tracepoint
//! `napi:napi_poll` for the whole system, from before the load until after it. The counter therefore includes polls of
//! other interfaces, and polls of the same queues while they were almost idle. This module computes them from the rules
//! of deferral without simulation. They affect no other metric.

use quell_mode::NapiSettings;

use crate::host::Constants;

/// Additional polls and packets per queue and second of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UnrelatedPolls {
    pub(crate) polls_per_s: f64,
    pub(crate) empty_polls_per_s: f64,
    pub(crate) packets_per_s: f64,
}

impl UnrelatedPolls {
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

/// Polls of a queue with few packets at random times.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct SparsePolls {
    useful_per_s: f64,
    empty_per_s: f64,
}

impl SparsePolls {
    /// Computes the polls. After a poll with packets, up to `defer-hard-irqs` timer polls are empty. Then the interrupt
    /// is enabled again, and the next packet raises it.
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

    /// Applies the rules packet by packet, for comparison.
    fn simulated(packets_per_s: f64, napi: &NapiSettings) -> SparsePolls {
        let mut random = RandomStream::new(1, Purpose::Arrivals);
        let timeout_s = napi.gro_flush_timeout_ns as f64 / 1e9;
        let (mut now_s, mut useful, mut empty) = (0.0, 0.0, 0.0);
        for _ in 0..20_000 {
            let next_s = -libm::log(1.0 - random.unit()) / packets_per_s;
            useful += 1.0;
            let timers = (next_s / timeout_s).floor().min(napi.defer_hard_irqs.into());
            empty += timers;
            // During deferral, the next timer poll finds the packet. After it, the packet raises an interrupt.
            now_s += if timers < napi.defer_hard_irqs.into() { (timers + 1.0) * timeout_s } else { next_s };
        }
        SparsePolls { useful_per_s: useful / now_s, empty_per_s: empty / now_s }
    }

    #[test]
    fn computed_polls_agree_with_simulated_ones() {
        for mode in ["defer10", "defer200", "fullbusy"] {
            let (napi, near) = (napi(mode), |one: f64, other: f64| (one / other - 1.0).abs() < 0.03);
            let (computed, simulated) = (SparsePolls::new(200.0, &napi), simulated(200.0, &napi));
            assert!(near(computed.useful_per_s, simulated.useful_per_s), "{mode} {computed:?} {simulated:?}");
            assert!(near(computed.empty_per_s, simulated.empty_per_s), "{mode} {computed:?} {simulated:?}");
        }
    }

    #[test]
    fn without_deferral_every_packet_needs_one_poll() {
        let sparse = SparsePolls::new(200.0, &napi("base"));
        assert_eq!(sparse, SparsePolls { useful_per_s: 200.0, empty_per_s: 0.0 });
    }
}
