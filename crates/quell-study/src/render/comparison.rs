//! A published experiment compared with the model: every figure as published and as modelled with its error, then a
//! summary.

use comfy_table::{Attribute, Cell as GridCell, CellAlignment, Color};
use quell_study::published::{Cell, ErrorKind, ExperimentComparison, Summary};

use quell_cli::number;
use quell_cli::table::{align_numbers, new_table, set_gap};
use quell_cli::terminal::Terminal;

/// Table width if the terminal's width is unknown.
const COLUMNS: usize = 120;
const COLUMNS_MIN: usize = 60;

#[must_use]
pub(crate) fn render(comparison: &ExperimentComparison, terminal: Terminal) -> String {
    let width = terminal.columns.unwrap_or(COLUMNS).max(COLUMNS_MIN);
    let prose = |text: &str| textwrap::fill(text, textwrap::Options::new(width).subsequent_indent("  "));
    let header = format!(
        "({}) {}\n{}\nmodel of {}\n",
        comparison.experiment,
        prose(comparison.title),
        prose(&format!("published: {}", comparison.source)),
        comparison.host
    );
    let tables: Vec<String> =
        sections(&comparison.cells, width).iter().map(|columns| grid(&comparison.cells, columns, terminal)).collect();
    let notes: String = comparison.notes.iter().map(|note| prose(note) + "\n").collect();
    let summary = summary(&comparison.summary, terminal);
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    let legend = textwrap::fill(LEGEND, width);
    format!("{header}\n{}\n\n{legend}\n\n{summary}{notes}", tables.join("\n\n"))
}

const LEGEND: &str = concat!(
    "Each figure as published, as modelled, and the error; (in brackets) if the summary excludes it: training modes ",
    "of the fit, trivial cells, cells whose published runs disagree. ! marks errors above the target. Figures of several ",
    "seeds are medians; ± is half of the distance between the lowest and the highest. / base: relative to base at the same load.",
);

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Splits the columns into tables that fit the width.
fn sections(cells: &[Cell], width: usize) -> Vec<Vec<&str>> {
    let columns = distinct(cells.iter().map(|cell| cell.column.as_str()));
    let plain = Terminal::PIPE;
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for column in columns {
        if let Some(section) = sections.last_mut() {
            section.push(column);
            if width_of(&grid(cells, section, plain)) <= width {
                continue;
            }
            section.pop();
        }
        sections.push(vec![column]);
    }
    sections
}

