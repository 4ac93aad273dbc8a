//! Published experiment (d): looping for events inside `epoll_wait` against looping in the program
//! (2024). neper tcp_rr over message sizes, 5 threads and 30 flows on both hosts. Both are alike, so
//! the client is as slow as the server was; what is compared is the ratio of the two forms.

use std::fmt;

use quell_mode::DeliveryMode;
use quell_sim::sweep::in_parallel;
use quell_sim::{
    Assignment, Epolls, HostProfile, KernelRules, Message, Ns, Run, RunError, Server, Spread, TrafficKind,
};
use serde::{Deserialize, Serialize};

use super::experiment::{Cell, Compared, ErrorKind, ExperimentError, Summary};
use super::irq_suspension::{PublishedError, rows};

const TABLE: &str = "event-busyloop-2024.csv";
/// Threads of the server, and of the client.
const WORKERS: usize = 5;
const FLOWS: usize = 30;
const QUEUES: usize = 32;
/// "past MSS (4KB)".
const SEGMENT_BYTES: u32 = 4096;
/// The loop goes on until there is an event.
const MODE: &str = "eventspin1000000";
/// The greatest that the error of a ratio is to be.
const RATIO_BOUND: f64 = 0.03;
/// How far apart Little's law and the median may be before a row contradicts itself.
const CONTRADICTION: f64 = 0.25;

/// Who loops for events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLoopForm {
    /// `epoll_wait` itself.
    Kernel,
    /// The program, with timeout 0.
    User,
}

impl fmt::Display for EventLoopForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel form",
            Self::User => "user form",
        })
    }
}

/// A published row.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct EventLoopRow {
    /// Bytes of a request, and of a response.
    pub message_bytes: u32,
    /// Who loops.
    pub form: EventLoopForm,
    /// Round trips a second.
    pub throughput_rps: f64,
    /// Median latency in µs.
    pub p50_us: f64,
    /// 90th percentile of the latency in µs.
    pub p90_us: f64,
    /// 99th percentile of the latency in µs.
    pub p99_us: f64,
    /// 99.9th percentile of the latency in µs.
    pub p999_us: f64,
}

impl EventLoopRow {
    /// The mean latency that the throughput of so many flows implies (Little's law), in µs, where
    /// the median is far from it.
    #[must_use]
    pub fn contradiction(&self) -> Option<f64> {
        let implied_us = FLOWS as f64 / self.throughput_rps * 1e6;
        ((self.p50_us / implied_us - 1.0).abs() > CONTRADICTION).then_some(implied_us)
    }
}

/// A row, published and modelled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EventLoopCell {
    /// As published.
    pub row: EventLoopRow,
    /// Modelled round trips a second.
    pub throughput_rps: f64,
    /// Modelled median latency in µs.
    pub p50_us: f64,
}

/// The two forms at one message size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FormRatio {
    /// Bytes of a request, and of a response.
    pub message_bytes: u32,
    /// Throughput of the kernel form over that of the user form, published.
    pub published: f64,
    /// The same, modelled.
    pub modelled: f64,
}

/// Reads the published rows.
///
/// # Errors
///
/// What is wrong with the data, and where.
pub fn event_loop_rows() -> Result<Vec<EventLoopRow>, PublishedError> {
    rows(TABLE, include_str!("../../data/event-busyloop-2024.csv"))
}

/// Simulates every row, on up to `threads` threads. `progress` hears how many are done.
///
/// # Errors
///
/// A run that is not possible.
pub fn event_loops(
    rows: &[EventLoopRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<EventLoopCell>, RunError> {
    let cell = |index: usize| {
        let row = rows[index];
        let result = run(&row, host).simulate()?;
        let p50_us = result.latency.quantile(0.5).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6);
        Ok(EventLoopCell { row, throughput_rps: result.qps, p50_us })
    };
    in_parallel(rows.len(), threads, cell, progress).into_iter().collect()
}

/// The ratio of the two forms at each message size.
#[must_use]
pub fn form_ratios(cells: &[EventLoopCell]) -> Vec<FormRatio> {
    let user =
        |bytes: u32| cells.iter().find(|cell| cell.row.form == EventLoopForm::User && cell.row.message_bytes == bytes);
    let ratio = |kernel: &EventLoopCell| {
        let user = user(kernel.row.message_bytes)?;
        Some(FormRatio {
            message_bytes: kernel.row.message_bytes,
            published: kernel.row.throughput_rps / user.row.throughput_rps,
            modelled: kernel.throughput_rps / user.throughput_rps,
        })
    };
    cells.iter().filter(|cell| cell.row.form == EventLoopForm::Kernel).filter_map(ratio).collect()
}

fn run(row: &EventLoopRow, host: &HostProfile) -> Run {
    const WARM_UP_NS: Ns = 5_000_000;
    const MEASURED_NS: Ns = 60_000_000;
    let mode = MODE.parse::<DeliveryMode>().unwrap_or_default();
    Run {
        rules: KernelRules { event_loop_in_epoll_wait: row.form == EventLoopForm::Kernel, ..KernelRules::default() },
        connections: FLOWS,
        server: Server::EventLoop { workers: WORKERS, epolls: Epolls::Own, assignment: Assignment::InTurn },
        irqs_apart: true,
        spread: Spread::Hashed,
        message: Some(Message { bytes: row.message_bytes, segment_bytes: SEGMENT_BYTES }),
        warm_up_ns: WARM_UP_NS,
        measured_ns: MEASURED_NS,
        ..Run::new(mode, host.clone(), TrafficKind::Mirrored, QUEUES)
    }
}

/// The whole experiment, for [`Experiment::D`](super::Experiment::D).
pub(super) fn compare(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let rows = event_loop_rows()?;
    let compared = event_loops(&rows, host, threads, |done| progress(done, rows.len()))?;
    let ratio = |ratio: &FormRatio| Cell {
        row: format!("{} bytes", ratio.message_bytes),
        column: "kernel form / user form".to_owned(),
        published: ratio.published,
        modelled: ratio.modelled,
        error_kind: ErrorKind::Difference,
        error: ratio.modelled - ratio.published,
        scored: true,
        bound: Some(RATIO_BOUND),
    };
    let throughput = |cell: &EventLoopCell| {
        let row = format!("{} bytes, {}", cell.row.message_bytes, cell.row.form);
        Cell { scored: false, ..Cell::relative(row, "round trips/s", cell.row.throughput_rps, cell.throughput_rps) }
    };
    let ratios: Vec<_> = form_ratios(&compared).iter().map(ratio).collect();
    let greatest = ratios.iter().map(|cell| cell.error.abs()).fold(0.0, f64::max);
    let summary = vec![Summary::of_differences("ratio of the forms: greatest error", greatest, Some(RATIO_BOUND))];
    let notes = rows.iter().filter_map(contradiction_note).collect();
    Ok((ratios.into_iter().chain(compared.iter().map(throughput)).collect(), summary, notes))
}

fn contradiction_note(row: &EventLoopRow) -> Option<String> {
    let implied_us = row.contradiction()?;
    Some(format!(
        "{} bytes, {}: {} us median published, but {FLOWS} flows at {} a second imply a mean of {implied_us:.0} us",
        row.message_bytes, row.form, row.p50_us, row.throughput_rps
    ))
}
