//! Common interface to all published experiments: title, source, runs, and each published cell with the modelled one
//! and its error.

use std::fmt;
use std::str::FromStr;

use quell_mode::DeliveryMode;
use quell_sim::{Column, HostProfile, HostProfileError, RunError, RunScale};
use serde::Serialize;

use super::irq_suspension::{IrqSuspension, PublishedError};
use super::score::{ColumnScore, ComparedCell, RatioCell, Scored, wanted_errors, wanted_ratio_errors};
use super::{event_busy_loop, low_latency_sockets, threaded_napi};

/// Schema of an [`ExperimentComparison`].
const SCHEMA: &str = "quell-sim-published-1";
/// Number of seeds of experiment (a). Figures are medians over them.
const SEEDS: u64 = 5;

/// A published experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// IRQ suspension, 2024: memcached with 11 modes at 6 loads.
    A,
    /// Low-latency sockets, 2013: netperf with 11 configurations, TCP and UDP.
    B,
    /// Threaded NAPI busy polling, 2025: `xsk_rr` with 4 mechanisms in 5 experiments.
    C,
    /// Busy loop for events in `epoll_wait` or in the program, 2024: neper tcp_rr with various message sizes.
    D,
}

/// Error for the name of an unknown experiment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown experiment `{0}`: {list}", list = Experiment::list())]
pub struct ParseExperimentError(String);

impl FromStr for Experiment {
    type Err = ParseExperimentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|experiment| experiment.letter().eq_ignore_ascii_case(text));
        known.ok_or_else(|| ParseExperimentError(text.to_owned()))
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.letter())
    }
}

/// Why an experiment cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The published data is malformed.
    #[error(transparent)]
    Data(#[from] PublishedError),
    /// The host profile is invalid.
    #[error(transparent)]
    Profile(#[from] HostProfileError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// How the error of a cell is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Relative to the published value. 0.1 means 10 % too high.
    Relative,
    /// Difference in the cell's unit.
    Difference,
}

/// A published value with the modelled one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Name of the run: a mode at a load, a configuration, or a message size.
    pub row: String,
    /// Name of the metric, with its unit.
    pub column: String,
    /// Published value.
    pub published: f64,
    /// Modelled value, the median over the seeds.
    pub modelled: f64,
    /// Lowest and highest modelled value over the seeds. Absent if there is only one run.
    pub spread: Option<(f64, f64)>,
    /// How `error` is computed.
    pub error_kind: ErrorKind,
    /// Error of the modelled value.
    pub error: f64,
    /// Whether the cell counts in the summary. Trivial, unstable and training cells do not count.
    pub scored: bool,
    /// Goal: maximum absolute error. Absent if there is no goal.
    pub bound: Option<f64>,
}

impl Cell {
    pub(super) fn relative(row: String, column: &str, published: f64, modelled: f64) -> Self {
        let error = modelled / published - 1.0;
        let error_kind = ErrorKind::Relative;
        let column = column.to_owned();
        Self { row, column, published, modelled, spread: None, error_kind, error, scored: true, bound: None }
    }

    /// Whether a scored cell misses its goal.
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.scored && self.bound.is_some_and(|bound| self.error.abs() > bound)
    }
}

/// One line of a summary: a statistic of many cells and its goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the statistic, with its unit.
    pub what: String,
    /// Value of the statistic.
    pub value: f64,
    /// Kind of errors from which the statistic is computed.
    pub error_kind: ErrorKind,
    /// Goal: maximum value. Absent if there is no goal.
    pub bound: Option<f64>,
}

impl Summary {
    pub(super) fn new(what: impl Into<String>, value: f64, bound: Option<f64>) -> Self {
        Self { what: what.into(), value, error_kind: ErrorKind::Relative, bound }
    }

    /// Creates a summary of differences; see [`Summary::new`].
    pub(super) fn of_differences(what: impl Into<String>, value: f64, bound: Option<f64>) -> Self {
        Self { error_kind: ErrorKind::Difference, ..Self::new(what, value, bound) }
    }

