//! Tables for the terminal: aligned columns without lines, as wide as their content.

use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use textwrap::core::display_width;

use crate::terminal::Terminal;

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

/// A table that fits the terminal: if it is too wide, its columns are in several tables below each other, each with the
/// columns that name the rows.
#[derive(Debug, Clone)]
pub struct Grid {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    names: usize,
    numbers: Range<usize>,
    gap: Option<u16>,
}

impl Grid {
    /// The first `names` columns name the rows. The others have numbers, which are aligned to the right.
    pub fn new(head: impl IntoIterator<Item = impl Into<String>>, names: usize) -> Self {
        let head = head.into_iter().map(Into::into).collect();
        Self { head, rows: Vec::new(), names, numbers: names..usize::MAX, gap: None }
    }

    /// The same with numbers in these columns only.
    #[must_use]
    pub fn with_numbers(self, numbers: Range<usize>) -> Self {
        Self { numbers, ..self }
    }

    /// The same with `blanks` between columns, and none before the first.
    #[must_use]
    pub fn with_gap(self, blanks: u16) -> Self {
        Self { gap: Some(blanks), ..self }
    }

    pub fn push(&mut self, row: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Lines of the table.
    #[must_use]
    pub fn render(&self, terminal: Terminal) -> String {
        let fits = |part: &str| part.lines().all(|line| terminal.fits(display_width(line)));
        let mut parts = Vec::new();
        let (mut columns, mut part) = (Vec::new(), self.part(&[]));
        for column in self.names..self.head.len() {
            let wider = self.part(&[&columns[..], &[column]].concat());
            if !columns.is_empty() && !fits(&wider) {
                parts.push(part);
                columns = vec![column];
                part = self.part(&columns);
            } else {
                columns.push(column);
                part = wider;
            }
        }
        parts.push(part);
        parts.join("\n")
    }

    /// The names and these columns.
    fn part(&self, columns: &[usize]) -> String {
        let shown: Vec<usize> = (0..self.names).chain(columns.iter().copied()).collect();
        let of = |row: &Vec<String>| shown.iter().filter_map(|at| row.get(*at).cloned()).collect::<Vec<_>>();
        let mut table = new_table();
        table.set_header(of(&self.head)).add_rows(self.rows.iter().map(of));
        for (at, column) in shown.iter().zip(table.column_iter_mut()) {
            if self.numbers.contains(at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        if let Some(blanks) = self.gap {
            set_gap(&mut table, blanks);
        }
        lines(&table)
    }
}

/// Legend of columns: their names with their meanings, two in a line if the terminal has room.
#[must_use]
pub fn legend(meanings: &[(&str, &str)], terminal: Terminal) -> String {
    let width = |texts: &mut dyn Iterator<Item = &str>| texts.map(display_width).max().unwrap_or(0);
    let name = width(&mut meanings.iter().map(|(name, _)| *name));
    let (left, right) = meanings.split_at(meanings.len().div_ceil(2));
    let meaning = width(&mut left.iter().map(|(_, meaning)| *meaning));
    let beside = width(&mut right.iter().map(|(_, meaning)| *meaning));
    let in_two = Terminal { columns: Some(terminal.prose_columns()), ..terminal };
    if in_two.fits(2 + name + 2 + meaning + 2 + name + 2 + beside) {
        let line = |at: usize| {
            let (first, means) = left[at];
            let other = right.get(at).map(|(other, means)| format!("{other:<name$}  {means}")).unwrap_or_default();
            format!("  {first:<name$}  {means:<meaning$}  {other}").trim_end().to_owned() + "\n"
        };
        return (0..left.len()).map(line).collect();
    }
    let rest = " ".repeat(2 + name + 2);
    meanings.iter().map(|(one, means)| terminal.fill(means, &format!("  {one:<name$}  "), &rest) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_is_split_into_tables_with_the_names_of_the_rows() {
        let mut grid = Grid::new(["mode", "p50", "p99", "state"], 1).with_numbers(1..3).with_gap(2);
        grid.push(["base", "1,234", "56,789", "alive"]);
        grid.push(["suspend20", "9", "10", "dropped"]);
        let whole =
            "mode         p50     p99  state\nbase       1,234  56,789  alive\nsuspend20      9      10  dropped\n";
        assert_eq!(grid.render(Terminal::of_columns(80)), whole);
        assert_eq!(grid.render(Terminal::PIPE), whole);
        let split = "mode         p50     p99\nbase       1,234  56,789\nsuspend20      9      10\n\nmode       state\nbase       alive\nsuspend20  dropped\n";
        assert_eq!(grid.render(Terminal::of_columns(30)), split);
        assert_eq!(grid.render(Terminal::of_columns(5)).matches("mode").count(), 3, "a column is never split");
    }

    #[test]
    fn a_legend_has_two_columns_if_there_is_room() {
        let meanings = [("qps", "requests per second"), ("p50", "median latency, µs"), ("cpu%", "CPU utilization")];
        let two = "  qps   requests per second  cpu%  CPU utilization\n  p50   median latency, µs\n";
        assert_eq!(legend(&meanings, Terminal::of_columns(60)), two);
        let one = "  qps   requests per second\n  p50   median latency, µs\n  cpu%  CPU utilization\n";
        assert_eq!(legend(&meanings, Terminal::of_columns(40)), one);
    }
}
