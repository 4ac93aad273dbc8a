//! Utilisation of the host: the share of time for which its CPUs were busy, averaged over the last millisecond.

use super::World;
use super::cpu::Context;
use crate::engine::Ns;
use crate::host::Costs;

/// Minimum time over which the utilisation is averaged.
const WINDOW_NS: Ns = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Utilisation {
    since_ns: Ns,
    busy_ns: Ns,
    /// Factor of the costs of contention, from the last complete window.
    contention: f64,
}

impl Utilisation {
    /// Records that a CPU executed `context` for `ns`.
    #[inline]
    pub(super) fn record(&mut self, context: Context, ns: Ns) {
        let busy = matches!(context, Context::HardIrq | Context::SoftIrq | Context::Thread);
        self.busy_ns += if busy { ns } else { 0 };
    }
}

impl World {
    /// Factor of the costs of contention, between 0 and 1.
    #[inline]
    pub(crate) fn contention(&mut self) -> f64 {
        let state = &mut self.utilisation;
        let elapsed_ns = self.now_ns - state.since_ns;
        if elapsed_ns >= WINDOW_NS {
            let share = state.busy_ns as f64 / (elapsed_ns * self.cpus.len() as Ns) as f64;
            state.contention = Costs::contention(share.min(1.0));
            (state.since_ns, state.busy_ns) = (self.now_ns, 0);
        }
        state.contention
    }
}
