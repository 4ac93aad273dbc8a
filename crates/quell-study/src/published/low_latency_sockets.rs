//! Published experiment (b), 2013: low-latency sockets. The benchmark is netperf TCP_RR and UDP_RR with one byte in
//! each direction, on two identical hosts. The client takes as long for a reply as the server for a request. In some
//! rows, the CPU column contradicts the service demand. These rows are listed, but not used in the fit.

use quell_mode::DeliveryMode;
use quell_published::{CellTransport, HARDWARE_THREADS, LowLatencyRow, low_latency_rows};
use quell_sim::sweep::in_parallel;
use quell_sim::{CoalescingPeriod, HostProfile, Ns, Run, RunError, ServerKind, SimCoalescing, TrafficKind};

use super::experiment::{Cell, Compared, ExperimentError, Summary};
use super::score::median;

/// Goal: maximum median error of the throughput.
const MEDIAN_BOUND: f64 = 0.10;
/// Mode that stands for the value of `net.core.low_latency_poll` that the patches recommend, 50 µs.
const BUSY_POLL: &str = "sockpoll50";
/// Interrupt delay of the 82599's adaptive moderation at the rates of this experiment, in µs. It is half the published
/// difference between the round-trip times with and without moderation. The README has what else was tried: the driver's
/// own rule, and DIM, which it does not use.
const ADAPTIVE_USECS: u32 = 4;
/// Software cost with the kernel configuration `typical` relative to `optimized`, derived from the published round
/// trips of both.
const TYPICAL_FACTOR: f64 = 1.33;
/// Cost of a request over UDP relative to TCP, derived from the published round trips.
const UDP_FACTOR: f64 = 0.78;

/// Published row with the modelled values for one transport.
#[derive(Debug, Clone, PartialEq)]
pub struct LowLatencyCell {
    pub row: LowLatencyRow,
    pub transport: CellTransport,
    pub published_tps: f64,
    pub modelled_tps: f64,
    /// Modelled CPU use, in percent of all hardware threads.
    pub modelled_cpu_pct: f64,
    /// CPU use in percent that contradicts the published one; see [`LowLatencyRow::contradiction`].
    pub contradiction_pct: Option<f64>,
}

impl LowLatencyCell {
    #[must_use]
    pub fn error(&self) -> f64 {
        self.modelled_tps / self.published_tps - 1.0
    }
}

/// Simulates every row with both transports, on up to `threads` threads. Calls `progress` with the
/// number of finished runs.
pub fn low_latency_sockets(
    rows: &[LowLatencyRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<LowLatencyCell>, RunError> {
    let jobs: Vec<_> = rows.iter().flat_map(|row| [(row, CellTransport::Tcp), (row, CellTransport::Udp)]).collect();
    let cell = |index: usize| {
        let (row, transport) = jobs[index];
        let (modelled_tps, modelled_cpu_pct) = round_trips(row, transport, host)?;
        Ok(LowLatencyCell {
            published_tps: row.round_trips_per_s(transport),
            contradiction_pct: row.contradiction(transport),
            row: row.clone(),
            transport,
            modelled_tps,
            modelled_cpu_pct,
        })
    };
    in_parallel(jobs.len(), threads, cell, progress).into_iter().collect()
}

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
    let (implied_pct, cpu_pct) = (cell.contradiction_pct?, cell.row.cpu_pct(cell.transport));
    Some(format!(
        "{}, {}: {cpu_pct} % CPU published, but its service demand implies {implied_pct:.2} %; not fitted",
        cell.row, cell.transport
    ))
}

/// Host of a row, with its kernel configuration, idle states, coalescing and transport. The client is a host like the
/// server, so constants of a load generator do not apply.
fn configured(row: &LowLatencyRow, transport: CellTransport, host: &HostProfile) -> HostProfile {
    let mut host = HostProfile { coalescing: coalescing(row), ..host.clone() };
    let client = &mut host.constants;
    (client.network_jitter_ns, client.ack_delay_ns) = (0.0, 0.0);
    (client.client_tail_share, client.client_tail_slope, client.client_outlier_share) = (0.0, 0.0, 0.0);
    if transport == CellTransport::Udp {
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

fn coalescing(row: &LowLatencyRow) -> SimCoalescing {
    let rx_usecs = match row.rx_usecs.as_str() {
        "adaptive" => ADAPTIVE_USECS,
        usecs => usecs.parse().unwrap_or(0),
    };
    let rx_period = match row.rx_usecs.as_str() {
        "adaptive" => CoalescingPeriod::FirstCompletion,
        _ => CoalescingPeriod::LastInterrupt,
    };
    SimCoalescing { rx_usecs, rx_period, ..SimCoalescing::NONE }
}

/// Number of round trips per second, and CPU use in percent of all hardware threads.
fn round_trips(row: &LowLatencyRow, transport: CellTransport, host: &HostProfile) -> Result<(f64, f64), RunError> {
    const WARM_UP_NS: Ns = 5_000_000;
    const MEASURED_NS: Ns = 50_000_000;
    let mode = if row.kernel == "patched" { BUSY_POLL } else { "base" };
    let mode = mode.parse::<DeliveryMode>().unwrap_or_default();
    let run = Run {
        server: ServerKind::BlockingReceive,
        irqs_apart: true,
        warm_up_ns: WARM_UP_NS,
        measured_ns: MEASURED_NS,
        ..Run::new(mode, configured(row, transport, host), TrafficKind::Mirrored, 1)
    };
    let result = run.simulate()?;
    let cpu = result.cpu;
    let accounted_ns = cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns;
    Ok((result.qps, 100.0 * accounted_ns as f64 / MEASURED_NS as f64 / HARDWARE_THREADS))
}