    /// Whether the value reaches its goal. `None` if there is no goal.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|bound| self.value <= bound)
    }
}

/// Comparison of a whole experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExperimentComparison {
    /// Schema of this value: `quell-sim-published-1`.
    pub schema: &'static str,
    /// Published experiment.
    pub experiment: Experiment,
    /// Title of the experiment.
    pub title: &'static str,
    /// Publication with the measurements.
    pub source: &'static str,
    /// Name of the modelled host.
    pub host: String,
    /// All cells of the experiment.
    pub cells: Vec<Cell>,
    /// Summary of the cells.
    pub summary: Vec<Summary>,
    /// Notes on the published data: contradictions, and cells that were not compared.
    pub notes: Vec<String>,
}

impl Experiment {
    /// All experiments.
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    fn list() -> String {
        Self::ALL.map(|experiment| format!("{experiment} ({})", experiment.title())).join(", ")
    }

    fn letter(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
        }
    }

    /// Title of the experiment.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::A => "IRQ suspension: memcached under 11 delivery modes at 6 loads",
            Self::B => "low-latency sockets of 2013: netperf TCP_RR and UDP_RR, 1 byte",
            Self::C => "threaded NAPI busy polling: xsk_rr under 4 mechanisms in 5 experiments",
            Self::D => "looping for events in epoll_wait or in the program: neper tcp_rr, 8 message sizes",
        }
    }

    /// Publication with the measurements.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::A => "Suspend IRQs during application busy periods v2, netdev, October 2024; raw runs",
            Self::B => "net: low latency Ethernet device polling v10, netdev, June 2013",
            Self::C => "Add support to do threaded napi busy poll v10, netdev, October 2025",
            Self::D => "Add provision to busyloop for events in ep_poll, netdev, September 2024",
        }
    }

    /// Name of the shipped profile for the host of the measurements.
    #[must_use]
    pub fn host(self) -> &'static str {
        match self {
            Self::A => "epyc7662-cx5",
            Self::B => "xeon-e5-2680-82599",
            Self::C => "af-xdp-2025",
            Self::D => "neper-2024",
        }
    }

    /// Simulates the experiment on its own host profile, on up to `threads` threads, and compares the results. Any
    /// thread may call `progress` with the number of finished runs and the number of all runs.
    ///
    /// # Errors
    ///
    /// When the data or the profile is invalid, or a run fails.
    pub fn run(
        self,
        threads: usize,
        progress: impl Fn(usize, usize) + Sync,
    ) -> Result<ExperimentComparison, ExperimentError> {
        self.run_on(HostProfile::shipped(self.host())?, threads, progress)
    }

    /// Simulates the experiment like [`Experiment::run`], but on another host profile.
    ///
    /// # Errors
    ///
    /// When the data is invalid or a run fails.
    pub fn run_on(
        self,
        host: HostProfile,
        threads: usize,
        progress: impl Fn(usize, usize) + Sync,
    ) -> Result<ExperimentComparison, ExperimentError> {
        let (cells, summary, notes) = match self {
            Self::A => irq_suspension(&host, threads, progress)?,
            Self::B => low_latency_sockets::compare(&host, threads, progress)?,
            Self::C => threaded_napi::compare(&host, threads, progress)?,
            Self::D => event_busy_loop::compare(&host, threads, progress)?,
        };
        let (title, source) = (self.title(), self.source());
        Ok(ExperimentComparison {
            schema: SCHEMA,
            experiment: self,
            title,
            source,
            host: host.name,
            cells,
            summary,
            notes,
        })
    }
}

/// Cells, summary and notes of an experiment.
pub(super) type Compared = (Vec<Cell>, Vec<Summary>, Vec<String>);

