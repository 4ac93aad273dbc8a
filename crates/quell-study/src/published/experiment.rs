//! Common interface to the comparisons of all published experiments: each published cell with the modelled one
//! and its error.

use quell_mode::DeliveryMode;
use quell_published::{Experiment, PublishedError, irq_suspension_cells};
use quell_sim::{Column, HostProfile, RunError, RunScale};
use serde::Serialize;

use super::score::{ColumnScore, ComparedCell, RatioCell, Scored, wanted_errors, wanted_ratio_errors};
use super::{event_busy_loop, irq_suspension, low_latency_sockets, threaded_napi};

/// Number of seeds of experiment (a). Figures are medians over them.
const SEEDS: u64 = 5;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    #[error(transparent)]
    Data(#[from] PublishedError),
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
    pub column: String,
    pub published: f64,
    /// Modelled value, the median over the seeds.
    pub modelled: f64,
    /// Lowest and highest modelled value over the seeds. Absent if there is only one run.
    pub spread: Option<(f64, f64)>,
    pub error_kind: ErrorKind,
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
    pub what: String,
    pub value: f64,
    pub error_kind: ErrorKind,
    /// Goal: maximum value. Absent if there is no goal.
    pub bound: Option<f64>,
}

impl Summary {
    pub(super) fn new(what: impl Into<String>, value: f64, bound: Option<f64>) -> Self {
        Self { what: what.into(), value, error_kind: ErrorKind::Relative, bound }
    }

    pub(super) fn of_differences(what: impl Into<String>, value: f64, bound: Option<f64>) -> Self {
        Self { error_kind: ErrorKind::Difference, ..Self::new(what, value, bound) }
    }

    #[must_use]
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|bound| self.value <= bound)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExperimentComparison {
    pub experiment: Experiment,
    pub title: &'static str,
    pub source: &'static str,
    pub host: String,
    pub cells: Vec<Cell>,
    pub summary: Vec<Summary>,
    /// Notes on the published data: contradictions, and cells that were not compared.
    pub notes: Vec<String>,
}

/// Name of the shipped profile for the host of the measurements.
#[must_use]
pub fn host_of(experiment: Experiment) -> &'static str {
    match experiment {
        Experiment::A => "epyc7662-cx5",
        Experiment::B => "xeon-e5-2680-82599",
        Experiment::C => "af-xdp-2025",
        Experiment::D => "neper-2024",
    }
}

/// Simulates an experiment on a host, on up to `threads` threads, and compares the results. Any thread may call
/// `progress` with the number of finished runs and the number of all runs.
pub fn compare(
    experiment: Experiment,
    host: HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<ExperimentComparison, ExperimentError> {
    let (cells, summary, notes) = match experiment {
        Experiment::A => compare_irq_suspension(&host, threads, progress)?,
        Experiment::B => low_latency_sockets::compare(&host, threads, progress)?,
        Experiment::C => threaded_napi::compare(&host, threads, progress)?,
        Experiment::D => event_busy_loop::compare(&host, threads, progress)?,
    };
    let (title, source) = (experiment.title(), experiment.source());
    Ok(ExperimentComparison { experiment, title, source, host: host.name, cells, summary, notes })
}

pub(super) type Compared = (Vec<Cell>, Vec<Summary>, Vec<String>);

fn compare_irq_suspension(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let cells = irq_suspension_cells()?;
    let runs = cells.len() * SEEDS as usize;
    let comparison =
        irq_suspension::irq_suspension(&cells, host, RunScale::FULL, SEEDS, threads, |done| progress(done, runs))?;
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
    fn a_summary_without_a_goal_neither_reaches_nor_misses_it() {
        assert_eq!(Summary::new("median", 0.2, None).met(), None);
        assert_eq!(Summary::new("median", 0.2, Some(0.1)).met(), Some(false));
    }
}
