//! Published experiment (d), 2024. It compares a busy loop for events inside `epoll_wait` with one in the program. The
//! benchmark is neper tcp_rr with various message sizes, 5 threads and 30 flows on two identical hosts. The client
//! takes as long as the server, so the throughput ratio of the two forms depends least on it.

use quell_mode::DeliveryMode;
use quell_published::{EventLoopForm, EventLoopRow, FLOWS, event_loop_rows};
use quell_sim::sweep::in_parallel;
use quell_sim::{
    Assignment, ConnectionSpread, Epolls, HostProfile, KernelRules, MessageSize, Ns, Run, RunError, RunResult,
    ServerKind, TrafficKind,
};

use super::experiment::{Cell, Compared, ErrorKind, ExperimentError, Summary};
use super::score::quantile_of;

/// Number of threads in the server, and in the client.
const WORKERS: usize = 5;
const QUEUES: usize = 32;
/// Segment size in bytes, from the cover letter: "past MSS (4KB)".
const SEGMENT_BYTES: u32 = 4096;
/// Mode that loops until there is an event.
const MODE: &str = "eventspin1000000";
/// Goal: maximum error of a ratio.
const RATIO_BOUND: f64 = 0.03;
/// Columns with their goals for the median and the 90th percentile of the errors: those of a median and of tails in
/// experiment (a). The throughput of a mirrored client is the inverse of a mean latency.
const COLUMNS: [(&str, f64, f64); 5] = [
    ("round trips/s", 0.04, 0.10),
    ("p50 us", 0.04, 0.12),
    ("p90 us", 0.06, 0.20),
    ("p99 us", 0.06, 0.20),
    ("p99.9 us", 0.06, 0.20),
];
/// Number of seeds, over which figures are means. Seeds differ in the connections that share a queue.
const SEEDS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EventLoopCell {
    pub row: EventLoopRow,
    pub throughput_rps: f64,
    /// Modelled latency quantiles in µs: 50 %, 90 %, 99 % and 99.9 %.
    pub latency_us: [f64; 4],
}

/// Throughput ratio of the two forms at one message size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FormRatio {
    pub message_bytes: u32,
    /// Published throughput of the kernel form relative to the user form.
    pub published: f64,
    /// Modelled throughput of the kernel form relative to the user form.
    pub modelled: f64,
}

/// Simulates every row on up to `threads` threads. Calls `progress` with the number of finished rows.
pub fn event_loops(
    rows: &[EventLoopRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<EventLoopCell>, RunError> {
    let cell = |index: usize| {
        let row = rows[index];
        let results = (1..=SEEDS).map(|seed| run(&row, host, seed).simulate()).collect::<Result<Vec<_>, _>>()?;
        let mean = |value: &dyn Fn(&RunResult) -> f64| results.iter().map(value).sum::<f64>() / results.len() as f64;
        let quantile = |result: &RunResult, share| {
            result.latency.quantile(share).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
        };
        Ok(EventLoopCell {
            row,
            throughput_rps: mean(&|result| result.qps),
            latency_us: [0.5, 0.9, 0.99, 0.999].map(|share| mean(&|result| quantile(result, share))),
        })
    };
    in_parallel(rows.len(), threads, cell, progress).into_iter().collect()
}

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

fn run(row: &EventLoopRow, host: &HostProfile, seed: u64) -> Run {
    const WARM_UP_NS: Ns = 5_000_000;
    const MEASURED_NS: Ns = 60_000_000;
    let mode = MODE.parse::<DeliveryMode>().unwrap_or_default();
    Run {
        rules: KernelRules { event_loop_in_epoll_wait: row.form == EventLoopForm::Kernel, ..KernelRules::default() },
        connections: FLOWS,
        server: ServerKind::EventLoop { workers: WORKERS, epolls: Epolls::Own, assignment: Assignment::InTurn },
        irqs_apart: true,
        spread: ConnectionSpread::Hashed,
        message: Some(MessageSize { bytes: row.message_bytes, segment_bytes: SEGMENT_BYTES }),
        warm_up_ns: WARM_UP_NS,
        measured_ns: MEASURED_NS,
        seed,
        ..Run::new(mode, host.clone(), TrafficKind::Mirrored, QUEUES)
    }
}

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
        spread: None,
        error_kind: ErrorKind::Difference,
        error: ratio.modelled - ratio.published,
        scored: true,
        bound: Some(RATIO_BOUND),
    };
    let absolute = |cell: &EventLoopCell| {
        let EventLoopRow { message_bytes, form, throughput_rps, p50_us, p90_us, p99_us, p999_us } = cell.row;
        let published = [throughput_rps, p50_us, p90_us, p99_us, p999_us];
        let [half, nine_tenths, tail, far_tail] = cell.latency_us;
        let modelled = [cell.throughput_rps, half, nine_tenths, tail, far_tail];
        let scored = cell.row.contradiction().is_none();
        let columns = COLUMNS.into_iter().zip(published.into_iter().zip(modelled));
        let cells = columns.map(|((column, _, bound), (published, modelled))| Cell {
            scored,
            bound: Some(bound),
            ..Cell::relative(format!("{message_bytes} bytes, {form}"), column, published, modelled)
        });
        cells.collect::<Vec<_>>()
    };
    let ratios: Vec<_> = form_ratios(&compared).iter().map(ratio).collect();
    let absolute: Vec<_> = compared.iter().flat_map(absolute).collect();
    let greatest = ratios.iter().map(|cell| cell.error.abs()).fold(0.0, f64::max);
    let summary = Summary::of_differences("maximum error of the ratio", greatest, Some(RATIO_BOUND));
    let summary = std::iter::once(summary).chain(COLUMNS.into_iter().flat_map(|column| scores(&absolute, column)));
    let notes = rows.iter().filter_map(contradiction_note).collect();
    Ok((ratios.into_iter().chain(absolute.iter().cloned()).collect(), summary.collect(), notes))
}

/// Median and 90th percentile of the errors of a column.
fn scores(cells: &[Cell], (column, median, p90): (&str, f64, f64)) -> Vec<Summary> {
    let errors = || cells.iter().filter(|cell| cell.scored && cell.column == column).map(|cell| cell.error.abs());
    let line = |share, what: &str, bound| {
        Some(Summary::new(format!("{column}: {what}"), quantile_of(errors().collect(), share)?, Some(bound)))
    };
    [line(0.5, "median error", median), line(0.9, "90th percentile", p90)].into_iter().flatten().collect()
}

fn contradiction_note(row: &EventLoopRow) -> Option<String> {
    let implied_us = row.contradiction()?;
    Some(format!(
        "{} bytes, {}: {} us median published, but {FLOWS} flows at {} a second imply a mean of {implied_us:.0} us",
        row.message_bytes, row.form, row.p50_us, row.throughput_rps
    ))
}
