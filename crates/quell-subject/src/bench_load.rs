//! Configures the load generator of a lab run.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use quell_load::{Distribution, KeyValues, LoadSpec, RunObserver, RunProgress, Schedule, Transport, Workload};
use quell_result::facts::CpuLayout;

/// Share of reads. The published experiment sends 3 % sets.
const GET_SHARE: f64 = 0.97;
/// Default number of connections. With fewer, the server is partly idle at max; more overflow the veth's ring of 255
/// packets.
pub const CONNECTIONS: u32 = 128;

/// Returns the keys and values of the published experiment.
#[must_use]
pub fn published_keys() -> KeyValues {
    KeyValues { get_share: GET_SHARE, ..KeyValues::facebook() }
}

/// Returns the generator configuration for `connections` connections to the server at `address`.
#[must_use]
pub fn spec(address: SocketAddr, workload: Workload, connections: u32, cpus: &CpuLayout, seed: u64) -> LoadSpec {
    let threads = u32::try_from(cpus.client.len()).unwrap_or(u32::MAX);
    let cpus = cpus.client.clone();
    LoadSpec { connections, threads, cpus, seed, ..LoadSpec::new(address, Transport::Tcp, workload) }
}

/// Schedule of requests at a rate per second; without a rate, a closed loop.
pub(crate) fn schedule(rate_per_s: Option<f64>) -> Schedule {
    match rate_per_s {
        Some(rate_per_s) => Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS },
        None => Schedule::Closed,
    }
}

/// Stops the generator when the function returns true.
pub(crate) struct UntilStopped<'a>(pub(crate) &'a dyn Fn() -> bool);

impl RunObserver for UntilStopped<'_> {
    fn progress(&mut self, _: &RunProgress) -> ControlFlow<()> {
        if (self.0)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
