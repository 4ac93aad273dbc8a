//! Tables for the terminal: aligned columns without lines, as wide as their content.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// An empty table, with a blank on both sides of each column.
pub fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Aligns the columns after the first `names` to the right.
pub fn align_numbers(table: &mut Table, names: usize) {
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Puts `blanks` between columns, and none before the first.
pub fn set_gap(table: &mut Table, blanks: u16) {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding(if index == 0 { (0, 0) } else { (blanks, 0) });
    }
}

/// Lines of a table, without trailing blanks.
pub fn lines(table: &Table) -> String {
    table.trim_fmt() + "\n"
}
