//! Results of ablation: a row per part and cell, a column per figure, changes in percent.

use quell_sim::Column;
use quell_study::ablation::{AblatedCell, Ablation};

use quell_cli::number;
use quell_cli::table::{align_numbers, new_table, set_gap};
use quell_cli::terminal::Terminal;

/// Smaller changes are not shown.
const SHOWN_MIN: f64 = 0.02;

#[must_use]
pub(crate) fn render(host: &str, cells: &[AblatedCell], terminal: Terminal) -> String {
    let header = format!("model of {host}, each row without one part: changes of at least {:.0} %", 100.0 * SHOWN_MIN);
    let idle: Vec<&str> =
        Ablation::ALL.into_iter().filter(|part| !changes_figures(*part, cells)).map(Ablation::name).collect();
    let note = if idle.is_empty() {
        "Every part changes a figure.".to_owned()
    } else {
        format!("No effect in these cells: {}.", idle.join(", "))
    };
    let [header, note] = [header, note].map(|text| textwrap::fill(&text, terminal.prose_columns()));
    format!("{header}\n\n{}\n\n{note}\n", grid(cells))
}

fn changes_figures(part: Ablation, cells: &[AblatedCell]) -> bool {
    let of_part = cells.iter().filter(|cell| cell.without == part);
    of_part.flat_map(|cell| &cell.changes).any(|(_, change)| change.abs() >= SHOWN_MIN)
}

fn grid(cells: &[AblatedCell]) -> String {
    let mut grid = new_table();
    let headings = Column::ALL.map(Column::short_heading);
    grid.set_header(["without", "mode", "load"].into_iter().chain(headings));
    for part in Ablation::ALL {
        for (index, cell) in cells.iter().filter(|cell| cell.without == part).enumerate() {
            let name = if index == 0 { part.name() } else { "" };
            let changes = Column::ALL.map(|column| change(cell, column));
            grid.add_row([name.to_owned(), cell.mode.to_string(), cell.load.to_string()].into_iter().chain(changes));
        }
    }
    align_numbers(&mut grid, 2);
    set_gap(&mut grid, 1);
    grid.trim_fmt()
}

/// Blank for a small change, [`number::ABSENT`] for an undefined one.
fn change(cell: &AblatedCell, column: Column) -> String {
    match cell.changes.iter().find(|(changed, _)| *changed == column) {
        None => number::ABSENT.to_owned(),
        Some((_, change)) if !change.is_finite() => number::ABSENT.to_owned(),
        Some((_, change)) if change.abs() < SHOWN_MIN => String::new(),
        Some((_, change)) => format!("{:+.0}", 100.0 * change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_sim::Load;

    fn cell(without: Ablation, changes: &[(Column, f64)]) -> AblatedCell {
        AblatedCell { without, mode: "base".parse().unwrap(), load: Load::Max, changes: changes.to_vec() }
    }

    #[test]
    fn parts_without_effect_are_listed() {
        let cells = [
            cell(Ablation::FinalPoll, &[(Column::Qps, 0.01), (Column::P99, -0.019)]),
            cell(Ablation::BatchCost, &[(Column::Qps, 0.12)]),
        ];
        assert!(!changes_figures(Ablation::FinalPoll, &cells) && changes_figures(Ablation::BatchCost, &cells));
        let shown = render("a host", &cells, Terminal::PIPE);
        assert!(shown.contains("No effect in these cells: final poll, interference"), "{shown}");
    }

    #[test]
    fn small_changes_are_blank_and_undefined_ones_absent() {
        let cell = cell(Ablation::BatchCost, &[(Column::Qps, 0.123), (Column::P50, 0.01)]);
        let shown = [Column::Qps, Column::P50, Column::Irqs].map(|column| change(&cell, column));
        assert_eq!(shown, ["+12", "", number::ABSENT]);
    }
}
