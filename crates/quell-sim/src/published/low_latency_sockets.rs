//! Published experiment (b): the first socket busy polling of 2013, netperf TCP_RR and UDP_RR with
//! one byte each way. Both hosts are alike, so the client is as slow as the server was last time.
//! The table's CPU columns contradict its service demand in some rows: these are listed, not fitted.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::experiment::{Cell, Compared, ExperimentError, Summary};
use super::irq_suspension::{PublishedError, rows};
use super::score::median;
use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{Coalescing, CoalescingPeriod, RxQueue, Socket};
use crate::run::RunError;
use crate::sweep::in_parallel;
use crate::world::{
    Class, Client, CpuTime, KernelRules, Program, RecvServer, Stage, Traffic, TrafficKind, World, WorldShape,
};

const TABLE: &str = "ll-poll-2013.csv";
/// Hardware threads of each machine: two Xeon E5-2680 with hyper-threading.
const HARDWARE_THREADS: f64 = 32.0;
/// A row whose CPU column is further than this from what its service demand says contradicts
/// itself.
const CONTRADICTION: f64 = 0.1;
/// The greatest that the median error of the throughput is to be.
const MEDIAN_BOUND: f64 = 0.10;
/// `net.core.low_latency_poll` recommended with the patches, in ns.
const BUSY_POLL_NS: Ns = 50_000;
/// Where the 82599's adaptive moderation settles at the rates of this experiment, in µs: published,
/// half the difference of the round trips with and without it.
const ADAPTIVE_USECS: u32 = 4;
/// Software of the `typical` kernel configuration against `optimized`: published, from the round
/// trips of both.
const TYPICAL_FACTOR: f64 = 1.33;
/// What UDP costs against TCP in serving a request, from the same.
const UDP_FACTOR: f64 = 0.78;

/// The transport's column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP_RR.
    Tcp,
    /// UDP_RR.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// A published row.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct LowLatencyRow {
    /// `patched`, or `3.9` without busy polling.
    pub kernel: String,
    /// `optimized` or `typical`.
    pub config: String,
    /// C-states 3 and 6: `on` or `off`.
    pub cstates: String,
    /// `rx-usecs`: `0`, `100` or `adaptive`.
    pub rx_usecs: String,
    /// TCP round trips a second.
    pub tcp_tps: f64,
    /// CPU use with TCP, in percent of all hardware threads.
    pub tcp_cpu_pct: f64,
    /// Service demand with TCP, in µs per round trip.
    pub tcp_service_demand: f64,
    /// UDP round trips a second.
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
    fn figures(&self, transport: Transport) -> (f64, f64, f64) {
        match transport {
            Transport::Tcp => (self.tcp_tps, self.tcp_cpu_pct, self.tcp_service_demand),
            Transport::Udp => (self.udp_tps, self.udp_cpu_pct, self.udp_service_demand),
        }
    }

    /// CPU use that the row's service demand implies, in percent, where it contradicts the row's
    /// CPU column.
    #[must_use]
    pub fn contradiction(&self, transport: Transport) -> Option<f64> {
        let (tps, cpu_pct, demand_us) = self.figures(transport);
        let implied_pct = 100.0 * tps * demand_us / 1e6 / HARDWARE_THREADS;
        ((implied_pct / cpu_pct - 1.0).abs() > CONTRADICTION).then_some(implied_pct)
    }
}

/// A row, published and modelled, for one transport.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LowLatencyCell {
    /// The row.
    pub row: LowLatencyRow,
    /// The transport.
    pub transport: Transport,
    /// Published round trips a second.
    pub published_tps: f64,
    /// Modelled round trips a second.
    pub modelled_tps: f64,
    /// Modelled CPU use, in percent of all hardware threads.
    pub modelled_cpu_pct: f64,
    /// What the service demand implies where it contradicts the CPU column, in percent.
    pub contradiction_pct: Option<f64>,
}

impl LowLatencyCell {
    /// Error of the throughput relative to what was published.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.modelled_tps / self.published_tps - 1.0
    }
}

/// Reads the published rows.
///
/// # Errors
///
/// What is wrong with the data, and where.
pub fn low_latency_rows() -> Result<Vec<LowLatencyRow>, PublishedError> {
    rows(TABLE, include_str!("../../data/published/ll-poll-2013.csv"))
}

