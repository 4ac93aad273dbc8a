//! Configures the load generator of a lab run with the memcached workload of the published experiment.

use std::net::SocketAddr;

use quell_load::{LoadSpec, Memcached, Transport, Workload};

use crate::cpus::CpuLayout;

/// Share of reads. The published experiment sends 3 % sets.
const GET_SHARE: f64 = 0.97;

/// Returns the generator configuration for `connections` connections to the server at `address`.
#[must_use]
pub fn spec(address: SocketAddr, connections: u32, cpus: &CpuLayout, seed: u64) -> LoadSpec {
    let memcached = Memcached { get_share: GET_SHARE, ..Memcached::facebook() };
    let threads = u32::try_from(cpus.client.len()).unwrap_or(u32::MAX);
    LoadSpec {
        connections,
        threads,
        cpus: cpus.client.clone(),
        seed,
        ..LoadSpec::new(address, Transport::Tcp, Workload::Memcached(memcached))
    }
}
