//! Published experiment (c), 2025: threaded NAPI busy polling. The benchmark is `xsk_rr` on two hosts. One of four
//! mechanisms polls their queues.

use quell_published::{PollMechanism, ThreadedNapiRow, threaded_napi_rows, xsk_rr_percentiles};
use quell_sim::sweep::in_parallel;
use quell_sim::{HostProfile, Ns, RunError, XskPolling, XskRoundTrips};

use super::experiment::{Cell, Compared, ErrorKind, ExperimentError, Summary};

/// Goal: maximum error of the difference from the threaded mechanism, in µs.
const DIFFERENCE_BOUND_US: f64 = 1.0;
/// Goal: maximum error of the printed median.
const LATENCY_BOUND: f64 = 0.08;
const MEDIAN_COLUMN: &str = "p50 ns";

fn polling(mechanism: PollMechanism) -> XskPolling {
    match mechanism {
        PollMechanism::Interrupts => XskPolling::Interrupts,
        PollMechanism::Inline => XskPolling::BusyPoll,
        PollMechanism::Separate => XskPolling::BusyPollThread,
        PollMechanism::Threaded => XskPolling::ThreadedBusyPoll,
    }
}

/// Latencies in ns that `xsk_rr` prints as quantiles: 5 %, 50 %, 95 % and 99 %.
pub type LatencyQuantiles = [f64; 4];
const MEDIAN: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadedNapiCell {
    pub row: ThreadedNapiRow,
    pub modelled: LatencyQuantiles,
}

/// Simulates every row on up to `threads` threads. Calls `progress` with the number of finished rows.
pub fn threaded_napi(
    rows: &[ThreadedNapiRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<ThreadedNapiCell>, RunError> {
    let cell = |index: usize| Ok(ThreadedNapiCell { row: rows[index], modelled: latency(&rows[index], host)? });
    in_parallel(rows.len(), threads, cell, progress).into_iter().collect()
}

/// The four mechanisms in one experiment of the published table.
struct Group<'a>(&'a [ThreadedNapiCell]);

impl Group<'_> {
    fn of(&self, mechanism: PollMechanism) -> Option<&ThreadedNapiCell> {
        self.0.iter().find(|cell| cell.row.mechanism == mechanism)
    }

    /// Difference of the median latency from that of the threaded mechanism, in µs: the published and the modelled
    /// value.
    fn above_threaded_us(&self, cell: &ThreadedNapiCell) -> Option<(f64, f64)> {
        let threaded = self.of(PollMechanism::Threaded)?;
        let published = (cell.row.p50_ns - threaded.row.p50_ns) / 1e3;
        Some((published, (cell.modelled[MEDIAN] - threaded.modelled[MEDIAN]) / 1e3))
    }

    fn order(&self, latency_ns: impl Fn(&ThreadedNapiCell) -> f64) -> Vec<PollMechanism> {
        let mut cells: Vec<_> = self.0.iter().collect();
        cells.sort_by(|one, other| latency_ns(one).total_cmp(&latency_ns(other)));
        cells.into_iter().map(|cell| cell.row.mechanism).collect()
    }

    /// Whether the modelled median latencies have the published order.
    fn in_order(&self) -> bool {
        self.order(|cell| cell.row.p50_ns) == self.order(|cell| cell.modelled[MEDIAN])
    }

    fn cells(&self) -> Vec<Cell> {
        let difference = |cell: &ThreadedNapiCell| {
            let (published, modelled) = self.above_threaded_us(cell)?;
            Some(Cell {
                row: cell.row.to_string(),
                column: "p50 above threaded, us".to_owned(),
                published,
                modelled,
                spread: None,
                error_kind: ErrorKind::Difference,
                error: modelled - published,
                scored: cell.row.mechanism != PollMechanism::Threaded,
                bound: Some(DIFFERENCE_BOUND_US),
            })
        };
        let latency = |cell: &ThreadedNapiCell| {
            let ThreadedNapiRow { p5_ns, p50_ns, p95_ns, p99_ns, .. } = cell.row;
            let columns = ["p5 ns", MEDIAN_COLUMN, "p95 ns", "p99 ns"].into_iter().zip([p5_ns, p50_ns, p95_ns, p99_ns]);
            let cells = columns.zip(cell.modelled).map(|((column, published), modelled)| Cell {
                scored: column == MEDIAN_COLUMN,
                bound: (column == MEDIAN_COLUMN).then_some(LATENCY_BOUND),
                ..Cell::relative(cell.row.to_string(), column, published, modelled)
            });
            cells.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(|cell| difference(cell).into_iter().chain(latency(cell))).collect()
    }
}

pub(super) fn compare(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let rows = threaded_napi_rows()?;
    let compared = threaded_napi(&rows, host, threads, |done| progress(done, rows.len()))?;
    let groups: Vec<_> =
        compared.chunk_by(|one, other| one.row.experiment == other.row.experiment).map(Group).collect();
    let cells: Vec<_> = groups.iter().flat_map(Group::cells).collect();
    let greatest = |kind: ErrorKind| {
        let scored = cells.iter().filter(|cell| cell.scored && cell.error_kind == kind);
        scored.map(|cell| cell.error.abs()).fold(0.0, f64::max)
    };
    let out_of_order = groups.iter().filter(|group| !group.in_order()).count();
    let summary = vec![
        Summary::of_differences(
            "maximum error of the difference from threaded, us",
            greatest(ErrorKind::Difference),
            Some(DIFFERENCE_BOUND_US),
        ),
        Summary::new("maximum error of the printed median", greatest(ErrorKind::Relative), Some(LATENCY_BOUND)),
        Summary::of_differences(
            "experiments in which the order of the mechanisms differs",
            out_of_order as f64,
            Some(0.0),
        ),
    ];
    Ok((cells, summary, Vec::new()))
}

fn latency(row: &ThreadedNapiRow, host: &HostProfile) -> Result<LatencyQuantiles, RunError> {
    let run = XskRoundTrips {
        host: host.clone(),
        polling: polling(row.mechanism),
        period_ns: 1e6 / row.rate_kpps,
        delay_ns: (row.delay_us * 1e3) as Ns,
        warm_up_ns: 5_000_000,
        measured_ns: 25_000_000,
    };
    Ok(xsk_rr_percentiles(run.simulate()?.latency.slots()))
}