fn irq_suspension(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let experiment = IrqSuspension::published()?;
    let runs = experiment.cells.len() * SEEDS as usize;
    let comparison = experiment.compare(host, RunScale::FULL, SEEDS, threads, |done| progress(done, runs))?;
    let figures = comparison.cells.iter().flat_map(|cell| Column::ALL.map(|column| figure(cell, column)));
    let cells = figures.chain(comparison.ratios.iter().map(ratio)).collect();
    let scores = [
        (&comparison.held_out, "", "held-out modes", wanted_errors as Goals),
        (&comparison.base, "", "base", wanted_errors),
        (&comparison.to_base, TO_BASE, "all modes", wanted_ratio_errors),
    ];
    let summary = scores.iter().flat_map(|(scored, suffix, which, goals)| summaries(scored, suffix, which, *goals));
    let unstable = comparison.cells.iter().filter(|cell| !cell.stable());
    let note = |cell: &ComparedCell| {
        let (mode, load, variation) = (cell.mode, cell.load, cell.mean_cov_pct);
        format!("{mode} {load}: the published runs vary by {variation:.0} %; not scored")
    };
    let notes = unstable.map(note).collect();
    Ok((cells, summary.collect(), notes))
}

/// Addition to the heading of a column whose values are relative to `base` at the same load.
const TO_BASE: &str = " / base";

fn figure(cell: &ComparedCell, column: Column) -> Cell {
    let row = format!("{} {}", cell.mode, cell.load);
    let (published, modelled) = (column.of(&cell.published), column.of(&cell.modelled));
    let scored = (super::held_out(&cell.mode) || cell.mode == DeliveryMode::default()) && cell.counts(column);
    let (bound, spread) = (cell_bound(column), Some(cell.spread(column)));
    Cell { scored, bound, spread, ..Cell::relative(row, column.heading(), published, modelled) }
}

fn ratio(ratio: &RatioCell) -> Cell {
    let row = format!("{} {}", ratio.mode, ratio.load);
    let column = format!("{}{TO_BASE}", ratio.column.heading());
    let (scored, spread) = (ratio.counts, Some(ratio.spread));
    let bound = wanted_ratio_errors(ratio.column).map(|(_, p90)| p90);
    Cell { scored, bound, spread, ..Cell::relative(row, &column, ratio.published, ratio.modelled) }
}

/// Goal for the error that nine of ten cells must reach.
fn cell_bound(column: Column) -> Option<f64> {
    match column {
        Column::Qps => Some(0.07),
        Column::PollWork | Column::Polls | Column::EpollEvents => Some(0.25),
        _ => wanted_errors(column).map(|(_, p90)| p90),
    }
}

/// Goals of a column for the median and the 90th percentile of its errors.
type Goals = fn(Column) -> Option<(f64, f64)>;

/// Median and 90th percentile of the errors in each column, with their goals.
fn summaries(scored: &Scored, suffix: &str, which: &str, goals: Goals) -> Vec<Summary> {
    let lines = |score: &ColumnScore| {
        let (heading, bounds) = (score.column.heading(), goals(score.column));
        let median = format!("{heading}{suffix}: median error, {which}");
        let p90 = format!("{heading}{suffix}: 90th percentile, {which}");
        [
            Summary::new(median, score.median, bounds.map(|(median, _)| median)),
            Summary::new(p90, score.p90, bounds.map(|(_, p90)| p90)),
        ]
    };
    scored.columns.iter().flat_map(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_named_by_its_letter() {
        for experiment in Experiment::ALL {
            assert_eq!(experiment.to_string().parse(), Ok(experiment));
        }
        let error = "z".parse::<Experiment>().expect_err("there is no such experiment").to_string();
        assert!(error.contains("`z`") && error.contains("memcached"), "{error}");
    }

    #[test]
    fn a_summary_without_a_goal_neither_reaches_nor_misses_it() {
        assert_eq!(Summary::new("median", 0.2, None).met(), None);
        assert_eq!(Summary::new("median", 0.2, Some(0.1)).met(), Some(false));
    }
}
