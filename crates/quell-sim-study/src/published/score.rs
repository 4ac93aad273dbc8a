//! How near the model comes: the error of each cell, and per column the median and the 90th
//! percentile over those cells that prove something.

use quell_mode::DeliveryMode;
use quell_sim::{Column, Figures, Load};
use serde::Serialize;

use super::irq_suspension::PublishedCell;

/// Modes on which the published host's constants were fitted.
pub const TRAINING: [&str; 4] = ["base", "defer200", "fullbusy", "suspend20"];
/// A cell whose mean latency varies by more than this across the published runs proves nothing, in
/// percent.
const UNSTABLE_COV_PCT: f64 = 14.0;
/// CPU use from which on a cell is trivial, in percent.
const FULL_CPU_PCT: f64 = 99.0;
/// Below this share of softirqs an error relative to it says nothing, in percent.
const LEAST_SOFTIRQ_PCT: f64 = 3.0;
/// A throughput this near the offered load is the offered load.
const LOAD_MET: f64 = 0.99;

/// A cell, published and modelled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedCell {
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The offered load.
    pub load: Load,
    /// What was published.
    pub published: Figures,
    /// What the model says.
    pub modelled: Figures,
    /// Coefficient of variation of the published mean latency, in percent.
    pub mean_cov_pct: f64,
}

impl ComparedCell {
    /// Puts a modelled cell beside the published one.
    #[must_use]
    pub fn new(published: &PublishedCell, modelled: Figures) -> Self {
        Self {
            mode: published.mode,
            load: published.load,
            published: published.figures,
            modelled,
            mean_cov_pct: published.mean_cov_pct,
        }
    }

    /// Error of a column relative to what was published: 0.1 is 10 % too high.
    #[must_use]
    pub fn error(&self, column: Column) -> f64 {
        column.of(&self.modelled) / column.of(&self.published) - 1.0
    }

    /// Whether the published runs agree well enough with each other to be compared with.
    #[must_use]
    pub fn stable(&self) -> bool {
        self.mean_cov_pct <= UNSTABLE_COV_PCT
    }

    /// Whether the cell says something about a column: trivial ones do not.
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

/// Whether a mode was not used to fit the constants.
#[must_use]
pub fn held_out(mode: &DeliveryMode) -> bool {
    !TRAINING.contains(&mode.to_string().as_str())
}

/// Median and 90th percentile of a column's errors that the project aims at, relative; absent where it sets no goal.
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

/// The score of one column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ColumnScore {
    /// The column.
    pub column: Column,
    /// Cells that count.
    pub cells: usize,
    /// Median of the absolute errors.
    pub median: f64,
    /// Their 90th percentile.
    pub p90: f64,
    /// Share of cells whose error is at most 25 %.
    pub within_25_pct: f64,
}

/// The scores of all columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scored {
    /// One of each column for which a cell counts.
    pub columns: Vec<ColumnScore>,
}

/// Scores the cells for which `which` holds.
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

/// The median; absent without values.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// A quantile of sorted values, interpolated between neighbours; absent without values.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = share * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0, 3.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn the_training_modes_are_not_held_out() {
        let mode = |text: &str| text.parse::<DeliveryMode>().expect("a mode");
        assert!(!held_out(&mode("suspend20")) && held_out(&mode("suspend50")));
    }
}
