//! Scores of the model: the error of each cell. For each column, also the median and the 90th percentile over the
//! informative cells.

use quell_mode::DeliveryMode;
use quell_published::PublishedCell;
use quell_sim::{Column, Figures, Load};
use serde::Serialize;

/// Modes to which the published host's constants were fitted.
pub const TRAINING: [&str; 4] = ["base", "defer200", "fullbusy", "suspend20"];
/// Coefficient of variation of the mean latency across published runs, in percent. Above it, a cell is unstable.
const UNSTABLE_COV_PCT: f64 = 14.0;
/// CPU use in percent at which a cell becomes trivial.
const FULL_CPU_PCT: f64 = 99.0;
/// Share of softirqs in percent below which a relative error is meaningless.
const LEAST_SOFTIRQ_PCT: f64 = 3.0;
/// Throughput relative to the offered load at which the server satisfies the load.
const LOAD_MET: f64 = 0.99;

#[derive(Debug, Clone, PartialEq)]
pub struct ComparedCell {
    pub mode: DeliveryMode,
    pub load: Load,
    pub published: Figures,
    /// Modelled metrics: the median of each over the runs.
    pub modelled: Figures,
    /// Modelled metrics of each run; the runs differ in their seed.
    pub runs: Vec<Figures>,
    /// Coefficient of variation of the published mean latency, in percent.
    pub mean_cov_pct: f64,
}

impl ComparedCell {
    /// Combines a published cell with the modelled metrics of its runs. `None` if there are no runs.
    #[must_use]
    pub fn new(published: &PublishedCell, runs: Vec<Figures>) -> Option<Self> {
        Some(Self {
            mode: published.mode,
            load: published.load,
            published: published.figures,
            modelled: Figures::median(&runs)?,
            runs,
            mean_cov_pct: published.mean_cov_pct,
        })
    }

    /// Lowest and highest modelled value of a column over the runs.
    #[must_use]
    pub fn spread(&self, column: Column) -> (f64, f64) {
        lowest_and_highest(self.runs.iter().map(|run| column.of(run)))
    }

    #[must_use]
    pub fn error(&self, column: Column) -> f64 {
        column.of(&self.modelled) / column.of(&self.published) - 1.0
    }

    /// Whether the published runs agree with each other.
    #[must_use]
    pub fn stable(&self) -> bool {
        self.mean_cov_pct <= UNSTABLE_COV_PCT
    }

    /// Whether the cell is informative about a column: it is stable and not trivial.
    #[must_use]
    pub fn counts(&self, column: Column) -> bool {
        let nontrivial = match column {
            Column::Qps => match self.load {
                Load::Max => true,
                Load::Qps(qps) => self.published.qps < LOAD_MET * qps,
            },
            Column::Cpu => self.published.cpu_pct < FULL_CPU_PCT,
            Column::Softirq => self.published.softirq_pct >= LEAST_SOFTIRQ_PCT,
            Column::Mean => self.load != Load::Max,
            _ => true,
        };
        nontrivial && self.stable()
    }
}

/// A metric of a mode relative to `base` at the same load, which is what a choice between modes depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioCell {
    pub mode: DeliveryMode,
    pub load: Load,
    pub column: Column,
    pub published: f64,
    /// Modelled ratio: the median over the seeds, each with both modes.
    pub modelled: f64,
    pub spread: (f64, f64),
    /// Whether both cells are stable and the ratio is not trivial.
    pub counts: bool,
}

impl RatioCell {
    fn new(cell: &ComparedCell, base: &ComparedCell, column: Column) -> Option<Self> {
        let ratios: Vec<f64> =
            cell.runs.iter().zip(&base.runs).map(|(run, base)| column.of(run) / column.of(base)).collect();
        let nontrivial = match column {
            // A mode that occupies its CPUs completely still tells the CPU use of `base`.
            Column::Cpu => base.counts(column),
            _ => cell.counts(column) && base.counts(column),
        };
        Some(Self {
            mode: cell.mode,
            load: cell.load,
            column,
            published: column.of(&cell.published) / column.of(&base.published),
            spread: lowest_and_highest(ratios.iter().copied()),
            modelled: median(ratios)?,
            counts: nontrivial && cell.stable() && base.stable(),
        })
    }

    /// Relative error of the ratio. 0.1 means 10 % too high.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.modelled / self.published - 1.0
    }
}

/// Ratios of all modes to `base` at the same load, in the columns with goals.
#[must_use]
pub fn ratios_to_base(cells: &[ComparedCell]) -> Vec<RatioCell> {
    let is_base = |cell: &&ComparedCell| cell.mode == DeliveryMode::default();
    let base_at = |load: Load| cells.iter().filter(is_base).find(|cell| cell.load == load);
    let others = cells.iter().filter(|cell| !is_base(cell));
    let pairs = others.filter_map(|cell| Some((cell, base_at(cell.load)?)));
    let columns = || Column::ALL.into_iter().filter(|&column| wanted_ratio_errors(column).is_some());
    pairs.flat_map(|(cell, base)| columns().filter_map(|column| RatioCell::new(cell, base, column))).collect()
}

