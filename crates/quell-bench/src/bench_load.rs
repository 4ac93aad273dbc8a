//! Generator configuration of a bench run: the memcached load of the published experiment, sized for the lab.

use std::net::SocketAddr;

use quell_load::{LoadSpec, Memcached, Transport, Workload};

use crate::cpus::CpuLayout;

/// Share of reads in the published experiment: 3 % of its requests are sets.
const GET_SHARE: f64 = 0.97;

/// Generator configuration for `connections` connections to a server at `address`.
#[must_use]
pub(crate) fn spec(address: SocketAddr, connections: u32, cpus: &CpuLayout, seed: u64) -> LoadSpec {
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