fn width_of(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

fn grid(cells: &[Cell], columns: &[&str], terminal: Terminal) -> String {
    let mut grid = new_table();
    if terminal.colour {
        grid.enforce_styling();
    }
    grid.set_header(std::iter::once("").chain(columns.iter().flat_map(|column| [*column, "model", "error"])));
    for row in distinct(cells.iter().map(|cell| cell.row.as_str())) {
        let figures = columns.iter().flat_map(|column| {
            let cell = cells.iter().find(|cell| cell.row == row && cell.column == *column);
            cell.map_or_else(|| [number::ABSENT; 3].map(GridCell::new), |cell| figure(cell, terminal))
        });
        grid.add_row(std::iter::once(GridCell::new(row)).chain(figures));
    }
    align_numbers(&mut grid, 1);
    set_gap(&mut grid, 1);
    for published in grid.column_iter_mut().skip(1).step_by(3) {
        published.set_padding((3, 0));
    }
    grid.trim_fmt()
}

fn figure(cell: &Cell, terminal: Terminal) -> [GridCell; 3] {
    let published = GridCell::new(number::short(cell.published));
    let spread = cell.spread.map(|(low, high)| (high - low) / 2.0).filter(|half| *half > 0.0);
    let spread = spread.map_or_else(String::new, |half| format!("±{}", number::short(half)));
    let modelled = GridCell::new(number::short(cell.modelled) + &spread);
    let mut error = GridCell::new(error(cell));
    if terminal.colour && cell.is_beyond() {
        error = error.fg(Color::Red).add_attribute(Attribute::Bold);
    } else if terminal.colour && !cell.scored {
        error = error.add_attribute(Attribute::Dim);
    }
    [published, modelled, error]
}

fn error(cell: &Cell) -> String {
    let error = match cell.error_kind {
        _ if !cell.error.is_finite() => number::ABSENT.to_owned(),
        ErrorKind::Relative => format!("{:+.0}%", cell.error * 100.0),
        ErrorKind::Difference => format!("{:+.2}", cell.error),
    };
    match (cell.scored, cell.is_beyond()) {
        (false, _) => format!("({error})"),
        (true, true) => format!("{error}!"),
        (true, false) => format!("{error} "),
    }
}

fn summary(lines: &[Summary], terminal: Terminal) -> String {
    let mut grid = new_table();
    if terminal.colour {
        grid.enforce_styling();
    }
    for line in lines {
        let value = |value: f64| match line.error_kind {
            ErrorKind::Relative => format!("{:.1} %", value * 100.0),
            ErrorKind::Difference => format!("{value:.2}"),
        };
        let wanted = line.bound.map_or_else(String::new, |bound| format!("target: at most {}", value(bound)));
        grid.add_row([
            GridCell::new(&line.what),
            GridCell::new(value(line.value)),
            GridCell::new(wanted),
            met(line, terminal),
        ]);
    }
    grid.column_iter_mut().skip(1).take(1).for_each(|value| value.set_cell_alignment(CellAlignment::Right));
    set_gap(&mut grid, 3);
    grid.trim_fmt() + "\n"
}

fn met(line: &Summary, terminal: Terminal) -> GridCell {
    let (text, colour) = match line.met() {
        None => return GridCell::new(""),
        Some(true) => ("met", Color::Green),
        Some(false) => ("missed", Color::Red),
    };
    if terminal.colour { GridCell::new(text).fg(colour) } else { GridCell::new(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_published::Experiment;

    fn cell(row: &str, column: &str, modelled: f64, scored: bool) -> Cell {
        Cell {
            row: row.into(),
            column: column.into(),
            published: 100.0,
            modelled,
            spread: None,
            error_kind: ErrorKind::Relative,
            error: modelled / 100.0 - 1.0,
            scored,
            bound: Some(0.1),
        }
    }

    fn comparison() -> ExperimentComparison {
        let (met, missed) = (Some(0.2), Some(0.05));
        let line =
            |what: &str, bound| Summary { what: what.into(), value: 0.1, error_kind: ErrorKind::Relative, bound };
        let of_difference = Summary { error_kind: ErrorKind::Difference, value: 1.25, ..line("p50, µs", None) };
        ExperimentComparison {
            experiment: Experiment::A,
            title: "memcached",
            source: "a list",
            host: "a host".into(),
            cells: vec![
                cell("base 200K", "mean us", 105.0, false),
                cell("base 200K", "p99 us", 250.0, true),
                cell("suspend20 200K", "mean us", 93.0, true),
            ],
            summary: vec![line("mean us: median", met), line("p99 us: median", missed), of_difference],
            notes: vec!["base 200K: noisy".into()],
        }
    }

    #[test]
    fn figures_are_shown_side_by_side_and_large_errors_are_marked() {
        let shown = render(&comparison(), Terminal::PIPE);
        let line = |start: &str| {
            let line = shown.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("base 200K  "), "base 200K 100 105 (+5%) 100 250 +150%!");
        assert_eq!(line("suspend20"), "suspend20 200K 100 93.0 -7% – – –");
        assert_eq!(line("mean us: median"), "mean us: median 10.0 % target: at most 20.0 % met");
        assert_eq!(line("p99 us: median"), "p99 us: median 10.0 % target: at most 5.0 % missed");
        assert_eq!(line("p50, µs"), "p50, µs 1.25");
        assert!(shown.ends_with("base 200K: noisy\n") && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn colors_are_for_terminals_and_do_not_shift_columns() {
        let terminal = Terminal { colour: true, ..Terminal::of_columns(120) };
        let coloured = render(&comparison(), terminal);
        assert!(coloured.contains('\u{1b}'));
        let mut plain = String::new();
        let mut letters = coloured.chars();
        while let Some(letter) = letters.next() {
            if letter == '\u{1b}' {
                letters.by_ref().find(|letter| *letter == 'm');
            } else {
                plain.push(letter);
            }
        }
        let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(trimmed(&plain), trimmed(&render(&comparison(), Terminal::PIPE)));
    }

    #[test]
    fn tables_are_as_wide_as_the_terminal_and_no_wider() {
        let columns = ["mean us", "p50 us", "p95 us", "p99 us", "cpu %", "polls/s/queue"];
        let cells: Vec<Cell> = columns.iter().map(|column| cell("suspend200 1000K", column, 123_456.0, true)).collect();
        for width in [80, 120, 160] {
            let tables = sections(&cells, width);
            assert!(tables.iter().all(|columns| width_of(&grid(&cells, columns, Terminal::PIPE)) <= width));
            assert_eq!(tables.concat(), columns);
        }
        assert!(sections(&cells, 160).len() < sections(&cells, 80).len());
    }
}
