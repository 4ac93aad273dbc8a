//! Published experiment (a), 2024: IRQ suspension, measured with memcached and 11 modes at 6 loads. This module reads
//! the data and compares it with runs of the model.

use quell_mode::DeliveryMode;
use quell_sim::sweep::in_parallel;
use quell_sim::{Figures, HostProfile, InvalidLoad, Load, Run, RunError, RunResult, RunScale};
use serde::{Deserialize, Serialize};

use super::score::{ComparedCell, RatioCell, Scored, held_out, ratios_to_base, score, score_ratios};

/// Why published data is malformed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishedError {
    /// A file is not valid CSV.
    #[error("{file}: {source}")]
    Csv {
        /// Name of the data file.
        file: &'static str,
        /// Error of the CSV parser, with the line.
        source: csv::Error,
    },
    /// The data contains an unknown mode.
    #[error("{file}: {source}")]
    Mode {
        /// Name of the data file.
        file: &'static str,
        /// Why the mode is invalid.
        source: quell_mode::ParseModeError,
    },
    /// The data contains an invalid load.
    #[error("{file}: {source}")]
    Load {
        /// Name of the data file.
        file: &'static str,
        /// Why the load is invalid.
        source: InvalidLoad,
    },
    /// The two data files contain different cells.
    #[error("the two data files of the experiment differ in their cells at {0}")]
    Mismatch(String),
}

/// One published cell.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCell {
    /// Delivery mode.
    pub mode: DeliveryMode,
    /// Offered load.
    pub load: Load,
    /// Published metrics.
    pub figures: Figures,
    /// Coefficient of variation of the mean latency across the published runs, in percent.
    pub mean_cov_pct: f64,
    /// Instructions per request, which the model does not count. Absent if the table has no such column.
    pub instructions_per_query: Option<f64>,
}

#[derive(Deserialize)]
struct Row {
    case: String,
    load_qps: String,
    qps_mean: f64,
    lat_avg_us: f64,
    lat_p50_us: f64,
    lat_p95_us: f64,
    lat_p99_us: f64,
    cpu_pct: f64,
    cycles_per_query: f64,
    #[serde(default)]
    instructions_per_query: Option<f64>,
    irqs_per_s: f64,
    napi_poll_work_mean: f64,
    epoll_events_mean: f64,
}

#[derive(Deserialize)]
struct MoreRow {
    case: String,
    load_qps: String,
    lat_avg_cov_pct: f64,
    soft_pct: f64,
    napi_polls_per_s_per_queue: f64,
    napi_polls_zero_pct: f64,
}

/// Factor on the duration of a run under adaptive moderation.
const MODERATED_FACTOR: u64 = 5;

const TABLE: &str = "irq-suspension.csv";
const MORE: &str = "irq-suspension-more.csv";

pub(super) fn rows<T: for<'de> Deserialize<'de>>(file: &'static str, text: &str) -> Result<Vec<T>, PublishedError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().map_err(|source| PublishedError::Csv { file, source })
}

/// All cells of the experiment.
#[derive(Debug, Clone)]
pub struct IrqSuspension {
    /// Published cells, in the order of the data file.
    pub cells: Vec<PublishedCell>,
}

impl IrqSuspension {
    /// Reads the published data.
    ///
    /// # Errors
    ///
    /// When the data is malformed.
    pub fn published() -> Result<Self, PublishedError> {
        Self::from_csv(
            include_str!("../../data/irq-suspension.csv"),
            include_str!("../../data/irq-suspension-more.csv"),
        )
    }

    /// Reads a table, and a second file with more metrics of the same cells.
    ///
    /// # Errors
    ///
    /// When the data is malformed.
    pub fn from_csv(table: &str, more: &str) -> Result<Self, PublishedError> {
        let table: Vec<Row> = rows(TABLE, table)?;
        let more: Vec<MoreRow> = rows(MORE, more)?;
        let cells = table.into_iter().map(|row| cell(row, &more)).collect::<Result<_, _>>()?;
        Ok(Self { cells })
    }
}

impl PublishedCell {
    /// Run of the cell. Under adaptive moderation it is longer: moderation stays in one profile for up to hundreds of
    /// ms, and the tail of a short run is that of one profile. Published runs last for seconds.
    #[must_use]
    pub fn run(&self, host: &HostProfile, scale: RunScale) -> Run {
        let factor = if self.mode.napi().defers() { 1 } else { MODERATED_FACTOR };
        let scale = RunScale { measured_ns: factor * scale.measured_ns, ..scale };
        Run::memcached(self.mode, self.load, host, scale)
    }
}

