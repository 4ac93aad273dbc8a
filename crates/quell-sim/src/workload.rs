//! The workload that Quell measures and models: memcached, loaded by mutilate as in the published IRQ suspension
//! experiment. A [`Load`] and a [`RunScale`] determine a [`Run`] of this workload.

use quell_mode::{DeliveryMode, Load};

use crate::engine::Ns;
use crate::host::HostProfile;
use crate::mechanism::{PacketSizes, StoredValues};
use crate::run::{ConnectionSpread, Run};
use crate::world::TrafficKind;

/// Number of connections in the published experiment: 7 clients × 32 threads × 20.
const CONNECTIONS: usize = 4480;
const QUEUES: usize = 8;
/// Shape of the distribution of gaps between the load generator's requests (mutilate's `fb_ia`).
const GAP_SHAPE: f64 = 0.154_971;

/// Sizes of the load generator's packets: a Facebook-like mix of keys and values (mutilate's `fb_key`, `fb_value`).
const PACKET_SIZES: PacketSizes = PacketSizes {
    request_bytes: 103,
    response_bytes: 133,
    ack_bytes: 66,
    values: Some(StoredValues { written_share: 0.03, scale_bytes: 214.476, shape: 0.348_238 }),
};

/// Scale of the simulated experiment. A larger scale takes longer and has less variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunScale {
    /// Number of RX queues, up to the 8 of the published host. With fewer queues, load and connections are reduced in
    /// proportion.
    pub queues: usize,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: Ns,
    /// Whether a hash distributes connections over the queues, as in a NIC. Otherwise they are distributed evenly.
    pub hashed: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl RunScale {
    /// The scale of the whole published host.
    pub const FULL: Self =
        Self { queues: QUEUES, warm_up_ns: 150_000_000, measured_ns: 100_000_000, hashed: true, seed: 1 };
}

impl Run {
    /// Creates a run of memcached with one floating worker per queue, loaded by mutilate.
    #[must_use]
    pub fn memcached(mode: DeliveryMode, load: Load, host: &HostProfile, scale: RunScale) -> Self {
        let share = scale.queues as f64 / QUEUES as f64;
        let traffic = match load {
            Load::Max => TrafficKind::Closed,
            Load::Qps(qps) => TrafficKind::Scheduled { rate_qps: qps * share, gap_shape: GAP_SHAPE },
        };
        Self {
            connections: CONNECTIONS * scale.queues / QUEUES,
            floating: scale.queues > 1,
            xps: true,
            sizes: PACKET_SIZES,
            spread: if scale.hashed { ConnectionSpread::Hashed } else { ConnectionSpread::Even },
            warm_up_ns: scale.warm_up_ns,
            measured_ns: scale.measured_ns,
            seed: scale.seed,
            ..Self::new(mode, host.clone(), traffic, scale.queues)
        }
    }
}
