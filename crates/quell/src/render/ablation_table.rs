//! What each part of the model moves: a row for each part and cell, a column for each figure, changes in percent.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quell_sim::Column;
use quell_sim_study::ablation::{AblatedCell, Ablation};

use super::number;
use super::terminal::Terminal;

/// A figure that changes by less is not moved.
const MOVED: f64 = 0.02;

/// The table, and which parts move nothing.
#[must_use]
pub(crate) fn render(host: &str, cells: &[AblatedCell], terminal: Terminal) -> String {
    let header = format!("model of {host} without one of its parts: changes of {:.0} % and more", 100.0 * MOVED);
    let idle: Vec<&str> = Ablation::ALL.into_iter().filter(|part| !moves(*part, cells)).map(Ablation::name).collect();
    let note = if idle.is_empty() {
        "Every part moves a figure.".to_owned()
    } else {
        format!("In these cells nothing is moved by: {}.", idle.join(", "))
    };
    let [header, note] = [header, note].map(|text| textwrap::fill(&text, terminal.prose_columns()));
    format!("{header}\n\n{}\n\n{note}\n", grid(cells))
}

fn moves(part: Ablation, cells: &[AblatedCell]) -> bool {
    let of_part = cells.iter().filter(|cell| cell.without == part);
    of_part.flat_map(|cell| &cell.changes).any(|(_, change)| change.abs() >= MOVED)
}

fn grid(cells: &[AblatedCell]) -> String {
    let mut grid = Table::new();
    grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let headings = Column::ALL.map(super::sim_rows::heading);
    grid.set_header(["without", "mode", "load"].into_iter().chain(headings));
    for part in Ablation::ALL {
        for (index, cell) in cells.iter().filter(|cell| cell.without == part).enumerate() {
            let name = if index == 0 { part.name() } else { "" };
            let changes = Column::ALL.map(|column| change(cell, column));
            grid.add_row([name.to_owned(), cell.mode.to_string(), cell.load.to_string()].into_iter().chain(changes));
        }
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        column.set_cell_alignment(if index < 2 { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding(if index == 0 { (0, 0) } else { (1, 0) });
    }
    grid.trim_fmt()
}

/// Blank where it is not moved, absent where there was nothing that could change.
fn change(cell: &AblatedCell, column: Column) -> String {
    match cell.changes.iter().find(|(changed, _)| *changed == column) {
        None => number::ABSENT.to_owned(),
        Some((_, change)) if !change.is_finite() => number::ABSENT.to_owned(),
        Some((_, change)) if change.abs() < MOVED => String::new(),
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
    fn a_part_that_moves_nothing_is_named() {
        let cells = [
            cell(Ablation::FinalPoll, &[(Column::Qps, 0.01), (Column::P99, -0.019)]),
            cell(Ablation::BatchCost, &[(Column::Qps, 0.12)]),
        ];
        assert!(!moves(Ablation::FinalPoll, &cells) && moves(Ablation::BatchCost, &cells));
        let shown = render("a host", &cells, Terminal { columns: None, colour: false });
        assert!(shown.contains("moved by: final poll, interference"), "{shown}");
    }

    #[test]
    fn small_changes_are_blank_and_what_was_zero_is_absent() {
        let cell = cell(Ablation::BatchCost, &[(Column::Qps, 0.123), (Column::P50, 0.01)]);
        let shown = [Column::Qps, Column::P50, Column::Irqs].map(|column| change(&cell, column));
        assert_eq!(shown, ["+12", "", number::ABSENT]);
    }
}