/// Scores of the ratios to `base`, over all modes.
#[must_use]
pub fn score_ratios(ratios: &[RatioCell]) -> Scored {
    let errors = |column: Column| {
        let of_column = ratios.iter().filter(|ratio| ratio.column == column && ratio.counts);
        of_column.map(|ratio| ratio.error().abs()).collect()
    };
    Scored { columns: Column::ALL.into_iter().filter_map(|column| column_score(column, errors(column))).collect() }
}

/// Goals for the median and the 90th percentile of the errors of ratios to `base`. `None` for columns without ratios.
#[must_use]
pub fn wanted_ratio_errors(column: Column) -> Option<(f64, f64)> {
    match column {
        Column::Mean | Column::P50 | Column::Cycles => Some((0.04, 0.12)),
        Column::P95 => Some((0.04, 0.20)),
        Column::Cpu => Some((0.04, 0.08)),
        _ => None,
    }
}

/// Whether the fit did not use this mode.
#[must_use]
pub fn held_out(mode: &DeliveryMode) -> bool {
    !TRAINING.contains(&mode.to_string().as_str())
}

/// Goals for the median and the 90th percentile of a column's errors. `None` if there is no goal.
#[must_use]
pub fn wanted_errors(column: Column) -> Option<(f64, f64)> {
    match column {
        Column::Mean => Some((0.04, 0.10)),
        Column::P50 => Some((0.04, 0.12)),
        Column::P95 => Some((0.06, 0.20)),
        Column::Cpu | Column::Cycles => Some((0.03, 0.08)),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ColumnScore {
    pub column: Column,
    pub cells: usize,
    pub median: f64,
    pub p90: f64,
    /// Share of cells with an error of at most 25 %, in percent.
    pub within_25_pct: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scored {
    /// One score per column with informative cells.
    pub columns: Vec<ColumnScore>,
}

/// Computes the scores of the cells that `which` selects.
pub fn score(cells: &[ComparedCell], which: impl Fn(&ComparedCell) -> bool) -> Scored {
    let columns = Column::ALL
        .into_iter()
        .filter_map(|column| {
            let errors: Vec<f64> = cells
                .iter()
                .filter(|cell| which(cell) && cell.counts(column))
                .map(|cell| cell.error(column).abs())
                .collect();
            column_score(column, errors)
        })
        .collect();
    Scored { columns }
}

fn column_score(column: Column, mut errors: Vec<f64>) -> Option<ColumnScore> {
    errors.sort_by(f64::total_cmp);
    let within = errors.iter().filter(|&&error| error <= 0.25).count();
    Some(ColumnScore {
        column,
        cells: errors.len(),
        median: quantile(&errors, 0.5)?,
        p90: quantile(&errors, 0.9)?,
        within_25_pct: 100.0 * within as f64 / errors.len() as f64,
    })
}

fn lowest_and_highest(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// `None` without values.
pub(super) fn median(values: Vec<f64>) -> Option<f64> {
    quantile_of(values, 0.5)
}

/// Interpolated quantile of unsorted values; `None` without any.
pub(super) fn quantile_of(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile(&values, share)
}

/// Interpolated quantile of sorted values; `None` without any.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = share * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

#[cfg(test)]
mod tests {
    use quell_published::irq_suspension_cells;

    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0, 3.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[], 0.5), None);
    }

    fn cell(mode: &str, published: f64, runs: &[f64]) -> ComparedCell {
        let cells = irq_suspension_cells().expect("the data ships");
        let load = Load::Qps(200e3);
        let is_mode = |cell: &&PublishedCell| cell.mode.to_string() == mode && cell.load == load;
        let mut of_mode = cells.iter().find(is_mode).expect("a published mode").clone();
        of_mode.figures.p50_us = published;
        let runs = runs.iter().map(|&p50_us| Figures { p50_us, ..of_mode.figures }).collect();
        ComparedCell::new(&of_mode, runs).expect("there are runs")
    }

    #[test]
    fn a_ratio_to_base_is_the_median_over_the_seeds_and_counts_for_every_mode() {
        let cells = [cell("base", 100.0, &[80.0, 100.0, 160.0]), cell("suspend20", 50.0, &[60.0, 50.0, 80.0])];
        let ratios = ratios_to_base(&cells);
        let ratio = ratios.iter().find(|ratio| ratio.column == Column::P50).expect("a column with a goal");
        assert_eq!((ratio.modelled, ratio.spread, ratio.published), (0.5, (0.5, 0.75), 0.5));
        assert!(ratio.counts && ratio.error() == 0.0);
        assert_eq!(score_ratios(&ratios).columns.len(), 5);
    }

    #[test]
    fn a_cell_is_the_median_of_its_runs_and_knows_their_spread() {
        let cell = cell("base", 100.0, &[160.0, 80.0, 100.0]);
        assert_eq!((cell.modelled.p50_us, cell.spread(Column::P50)), (100.0, (80.0, 160.0)));
    }

    #[test]
    fn training_modes_are_not_held_out() {
        let mode = |text: &str| text.parse::<DeliveryMode>().expect("a mode");
        assert!(!held_out(&mode("suspend20")) && held_out(&mode("suspend50")));
    }
}
