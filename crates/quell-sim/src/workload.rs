//! The workload that Quell measures and models: memcached, loaded by mutilate as in the published IRQ suspension
//! experiment. A [`Load`] and a [`RunScale`] determine a [`Run`] of this workload.

use std::fmt;
use std::str::FromStr;

use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::Ns;
use crate::host::HostProfile;
use crate::mechanism::{PacketSizes, StoredValues};
use crate::run::{ConnectionSpread, Run};
use crate::world::TrafficKind;

/// Number of connections in the published experiment: 7 clients × 32 threads × 20.
const CONNECTIONS: usize = 4480;
/// Number of RX queues, of workers and of CPUs in the published experiment.
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

/// An offered load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Load {
    /// Number of requests per second over all connections.
    Qps(f64),
    /// Closed loop: every connection sends its next request as soon as it receives a response.
    Max,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("MAX"),
            Self::Qps(qps) if *qps >= 1000.0 && qps % 1000.0 == 0.0 => f.pad(&format!("{}K", qps / 1000.0)),
            Self::Qps(qps) => f.pad(&qps.to_string()),
        }
    }
}

/// Error for a text that is not a load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid load `{0}`: expected requests per second such as 600000 or 600K, or MAX")]
pub struct InvalidLoad(String);

impl FromStr for Load {
    type Err = InvalidLoad;

    fn from_str(text: &str) -> Result<Self, InvalidLoad> {
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        let (digits, unit) = match text.strip_suffix(['K', 'k']) {
            Some(digits) => (digits, 1e3),
            None => (text.strip_suffix('M').unwrap_or(text), if text.ends_with('M') { 1e6 } else { 1.0 }),
        };
        let number: f64 = digits.parse().map_err(|_| InvalidLoad(text.to_owned()))?;
        let qps = number * unit;
        if qps.is_finite() && qps > 0.0 { Ok(Self::Qps(qps)) } else { Err(InvalidLoad(text.to_owned())) }
    }
}

impl From<Load> for String {
    fn from(load: Load) -> Self {
        load.to_string()
    }
}

impl TryFrom<String> for Load {
    type Error = InvalidLoad;

    fn try_from(text: String) -> Result<Self, InvalidLoad> {
        text.parse()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_number_with_an_optional_unit_or_max() {
        for (text, load) in
            [("MAX", Load::Max), ("600K", Load::Qps(600e3)), ("1.5M", Load::Qps(1.5e6)), ("250", Load::Qps(250.0))]
        {
            assert_eq!(text.parse(), Ok(load));
        }
        assert!("-3".parse::<Load>().is_err() && "fast".parse::<Load>().is_err());
    }
}