/// Simulates every row with both transports, on up to `threads` threads. `progress` hears how many
/// are done.
///
/// # Errors
///
/// A run that is not possible.
pub fn low_latency_sockets(
    rows: &[LowLatencyRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<LowLatencyCell>, RunError> {
    let jobs: Vec<_> = rows.iter().flat_map(|row| [(row, Transport::Tcp), (row, Transport::Udp)]).collect();
    let cell = |index: usize| {
        let (row, transport) = jobs[index];
        let (modelled_tps, modelled_cpu_pct) = round_trips(row, transport, host)?;
        Ok(LowLatencyCell {
            published_tps: row.figures(transport).0,
            contradiction_pct: row.contradiction(transport),
            row: row.clone(),
            transport,
            modelled_tps,
            modelled_cpu_pct,
        })
    };
    in_parallel(jobs.len(), threads, cell, progress).into_iter().collect()
}

/// The whole experiment, for [`Experiment::B`](super::Experiment::B).
pub(super) fn compare(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let rows = low_latency_rows()?;
    let runs = 2 * rows.len();
    let compared = low_latency_sockets(&rows, host, threads, |done| progress(done, runs))?;
    let errors = compared.iter().map(|cell| cell.error().abs()).collect();
    let summary = median(errors).map(|error| Summary::new("throughput: median error", error, Some(MEDIAN_BOUND)));
    let notes = compared.iter().filter_map(contradiction_note).collect();
    let cells = compared.iter().map(|cell| {
        let column = format!("{} round trips/s", cell.transport);
        let bound = Some(MEDIAN_BOUND);
        Cell { bound, ..Cell::relative(cell.row.to_string(), &column, cell.published_tps, cell.modelled_tps) }
    });
    Ok((cells.collect(), summary.into_iter().collect(), notes))
}

fn contradiction_note(cell: &LowLatencyCell) -> Option<String> {
    let (implied_pct, (_, cpu_pct, _)) = (cell.contradiction_pct?, cell.row.figures(cell.transport));
    Some(format!(
        "{}, {}: {cpu_pct} % CPU published, but its service demand implies {implied_pct:.2} %; not fitted",
        cell.row, cell.transport
    ))
}

/// The host as a row has it: kernel configuration, idle states, transport.
fn configured(row: &LowLatencyRow, transport: Transport, host: &HostProfile) -> HostProfile {
    let mut host = host.clone();
    if transport == Transport::Udp {
        host.constants.request_ns *= UDP_FACTOR;
    }
    if row.config == "typical" {
        let constants = &mut host.constants;
        for cost in [
            &mut constants.device_irq_ns,
            &mut constants.napi_poll_ns,
            &mut constants.busy_poll_ns,
            &mut constants.rx_request_ns,
            &mut constants.wake_ns,
            &mut constants.recv_ns,
            &mut constants.request_ns,
        ] {
            *cost *= TYPICAL_FACTOR;
        }
    }
    if row.cstates == "off" {
        host.idle_states.clear();
    }
    host
}

fn coalescing(row: &LowLatencyRow) -> Coalescing {
    let rx_usecs = match row.rx_usecs.as_str() {
        "adaptive" => ADAPTIVE_USECS,
        usecs => usecs.parse().unwrap_or(0),
    };
    let rx_period = match row.rx_usecs.as_str() {
        "adaptive" => CoalescingPeriod::FirstCompletion,
        _ => CoalescingPeriod::LastInterrupt,
    };
    Coalescing { rx_usecs, rx_period, ..Coalescing::NONE }
}

/// Round trips a second, and the share of all hardware threads that they took, in percent.
fn round_trips(row: &LowLatencyRow, transport: Transport, host: &HostProfile) -> Result<(f64, f64), RunError> {
    const IRQ_CPU: usize = 0;
    const APP_CPU: usize = 1;
    const WARM_UP_NS: Ns = 5_000_000;
    const MEASURED_NS: Ns = 50_000_000;
    let host = configured(row, transport, host);
    let wire_ns = (host.constants.network_ns / 2.0) as Ns;
    let client = Client { one_way_ns: wire_ns, back_ns: wire_ns, ..Client::NONE };
    let traffic = Traffic::new(TrafficKind::Mirrored, client, vec![0], 1);
    let shape = WorldShape { queues: 1, epolls: 0, cpus: 2, bound: 256 };
    let mut world = World::new(KernelRules::default(), Costs::new(&host), shape, traffic);
    world.queues.push(RxQueue::new(quell_mode::NapiSettings::default(), &coalescing(row), host.ring_size, IRQ_CPU));
    let busy_poll_ns = if row.kernel == "patched" { BUSY_POLL_NS } else { 0 };
    let server = RecvServer { socket: 0, busy_poll_ns, prefer: false, budget: 4, serving: false };
    let thread = world.add_thread(Program::RecvServer(server), Stage::Program, APP_CPU, Class::Fair);
    world.sockets.push(Socket { napi: Some(0), reader: Some(thread), ..Socket::default() });
    world.start_thread(thread);
    world.begin();
    world.run_until(WARM_UP_NS);
    world.open_books();
    world.run_until(WARM_UP_NS + MEASURED_NS);
    world.close_books(WARM_UP_NS);
    let mut cpu = CpuTime::default();
    for state in &world.cpus {
        cpu.add(&state.time);
    }
    let accounted_ns = cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns;
    let tps = world.counters[0].responses as f64 / (MEASURED_NS as f64 / 1e9);
    Ok((tps, 100.0 * accounted_ns as f64 / MEASURED_NS as f64 / HARDWARE_THREADS))
}
