//! Result of a fit as tables: constants before and after, and errors by column for training and held-out cells.

use comfy_table::CellAlignment;
use quell_linux::visible::counted;
use quell_sim::Column;
use quell_study::published::{ColumnScore, Scored, wanted_errors};

use crate::commands::fit::{Errors, Report};
use quell_cli::number;
use quell_cli::table::{align_numbers, new_table, set_gap};
use quell_cli::terminal::Terminal;

const LEGEND: &str = concat!(
    "Errors relative to the published figures, before > after, over scored cells; held out: modes that the fit did ",
    "not use."
);

#[must_use]
pub(crate) fn render(report: &Report, terminal: Terminal) -> String {
    let modes: Vec<String> = report.training_modes.iter().map(ToString::to_string).collect();
    let (before, after) = report.objective;
    let header = format!(
        "fit of {}: {} on {} ({}); sum of squared errors, in tolerances: {} > {}",
        report.host,
        counted(report.constants.len(), "constant"),
        counted(report.training_cells, "cell"),
        modes.join(", "),
        number::short(before),
        number::short(after),
    );
    let prose = |text: &str| textwrap::fill(text, terminal.prose_columns());
    format!("{}\n\n{}\n\n{}\n\n{}\n", prose(&header), constants(report), errors(report), prose(LEGEND))
}

fn constants(report: &Report) -> String {
    let mut grid = new_table();
    grid.set_header(["constant", "before", "after", "change", "unit"]);
    for constant in &report.constants {
        let change = constant.after / constant.before - 1.0;
        let change = if change.is_finite() { format!("{:+.1}%", 100.0 * change) } else { number::ABSENT.to_owned() };
        let [before, after] = [constant.before, constant.after].map(value);
        grid.add_row([constant.name.to_owned(), before, after, change, constant.unit.to_owned()]);
    }
    align_numbers(&mut grid, 1);
    grid.column_iter_mut().skip(4).for_each(|unit| unit.set_cell_alignment(CellAlignment::Left));
    set_gap(&mut grid, 2);
    grid.trim_fmt()
}

/// Formats a constant. Shares are small and get four decimals.
fn value(value: f64) -> String {
    if value.abs() < 1.0 { format!("{value:.4}") } else { number::short(value) }
}

fn errors(report: &Report) -> String {
    let mut grid = new_table();
    grid.set_header(["", "training", "median", "p90", "held out", "median", "p90", "target"]);
    for column in Column::ALL {
        let training = of(report, column, |errors| &errors.training);
        let held_out = of(report, column, |errors| &errors.held_out);
        let wanted = wanted_errors(column).map(|(median, p90)| format!("{:.0} / {:.0} %", 100.0 * median, 100.0 * p90));
        let figures = [training, held_out].concat();
        grid.add_row([column.heading().to_owned()].into_iter().chain(figures).chain([wanted.unwrap_or_default()]));
    }
    align_numbers(&mut grid, 1);
    set_gap(&mut grid, 2);
    grid.trim_fmt()
}

/// Number of cells, median and 90th percentile of a column, before and after.
fn of(report: &Report, column: Column, which: fn(&Errors) -> &Scored) -> Vec<String> {
    let found = |errors| -> Option<ColumnScore> {
        which(errors).columns.iter().find(|score: &&ColumnScore| score.column == column).copied()
    };
    let (Some(before), Some(after)) = (found(&report.before), found(&report.after)) else {
        return vec![number::ABSENT.to_owned(); 3];
    };
    vec![counted(after.cells, "cell"), both(before.median, after.median), both(before.p90, after.p90)]
}

/// Formats errors before and after. A published value of zero has no relative error.
fn both(before: f64, after: f64) -> String {
    if !before.is_finite() || !after.is_finite() {
        return number::ABSENT.to_owned();
    }
    format!("{:.1} > {:.1} %", 100.0 * before, 100.0 * after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fit::FittedConstant;

    fn scored(median: f64) -> Scored {
        Scored { columns: vec![ColumnScore { column: Column::P50, cells: 7, median, p90: 0.1, within_25_pct: 100.0 }] }
    }

    fn report() -> Report {
        let errors = |median| Errors { training: scored(median), held_out: Scored { columns: Vec::new() } };
        let constant = |name, before, after| FittedConstant { name, unit: "ns", before, after };
        Report {
            schema: "quell-study-fit/1",
            host: "a host".into(),
            training_modes: vec!["base".parse().unwrap()],
            training_cells: 6,
            objective: (200.0, 100.0),
            constants: vec![constant("wake_ns", 1000.0, 1100.0), constant("client_tail_share", 0.0, 0.0123)],
            before: errors(0.05),
            after: errors(0.04),
        }
    }

    fn line(shown: &str, start: &str) -> String {
        let line = shown.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn constants_are_shown_before_and_after_with_their_unit() {
        let shown = render(&report(), Terminal::PIPE);
        assert_eq!(line(&shown, "wake_ns"), "wake_ns 1,000 1,100 +10.0% ns");
        assert_eq!(line(&shown, "client_tail_share"), "client_tail_share 0.0000 0.0123 – ns");
    }

    #[test]
    fn an_error_relative_to_zero_is_absent() {
        assert_eq!([both(0.05, 0.04), both(f64::NAN, 0.04)], ["5.0 > 4.0 %", number::ABSENT]);
    }

    #[test]
    fn errors_without_cells_are_absent() {
        let shown = render(&report(), Terminal::PIPE);
        assert_eq!(line(&shown, "p50 us"), "p50 us 7 cells 5.0 > 4.0 % 10.0 > 10.0 % – – – 4 / 12 %");
        assert_eq!(line(&shown, "irqs/s"), "irqs/s – – – – – –");
    }
}