/// Schema of a [`Comparison`].
const COMPARISON_SCHEMA: &str = "quell-sim-published-a-1";

/// Comparison of all cells with the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Schema of this value: `quell-sim-published-a-1`.
    pub schema: &'static str,
    /// Name of the modelled host.
    pub host: String,
    /// First seed of the runs.
    pub seed: u64,
    /// Number of consecutive seeds. The metrics of a cell are medians over them.
    pub seeds: u64,
    /// All cells.
    pub cells: Vec<ComparedCell>,
    /// Ratios of all modes to `base` at the same load.
    pub ratios: Vec<RatioCell>,
    /// Scores of the modes to which the host's constants were fitted.
    pub training: Scored,
    /// Scores of all other modes.
    pub held_out: Scored,
    /// Scores of `base`, to which every other mode is compared.
    pub base: Scored,
    /// Scores of the ratios to `base`, over all modes.
    pub to_base: Scored,
    /// Number of simulated events.
    pub events: u64,
}

impl IrqSuspension {
    /// Simulates every cell with `seeds` consecutive seeds, on up to `threads` threads, and compares the medians. Calls
    /// `progress` with the number of finished runs.
    ///
    /// # Errors
    ///
    /// See [`Run::simulate`].
    pub fn compare(
        &self,
        host: &HostProfile,
        scale: RunScale,
        seeds: u64,
        threads: usize,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Comparison, RunError> {
        let seeds = seeds.max(1);
        let simulate = |index: usize| {
            let cell = &self.cells[index / seeds as usize];
            let scale = RunScale { seed: scale.seed + index as u64 % seeds, ..scale };
            cell.run(host, scale).simulate()
        };
        let runs = self.cells.len() * seeds as usize;
        let results: Vec<RunResult> =
            in_parallel(runs, threads, simulate, progress).into_iter().collect::<Result<_, _>>()?;
        let events = results.iter().map(|result| result.events).sum();
        let figures: Vec<Figures> = results.iter().map(|result| result.figures(host.cpus)).collect();
        let pairs = self.cells.iter().zip(figures.chunks(seeds as usize));
        let cells: Vec<_> = pairs.filter_map(|(published, runs)| ComparedCell::new(published, runs.to_vec())).collect();
        let ratios = ratios_to_base(&cells);
        Ok(Comparison {
            schema: COMPARISON_SCHEMA,
            host: host.name.clone(),
            seed: scale.seed,
            seeds,
            training: score(&cells, |cell| !held_out(&cell.mode)),
            held_out: score(&cells, |cell| held_out(&cell.mode)),
            base: score(&cells, |cell| cell.mode == DeliveryMode::default()),
            to_base: score_ratios(&ratios),
            cells,
            ratios,
            events,
        })
    }
}

fn cell(row: Row, more: &[MoreRow]) -> Result<PublishedCell, PublishedError> {
    let more = more
        .iter()
        .find(|more| more.case == row.case && more.load_qps == row.load_qps)
        .ok_or_else(|| PublishedError::Mismatch(format!("{} {}", row.case, row.load_qps)))?;
    Ok(PublishedCell {
        mode: row.case.parse().map_err(|source| PublishedError::Mode { file: TABLE, source })?,
        load: row.load_qps.parse().map_err(|source| PublishedError::Load { file: TABLE, source })?,
        figures: Figures {
            qps: row.qps_mean,
            mean_us: row.lat_avg_us,
            p50_us: row.lat_p50_us,
            p95_us: row.lat_p95_us,
            p99_us: row.lat_p99_us,
            cpu_pct: row.cpu_pct,
            softirq_pct: more.soft_pct,
            cycles_per_query: row.cycles_per_query,
            irqs_per_s: row.irqs_per_s,
            poll_work: row.napi_poll_work_mean,
            polls_per_s: more.napi_polls_per_s_per_queue,
            empty_polls_pct: more.napi_polls_zero_pct,
            epoll_events: row.epoll_events_mean,
        },
        mean_cov_pct: more.lat_avg_cov_pct,
        instructions_per_query: row.instructions_per_query,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_has_eleven_modes_at_six_loads() {
        let experiment = IrqSuspension::published().expect("the data ships");
        assert_eq!(experiment.cells.len(), 66);
    }
}
