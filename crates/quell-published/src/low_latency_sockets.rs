//! Published experiment (b), 2013: low-latency sockets. The benchmark is netperf TCP_RR and UDP_RR with one byte in
//! each direction, on two identical hosts. In some rows, the CPU column contradicts the service demand.

use std::fmt;

use serde::Deserialize;

use super::{PublishedError, rows};

/// Number of hardware threads of each machine: two Xeon E5-2680 with hyper-threading.
pub const HARDWARE_THREADS: f64 = 32.0;
/// Maximum relative difference between CPU use and service demand in a consistent row.
const CONTRADICTION: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellTransport {
    Tcp,
    Udp,
}

impl fmt::Display for CellTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LowLatencyRow {
    /// Kernel: `patched`, or `3.9` without busy polling.
    pub kernel: String,
    /// Kernel configuration: `optimized` or `typical`.
    pub config: String,
    /// Whether C-states 3 and 6 are enabled: `on` or `off`.
    pub cstates: String,
    /// Interrupt coalescing (`rx-usecs`): `0`, `100` or `adaptive`.
    pub rx_usecs: String,
    pub tcp_tps: f64,
    /// CPU use with TCP, in percent of all hardware threads.
    pub tcp_cpu_pct: f64,
    /// Service demand with TCP, in µs per round trip.
    pub tcp_service_demand: f64,
    pub udp_tps: f64,
    /// CPU use with UDP, in percent of all hardware threads.
    pub udp_cpu_pct: f64,
    /// Service demand with UDP, in µs per round trip.
    pub udp_service_demand: f64,
}

impl fmt::Display for LowLatencyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, config, cstates, rx_usecs, .. } = self;
        write!(f, "{kernel} {config}, C-states {cstates}, rx-usecs {rx_usecs}")
    }
}

impl LowLatencyRow {
    #[must_use]
    pub fn round_trips_per_s(&self, transport: CellTransport) -> f64 {
        self.figures(transport).0
    }

    /// CPU use, in percent of all hardware threads.
    #[must_use]
    pub fn cpu_pct(&self, transport: CellTransport) -> f64 {
        self.figures(transport).1
    }

    #[must_use]
    pub fn busy_cpus(&self, transport: CellTransport) -> f64 {
        self.cpu_pct(transport) / 100.0 * HARDWARE_THREADS
    }

    /// Service demand, in µs per round trip.
    #[must_use]
    pub fn service_demand_us(&self, transport: CellTransport) -> f64 {
        self.figures(transport).2
    }

    fn figures(&self, transport: CellTransport) -> (f64, f64, f64) {
        match transport {
            CellTransport::Tcp => (self.tcp_tps, self.tcp_cpu_pct, self.tcp_service_demand),
            CellTransport::Udp => (self.udp_tps, self.udp_cpu_pct, self.udp_service_demand),
        }
    }

    /// CPU use in percent that follows from the service demand, if it contradicts the CPU column.
    #[must_use]
    pub fn contradiction(&self, transport: CellTransport) -> Option<f64> {
        let (tps, cpu_pct, demand_us) = self.figures(transport);
        let implied_pct = 100.0 * tps * demand_us / 1e6 / HARDWARE_THREADS;
        ((implied_pct / cpu_pct - 1.0).abs() > CONTRADICTION).then_some(implied_pct)
    }
}

pub fn low_latency_rows() -> Result<Vec<LowLatencyRow>, PublishedError> {
    rows(include_str!("../data/ll-poll-2013.csv"))
}
